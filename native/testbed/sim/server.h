// SPDX-License-Identifier: Apache-2.0
// The emulated GPU server in virtual time: the same engine that the real-time server drives, without
// waiting. Ranks are clients that call it directly.
#pragma once
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "clock/clock_follower.h"
#include "physics/collective_engine.h"
#include "physics/collective_messages.h"
#include "physics/engine.h"
#include "physics/messages.h"
#include "policy/clock_policy.h"

namespace powerccl::sim {

using physics::Time;

class Server final : public physics::Outside {
 public:
  Server(const physics::Platform& platform, uint32_t ranks);
  ~Server() override;

  Time now() const { return engine_.now(); }
  physics::Engine& engine() { return engine_; }
  // To the next moment at which something happens. False: nothing ever will.
  bool step();
  // Calls `action` so many ns from now.
  void after(Time ns, std::function<void()> action);

  // Of one rank's GPU.
  void kernel(uint32_t rank, uint32_t stream, uint64_t declared);
  void collective(uint32_t rank, uint32_t stream, std::span<const std::byte> payload, uint32_t slot, uint64_t number);
  void record(uint32_t rank, uint32_t stream, uint32_t event, uint64_t number);
  void wait(uint32_t rank, uint32_t stream, uint32_t on);  // for all that is in the other one now
  bool done(uint32_t rank, uint32_t stream) const;         // nothing is left in it
  const physics::OpSlot& operation(uint32_t rank, uint32_t slot) const { return pages_[rank]->ops[slot]; }
  const physics::EventSlot& event(uint32_t rank, uint32_t slot) const { return pages_[rank]->events[slot]; }

  // A communicator of these ranks, in this order: the number by which plans name it.
  uint64_t communicator(const std::vector<uint32_t>& members);

  double joules(uint32_t rank);                 // of its GPU until now
  ClockPolicy::Reading reading(uint32_t rank);  // of its GPU now

  // Outside
  void reply(physics::ClientId client, uint64_t request, int32_t error, std::span<const std::byte> body) override;
  void run_callback(physics::ClientId, uint64_t, uint32_t, uint64_t) override {}
  std::shared_ptr<physics::Memory> memory(physics::ClientId, uint64_t) override { return nullptr; }
  void run_in_worker(std::function<void()> job, std::function<void(Time)> done) override;

 private:
  template <typename Message>
  void send(uint32_t rank, uint32_t stream, physics::Message type, Message& message, std::span<const std::byte> more);

  std::vector<std::unique_ptr<physics::ClientPage>> pages_;
  physics::Engine engine_;
  physics::CollectiveEngine collectives_;
  std::vector<std::map<uint32_t, uint64_t>> sequences_;  // of each rank's streams
  uint64_t joined_ = 0;                                  // the communicator that was made last
  uint64_t keys_ = 0;
};

// The clock of one rank's GPU in virtual time. It carries out what a job's clock thread (clock/clock_follower.h) asks
// for. It runs that code whenever the thread would wake, as late as a thread does.
// The lease that a daemon grants on a clock. Without one the clock is at its default, and wishes wait for the next one.
struct Lease {
  struct Absence {
    Time begin, end;
  };
  Time interval_ns = 0;  // the least time from one clock to a lower one
  std::vector<Absence> absences;
};

class ClockDriver final : public ClockClient {
 public:
  ClockDriver(Server& server, uint32_t gpu, ClockPolicy& policy, const Lease& lease, Trace& trace);

  void look();    // the policy has received something new
  void settle();  // the job is over

  uint64_t switches() const { return follower_.switches(); }
  Time settled_at() const { return std::max(server_.now(), busy_until_); }  // the last call is over
  std::optional<Time> first_set() const { return first_set_; }  // when a clock was set that is not the default

 private:
  // ClockClient. A driver's call keeps the thread: its time is ahead of the server's until the call is over.
  uint64_t now_ns() const override { return static_cast<uint64_t>(std::max(server_.now(), busy_until_)); }
  int set(uint32_t mhz) override;
  int reset() override;
  bool can_read() const override { return true; }
  int read(ClockPolicy::Reading* reading) override;
  uint64_t grant() const override { return granted_ ? grants_ : 0; }
  uint64_t delay_ns(uint32_t mhz) const override { return limit_.delay_ns(mhz, now_ns(), interval_ns_); }
  bool dry() const override { return false; }

  void lock(uint32_t mhz);
  void wake_at(Time at);
  void run();

  Server& server_;
  uint32_t gpu_;
  ClockPolicy& policy_;
  ClockFollower follower_;
  uint64_t interval_ns_;
  LoweringLimit limit_;
  physics::TimerId timer_ = 0;
  Time wakes_at_ = 0, busy_until_ = 0;
  uint64_t grants_ = 1;
  bool granted_ = true;
  std::optional<Time> first_set_;
};

}  // namespace powerccl::sim
