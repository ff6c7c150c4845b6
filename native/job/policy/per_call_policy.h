// SPDX-License-Identifier: Apache-2.0
// The clock policy that holds a clock for single calls or waits, from when each begins until it is over. It is PCCL as
// published (docs/concepts/pccl.md). While any call holds, the newest wish applies. When the last holder has gone, the
// default does.
#pragma once
#include <stdint.h>

#include <atomic>

#include "policy/clock_policy.h"

namespace powerccl {

class PerCallPolicy final : public ClockPolicy {
 public:
  // From any thread, such as NCCL's and CUDA's. They take no lock, because those threads must not wait for the clock
  // thread. After hold(), the clock thread has to look again.
  void hold(uint32_t mhz, uint64_t call, uint64_t now_ns);
  // One hold more at whatever clock is wished for already.
  void hold_on() { holds_.fetch_add(1, std::memory_order_seq_cst); }
  // `call` is over, and with it so many holds. True: no call holds any more, and the default clock is wanted
  // immediately.
  bool release(uint32_t holds, uint64_t call, uint64_t now_ns);

  // Forgets all holds, also those without a release to come.
  void rest(uint64_t now_ns) override;
  Wanted wanted(uint64_t now_ns) override;

 private:
  // Wishes are a ring of which only the newest counts. All fields are atomics, and `number` is stored last. So the
  // clock thread can tell a wish that was overwritten while it was read.
  struct Wish {
    std::atomic<uint64_t> number{0};
    std::atomic<uint64_t> call{0}, asked_ns{0};
    std::atomic<uint32_t> mhz{0};
  };
  // More threads than this never wish within the time in which the clock thread reads one wish.
  static constexpr uint64_t kRing = 64;

  bool newest(Wanted* wanted);
  void over(uint64_t call, uint64_t now_ns);

  Wish ring_[kRing];
  std::atomic<uint64_t> wished_{0};
  std::atomic<int64_t> holds_{0};
  std::atomic<uint64_t> released_call_{0}, released_ns_{0};
};

}  // namespace powerccl
