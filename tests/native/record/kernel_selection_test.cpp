// SPDX-License-Identifier: Apache-2.0
#include "record/kernel_selection.h"

#include <gtest/gtest.h>

#include <chrono>
#include <memory>
#include <thread>
#include <vector>

namespace powerccl::test {
namespace {

// NCCL's side: the mask that it loads before each operation.
class Library {
 public:
  explicit Library(KernelEvents mode, bool selectable = true) {
    selection->begin(mode, selectable, [](void* self, bool on) { static_cast<Library*>(self)->mask = on; }, this);
  }
  // One operation of which, if asked for, a kernel of `duration_ns` is told (0: no events come). True: asked for.
  bool operation(uint8_t pattern, uint64_t bytes, uint64_t duration_ns, bool captured = false) {
    const bool loaded = mask;
    selection->made({1, pattern, bytes, captured}, loaded);
    if (loaded && duration_ns != 0) selection->answered(pattern, bytes, duration_ns);
    return loaded;
  }
  int asked_of(int operations, uint64_t bytes, uint64_t duration_ns) {
    int asked = 0;
    for (int i = 0; i < operations; ++i) asked += operation(POWERCCL_ALL_REDUCE, bytes, duration_ns) ? 1 : 0;
    return asked;
  }
  // How many of those asked for were earned by the time that has passed, which a busy machine makes long.
  int earned_by_time() const {
    return static_cast<int>((std::chrono::steady_clock::now() - begin) / std::chrono::nanoseconds(400 * kCostNs));
  }

