// SPDX-License-Identifier: Apache-2.0
#pragma once

namespace powerccl::agent {

// One line "powerccl-agent: ..." on standard error, written whole so that lines of several processes do not mix. A
// reader that has gone away is no reason to stop.
void say(const char* format, ...) __attribute__((format(printf, 1, 2)));

// "\nhint: <what to do>" for a code of native/node/device, or "".
const char* hint_line(int code);

}  // namespace powerccl::agent
