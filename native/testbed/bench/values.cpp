// SPDX-License-Identifier: Apache-2.0
#include "bench/values.h"

#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cctype>
#include <cerrno>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>

namespace powerccl::bench {
namespace {

[[noreturn]] void refuse(const std::string& text, const std::string& what, const char* expected, const char* hint) {
  throw Failure(kExitUsage, what + ": '" + text + "' is not a " + expected, hint);
}

constexpr const char* kSeeHelp = "--help lists what each option takes";

}  // namespace

size_t parse_size(const std::string& text, const std::string& what) {
  char* end = nullptr;
  const double number = std::strtod(text.c_str(), &end);
  std::string unit = end;
  if (unit.ends_with("iB")) {
    unit.resize(unit.size() - 2);
  } else if (unit.ends_with('B')) {
    unit.resize(unit.size() - 1);
  }
  const std::string letters = "KMGT";
  const size_t power = unit.empty() ? 0 : letters.find(static_cast<char>(std::toupper(unit[0]))) + 1;
  const double bytes = std::ldexp(number, static_cast<int>(10 * power));
  if (end == text.c_str() || unit.size() > 1 || (!unit.empty() && power == 0) || !(bytes >= 0 && bytes < 1e13)) {
    refuse(text, what, "size", "a number with K, M or G after it, as 128K or 62.5M");
  }
  return static_cast<size_t>(bytes);
}

double parse_number(const std::string& text, const std::string& what, double low, double high) {
  char* end = nullptr;
  const double value = std::strtod(text.c_str(), &end);
  if (text.empty() || *end != '\0' || !(value >= low && value <= high)) {
    refuse(text, what, "number in range", kSeeHelp);
  }
  return value;
}

int parse_integer(const std::string& text, const std::string& what, int low, int high) {
  const double value = parse_number(text, what, low, high);
  if (value != std::floor(value)) refuse(text, what, "whole number", kSeeHelp);
  return static_cast<int>(value);
}

std::vector<std::string> split(const std::string& text, char separator) {
  std::vector<std::string> parts;
  for (size_t begin = 0; begin <= text.size();) {
    const size_t end = std::min(text.find(separator, begin), text.size());
    parts.push_back(text.substr(begin, end - begin));
    begin = end + 1;
  }
  return parts;
}

std::string host_name() {
  char name[256] = "";
  gethostname(name, sizeof name - 1);
  return name;
}

std::string write_whole(const std::string& path, const std::string& text) {
  // What is no regular file, such as /dev/null or a FIFO, is written as it is: root could replace it.
  struct stat about{};
  const bool special = stat(path.c_str(), &about) == 0 && !S_ISREG(about.st_mode);
  const std::string fresh = special ? path : path + "." + std::to_string(getpid());
  std::FILE* file = std::fopen(fresh.c_str(), "we");
  bool good = file != nullptr && std::fwrite(text.data(), 1, text.size(), file) == text.size();
  good = (file == nullptr || std::fclose(file) == 0) && good;
  if (good && (special || std::rename(fresh.c_str(), path.c_str()) == 0)) return "";
  const std::string reason = "cannot write " + path + ": " + std::strerror(errno);
  if (!special) unlink(fresh.c_str());
  return reason;
}

std::string environment(const char* name) {
  const char* value = std::getenv(name);
  return value != nullptr ? value : "";
}

std::vector<size_t> sizes_between(size_t first, size_t last, size_t step_bytes, double factor) {
  std::vector<size_t> sizes;
  for (size_t size = first; size <= last;) {
    sizes.push_back(size);
    const size_t next = step_bytes > 0 ? size + step_bytes : static_cast<size_t>(static_cast<double>(size) * factor);
    if (next <= size) break;  // 0, or a factor too small to move on
    size = next;
  }
  return sizes;
}

}  // namespace powerccl::bench
