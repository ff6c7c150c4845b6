// SPDX-License-Identifier: Apache-2.0
// Command lines and texts as users write them, and what is said of wrong ones.
#pragma once
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "bench/values.h"

namespace powerccl::bench::tests {

struct Refusal {
  std::string what, hint;  // empty: it was taken
};
// What is said where `read` refuses.
template <typename Read>
Refusal refusal_of(Read read) {
  try {
    read();
  } catch (const Failure& failure) {
    EXPECT_EQ(failure.code(), kExitUsage);
    EXPECT_NE(failure.hint(), "") << failure.what();
    return {failure.what(), failure.hint()};
  }
  return {};
}

// Calls `parse(argc, argv)` with the words of a line, which blanks part.
template <typename Parse>
auto with_words(const std::string& line, Parse parse) {
  std::vector<std::string> words = split("program" + (line.empty() ? "" : " " + line), ' ');
  std::vector<char*> argv;
  argv.reserve(words.size() + 1);
  for (std::string& word : words) argv.push_back(word.data());
  argv.push_back(nullptr);
  return parse(static_cast<int>(words.size()), argv.data());
}

}  // namespace powerccl::bench::tests
