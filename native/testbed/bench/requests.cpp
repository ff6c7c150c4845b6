// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <optional>
#include <sstream>

#include "bench/failure.h"
#include "bench/serve.h"
#include "bench/values.h"

namespace powerccl::bench {
namespace {

[[noreturn]] void refuse(const std::string& what, const std::string& hint) {
  throw Failure(kExitUsage, what, hint);
}

const char* const kVerbs = "set NAME=VALUE, clear, open ID, measure PATTERN BYTES [key=value...], close, quit";
const char* const kKeys = "iterations warmup check repeat min_time_s energy blocking in_place dtype op root";

std::string trimmed(const std::string& text) {
  const size_t begin = text.find_first_not_of(" \t\r");
  if (begin == std::string::npos) return "";
  return text.substr(begin, text.find_last_not_of(" \t\r") - begin + 1);
}

void parse_set(Command& command, const std::string& rest) {
  const size_t equals = rest.find('=');
  if (equals == std::string::npos) refuse("set takes NAME=VALUE", "set NCCL_ALGO=Ring");
  command.name = rest.substr(0, equals);
  command.value = rest.substr(equals + 1);
  if (!may_set(command.name)) {
    refuse("'" + command.name + "' is not for a trial to set",
           "names begin with NCCL_ or POWERCCL_, of A-Z, 0-9 and _");
  }
}

bool flag(const std::string& value, const std::string& key) {
  return parse_integer(value, key, 0, 1) != 0;
}

// True if the key is known.
bool apply(Command& command, std::optional<double>& min_time_s, const std::string& key, const std::string& value) {
  Measuring& measuring = command.measuring;
  Point& point = command.point;
  if (key == "iterations") {
    measuring.iterations = parse_integer(value, key, 1);
  } else if (key == "warmup") {
    measuring.warmup = parse_integer(value, key, 0);
  } else if (key == "check") {
    measuring.check = parse_integer(value, key, 0);
  } else if (key == "repeat") {
    measuring.repeats = parse_integer(value, key, 1, kMaxRepeats);
  } else if (key == "min_time_s") {
    min_time_s = parse_number(value, key, 0, 3600);
  } else if (key == "energy") {
    command.energy = flag(value, key);
  } else if (key == "blocking") {
    measuring.blocking = flag(value, key);
  } else if (key == "in_place") {
    point.in_place = flag(value, key);
  } else if (key == "root") {
    point.root = parse_integer(value, key, 0);
  } else if (key == "dtype") {
    const auto type = type_named(value);
    if (!type) refuse("no type is called '" + value + "'", "float32 float16 bfloat16 float64 int32 int64");
    point.type = *type;
  } else if (key == "op") {
    const auto op = named(kOperators, value);
    if (!op) refuse("no operator is called '" + value + "'", "sum prod max min avg");
    point.op = *op;
  } else {
    return false;
  }
  return true;
}

void parse_measure(Command& command, const std::string& rest, const Options& options, int ranks) {
  std::istringstream words(rest);
  std::string pattern_text, size_text, word;
  if (!(words >> pattern_text >> size_text)) refuse("measure what?", "measure all_reduce 1048576");
  const auto pattern = pattern_named(pattern_text);
  if (!pattern) refuse("no pattern is called '" + pattern_text + "'", "powerccl-bench --help lists them");
  command.measuring = {options.iterations, options.warmup, options.check, 1, 0, options.blocking};
  command.point = {
      *pattern, options.types.front(), options.ops.front(), std::max(options.root, 0), kClockAsFound, false, {}};
  std::optional<double> min_time_s;
  while (words >> word) {
    const size_t equals = word.find('=');
    if (equals == std::string::npos || !apply(command, min_time_s, word.substr(0, equals), word.substr(equals + 1))) {
      refuse("measure does not know '" + word + "'", std::string("key=value, with the keys ") + kKeys);
    }
  }
  // The counter of energy needs its time; times alone do not.
  command.measuring.min_time_s = min_time_s.value_or(command.energy ? options.min_time_s : 0);
  Point& point = command.point;
  if (point.root >= ranks) refuse("there is no rank " + std::to_string(point.root), "ranks count from 0");
  if (point.in_place && !info(*pattern).in_place) refuse(pattern_text + " has no in-place form", "in_place=0");
  point.shape = shape_of(*pattern, parse_size(size_text, "measure"), point.type, ranks);
}

}  // namespace

bool may_set(const std::string& name) {
  const bool has_prefix =
      (name.starts_with("NCCL_") && name.size() > 5) || (name.starts_with("POWERCCL_") && name.size() > 9);
  return has_prefix &&
         std::ranges::all_of(name, [](char c) { return (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '_'; });
}

Command parse_command(const std::string& line, const Options& options, int ranks) {
  const std::string text = trimmed(line);
  const size_t space = text.find_first_of(" \t");
  const std::string verb = text.substr(0, space);
  const std::string rest = space == std::string::npos ? "" : trimmed(text.substr(space));
  Command command{};
  if (verb == "set") {
    command.verb = Verb::kSet;
    parse_set(command, rest);
  } else if (verb == "open") {
    command.verb = Verb::kOpen;
    command.name = rest;
    if (rest.empty()) refuse("open takes the name of the trial", "open 1");
  } else if (verb == "measure") {
    command.verb = Verb::kMeasure;
    parse_measure(command, rest, options, ranks);
  } else {
    if (verb != "clear" && verb != "close" && verb != "quit") refuse("no request is called '" + verb + "'", kVerbs);
    if (!rest.empty()) refuse(verb + " takes nothing behind it", kVerbs);
    command.verb = verb == "clear" ? Verb::kClear : verb == "close" ? Verb::kClose : Verb::kQuit;
  }
  return command;
}

}  // namespace powerccl::bench
