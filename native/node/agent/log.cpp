// SPDX-License-Identifier: Apache-2.0
#include "agent/log.h"

#include <unistd.h>

#include <algorithm>
#include <cstdarg>
#include <cstdio>

#include "device/error.h"

namespace powerccl::agent {

void say(const char* format, ...) {
  char line[1024];
  int prefix = std::snprintf(line, sizeof line, "powerccl-agent: ");
  std::va_list arguments;
  va_start(arguments, format);
  int length = std::vsnprintf(line + prefix, sizeof line - prefix - 1, format, arguments);
  va_end(arguments);
  size_t end = std::min<size_t>(prefix + std::max(length, 0), sizeof line - 2);
  line[end++] = '\n';
  if (write(STDERR_FILENO, line, end) < 0) return;
}

const char* hint_line(int code) {
  thread_local char line[256];
  const char* text = device::hint(code);
  std::snprintf(line, sizeof line, "%s%s", *text ? "\nhint: " : "", text);
  return line;
}

}  // namespace powerccl::agent
