// SPDX-License-Identifier: Apache-2.0
// Just enough JSON to write, and to read a field of what was written: flat calls, insertion order kept, unknown values
// become null.
#pragma once
#include <cmath>
#include <concepts>
#include <cstdio>
#include <optional>
#include <string>
#include <vector>

namespace powerccl::bench::json {

inline std::string quote(const std::string& text) {
  std::string out = "\"";
  for (const char c : text) {
    const auto byte = static_cast<unsigned char>(c);
    if (c == '"' || c == '\\') {
      out += std::string("\\") + c;
    } else if (byte < 0x20) {
      char escape[8];
      std::snprintf(escape, sizeof escape, "\\u%04x", byte);
      out += escape;
    } else {
      out += c;
    }
  }
  return out + "\"";
}

inline std::string value(const std::string& text) {
  return quote(text);
}
inline std::string value(const char* text) {
  return quote(text);
}
inline std::string value(bool truth) {
  return truth ? "true" : "false";
}
template <std::integral T>
std::string value(T number) {
  return std::to_string(number);
}
inline std::string value(double number) {
  if (!std::isfinite(number)) return "null";
  char text[40];
  std::snprintf(text, sizeof text, "%.9g", number);
  return text;
}
inline std::string value(std::nullopt_t) {
  return "null";
}
template <typename T>
std::string value(const std::optional<T>& maybe) {
  return maybe ? value(*maybe) : "null";
}
template <typename T>
std::string value(const std::vector<T>& items);

// The value where `known`, else null.
template <typename T>
std::optional<T> when(bool known, T value) {
  return known ? std::optional<T>(value) : std::nullopt;
}
inline std::optional<std::string> when(bool known, const char* value) {
  return when(known, std::string(known ? value : ""));
}

// Text that is JSON already.
struct Raw {
  std::string text;
};
inline std::string value(const Raw& raw) {
  return raw.text;
}

template <typename T>
std::string value(const std::vector<T>& items) {
  std::string out = "[";
  for (const T& item : items) out += (out.size() > 1 ? ", " : "") + value(item);
  return out + "]";
}

class Object {
 public:
  template <typename T>
  Object& add(const char* name, const T& item) {
    fields_ += (fields_.empty() ? "" : ", ") + quote(name) + ": " + value(item);
    return *this;
  }
  // All fields of another object, after those already here.
  Object& merge(const Object& other) {
    if (!other.fields_.empty()) fields_ += (fields_.empty() ? "" : ", ") + other.fields_;
    return *this;
  }
  std::string text() const { return "{" + fields_ + "}"; }
  Raw raw() const { return {text()}; }

 private:
  std::string fields_;
};

// The text of `name`'s value in one line that Object wrote, "" where it has none. Strings lose their quotes and keep
// their escapes. A name inside of a string is never found: the quotes around it are escaped there.
inline std::string field(const std::string& line, const std::string& name) {
  const size_t at = line.find("\"" + name + "\":");
  if (at == std::string::npos) return "";
  const size_t begin = line.find_first_not_of(' ', at + name.size() + 3);
  if (begin == std::string::npos) return "";
  if (line[begin] != '"') return line.substr(begin, line.find_first_of(",} ", begin) - begin);
  size_t end = begin + 1;
  while (end < line.size() && line[end] != '"') end += line[end] == '\\' ? 2 : 1;
  return line.substr(begin + 1, end - begin - 1);
}

}  // namespace powerccl::bench::json
