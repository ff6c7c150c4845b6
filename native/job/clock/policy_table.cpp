// SPDX-License-Identifier: Apache-2.0
#include "clock/policy_table.h"

#include <errno.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

#include <charconv>

#include "base/basics.h"
#include "base/log.h"
#include "libc/calls.h"
#include "record/patterns.h"

namespace powerccl {

namespace {

// A word of the table for a message: cut, printable, and terminated.
struct Shown {
  char text[41];
  explicit Shown(std::string_view word) {
    const size_t length = word.size() < sizeof(text) ? word.size() : sizeof(text) - 1;
    for (size_t i = 0; i < length; ++i) text[i] = word[i] >= ' ' && word[i] <= '~' ? word[i] : '?';
    text[length] = '\0';
  }
};

}  // namespace

class PolicyTable::Parser {
 public:
  Parser(PolicyTable* table, Refusal* refusal) : table_(*table), refusal_(*refusal) {}

  bool run(std::string_view text) {
    refusal_ = Refusal();
    if (text.size() > kMaxFileBytes) return refuse("the file is larger than %u bytes", kMaxFileBytes);
    if (text.find('\0') != std::string_view::npos) return refuse("the file is not text");
    while (!text.empty()) {
      ++refusal_.line;
      const size_t newline = text.find('\n');
      if (newline == std::string_view::npos) return refuse("the last line has no newline: the file is incomplete");
      if (!take({text.begin(), text.begin() + newline})) return false;
      text.remove_prefix(newline + 1);
    }
    if (!ended_) return refuse("no `end` line: the file is incomplete");
    refusal_ = Refusal();
    return true;
  }

 private:
  bool refuse(const char* format, ...) __attribute__((format(printf, 2, 3))) {
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(refusal_.reason, sizeof(refusal_.reason), format, arguments);
    va_end(arguments);
    return false;
  }

  // The next word of the line; empty if there is none.
  static std::string_view word(std::string_view* line) {
    const size_t begin = line->find_first_not_of(' ');
    if (begin == std::string_view::npos) {
      *line = {};
      return {};
    }
    line->remove_prefix(begin);
    const size_t end = line->find(' ') == std::string_view::npos ? line->size() : line->find(' ');
    const std::string_view first(line->begin(), line->begin() + end);
    line->remove_prefix(end);
    return first;
  }

  template <typename Number>
  bool number(std::string_view* line, const char* what, Number most, Number* value) {
    const std::string_view text = word(line);
    const auto parsed = std::from_chars(text.begin(), text.end(), *value);
    if (text.empty() || parsed.ec != std::errc() || parsed.ptr != text.end() || *value > most) {
      return refuse("%s is not a whole number in range: `%s`", what, Shown(text).text);
    }
    return true;
  }

  bool nothing_follows(std::string_view line) {
    const std::string_view rest = word(&line);
    return rest.empty() || refuse("unexpected `%s` at the end of the line", Shown(rest).text);
  }

  bool text_value(std::string_view line, const char* what, char* to, size_t size) {
    while (!line.empty() && line.front() == ' ') line.remove_prefix(1);
    while (!line.empty() && line.back() == ' ') line.remove_suffix(1);
    if (line.empty() || line.size() >= size) return refuse("%s takes 1 to %zu characters", what, size - 1);
    if (to[0] != '\0') return refuse("a second `%s` line", what);
    memcpy(to, line.data(), line.size());
    to[line.size()] = '\0';
    return true;
  }

  bool take(std::string_view line) {
    if (line.size() > kMaxLineLength) return refuse("longer than %d characters", kMaxLineLength);
    for (const char c : line) {
      if (static_cast<unsigned char>(c) < ' ') return refuse("a control character in the line");
    }
    if (line.find_first_not_of(' ') == std::string_view::npos || line.front() == '#') return true;
    if (ended_) return refuse("`end` must be the last line");
    const std::string_view keyword = word(&line);
    if (!begun_) {
      uint32_t version = 0;
      if (keyword != "powerccl-policy-table") return refuse("the first line must be `powerccl-policy-table 1`");
      if (!number(&line, "the version", UINT32_MAX, &version)) return false;
      if (version != 1) return refuse("unknown table version %u; this PowerCCL reads version 1", version);
      begun_ = true;
      return nothing_follows(line);
    }
    if (keyword == "end") return take_end(line);
    if (++lines_ > kMaxLines) return refuse("more than %d lines", kMaxLines);
    if (keyword == "platform") return text_value(line, "platform", table_.platform_, sizeof(table_.platform_));
    if (keyword == "gpu") return text_value(line, "gpu", table_.gpu_, sizeof(table_.gpu_));
    if (keyword == "gpus") return take_count(line, "gpus", 1u << 20, &table_.gpus_);
    if (keyword == "clock_max_mhz") return take_count(line, "clock_max_mhz", 100000u, &table_.clock_max_mhz_);
    if (keyword == "clock_min_mhz") return take_count(line, "clock_min_mhz", 100000u, &clock_min_mhz_);
    if (keyword == "switch_call_us") return take_count(line, "switch_call_us", 10000000u, &switch_call_us_);
    if (keyword == "switch_transition_us") {
      return take_count(line, "switch_transition_us", 10000000u, &switch_transition_us_);
    }
    if (keyword == "overhead_bytes") return take_overhead(line);
    if (keyword == "min_clock_mhz") return take_range(line);
    return refuse("unknown keyword `%s`", Shown(keyword).text);
  }

