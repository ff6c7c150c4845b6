// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include <string>

#include "bench/serve.h"
#include "refusal.h"

namespace powerccl::bench {
namespace {

Options server() {
  Options options;
  options.check = 0;
  options.min_time_s = 0.25;
  return options;
}
Command parse(const std::string& line) {
  return parse_command(line, server(), 4);
}
std::string refusal(const std::string& line) {
  return tests::refusal_of([&] { parse(line); }).what;
}

TEST(Requests, AValueIsTheRestOfTheLine) {
  const Command command = parse("set NCCL_ALGO=allreduce:tree;allgather:ring = x ");
  EXPECT_EQ(command.verb, Verb::kSet);
  EXPECT_EQ(command.name, "NCCL_ALGO");
  EXPECT_EQ(command.value, "allreduce:tree;allgather:ring = x");
  EXPECT_EQ(parse("set NCCL_ALGO=").value, "");
}

TEST(Requests, OnlyNcclsVariablesAndOursAreSet) {
  EXPECT_TRUE(may_set("NCCL_LL128_NTHREADS"));
  EXPECT_TRUE(may_set("POWERCCL_TUNER_TABLE"));
  for (const char* name : {"LD_PRELOAD", "NCCL_", "POWERCCL_", "nccl_algo", "NCCL_ALGO ", "XNCCL_ALGO", "PATH", ""}) {
    EXPECT_FALSE(may_set(name)) << name;
  }
  EXPECT_NE(refusal("set LD_PRELOAD=/x.so"), "");
  EXPECT_NE(refusal("set NCCL_ALGO"), "");
}

TEST(Requests, MeasureTakesTheServersDefaults) {
  const Command command = parse("  measure all_reduce 1M\r");
  EXPECT_EQ(command.verb, Verb::kMeasure);
  EXPECT_EQ(command.point.pattern, Pattern::kAllReduce);
  EXPECT_EQ(command.point.shape.size_bytes, 1048576U);
  EXPECT_EQ(command.point.type, Type::kFloat32);
  EXPECT_EQ(command.measuring.iterations, 20);
  EXPECT_EQ(command.measuring.warmup, 1);
  EXPECT_EQ(command.measuring.check, 0);
  EXPECT_EQ(command.measuring.repeats, 1);
  EXPECT_EQ(command.measuring.min_time_s, 0);
  EXPECT_FALSE(command.energy);
}

TEST(Requests, MeasureTakesItsKeys) {
  const Command command = parse(
      "measure all_gather 65536 iterations=7 warmup=0 check=2 repeat=5 dtype=half op=max in_place=1 blocking=1 root=3");
  EXPECT_EQ(command.measuring.iterations, 7);
  EXPECT_EQ(command.measuring.warmup, 0);
  EXPECT_EQ(command.measuring.check, 2);
  EXPECT_EQ(command.measuring.repeats, 5);
  EXPECT_TRUE(command.measuring.blocking);
  EXPECT_EQ(command.point.type, Type::kFloat16);
  EXPECT_EQ(command.point.op, Op::kMax);
  EXPECT_TRUE(command.point.in_place);
  EXPECT_EQ(command.point.root, 3);
  EXPECT_EQ(command.point.shape.count, 8192U);  // a quarter, of two bytes each
}

TEST(Requests, EnergyTakesItsTime) {
  EXPECT_EQ(parse("measure all_reduce 1M energy=1").measuring.min_time_s, 0.25);
  EXPECT_EQ(parse("measure all_reduce 1M energy=1 min_time_s=0").measuring.min_time_s, 0);
  EXPECT_EQ(parse("measure all_reduce 1M min_time_s=0.5").measuring.min_time_s, 0.5);
}

TEST(Requests, WhatIsWrongIsNamed) {
  EXPECT_NE(refusal("measure all_reduce 1M colour=red").find("colour=red"), std::string::npos);
  EXPECT_NE(refusal("measure all_reduce 1M energy").find("energy"), std::string::npos);
  for (const char* line :
       {"measure", "measure all_reduce", "measure all 1M", "measure all_reduce big", "measure all_reduce 1M repeat=0",
        "measure all_reduce 1M repeat=65", "measure broadcast 1M root=4", "measure send_receive 1M in_place=1",
        "measure all_reduce 1M dtype=float8", "measure all_reduce 1M op=xor", "open", "open  ", "close now", "clear x",
        "help", "quit 1"}) {
    EXPECT_NE(refusal(line), "") << line;
  }
}

}  // namespace
}  // namespace powerccl::bench
