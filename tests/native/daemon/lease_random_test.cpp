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
  explicit Schedule(unsigned seed) : random_(seed), machine_(kGpus, (pick(3)) * 10 * kMs) {}

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
        if (const uint64_t lease = machine_.acquire(session, device); lease != 0) {
          leases_[{session, device}] = lease;
          for (auto& [key, other] : leases_)
            if (key.second == device && key.first != session) other = 0;  // it must have ended before
        }
        break;
      case 2:
      case 3:
      case 4:
        machine_.set(session, leases_[{session, device}], pick(4) == 0 ? 0 : pick(2000));
        break;
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
        machine_.fail_sets = static_cast<int>(pick(2));
        machine_.refuse_sets = static_cast<int>(pick(2));
        machine_.fail_restores = static_cast<int>(pick(3));
        break;
      case 9:
        machine_.disk_full = pick(4) == 0;
        break;
      case 10:
        machine_.pass(pick(60) * kMs);
        break;
      case 11:
        machine_.table.read(session, ++machine_.serial, leases_[{session, device}]);
        break;
      case 12:
        if (pick(8) == 0) machine_.table.put_back(device, "", machine_.now);
        break;
      default:
        if (!machine_.jobs.empty()) machine_.work();
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
        ASSERT_GE(view.changes, 1u) << "the holder starts at the clock of the one before";
        ASSERT_GE(machine_.clock_mhz[i], 300u);
        ASSERT_LE(machine_.clock_mhz[i], 1590u);
      }
    }
  }

  std::mt19937 random_;
  Machine machine_;
  std::map<std::pair<SessionId, size_t>, uint64_t> leases_;
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
