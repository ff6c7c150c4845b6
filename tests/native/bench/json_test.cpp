// SPDX-License-Identifier: Apache-2.0
#include "bench/json.h"

#include <gtest/gtest.h>

#include <limits>

namespace powerccl::bench::json {
namespace {

TEST(Json, ValuesOfEachKind) {
  const std::string text = Object()
                               .add("a", 1)
                               .add("b", 2.5)
                               .add("c", "x")
                               .add("d", true)
                               .add("e", std::nullopt)
                               .add("f", std::optional<int>(3))
                               .add("g", std::vector<int>{1, 2})
                               .add("h", std::vector<std::string>{})
                               .add("i", Object().add("j", uint64_t{18446744073709551615U}).raw())
                               .text();
  EXPECT_EQ(text, R"({"a": 1, "b": 2.5, "c": "x", "d": true, "e": null, "f": 3, "g": [1, 2], "h": [], )"
                  R"("i": {"j": 18446744073709551615}})");
}

TEST(Json, WhatIsNoNumberIsNull) {
  EXPECT_EQ(value(std::numeric_limits<double>::quiet_NaN()), "null");
  EXPECT_EQ(value(std::numeric_limits<double>::infinity()), "null");
}

TEST(Json, TextIsEscaped) {
  EXPECT_EQ(quote("a\"b\\c\nd\x01"), "\"a\\\"b\\\\c\\u000ad\\u0001\"");
}

TEST(Json, MergeKeepsOrder) {
  EXPECT_EQ(Object().add("a", 1).merge(Object().add("b", 2)).text(), R"({"a": 1, "b": 2})");
  EXPECT_EQ(Object().merge(Object()).text(), "{}");
}

}  // namespace
}  // namespace powerccl::bench::json
