// SPDX-License-Identifier: Apache-2.0
#include "daemon/log.h"

#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstdarg>
#include <cstdio>
#include <cstdlib>
#include <map>
#include <mutex>
#include <utility>

#include "daemon/clock.h"

namespace powerccl::daemon {
namespace {

std::atomic<int> g_level{kInfo};

constexpr int64_t kSecondNs = 1'000'000'000;
constexpr int64_t kReportNs = 10 * kSecondNs;  // from the last line left out until the sum is written
constexpr size_t kMostBuckets = 4096;

// Lines that may come in a burst, and from then on one each so many seconds. Invalid messages are a fault of the
// sender's program, and a few lines are enough to show it. A job of 128 ranks writes a line as each lease begins and
// ends. Half of that burst would hide leases of jobs that do nothing wrong.
struct Limit {
  const char* name;
  double burst, seconds_a_line;
};
constexpr Limit kLimits[kTopics] = {
    {"messages not of the protocol", 10, 10}, {"connections", 10, 10}, {"leases", 512, 0.2}, {"clocks", 64, 1}};

struct Bucket {
  double lines = 0;  // that may be written now
  int64_t filled_ns = 0;
  uint64_t left_out = 0;
  int64_t left_out_ns = 0;  // the last one
};

std::mutex g_mutex;
std::map<std::pair<uint32_t, int>, Bucket> g_buckets;
std::atomic<int64_t> g_report_ns{INT64_MAX};

void write_line(Level level, const char* format, std::va_list arguments) __attribute__((format(printf, 2, 0)));
void write_line(Level level, const char* format, std::va_list arguments) {
  static const bool for_journal = std::getenv("JOURNAL_STREAM") != nullptr;
  char line[1024];
  const int prefix = for_journal ? std::snprintf(line, sizeof line, "<%d>", static_cast<int>(level))
                                 : std::snprintf(line, sizeof line, "powerccld: ");
  const int length = std::vsnprintf(line + prefix, sizeof line - prefix - 1, format, arguments);
  size_t end = std::min<size_t>(prefix + std::max(length, 0), sizeof line - 2);
  std::replace_if(
      line + prefix, line + end, [](char c) { return static_cast<unsigned char>(c) < ' ' || c == '\x7f'; }, '?');
  line[end++] = '\n';
  if (write(STDERR_FILENO, line, end) < 0) return;
}

bool may_write(uint32_t uid, Topic topic) {
  const Limit& limit = kLimits[static_cast<int>(topic)];
  const int64_t now = now_ns();
  const std::lock_guard lock(g_mutex);
  // A bucket that is full again says nothing that a new one does not.
  if (g_buckets.size() >= kMostBuckets)
    std::erase_if(g_buckets, [&](const auto& entry) {
      const Limit& of_entry = kLimits[entry.first.second];
      return entry.second.left_out == 0 &&
             static_cast<double>(now - entry.second.filled_ns) / kSecondNs > of_entry.burst * of_entry.seconds_a_line;
    });
  const auto [place, fresh] = g_buckets.try_emplace({uid, static_cast<int>(topic)});
  Bucket& bucket = place->second;
  if (fresh) {
    bucket.lines = limit.burst;
    bucket.filled_ns = now;
  }
  const double seconds = static_cast<double>(now - bucket.filled_ns) / kSecondNs;
  bucket.lines = std::min(limit.burst, bucket.lines + seconds / limit.seconds_a_line);
  bucket.filled_ns = now;
  if (bucket.lines < 1) {
    ++bucket.left_out;
    bucket.left_out_ns = now;
    if (g_report_ns.load() == INT64_MAX) g_report_ns.store(now + kReportNs);
    return false;
  }
  bucket.lines -= 1;
  return true;
}

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
  std::va_list arguments;
  va_start(arguments, format);
  write_line(level, format, arguments);
  va_end(arguments);
}

void log_for(uint32_t uid, Topic topic, Level level, const char* format, ...) {
  if (level > g_level.load(std::memory_order_relaxed) || !may_write(uid, topic)) return;
  std::va_list arguments;
  va_start(arguments, format);
  write_line(level, format, arguments);
  va_end(arguments);
}

int64_t left_out_due_ns() {
  return g_report_ns.load(std::memory_order_relaxed);
}

void write_left_out(int64_t now) {
  int64_t next = INT64_MAX;
  const std::lock_guard lock(g_mutex);
  for (auto& [key, bucket] : g_buckets) {
    if (bucket.left_out == 0) continue;
    if (now - bucket.left_out_ns < kReportNs) {
      next = std::min(next, bucket.left_out_ns + kReportNs);
      continue;
    }
    log(kWarning, "user %u: %llu more lines about %s were suppressed", key.first,
        static_cast<unsigned long long>(std::exchange(bucket.left_out, 0)), kLimits[key.second].name);
  }
  g_report_ns.store(next);
}

}  // namespace powerccl::daemon
