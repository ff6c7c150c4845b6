// SPDX-License-Identifier: Apache-2.0
// One GPU's clock thread: follows a clock policy, which says at any moment what the clock is to be and for how long
// that holds. A device call takes milliseconds, and the threads that tell the policy what happens are NCCL's and
// CUDA's. They wake this thread, never wait for it and never call the driver.
//
// Where clocks are granted by something else (ClockClient::tick), the thread looks after the grant as well. Without one
// the clock is at its default and wishes are of no effect; with a new one the newest wish is carried out again.
#ifndef POWERCCL_CLOCK_CLOCK_ACTUATOR_H
#define POWERCCL_CLOCK_CLOCK_ACTUATOR_H
#include <pthread.h>
#include <stdint.h>

#include <atomic>

#include "clock/clock_client.h"
#include "policy/clock_policy.h"
#include "record/trace_writer.h"

namespace powerccl {

class ClockActuator {
 public:
  ClockActuator() = default;
  ClockActuator(const ClockActuator&) = delete;
  ClockActuator& operator=(const ClockActuator&) = delete;

  // Starts the thread, which follows `policy`. False if there can be none. `debug`: also say each request.
  bool start(const ClockClient& client, ClockPolicy* policy, TraceWriter* trace, bool debug);

  // Something happened that the policy was told of: the clock thread asks it again.
  void look();

  // Whether the device has refused a request; then nothing more is asked of it but a last reset.
  bool failed() const { return failed_.load(std::memory_order_relaxed); }

  // Lets the policy rest, has the clock reset if it is set, and waits for that, at most `timeout_ns`. False: still set.
  bool settle(uint64_t timeout_ns);

  // settle(), then ends the thread. One that does not settle in time is left to end by itself; stop again to wait more.
  bool stop(uint64_t timeout_ns);

  uint64_t switches() const { return switches_.load(std::memory_order_relaxed); }

 private:
  // Why a clock is asked for, as its record tells.
  struct Cause {
    uint64_t call_id = 0, asked_ns = 0;
  };

  static void* thread_main(void* self);
  void work();
  uint64_t follow(uint32_t applied);
  Cause cause_of_reset();
  void carry_out(uint32_t mhz, const Cause& cause, uint64_t coalesced);
  bool grant_changed();
  void read_back();

  ClockClient client_;
  TraceWriter* trace_ = nullptr;
  ClockPolicy* policy_ = nullptr;
  bool debug_ = false;
  pthread_t thread_ = {};
  bool started_ = false;

  std::atomic<uint32_t> bell_{0};
  std::atomic<bool> asleep_{false}, stopping_{false}, failed_{false};
  std::atomic<uint32_t> applied_mhz_{0};  // what is set, or may be; 0: the default
  std::atomic<bool> settled_{true};       // false while a thread waits in settle()
  std::atomic<bool> reset_refused_{false};
  std::atomic<uint32_t> settled_bell_{0};
  std::atomic<uint64_t> switches_{0};
  // The clock thread's own. A clock takes some milliseconds to arrive, so it is read back, and its set recorded, when
  // they have passed or when the next change comes.
  static constexpr uint64_t kArrivalNs = 10000000u;
  // Reading costs a request, of which a daemon takes so many a second, and the next change waits for it.
  static constexpr uint64_t kReadEveryNs = 100000000u;
  uint64_t taken_ = 0;        // the last of the policy's wishes that it has dealt with
  uint64_t recorded_ns_ = 0;  // when the policy's state was recorded last
  powerccl_trace_record unread_ = {};
  uint64_t read_at_ns_ = 0;     // 0: nothing is to be read back
  uint64_t read_again_ns_ = 0;  // not before then
  uint64_t grant_ = 0;          // the client's, as seen last
  uint32_t put_off_mhz_ = 0;
  bool put_off_ = false;  // the last wish could not be carried out for now: it waits for a grant or a newer wish
};

}  // namespace powerccl
#endif
