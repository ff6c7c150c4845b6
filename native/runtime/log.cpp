// SPDX-License-Identifier: Apache-2.0
#include "runtime/log.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include <atomic>

namespace powerccl {
namespace {
std::atomic<int> g_descriptor{2};
}

void log_to(int descriptor) {
  g_descriptor.store(descriptor, std::memory_order_relaxed);
}

const char* error_text(int error, char* buffer, size_t size) {
  return strerror_r(error, buffer, size);
}

void say(const char* hint, const char* format, ...) {
  char text[1024];
  const int room = sizeof(text);
  int length = snprintf(text, room, "powerccl: ");
  va_list arguments;
  va_start(arguments, format);
  length += vsnprintf(text + length, room - length, format, arguments);
  va_end(arguments);
  if (length > room - 2) length = room - 2;
  text[length++] = '\n';
  if (hint != nullptr && *hint != '\0' && length < room - 8) {
    length += snprintf(text + length, room - length, "hint: %s", hint);
    if (length > room - 2) length = room - 2;
    text[length++] = '\n';
  }
  // A closed or full stderr is the user's choice; there is nobody else to tell.
  [[maybe_unused]] ssize_t written = write(g_descriptor.load(std::memory_order_relaxed), text, length);
}

}  // namespace powerccl
