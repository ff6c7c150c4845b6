// SPDX-License-Identifier: Apache-2.0
// Lines on stderr: `powerccl: ...`, and `hint: ...` where something can be done. One write(2) a message, so that the
// lines of several ranks do not mix.
#pragma once
#include <stddef.h>

namespace powerccl {

// Where the lines go; file descriptor 2 unless a test wants to read them.
void log_to(int descriptor);

// `hint` may be null.
void say(const char* hint, const char* format, ...) __attribute__((format(printf, 2, 3)));

// strerror, thread-safe; returns text in `buffer` or constant text.
const char* error_text(int error, char* buffer, size_t size);

}  // namespace powerccl
