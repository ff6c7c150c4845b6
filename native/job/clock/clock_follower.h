// SPDX-License-Identifier: Apache-2.0
// What a clock thread does for one GPU, without the thread. It asks a clock policy for the clock, has a client set it,
// reads the clock back and records it. Time is the client's, and nothing here waits but for the client. A job's clock
// thread (clock_actuator.h) and powerccl-sim drive the same code.
//
// Where clocks are granted by a daemon (ClockClient::tick), the grant is looked after as well. Without one the clock is
// at its default and wishes are of no effect; with a new one the newest wish is carried out again.
#pragma once
#include <stdint.h>

#include <atomic>

#include "clock/clock_client.h"
#include "policy/clock_policy.h"
#include "record/trace.h"

namespace powerccl {

class ClockFollower {
 public:
  ClockFollower() = default;
  ClockFollower(const ClockFollower&) = delete;
  ClockFollower& operator=(const ClockFollower&) = delete;

  // `debug`: also say each request.
  void begin(ClockClient* client, ClockPolicy* policy, Trace* trace, bool debug);

  // Does what the policy wants now. Returns for how many ns nothing is left to do, unless the policy
  // receives something before.
  uint64_t follow();
  // Reads back and looks after the grant, if it is time. Returns for how many ns, at most `idle_ns`, nothing is left to
  // do.
  uint64_t tend(uint64_t idle_ns);
  // Resets the clock if it is set. `again`: also if the last reset was refused.
  void reset(bool again);
  // The last call.
  void end();
  // What a policy that learns has come to, as a record of the trace. From any thread.
  void record_policy();

  // From any thread.
  // Whether the device has refused a request; then nothing more is asked of it but a last reset.
  bool failed() const { return failed_.load(std::memory_order_relaxed); }
  bool at_default() const {
    return applied_mhz_.load(std::memory_order_acquire) == 0 && !reset_refused_.load(std::memory_order_acquire);
  }
  uint64_t switches() const { return switches_.load(std::memory_order_relaxed); }

 private:
  // Why a clock is asked for, as its record tells.
  struct Cause {
    uint64_t call_id = 0, asked_ns = 0;
  };

  uint64_t ask_policy();
  Cause cause_of_reset();
  void carry_out(uint32_t mhz, const Cause& cause, uint64_t coalesced);
  bool grant_changed();
  void read_back();

  ClockClient* client_ = nullptr;
  ClockPolicy* policy_ = nullptr;
  Trace* trace_ = nullptr;
  bool debug_ = false;

  std::atomic<bool> failed_{false}, reset_refused_{false};
  std::atomic<uint32_t> applied_mhz_{0};  // what is set, or may be; 0: the default
  std::atomic<uint64_t> switches_{0};
  // A clock takes some milliseconds to arrive. Then, or at the next change, it is read back and its set is recorded.
  static constexpr uint64_t kArrivalNs = 10000000u;
  // Reading costs a request, of which a daemon takes so many a second, and the next change waits for it.
  static constexpr uint64_t kReadEveryNs = 100000000u;
  uint64_t taken_ = 0;        // the last of the policy's wishes that was dealt with
  uint64_t recorded_ns_ = 0;  // when the policy's state was recorded last
  powerccl_trace_record unread_ = {};
  uint64_t read_at_ns_ = 0;     // 0: nothing is to be read back
  uint64_t read_again_ns_ = 0;  // not before then
  uint64_t grant_ = 0;          // the client's, as seen last
  uint32_t put_off_mhz_ = 0;
  bool put_off_ = false;  // the last wish could not be carried out for now: it waits for a grant or a newer wish
};

}  // namespace powerccl
