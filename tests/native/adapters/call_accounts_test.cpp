// SPDX-License-Identifier: Apache-2.0
#include "adapters/mpi/call_accounts.h"

#include <gtest/gtest.h>

#include <map>
#include <memory>
#include <string>

#include "../record/trace_reader.h"

namespace powerccl {
namespace {

TEST(CallAccounts, SizeClassesArePowersOfTwo) {
  EXPECT_EQ(size_class_of(0), 0);
  EXPECT_EQ(size_class_of(1), 1);
  EXPECT_EQ(size_class_of(8), 4);
  EXPECT_EQ(size_class_of(15), 4);
  EXPECT_EQ(size_class_of(16), 5);
  EXPECT_EQ(size_class_of(UINT64_MAX), 64);
}

TEST(CallAccounts, SumsAreKeptApartByFunctionCommunicatorAndSizeAndTheLatestCounts) {
  TickClock clock;  // ticks are nanoseconds until it begins
  const std::string path = ::testing::TempDir() + "accounts-" + std::to_string(getpid()) + ".trace";
  unlink(path.c_str());
  TraceWriter trace;
  ASSERT_EQ(trace.open(path.c_str(), powerccl_trace_header(), 4u << 20), 0);
  auto accounts = std::make_unique<CallAccounts>();
  accounts->add({3, 0, 8, 100, 60, 20});
  accounts->add({3, 0, 8, 100, 60, 20});
  accounts->add({3, 1, 8, 10, 0, 0});
  accounts->add({3, 0, 1024, 1000, 0, 0});
  accounts->flush(trace, clock, 7, 42);
  accounts->flush(trace, clock, 7, 43);  // nothing has changed
  accounts->add({3, 0, 8, 100, 60, 20});
  accounts->flush(trace, clock, 7, 44);
  trace.close();

  std::map<std::pair<int, int>, powerccl_trace_record> latest;
  int records = 0;
  for (const auto& record : test::read_trace(path).records) {
    ASSERT_EQ(record.kind, POWERCCL_REC_MPI_TOTAL);
    EXPECT_EQ(record.mpi_total.thread, 7);
    EXPECT_EQ(record.mpi_total.function, 3);
    latest[{record.comm, record.mpi_total.size_class}] = record;
    ++records;
  }
  EXPECT_EQ(records, 4);
  ASSERT_EQ(latest.size(), 3u);
  const auto& eight = latest[{0, 4}].mpi_total;
  EXPECT_EQ(eight.calls, 3u);
  EXPECT_EQ(eight.bytes, 24u);
  EXPECT_EQ(eight.call_ns, 300u);
  EXPECT_EQ(eight.wait_ns, 180u);
  EXPECT_EQ(eight.sleep_ns, 60u);
  EXPECT_EQ(eight.time_ns, 44u);
  unlink(path.c_str());
}

TEST(CallAccounts, WhatFindsNoRoomIsCounted) {
  auto accounts = std::make_unique<CallAccounts>();
  for (uint32_t comm = 0; comm < CallAccounts::kEntries; ++comm) accounts->add({1, comm, 0, 1, 0, 0});
  EXPECT_EQ(accounts->left_out(), CallAccounts::kEntries / 2);
  accounts->add({1, 0, 0, 1, 0, 0});
  EXPECT_EQ(accounts->left_out(), CallAccounts::kEntries / 2) << "what is known goes on being counted";
}

}  // namespace
}  // namespace powerccl
