// SPDX-License-Identifier: Apache-2.0
#include "bench/board.h"

#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <thread>
#include <vector>

#include "bench/launch.h"
#include "bench/values.h"

namespace powerccl::bench {
namespace {

TEST(Board, ReducesOverProcesses) {
  Board* board = Board::create(4);
  std::vector<pid_t> children;
  for (int rank = 0; rank < 4; ++rank) {
    const pid_t pid = fork();
    if (pid == 0) {
      bool good = true;
      for (int turn = 0; turn < 200; ++turn) {
        good = good && board->max(rank, turn * rank) == turn * 3 && board->sum(rank, 1) == 4;
      }
      _exit(good ? 0 : 1);
    }
    children.push_back(pid);
  }
  for (const pid_t pid : children) {
    int status = 1;
    waitpid(pid, &status, 0);
    EXPECT_EQ(status, 0);
  }
}

TEST(Board, AFailureFreesWhoeverWaits) {
  Board* board = Board::create(3);
  std::thread in_barrier([&] { EXPECT_THROW(board->barrier(), Aborted); });
  std::thread waiting([&] { EXPECT_THROW(board->exchange_id(1, nullptr), Aborted); });
  usleep(10'000);
  board->fail(kExitRankFailed, "rank 2 died", "look");
  board->fail(kExitTimeout, "later", "");
  waiting.join();
  in_barrier.join();
  EXPECT_TRUE(board->sleep_unless_failed(1));
  EXPECT_EQ(board->exit_code(), kExitRankFailed);
  EXPECT_EQ(board->reason(), "rank 2 died");
  EXPECT_EQ(board->hint(), "look");
  EXPECT_THROW(board->tell(Tell::kPoint), Aborted);
}

TEST(Board, AnIdReachesAllAndItsLackToo) {
  Board* board = Board::create(2);
  const NcclUniqueId first{"one"}, second{"two"};
  std::thread other([&] {
    const auto seen = board->exchange_id(1, nullptr);
    EXPECT_STREQ(seen ? seen->bytes : "", "one");
    EXPECT_FALSE(board->exchange_id(1, nullptr));
    const auto again = board->exchange_id(1, nullptr);
    EXPECT_STREQ(again ? again->bytes : "", "two");
  });
  EXPECT_TRUE(board->exchange_id(0, &first));
  EXPECT_FALSE(board->exchange_id(0, nullptr));
  EXPECT_TRUE(board->exchange_id(0, &second));
  other.join();
}

TEST(Board, OnlyWhatAllWereRefusedIsSaidToBe) {
  Board* board = Board::create(2);
  std::thread other([&] { EXPECT_TRUE(board->all_refused(10'000'000'000)); });
  EXPECT_TRUE(board->all_refused(10'000'000'000));
  other.join();
  // A rank that waits at a barrier was not refused.
  std::thread in_barrier([&] { EXPECT_THROW(board->barrier(), Aborted); });
  EXPECT_FALSE(board->all_refused(50'000'000));
  board->fail(kExitRankFailed, "one was refused");
  in_barrier.join();
}

TEST(Board, RequestsReachAllRanks) {
  Board* board = Board::create(2);
  std::vector<std::thread> ranks;
  for (int rank = 0; rank < 2; ++rank) {
    ranks.emplace_back([=] {
      uint32_t seen = 0;
      EXPECT_EQ(board->next_request(seen).ask, Ask::kOpen);
      board->barrier();
      if (rank == 0) board->tell(Tell::kOpened);
      EXPECT_EQ(board->next_request(seen).ask, Ask::kQuit);
      EXPECT_THROW(board->next_request(seen), Aborted);
    });
  }
  Request request{};
  request.ask = Ask::kOpen;
  board->ask(request);
  while (board->wait_for_news(1'000'000) == Tell::kNothing) {
  }
  board->answer(0);
  request.ask = Ask::kQuit;
  board->ask(request);
  usleep(10'000);
  board->fail(kExitRankFailed, "over");
  for (std::thread& rank : ranks) rank.join();
}

TEST(Board, NewsArriveOnceAndAreAnswered) {
  Board* board = Board::create(1);
  EXPECT_EQ(board->wait_for_news(1000), Tell::kNothing);
  std::thread teller([&] {
    board->clock_mhz = 900;
    EXPECT_EQ(board->tell(Tell::kClock), 42);
    EXPECT_EQ(board->tell(Tell::kFinish), 43);
  });
  Tell what = Tell::kNothing;
  while ((what = board->wait_for_news(1'000'000)) == Tell::kNothing) {
  }
  EXPECT_EQ(what, Tell::kClock);
  EXPECT_EQ(board->clock_mhz, 900);
  board->answer(42);
  while ((what = board->wait_for_news(1'000'000)) == Tell::kNothing) {
  }
  EXPECT_EQ(what, Tell::kFinish);
  board->answer(43);
  teller.join();
}

class Meeting : public testing::Test {
 protected:
  std::string folder_ = testing::TempDir();
  std::string key_ = "test-" + std::to_string(getpid());
};

TEST_F(Meeting, RanksMeetThroughAFile) {
  Board* first = nullptr;
  std::thread creator([&] { first = Board::meet(folder_, key_, 2, true, 10); });
  Board* second = Board::meet(folder_, key_, 2, false, 10);
  creator.join();
  second->clock_mhz = 7;
  EXPECT_EQ(first->clock_mhz, 7);
  EXPECT_FALSE(std::filesystem::exists(folder_ + "/powerccl-bench-" + key_));
}

TEST_F(Meeting, GivesUpWhenNobodyComes) {
  EXPECT_THROW(Board::meet(folder_, key_, 2, false, 0.05), Failure);
  EXPECT_THROW(Board::meet(folder_, key_, 2, true, 0.05), Failure);
}

class LauncherPlaceTest : public testing::Test {
 protected:
  void SetUp() override { TearDown(); }
  void TearDown() override {
    for (const char* name : {"RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "OMPI_COMM_WORLD_RANK",
                             "OMPI_COMM_WORLD_SIZE", "SLURM_PROCID", "SLURM_NTASKS"}) {
      unsetenv(name);
    }
  }
};

TEST_F(LauncherPlaceTest, IsThatOfOneHost) {
  EXPECT_FALSE(launcher_place({}));
  for (const auto& [name, value] : {std::pair{"RANK", "3"}, {"WORLD_SIZE", "4"}, {"LOCAL_RANK", "3"}}) {
    setenv(name, value, 1);
  }
  setenv("LOCAL_WORLD_SIZE", "4", 1);
  const auto place = launcher_place({});
  ASSERT_TRUE(place);
  EXPECT_EQ(place->rank, 3);
  EXPECT_EQ(place->ranks, 4);
  EXPECT_EQ(place->local_rank, 3);
  EXPECT_EQ(place->key.find('/'), std::string::npos);
  setenv("WORLD_SIZE", "8", 1);
  EXPECT_THROW(launcher_place({}), Failure);
}

}  // namespace
}  // namespace powerccl::bench
