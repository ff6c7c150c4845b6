// SPDX-License-Identifier: Apache-2.0
#include "daemon/log.h"

#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstdarg>
#include <cstdio>
#include <cstdlib>

namespace powerccl::daemon {
namespace {

std::atomic<int> g_level{kInfo};

}  // namespace

bool parse_level(const std::string& name, int* level) {
  if (name == "error")
    *level = kError;
  else if (name == "warning")
    *level = kWarning;
  else if (name == "info")
    *level = kInfo;
  else if (name == "debug")
    *level = kDebug;
  else
    return false;
  return true;
}

void set_log_level(int level) {
  g_level.store(level);
}

void log(Level level, const char* format, ...) {
  if (level > g_level.load(std::memory_order_relaxed)) return;
  static const bool for_journal = std::getenv("JOURNAL_STREAM") != nullptr;
  char line[1024];
  const int prefix = for_journal ? std::snprintf(line, sizeof line, "<%d>", static_cast<int>(level))
                                 : std::snprintf(line, sizeof line, "powerccld: ");
  std::va_list arguments;
  va_start(arguments, format);
  const int length = std::vsnprintf(line + prefix, sizeof line - prefix - 1, format, arguments);
  va_end(arguments);
  size_t end = std::min<size_t>(prefix + std::max(length, 0), sizeof line - 2);
  std::replace_if(
      line + prefix, line + end, [](char c) { return static_cast<unsigned char>(c) < ' ' || c == '\x7f'; }, '?');
  line[end++] = '\n';
  if (write(STDERR_FILENO, line, end) < 0) return;
}

}  // namespace powerccl::daemon
