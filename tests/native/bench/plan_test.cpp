// SPDX-License-Identifier: Apache-2.0
#include "bench/plan.h"

#include <gtest/gtest.h>

#include <cstdio>
#include <fstream>
#include <string>

#include "bench/measurement.h"
#include "bench/serve.h"
#include "refusal.h"

namespace powerccl::bench {
namespace {

Options two_sizes() {
  Options options;
  options.patterns = {Pattern::kAllReduce, Pattern::kBroadcast};
  options.min_bytes = 1024;
  options.max_bytes = 2048;
  return options;
}

class Lines : public testing::Test {
 protected:
  void write(const std::string& text) { std::ofstream(path_) << text; }
  void TearDown() override { std::remove(path_.c_str()); }
  std::string path_ = testing::TempDir() + "powerccl-plan-" + std::to_string(getpid()) + ".jsonl";
};

const char kAllReduce1024[] =
    R"({"type": "point", "pattern": "all_reduce", "size_bytes": 1024, "count": 256, "dtype": "float32", "op": "sum", )"
    R"("root": null, "in_place": false, "ranks": 8, "clock_requested_mhz": 900, "iterations": 20})";

TEST(Sizes, FactorAndStep) {
  Options options = two_sizes();
  EXPECT_EQ(sizes_of(options), (std::vector<size_t>{1024, 2048}));
  options.step_bytes = 512;
  EXPECT_EQ(sizes_of(options), (std::vector<size_t>{1024, 1536, 2048}));
  options.step_bytes = 0;
  options.factor = 1.5;
  EXPECT_EQ(sizes_of(options), (std::vector<size_t>{1024, 1536}));
  options.min_bytes = 0;
  EXPECT_EQ(sizes_of(options), (std::vector<size_t>{0}));
}

TEST(Plan, ChangesClocksSeldom) {
  Options options = two_sizes();
  options.clocks_mhz = {1590, 900};
  const std::vector<Point> plan = make_plan(options, 8, {});
  ASSERT_EQ(plan.size(), 8U);
  int changes = 0;
  for (size_t i = 1; i < plan.size(); ++i) changes += plan[i].clock_mhz != plan[i - 1].clock_mhz;
  EXPECT_EQ(changes, 1);
  EXPECT_EQ(plan[0].shape.size_bytes, 1024U);
  EXPECT_EQ(plan[1].shape.size_bytes, 2048U);
}

TEST_F(Lines, EachWayHasItsPointsTogether) {
  Options options = two_sizes();
  options.patterns = {Pattern::kAllReduce, Pattern::kAllGather};
  options.ways = {Way::kPlain, Way::kCopyEngine};
  const std::vector<Point> plan = make_plan(options, 8, {});
  ASSERT_EQ(plan.size(), 4U + 2U);  // copy engines reduce nothing
  for (size_t i = 0; i < plan.size(); ++i) EXPECT_EQ(plan[i].way, i < 4 ? Way::kPlain : Way::kCopyEngine);
  // What was measured one way is not done the other.
  EXPECT_NE(key_of(plan[2], 8), key_of(plan[4], 8));
  write(
      R"({"type": "point", "pattern": "all_gather", "size_bytes": 1024, "dtype": "float32", "op": null, "root": null, )"
      R"("in_place": false, "way": "copy-engine", "ranks": 8, "clock_requested_mhz": null})"
      "\n");
  EXPECT_EQ(make_plan(options, 8, done_points(path_)).size(), 5U);
}

TEST_F(Lines, EachComputationHasItsPointsTogether) {
  Options options = two_sizes();
  options.patterns = {Pattern::kAllGather};
  options.ways = {Way::kPlain, Way::kCopyEngine};
  options.besides = {Beside::kNothing, Beside::kMatmul};
  const std::vector<Point> plan = make_plan(options, 8, {});
  ASSERT_EQ(plan.size(), 8U);
  for (size_t i = 0; i < plan.size(); ++i) {
    EXPECT_EQ(plan[i].way, i < 4 ? Way::kPlain : Way::kCopyEngine);
    EXPECT_EQ(plan[i].beside, i % 4 < 2 ? Beside::kNothing : Beside::kMatmul);
  }
  write(
      R"({"type": "point", "pattern": "all_gather", "size_bytes": 1024, "dtype": "float32", "op": null, "root": null, )"
      R"("in_place": false, "way": "plain", "beside": "matmul", "ranks": 8, "clock_requested_mhz": null})"
      "\n");
  const std::vector<Point> rest = make_plan(options, 8, done_points(path_));
  ASSERT_EQ(rest.size(), 7U);
  EXPECT_EQ(rest[2].shape.size_bytes, 2048U);  // of those beside computation, plain: the second size is left
}

TEST(BesideCost, IsWhatIsMoreThanTheComputationAlone) {
  // 1 ms of collective, in which half a unit is done, at 600 W in all. By itself that takes 0.5 ms at 700 W.
  const BesideCost cost = beside_cost({1000, 600}, 2000, {1000, 700});
  EXPECT_DOUBLE_EQ(cost.slowed_pct, 100);
  EXPECT_DOUBLE_EQ(cost.added_us, 500);
  ASSERT_TRUE(cost.added_joules.has_value());
  EXPECT_DOUBLE_EQ(*cost.added_joules, 0.6 - 0.35);
  EXPECT_FALSE(beside_cost({1000, std::nullopt}, 2000, {1000, 700}).added_joules.has_value());
  EXPECT_FALSE(beside_cost({1000, 600}, 2000, {1000, std::nullopt}).added_joules.has_value());
}

TEST(Plan, OperatorsAndRootsOnlyWhereTheyMean) {
  Options options = two_sizes();
  options.max_bytes = options.min_bytes;
  options.ops = {Op::kSum, Op::kMax};
  options.root = -1;
  const std::vector<Point> plan = make_plan(options, 4, {});
  EXPECT_EQ(plan.size(), 2U + 4U);  // all-reduce with two operators, broadcast from four roots
}

TEST(Plan, InPlaceWhereThereIsSuchAForm) {
  Options options = two_sizes();
  options.patterns = {Pattern::kAllReduce, Pattern::kAllToAll};
  options.max_bytes = options.min_bytes;
  options.in_place = true;
  EXPECT_EQ(make_plan(options, 4, {}).size(), 3U);
}

TEST_F(Lines, DonePointsAreLeftOut) {
  write(std::string("{\"type\": \"header\", \"pattern\": \"none\"}\n") + kAllReduce1024 + "\n");
  Options options = two_sizes();
  options.clocks_mhz = {900, 800};
  const auto done = done_points(path_);
  EXPECT_EQ(done.size(), 1U);
  const std::vector<Point> plan = make_plan(options, 8, done);
  ASSERT_EQ(plan.size(), 7U);
  EXPECT_EQ(plan[0].shape.size_bytes, 2048U);
  EXPECT_EQ(make_plan(options, 4, done).size(), 8U);  // other ranks, other points
}

TEST_F(Lines, ALineCutOffIsNotCounted) {
  const std::string whole = std::string(kAllReduce1024) + "\n";
  write(whole + std::string(kAllReduce1024, 100));
  uint64_t length = 0;
  EXPECT_EQ(done_points(path_, &length).size(), 1U);
  EXPECT_EQ(length, whole.size());
}

TEST_F(Lines, AMissingFileHoldsNothing) {
  EXPECT_TRUE(done_points(path_).empty());
}

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
