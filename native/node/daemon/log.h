// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <cstdint>
#include <string>

namespace powerccl::daemon {

enum Level : int { kError = 3, kWarning = 4, kInfo = 6, kDebug = 7 };  // syslog's numbers

bool parse_level(const std::string& name, int* level);
void set_log_level(int level);

// One line on standard error: "powerccld: ..." at a terminal, "<6>..." where journald reads along. Text of other
// processes is made harmless: control characters become '?'.
void log(Level level, const char* format, ...) __attribute__((format(printf, 2, 3)));

// What a user's requests can have written, limited for each user and kind.
enum class Topic : int { kMessages, kSessions, kLeases, kClocks };
inline constexpr int kTopics = 4;

// As log, for a line that a user's request brings about. Above the topic's limit lines are counted instead of written.
void log_for(uint32_t uid, Topic topic, Level level, const char* format, ...) __attribute__((format(printf, 4, 5)));

// When write_left_out() is due; INT64_MAX: no line was left out.
int64_t left_out_due_ns();
// Writes how many lines were left out, once for each user and topic that has been quiet for a while.
void write_left_out(int64_t now_ns);

}  // namespace powerccl::daemon
