// SPDX-License-Identifier: Apache-2.0
// The emulated GPU server in virtual time: the same engine that the real-time server drives, without
// waiting. Ranks are clients that call it directly.
#pragma once
#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <span>
#include <vector>

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

}  // namespace powerccl::sim
