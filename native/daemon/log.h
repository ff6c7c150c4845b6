// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <string>

namespace powerccl::daemon {

enum Level : int { kError = 3, kWarning = 4, kInfo = 6, kDebug = 7 };  // syslog's numbers

bool parse_level(const std::string& name, int* level);
void set_log_level(int level);

// One line on standard error: "powerccld: ..." at a terminal, "<6>..." where journald reads along. Text of other
// processes is made harmless: control characters become '?'.
void log(Level level, const char* format, ...) __attribute__((format(printf, 2, 3)));

}  // namespace powerccl::daemon