  bool take_count(std::string_view line, const char* what, uint32_t most, uint32_t* value) {
    if (*value != 0) return refuse("a second `%s` line", what);
    if (!number(&line, what, most, value)) return false;
    return *value == 0 ? refuse("%s must be above 0", what) : nothing_follows(line);
  }

  bool take_pattern(std::string_view* line, uint8_t* pattern) {
    const std::string_view name = word(line);
    *pattern = pattern_by_name(name);
    return *pattern != POWERCCL_PATTERN_UNKNOWN || refuse("unknown pattern `%s`", Shown(name).text);
  }

  bool take_overhead(std::string_view line) {
    uint8_t pattern;
    if (!take_pattern(&line, &pattern)) return false;
    Pattern& entry = table_.patterns_[pattern];
    if (entry.named) return refuse("a second `overhead_bytes` line for %s", pattern_name(pattern));
    entry.named = true;
    std::string_view rest = line;
    if (word(&rest) == "never") return nothing_follows(rest);
    uint64_t bytes = 0;
    if (!number(&line, "the overhead point", kNever - 1, &bytes)) return false;
    entry.overhead_bytes = bytes;
    return nothing_follows(line);
  }

  bool take_range(std::string_view line) {
    uint8_t pattern;
    Range range = {};
    if (!take_pattern(&line, &pattern) || !number(&line, "FROM", kNever - 1, &range.from)) return false;
    std::string_view rest = line;
    if (word(&rest) == "inf") {
      range.to = kNever;
      line = rest;
    } else if (!number(&line, "TO", kNever - 1, &range.to)) {
      return false;
    }
    if (!number(&line, "the clock", 100000u, &range.mhz) || !nothing_follows(line)) return false;
    if (range.to <= range.from) return refuse("TO must be above FROM");
    if (range.mhz == 0) return refuse("the clock must be above 0");
    Pattern& entry = table_.patterns_[pattern];
    if (entry.count == 0) {
      entry.first = table_.range_count_;
    } else if (entry.first + entry.count != table_.range_count_) {
      return refuse("the `min_clock_mhz` lines of %s must follow each other", pattern_name(pattern));
    } else if (range.from < table_.ranges_[table_.range_count_ - 1].to) {
      return refuse("overlaps or precedes the range before it");
    }
    table_.ranges_[table_.range_count_++] = range;
    ++entry.count;
    return true;
  }

  bool take_end(std::string_view line) {
    uint32_t count = 0;
    if (!number(&line, "the count of lines", UINT32_MAX, &count) || !nothing_follows(line)) return false;
    if (count != static_cast<uint32_t>(lines_)) {
      return refuse("`end` counts %u lines, but there are %d: lines are missing or added", count, lines_);
    }
    if (table_.platform_[0] == '\0') return refuse("no `platform` line");
    if (table_.gpu_[0] == '\0') return refuse("no `gpu` line");
    if (table_.clock_max_mhz_ == 0) return refuse("no `clock_max_mhz` line");
    if (clock_min_mhz_ > table_.clock_max_mhz_) return refuse("clock_min_mhz is above clock_max_mhz");
    for (uint32_t i = 0; i < table_.range_count_; ++i) {
      if (table_.ranges_[i].mhz > table_.clock_max_mhz_) return refuse("a minimum clock is above clock_max_mhz");
    }
    for (uint8_t pattern = 0; pattern < POWERCCL_PATTERNS; ++pattern) {
      const Pattern& entry = table_.patterns_[pattern];
      if (entry.count > 0 && !entry.named) return refuse("%s has no `overhead_bytes` line", pattern_name(pattern));
    }
    ended_ = true;
    return true;
  }

  PolicyTable& table_;
  Refusal& refusal_;
  int lines_ = 0;
  // Of tables with figures for policies that no longer exist. They are checked and not kept.
  uint32_t clock_min_mhz_ = 0, switch_call_us_ = 0, switch_transition_us_ = 0;
  bool begun_ = false, ended_ = false;
};

bool PolicyTable::parse(std::string_view text, Refusal* refusal) {
  *this = PolicyTable();
  if (Parser(this, refusal).run(text)) return true;
  *this = PolicyTable();
  return false;
}

bool PolicyTable::load(const char* path, Refusal* refusal) {
  *refusal = Refusal();
  *this = PolicyTable();
  char reason[64];
  // Anything but a plain file may keep the job waiting: a FIFO for a writer, a terminal for input.
  const int descriptor = ::open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY);
  struct stat about;
  if (descriptor >= 0 && (status_of_file(descriptor, &about) != 0 || !S_ISREG(about.st_mode))) {
    snprintf(refusal->reason, sizeof(refusal->reason), "not a regular file");
    ::close(descriptor);
    return false;
  }
  if (descriptor < 0) {
    snprintf(refusal->reason, sizeof(refusal->reason), "cannot be opened: %s",
             error_text(errno, reason, sizeof(reason)));
    return false;
  }
  char* text = static_cast<char*>(malloc(kMaxFileBytes + 1));
  size_t length = 0;
  ssize_t got = text == nullptr ? -1 : 1;
  while (got > 0 && length <= kMaxFileBytes) {
    got = read(descriptor, text + length, kMaxFileBytes + 1 - length);
    if (got < 0 && errno == EINTR)
      got = 1;
    else if (got > 0)
      length += static_cast<size_t>(got);
  }
  const int error = errno;
  ::close(descriptor);
  bool good = false;
  if (got < 0) {
    snprintf(refusal->reason, sizeof(refusal->reason), "cannot be read: %s", error_text(error, reason, sizeof(reason)));
  } else {
    good = parse({text, length}, refusal);
  }
  free(text);
  return good;
}

}  // namespace powerccl
