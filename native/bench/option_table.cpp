// SPDX-License-Identifier: Apache-2.0
#include "bench/option_table.h"

#include <getopt.h>

#include <algorithm>

#include "bench/failure.h"

namespace powerccl::bench {
namespace {

constexpr int kLongs = 256;  // what getopt returns of a long option: above all letters, its row

}  // namespace

std::vector<std::string> OptionTable::parse(int argc, char** argv) const {
  std::string letters = ":";  // a missing value is told from an unknown option
  std::vector<option> longs;
  int rows_of_letters[kLongs] = {};
  for (size_t i = 0; i < rows_.size(); ++i) {
    const int takes_value = rows_[i].takes_value ? required_argument : no_argument, row = static_cast<int>(i);
    for (const std::string& name : rows_[i].names) {
      if (name.starts_with("--")) {
        longs.push_back({name.c_str() + 2, takes_value, nullptr, kLongs + row});
      } else {
        letters += name.substr(1) + (rows_[i].takes_value ? ":" : "");
        rows_of_letters[static_cast<unsigned char>(name[1])] = row;
      }
    }
  }
  longs.push_back({});
  opterr = 0;
  optind = 0;  // glibc: start afresh, permuting
  for (;;) {
    const int code = getopt_long(argc, argv, letters.c_str(), longs.data(), nullptr);
    if (code == -1) break;
    if (code == '?' || code == ':') {
      // getopt leaves the letter in optopt; of a long option, the word that it has just passed.
      const bool letter = optopt > 0 && optopt < kLongs;
      const std::string word = letter ? std::string("-") + static_cast<char>(optopt) : argv[std::max(optind - 1, 0)];
      if (code == ':') throw Failure(kExitUsage, word + " needs a value", hint_);
      throw Failure(kExitUsage, (optopt < kLongs ? "unknown option " : "an option that takes no value: ") + word,
                    hint_);
    }
    const Row& row = rows_[static_cast<size_t>(code < kLongs ? rows_of_letters[code] : code - kLongs)];
    row.apply(optarg != nullptr ? optarg : "");
  }
  return {argv + optind, argv + argc};
}

}  // namespace powerccl::bench
