// SPDX-License-Identifier: Apache-2.0
#include "emulator/nccl/log.h"

#include <strings.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cstdarg>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <mutex>

namespace powerccl::emulated_nccl {
namespace {

int debug_level() {
  static const int level = [] {
    const char* value = getenv("NCCL_DEBUG");
    if (!value) return kLogNone;
    if (strcasecmp(value, "VERSION") == 0) return kLogVersion;
    if (strcasecmp(value, "WARN") == 0) return kLogWarn;
    if (strcasecmp(value, "INFO") == 0) return kLogInfo;
    if (strcasecmp(value, "TRACE") == 0) return kLogTrace;
    return kLogNone;
  }();
  return level;
}

std::mutex last_error_mutex;
char last_error_text[1024];

// One write a line, so that lines of several ranks do not mix.
void print(const char* level, const char* text) {
  char host[64] = "";
  gethostname(host, sizeof host - 1);
  char line[1200];
  int length = snprintf(line, sizeof line, "%s:%d:%ld [emulated] NCCL %s %s\n", host, getpid(), syscall(SYS_gettid),
                        level, text);
  if (length >= static_cast<int>(sizeof line)) length = sizeof line - 1;
  [[maybe_unused]] ssize_t written = write(STDERR_FILENO, line, static_cast<size_t>(length));
}

void put(const char* word, bool keep, bool show, const char* format, va_list arguments) {
  if (!keep && !show) return;
  char text[1024];
  vsnprintf(text, sizeof text, format, arguments);
  if (keep) {
    std::lock_guard lock(last_error_mutex);
    snprintf(last_error_text, sizeof last_error_text, "%s", text);
  }
  if (show) print(word, text);
}

}  // namespace

void log(int level, unsigned long, const char*, int, const char* format, ...) {
  va_list arguments;
  va_start(arguments, format);
  put(level == kLogWarn ? "WARN" : "INFO", level == kLogWarn, level <= debug_level(), format, arguments);
  va_end(arguments);
}

void warn(const char* format, ...) {
  va_list arguments;
  va_start(arguments, format);
  put("WARN", true, debug_level() >= kLogWarn, format, arguments);
  va_end(arguments);
}

void info(const char* format, ...) {
  va_list arguments;
  va_start(arguments, format);
  put("INFO", false, debug_level() >= kLogInfo, format, arguments);
  va_end(arguments);
}

void error(const char* format, ...) {
  va_list arguments;
  va_start(arguments, format);
  put("ERROR", true, true, format, arguments);
  va_end(arguments);
}

// NCCL returns a pointer that stays valid while another thread fails: a copy per thread.
const char* last_error() {
  thread_local char copy[sizeof last_error_text];
  std::lock_guard lock(last_error_mutex);
  memcpy(copy, last_error_text, sizeof copy);
  return copy;
}

}  // namespace powerccl::emulated_nccl
