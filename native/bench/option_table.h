// SPDX-License-Identifier: Apache-2.0
// Options of a command line: each is named once, beside what it does. getopt_long reads them, so that they may be
// abbreviated, stand behind other words, and carry their value as NCCL tests' and OSU's do.
#ifndef POWERCCL_BENCH_OPTION_TABLE_H
#define POWERCCL_BENCH_OPTION_TABLE_H
#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "bench/values.h"

namespace powerccl::bench {

class OptionTable {
 public:
  // `hint` goes with each refusal: where all options are listed.
  explicit OptionTable(std::string hint) : hint_(std::move(hint)) {}

  // `names` as "-n,--iters". What is wrong with a value is said of the first of them.
  using Apply = std::function<void(const std::string& value)>;
  void value(const std::string& names, Apply apply) { rows_.push_back({split(names, ','), true, std::move(apply)}); }
  void flag(const std::string& names, std::function<void()> apply) {
    rows_.push_back({split(names, ','), false, [apply = std::move(apply)](const std::string&) { apply(); }});
  }

  void flag(const std::string& names, bool* to, bool set = true) {
    flag(names, [=] { *to = set; });
  }
  void text(const std::string& names, std::string* to) {
    value(names, [=](const std::string& text) { *to = text; });
  }
  void size(const std::string& names, size_t* to) {
    value(names, [=](const std::string& text) { *to = parse_size(text, split(names, ',')[0]); });
  }
  template <typename Integer>  // what an int converts to
  void integer(const std::string& names, Integer* to, int low, int high = 1'000'000'000) {
    value(names, [=](const std::string& text) { *to = parse_integer(text, split(names, ',')[0], low, high); });
  }
  template <typename Number>
  void number(const std::string& names, Number* to, double low, double high) {
    value(names, [=](const std::string& text) { *to = parse_number(text, split(names, ',')[0], low, high); });
  }

  // Applies the options in their order and returns the other words. Throws Failure(kExitUsage).
  std::vector<std::string> parse(int argc, char** argv) const;

 private:
  struct Row {
    std::vector<std::string> names;
    bool takes_value;
    Apply apply;
  };

  std::string hint_;
  std::vector<Row> rows_;
};

}  // namespace powerccl::bench
#endif
