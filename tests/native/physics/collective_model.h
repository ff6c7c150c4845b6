// SPDX-License-Identifier: Apache-2.0
// The collective engine on the real engine in model time, without server, sockets or clocks: ranks are numbers.
#pragma once
#include <cstring>
#include <map>
#include <memory>
#include <vector>

#include "physics/collective_engine.h"
#include "physics/collective_messages.h"
#include "physics/engine.h"

namespace powerccl::physics::test {

inline constexpr double kBandwidthGbs = 4;
inline constexpr double kFastMhz = 1500;

// Bandwidth 4 GB/s for every pattern and size, half of it at half the clock; 10 us at least; no launch latency.
inline Platform flat_platform(uint32_t gpus) {
  Platform platform;
  platform.name = "flat";
  platform.gpu_name = "Flat";
  platform.gpus = gpus;
  platform.memory_bytes = 1 << 30;
  platform.clock_min_mhz = 300;
  platform.clock_max_mhz = static_cast<uint32_t>(kFastMhz);
  platform.clock_idle_mhz = 300;
  platform.memory_clock_mhz = 5000;
  platform.reference_clock_mhz = kFastMhz;
  platform.voltage_v = {{300, 0.7}, {kFastMhz, 1.0}};
  platform.power_limit_w = 1000;
  platform.peak_limit_w = 1000;
  platform.refresh_ms = 20;
  for (PatternModel& model : platform.patterns) {
    model.bandwidth_gbs = {{1, kBandwidthGbs}};
    model.knee_mhz = {{1, kFastMhz}};
    model.boost = {{1, 0}};
    model.fall = {{1, 1}};
    model.base_latency_us = 10;
  }
  return platform;
}

class Model : public Outside {
 public:
  struct Reply {
    int32_t error;
    std::vector<std::byte> body;
    template <typename T>
    T as() const {
      T value{};
      memcpy(&value, body.data(), std::min(sizeof value, body.size()));
      return value;
    }
  };

  explicit Model(Platform made) : platform(std::move(made)), engine(platform, 1'000'000, *this), collectives(engine) {
    engine.set_collective_handler(&collectives);
    for (ClientId client = 1; client <= platform.gpus; ++client) {
      pages[client] = std::make_unique<ClientPage>();
      engine.add_client(client, pages[client].get());
    }
  }

  // Rank r is client r + 1 on GPU r.
  static ClientId client_of(uint32_t rank) { return rank + 1; }

  uint64_t request(ClientId client, CollectiveMessage type, const void* body, size_t bytes) {
    std::vector<std::byte> message(sizeof(Header) + bytes);
    const Header header{static_cast<uint32_t>(type), static_cast<uint32_t>(message.size()),
                        static_cast<uint64_t>(engine.now()), ++requests};
    memcpy(message.data(), &header, sizeof header);
    memcpy(message.data() + sizeof header, body, bytes);
    engine.submit(client, message);
    engine.advance(engine.now());
    return requests;
  }
  template <typename T>
  uint64_t request(ClientId client, CollectiveMessage type, const T& body) {
    return request(client, type, &body, sizeof body);
  }

  Join join_of(uint32_t rank, uint32_t ranks, uint8_t key, bool move = true) {
    Join join{};
    join.key[0] = key;
    join.ranks = ranks;
    join.rank = rank;
    join.gpu = rank;
    join.move_data = move;
    return join;
  }
  // A communicator of the first `ranks` ranks; its number.
  uint64_t communicator(uint32_t ranks, uint8_t key = 1, bool move = false) {
    uint64_t last = 0;
    for (uint32_t rank = 0; rank < ranks; ++rank)
      last = request(client_of(rank), CollectiveMessage::kJoin, join_of(rank, ranks, key, move));
    return replies.at(last).as<Joined>().comm;
  }

  static CollectiveTask task(TaskKind kind, uint64_t count, DataType type = DataType::kFloat32, int peer = 0) {
    CollectiveTask made{};
    made.kind = static_cast<uint8_t>(kind);
    made.type = static_cast<uint8_t>(type);
    made.pattern = kNoPattern;
    made.peer = static_cast<int16_t>(peer);
    made.count = count;
    made.input = made.output = made.scalar = {kNoAllocation, 0};
    return made;
  }
  static CollectiveTask transfer(TaskKind kind, uint64_t bytes, uint32_t peer) {
    return task(kind, bytes, DataType::kInt8, static_cast<int>(peer));
  }

  // Submits to stream `stream` of the rank; when it is over, ended(rank, stream) says so.
  void submit(uint64_t comm, uint32_t rank, const std::vector<CollectiveTask>& tasks, uint32_t stream = 1,
              Time after = 0, bool events = false) {
    CollectivePlan plan{};
    plan.comm = comm;
    plan.rank = rank;
    plan.tasks = static_cast<uint32_t>(tasks.size());
    plan.plan = ++plans;
    plan.want_events = events;
    plan.moves_data = 1;
    const size_t payload = sizeof plan + tasks.size() * sizeof(CollectiveTask);
    std::vector<std::byte> message(sizeof(Collective) + payload);
    Collective head{};
    head.to.header = {static_cast<uint32_t>(Message::kCollective), static_cast<uint32_t>(message.size()),
                      static_cast<uint64_t>(engine.now() + after), 0};
    head.to.gpu = rank;
    head.to.stream = stream;
    head.to.sequence = ++sequences[{rank, stream}];
    head.op = stream;
    head.payload_bytes = static_cast<uint32_t>(payload);
    head.generation = head.to.sequence;
    memcpy(message.data(), &head, sizeof head);
    memcpy(message.data() + sizeof head, &plan, sizeof plan);
    memcpy(message.data() + sizeof head + sizeof plan, tasks.data(), tasks.size() * sizeof(CollectiveTask));
    engine.submit(client_of(rank), message);
  }

  void run_for(Time ns) { engine.advance(engine.now() + ns); }
  bool ended(uint32_t rank, uint32_t stream = 1) {
    return pages[client_of(rank)]->streams[stream].completed.load() == sequences[{rank, stream}];
  }
  Time ended_at(uint32_t rank, uint32_t stream = 1) {
    return static_cast<Time>(pages[client_of(rank)]->ops[stream].stopped_ns.load());
  }
  Time started_at(uint32_t rank, uint32_t stream = 1) {
    return static_cast<Time>(pages[client_of(rank)]->ops[stream].started_ns.load());
  }
  int32_t result(uint32_t rank, uint32_t stream = 1) { return pages[client_of(rank)]->ops[stream].result.load(); }

  void reply(ClientId, uint64_t request, int32_t error, std::span<const std::byte> body) override {
    replies[request] = {error, {body.begin(), body.end()}};
  }
  void run_callback(ClientId, uint64_t, uint32_t, uint64_t) override {}
  std::shared_ptr<Memory> memory(ClientId client, uint64_t allocation) override {
    const auto found = memories.find({client, allocation});
    return found == memories.end() ? nullptr : found->second;
  }
  void run_in_worker(std::function<void()> job, std::function<void(Time)> done) override {
    job();
    engine.from_outside(std::move(done), engine.now());
  }

  Platform platform;
  Engine engine;
  CollectiveEngine collectives;
  std::map<uint64_t, Reply> replies;
  std::map<std::pair<ClientId, uint64_t>, std::shared_ptr<Memory>> memories;

 private:
  std::map<ClientId, std::unique_ptr<ClientPage>> pages;
  std::map<std::pair<uint32_t, uint32_t>, uint64_t> sequences;
  uint64_t requests = 0, plans = 0;
};

}  // namespace powerccl::physics::test
