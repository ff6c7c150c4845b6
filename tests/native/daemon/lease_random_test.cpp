// SPDX-License-Identifier: Apache-2.0
// Any order of requests, endings, faults and time: what lease_table.h promises holds after every step.
#include <gtest/gtest.h>

#include <random>

#include "machine.h"

namespace powerccl::daemon {
namespace {

constexpr int kSchedules = 3000;
constexpr int kSteps = 60;
constexpr size_t kGpus = 3;

class Schedule {
 public:
  explicit Schedule(unsigned seed)
      : random_(seed),
        machine_(kGpus, pick(3) * 10 * kMs, seed % 3 == 0 ? Sharing::kNewest : Sharing::kHighest),
        faulty_(seed % 2 == 0),
        highest_(seed % 3 != 0) {}

  void run() {
    for (int i = 0; i < kSteps; ++i) {
      step();
      check();
      if (testing::Test::HasFatalFailure()) return;
    }
    machine_.fail_sets = machine_.refuse_sets = machine_.fail_restores = 0;
    machine_.disk_full = false;
    for (SessionId session = 1; session <= 4; ++session)
      machine_.table.end_session(session, Ending::kGone, machine_.now);
    machine_.pass(20'000 * kMs);
    check();
    ASSERT_TRUE(machine_.table.at_rest());
    ASSERT_EQ(machine_.clock_mhz, std::vector<uint32_t>(kGpus, 0));
  }

 private:
  unsigned pick(unsigned below) { return std::uniform_int_distribution<unsigned>(0, below - 1)(random_); }

  void step() {
    const SessionId session = 1 + pick(4);
    const size_t device = pick(kGpus);
    switch (pick(14)) {
      case 0:
      case 1:
        acquire(session, device, pick(2) == 0);
        break;
      case 2:
      case 3:
      case 4: {
        const uint32_t mhz = pick(4) == 0 ? 0 : pick(2000);
        machine_.set(session, leases_[{session, device}], mhz);
        wishes_[{session, device}] = mhz == 0 ? 0 : std::clamp(mhz, 300u, 1590u);
        break;
      }
      case 5:
        machine_.table.release(session, ++machine_.serial, leases_[{session, device}], machine_.now);
        break;
      case 6:
        machine_.table.end_session(session, static_cast<Ending>(pick(kEndings)), machine_.now);
        break;
      case 7:
        machine_.table.end(device, Ending::kRevoked, machine_.now);
        break;
      case 8:
        if (!faulty_) break;
        machine_.fail_sets = static_cast<int>(pick(2));
        machine_.refuse_sets = static_cast<int>(pick(2));
        machine_.fail_restores = static_cast<int>(pick(3));
        break;
      case 9:
        machine_.disk_full = faulty_ && pick(4) == 0;
        break;
      case 10:
        machine_.pass(pick(60) * kMs);
        if (!faulty_ && highest_) check_settled();
        break;
      case 11:
        machine_.table.read(session, ++machine_.serial, leases_[{session, device}]);
        break;
      case 12:
        if (faulty_ && pick(8) == 0) machine_.table.restore(device, false, machine_.now);
        break;
      default:
        if (!machine_.jobs.empty()) machine_.work();
    }
  }

  void acquire(SessionId session, size_t device, bool shares) {
    const uint32_t uid = session < 4 ? 1000 : 1001;
    const std::vector<Holder> before = machine_.table.holders(device);
    const uint64_t lease = machine_.acquire(session, device, shares, uid);
    if (lease == 0) return;
    if (lease != leases_[{session, device}]) {
      for (const Holder& holder : before)
        ASSERT_TRUE(shares && holder.shares && holder.uid == uid) << "a device that is not shared has two holders";
      wishes_[{session, device}] = 0;
    }
    leases_[{session, device}] = lease;
  }

  uint32_t highest_wish(size_t device) {
    uint32_t highest = 0;
    for (const Holder& holder : machine_.table.holders(device)) {
      const uint32_t wish = wishes_[{holder.session, device}];
      if (wish == 0) return 0;
      highest = std::max(highest, wish);
    }
    return highest;
  }

  // Time has passed and the driver has done what it was asked, but the rate limit may keep the last wish waiting.
  void check_settled() {
    for (size_t i = 0; i < kGpus; ++i) {
      if (machine_.table.next_ns() != INT64_MAX) continue;
      ASSERT_EQ(machine_.clock_mhz[i], highest_wish(i)) << "device " << i;
    }
  }

  void check() {
    ASSERT_FALSE(machine_.unmarked_set) << "a clock was set before its mark was written";
    std::vector<int> busy(kGpus, 0);
    for (const Job& job : machine_.jobs)
      if (job.kind != Job::kRead) ++busy[job.device];
    for (size_t i = 0; i < kGpus; ++i) {
      ASSERT_LE(busy[i], 1) << "two jobs under way on one device";
      const bool marked = machine_.marks.count("GPU-" + std::to_string(i)) != 0;
      if (machine_.clock_mhz[i] == 0) continue;
      ASSERT_TRUE(marked) << "a clock is set and the state file does not say so";
      const DeviceView view = machine_.table.view(i);
      const bool restoring = view.pending || busy[i] == 1;
      ASSERT_TRUE(view.holder != nullptr || restoring)
          << "a clock is set, nobody holds it, and nothing will put it back";
      if (view.holder != nullptr && !restoring) {
        ASSERT_TRUE(!highest_ || highest_wish(i) != 0)
            << "a clock is set and one of its holders wishes for the usual one";
        ASSERT_GE(view.changes, 1u) << "the holder starts at the clock of the one before";
        ASSERT_GE(machine_.clock_mhz[i], 300u);
        ASSERT_LE(machine_.clock_mhz[i], 1590u);
      }
    }
  }

  std::mt19937 random_;
  Machine machine_;
  std::map<std::pair<SessionId, size_t>, uint64_t> leases_;
  std::map<std::pair<SessionId, size_t>, uint32_t> wishes_;  // 0: usual
  const bool faulty_, highest_;
};

TEST(LeaseTableRandom, HoldsItsPromises) {
  for (unsigned seed = 0; seed < kSchedules; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    Schedule(seed).run();
    if (HasFatalFailure()) return;
  }
}

}  // namespace
}  // namespace powerccl::daemon