  static constexpr uint64_t kCostNs = KernelSelection::kCostNs;
  const std::chrono::steady_clock::time_point begin = std::chrono::steady_clock::now();
  std::unique_ptr<KernelSelection> selection = std::make_unique<KernelSelection>();
  std::atomic<bool> mask{false};
};

TEST(KernelSelection, AllAndNoneStayWhatTheyAre) {
  Library all(KernelEvents::kAll), none(KernelEvents::kNone);
  EXPECT_EQ(all.asked_of(1000, 4096, 5000), 1000);
  EXPECT_EQ(none.asked_of(1000, 64 << 20, 5000000), 0);
}

TEST(KernelSelection, LongOperationsAreAlwaysAskedFor) {
  Library library(KernelEvents::kAuto);
  EXPECT_EQ(library.asked_of(1000, 256 << 20, KernelSelection::kFreeNs), 1000);
}

TEST(KernelSelection, ShortOperationsAreSampledWithinOnePerCent) {
  for (const uint64_t duration_ns : {6000u, 40000u, 400000u}) {
    Library library(KernelEvents::kAuto);
    library.asked_of(100, 1 << 20, duration_ns);
    const int asked = library.asked_of(10000, 1 << 20, duration_ns);
    const double one_per_cent = 100.0 * duration_ns / KernelSelection::kCostNs;
    EXPECT_LE(asked - library.earned_by_time(), 1.05 * one_per_cent) << duration_ns;
    EXPECT_GT(asked, 0.8 * one_per_cent) << duration_ns;
  }
}

TEST(KernelSelection, ShortOperationsFarApartAreAskedFor) {
  Library library(KernelEvents::kAuto);
  int asked = 0;
  for (int i = 0; i < 60; ++i) {
    // As an iteration is: made in a burst, then nothing for a while.
    for (int n = 0; n < 4; ++n) asked += library.operation(POWERCCL_SEND_RECEIVE, 2 << 20, 20000) ? 1 : 0;
    std::this_thread::sleep_for(std::chrono::microseconds(4 * 400 * KernelSelection::kCostNs / 1000));
  }
  EXPECT_GT(asked, 220);
}

TEST(KernelSelection, TheFirstOfEachClassAreAskedFor) {
  Library library(KernelEvents::kAuto);
  for (int i = 0; i < 20; ++i) {
    const uint64_t bytes = uint64_t{1024} << i;
    int asked = 0;
    for (int n = 0; n < 8; ++n) asked += library.operation(POWERCCL_REDUCE, bytes, 20000) ? 1 : 0;
    EXPECT_GE(asked, static_cast<int>(KernelSelection::kFirst)) << bytes;
  }
}

TEST(KernelSelection, InAMixTheLongOnesAreAskedForAndTheShortOnesAreNot) {
  Library library(KernelEvents::kAuto);
  int long_asked = 0, short_asked = 0;
  for (int i = 0; i < 2000; ++i) {
    if (library.operation(POWERCCL_ALL_REDUCE, 581 << 20, 400000000)) ++long_asked;
    for (int n = 0; n < 3; ++n) {
      // A buffer's broadcast, a norm's all-reduce, a flag's: each known by what came before it.
      if (library.operation(POWERCCL_BROADCAST, uint64_t{512} << (2 * n), 8000)) ++short_asked;
    }
  }
  EXPECT_GE(long_asked, 1998);
  EXPECT_LE(short_asked - library.earned_by_time(), 100);
}

TEST(KernelSelection, WithoutAnswersItHardlyAsks) {
  Library library(KernelEvents::kAuto);
  const int asked = library.asked_of(10000, 64 << 20, 0);
  EXPECT_LE(asked - library.earned_by_time(), 10000 / 200);
}

TEST(KernelSelection, UnpredictableSuccessorsAreNotAskedForForEver) {
  Library library(KernelEvents::kAuto);
  uint64_t state = 1;
  int asked = 0;
  for (int i = 0; i < 40000; ++i) {
    if (i == 20000) asked = 0;  // until then each of 180 classes has its first ones
    state = state * 6364136223846793005u + 1442695040888963407u;
    const uint8_t pattern = static_cast<uint8_t>(state >> 33) % POWERCCL_PATTERNS;
    asked += library.operation(pattern, uint64_t{1} << (state >> 50) % 20, 10000) ? 1 : 0;
  }
  EXPECT_LE((asked - library.earned_by_time()) * int64_t{KernelSelection::kCostNs}, 20000 * 10000 / 90);
}

// The GPU counts every replay, the host only what was asked for: they agree only if nothing changes any more.
TEST(KernelSelection, OnceCapturedTheWishStays) {
  for (const uint64_t duration_ns : {uint64_t{5000}, KernelSelection::kFreeNs}) {
    Library library(KernelEvents::kAuto);
    library.asked_of(50, 1 << 20, duration_ns);
    const bool loaded = library.operation(POWERCCL_ALL_REDUCE, 1 << 20, duration_ns, true);
    for (int i = 0; i < 500; ++i) {
      EXPECT_EQ(library.operation(POWERCCL_ALL_REDUCE, 256 << 20, 2 * KernelSelection::kFreeNs), loaded);
      EXPECT_EQ(library.operation(POWERCCL_BROADCAST, 64, 5000), loaded);
    }
  }
}

// Each recorded call of a graph may cost microseconds at each replay.
TEST(KernelSelection, InGraphsAllAreAskedForOrNone) {
  for (const uint64_t duration_ns : {uint64_t{0}, uint64_t{20000}, 2 * KernelSelection::kFreeNs}) {
    Library library(KernelEvents::kAuto);
    if (duration_ns != 0) library.asked_of(50, 1 << 20, duration_ns);
    const bool long_ones = duration_ns > KernelSelection::kFreeNs;
    EXPECT_EQ(library.selection->capture_begins(), !long_ones);
    EXPECT_FALSE(library.selection->capture_begins()) << "once";
    for (int i = 0; i < 500; ++i) {
      EXPECT_EQ(library.operation(POWERCCL_ALL_REDUCE, 1 << 20, duration_ns, true), long_ones);
      EXPECT_EQ(library.operation(POWERCCL_ALL_REDUCE, 256 << 20, 2 * KernelSelection::kFreeNs), long_ones);
    }
  }
  Library all(KernelEvents::kAll);
  EXPECT_FALSE(all.selection->capture_begins());
  EXPECT_TRUE(all.operation(POWERCCL_ALL_REDUCE, 1 << 20, 20000, true));
}

TEST(KernelSelection, AnotherProfilersChoiceStaysInGraphs) {
  Library library(KernelEvents::kAuto);
  library.selection->others_decide(KernelSelection::Others::kAll);
  EXPECT_FALSE(library.selection->capture_begins());
  EXPECT_TRUE(library.operation(POWERCCL_ALL_REDUCE, 1 << 20, 20000, true));
  library.selection->others_decide(KernelSelection::Others::kOurs);
  EXPECT_FALSE(library.mask) << "of graphs from now on";
}

TEST(KernelSelection, NotSelectableMeansAll) {
  Library library(KernelEvents::kAuto, false);
  EXPECT_EQ(library.asked_of(100, 1024, 5000), 100);
}

TEST(KernelSelection, TheWishStaysWhileSendsAndReceivesArePutTogether) {
  Library library(KernelEvents::kAuto);
  library.asked_of(20, 1024, 5000);
  library.selection->point_to_point_begins(true);
  const bool before = library.mask;
  for (int i = 0; i < 5000; ++i) {
    library.operation(POWERCCL_ALL_REDUCE, 256 << 20, 2 * KernelSelection::kFreeNs);
    ASSERT_EQ(library.mask, before);
  }
  library.selection->point_to_point_ends();
  library.asked_of(3, 256 << 20, 2 * KernelSelection::kFreeNs);
  EXPECT_TRUE(library.mask);
}

// Another thread's change just before: only "send asked for, receive not" does harm.
TEST(KernelSelection, AGroupBegunAcrossAChangeFollowsItsFirstOperation) {
  for (const bool send_first : {true, false}) {
    Library library(KernelEvents::kAuto);
    std::thread other([&] {
      library.asked_of(20, 1024, 5000);
      // Leave the wish at the value that the first operation must not be followed by.
      while (library.mask == send_first) {
        library.operation(POWERCCL_ALL_REDUCE, send_first ? 1024 : 256 << 20,
                          send_first ? 5000 : 2 * KernelSelection::kFreeNs);
      }
    });
    other.join();
    library.selection->point_to_point_begins(send_first);
    EXPECT_EQ(library.mask, send_first);
    library.selection->point_to_point_ends();
  }
}

TEST(KernelSelection, ThreadsMayMixFreely) {
  Library library(KernelEvents::kAuto);
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([&library, t] {
      for (int i = 0; i < 20000; ++i) {
        if (t == 0 && i % 7 == 0) library.selection->point_to_point_begins(i % 2 == 0);
        library.operation(POWERCCL_ALL_REDUCE, uint64_t{1024} << (i * (t + 1)) % 18, 7000);
        if (t == 0 && i % 7 == 0) library.selection->point_to_point_ends();
      }
    });
  }
  for (auto& thread : threads) thread.join();
  EXPECT_TRUE(library.selection->answers(POWERCCL_ALL_REDUCE, 1024));
}

}  // namespace
}  // namespace powerccl::test
