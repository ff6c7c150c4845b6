// SPDX-License-Identifier: Apache-2.0
// An emulated server in pure model time: no sockets, no sleeping. One client; a collective's payload is a `Transfer`,
// run on its GPU alone as if all ranks had arrived together.
#pragma once
#include <gtest/gtest.h>

#include <cstring>
#include <map>
#include <memory>
#include <set>
#include <vector>

#include "physics/engine.h"
#include "platforms.h"

namespace powerccl::physics {

inline constexpr Time kMs = 1'000'000;
inline constexpr double kMiB = 1024.0 * 1024;

struct Transfer {
  Pattern pattern;
  double bytes;
  uint32_t ranks;
};

class Model final : public Outside, public CollectiveHandler {
 public:
  static constexpr ClientId kClient = 1;

  explicit Model(Platform on)
      : platform(std::move(on)), page(std::make_unique<ClientPage>()), engine(platform, kMs * 1000, *this) {
    platform.set_clock_call_spread = platform.clock_transition_spread = 0;
    engine.set_collective_handler(this);
    engine.add_client(kClient, page.get());
    clock_ns = kMs * 1000;
  }

  void kernel(double declared_ms, uint32_t stream = 0, uint32_t gpu = 0) {
    Kernel message{};
    message.declared_ns = static_cast<uint64_t>(declared_ms * 1e6);
    send(message, message.to, Message::kKernel, stream, gpu);
  }
  void collective(Pattern pattern, double bytes, uint32_t stream = 0, uint32_t gpu = 0) {
    struct {
      Collective head;
      Transfer transfer;
    } message{};
    message.transfer = {pattern, bytes, platform.gpus};
    message.head.op = kMaxOps;
    message.head.payload_bytes = sizeof(Transfer);
    send(message, message.head.to, Message::kCollective, stream, gpu);
  }
  // Returns the event's slot; its time is known once it is complete.
  uint32_t record(uint32_t stream = 0, uint32_t gpu = 0) {
    EventRecord message{};
    message.event = next_event++;
    message.generation = 1;
    send(message, message.to, Message::kEventRecord, stream, gpu);
    return message.event;
  }
  void wait(uint32_t on_stream, uint32_t stream, uint32_t gpu = 0) {
    Wait message{};
    message.on_stream = on_stream;
    message.on_sequence = sequences[on_stream];
    send(message, message.to, Message::kWait, stream, gpu);
  }
  double event_ms(uint32_t event) const { return static_cast<double>(page->events[event].time_ns.load()) * 1e-6; }
  bool recorded(uint32_t event) const { return page->events[event].generation.load() != 0; }
  bool idle_or_new(uint32_t stream = 0) const { return sequences.count(stream) == 0 || idle(stream); }
  bool idle(uint32_t stream = 0) const { return page->streams[stream].completed.load() == sequences.at(stream); }

  void advance_ms(double ms) { advance_to(clock_ns + static_cast<Time>(ms * 1e6)); }
  void advance_to(Time to) {
    clock_ns = to;
    engine.advance(to);
    for (uint32_t i = 0; i < platform.gpus; ++i) engine.gpu(i).settle(to);
  }
  // Until the stream is empty, in the steps of the engine's own events.
  void finish(uint32_t stream = 0) {
    while (!idle(stream)) {
      ASSERT_NE(engine.next_event(), INT64_MAX) << "nothing will ever happen";
      advance_to(engine.next_event());
    }
  }
  double joules(uint32_t gpu = 0) { return engine.gpu(gpu).energy_uj() * 1e-6; }
  // The call returns and the clock has changed when this is over.
  void lock(uint32_t mhz, uint32_t gpu = 0) {
    bool returned = false;
    engine.set_locked_clocks(gpu, mhz, mhz, true, clock_ns, [&](Time) { returned = true; });
    while (!returned) advance_to(engine.next_event());
    advance_ms(platform.transition_us(mhz) * 1e-3 + 0.001);
  }
  void lock_later(uint32_t mhz, uint32_t gpu = 0) {
    engine.set_locked_clocks(gpu, mhz, mhz, true, clock_ns, [](Time) {});
  }

  // Outside
  void reply(ClientId, uint64_t request, int32_t error, std::span<const std::byte>) override {
    replies[request] = error;
  }
  void run_callback(ClientId, uint64_t callback, uint32_t stream, uint64_t sequence) override {
    callbacks.push_back({callback, stream, sequence, engine.now()});
  }
  std::shared_ptr<Memory> memory(ClientId, uint64_t) override { return nullptr; }
  void run_in_worker(std::function<void()> job, std::function<void(Time)> done) override {
    job();
    engine.from_outside(std::move(done), engine.now());
  }
  void callback_done(uint32_t stream, uint64_t sequence) {
    CallbackDone message{};
    message.header = {static_cast<uint32_t>(Message::kCallbackDone), sizeof message, static_cast<uint64_t>(clock_ns),
                      0};
    message.stream = stream;
    message.sequence = sequence;
    engine.submit(kClient, std::as_bytes(std::span(&message, 1)));
  }

  // CollectiveHandler
  void arrived(const Arrival& arrival, Time) override {
    Transfer transfer;
    ASSERT_EQ(arrival.payload.size(), sizeof transfer);
    memcpy(&transfer, arrival.payload.data(), sizeof transfer);
    engine.start(arrival.op, {transfer.bytes});
    const OpId op = arrival.op;
    open.insert(op);
    if (hold) return;
    engine.start_work(
        {arrival.gpu}, 1,
        [this, transfer](std::span<const double> clocks) {
          return 1 / platform.collective_ns(transfer.pattern, transfer.bytes, clocks[0], transfer.ranks);
        },
        [this, op](Time) {
          open.erase(op);
          engine.finish(op);
        });
  }
  void withdrawn(OpId op, Time) override { withdrawn_ops.push_back(op); }
  void message(ClientId client, uint64_t request, uint32_t, std::span<const std::byte>, Time) override {
    engine.reply(client, request, 7, {});
  }
  void client_gone(ClientId client, Time) override { gone.push_back(client); }

  struct CallbackOrder {
    uint64_t callback;
    uint32_t stream;
    uint64_t sequence;
    Time at;
  };

  Platform platform;
  std::unique_ptr<ClientPage> page;
  Engine engine;
  Time clock_ns;
  bool hold = false;  // collectives start and never end
  uint32_t next_event = 0;
  std::map<uint32_t, uint64_t> sequences;
  std::map<uint64_t, int32_t> replies;
  std::vector<CallbackOrder> callbacks;
  std::set<OpId> open;
  std::vector<OpId> withdrawn_ops;
  std::vector<ClientId> gone;

  template <typename M>
  void send(M& message, StreamHeader& to, Message type, uint32_t stream, uint32_t gpu) {
    to.header = {static_cast<uint32_t>(type), sizeof message, static_cast<uint64_t>(clock_ns), 0};
    to.gpu = gpu;
    to.stream = stream;
    to.sequence = ++sequences[stream];
    engine.submit(kClient, std::as_bytes(std::span(&message, 1)));
  }
};

// A training step of the published kind, on one GPU: computation, then exposed all-reduces.
struct StepFigures {
  double iteration_ms = 0, joules = 0;
  double compute_ms = 0, compute_joules = 0, comm_ms = 0, comm_joules = 0;
  std::vector<double> compute_watts;  // means over the NVML refresh period, wholly inside computation
  std::vector<double> compute_mhz;    // at the ends of those periods
  double joules_per_iteration() const { return joules; }
};

struct TrainingStep {
  std::vector<double> kernels_ms;  // computation
  std::vector<double> all_reduce_bytes;
};

// Averages over `iterations` after `warm_up`. `lock_mhz` 0: default clocks, else the clock is asked for when a
// collective starts and given back behind it, as the published policy does.
inline StepFigures replay(Model& model, const TrainingStep& step, int warm_up, int iterations, uint32_t lock_mhz) {
  StepFigures figures;
  for (int i = 0; i < warm_up + iterations; ++i) {
    const bool counted = i >= warm_up;
    const Time begun = model.clock_ns;
    const double begun_joules = model.joules();
    for (const double ms : step.kernels_ms) model.kernel(ms);
    Time window_end = model.clock_ns + static_cast<Time>(model.platform.refresh_ms * kMs);
    double window_joules = model.joules();
    while (!model.idle()) {
      const Time next = std::min(model.engine.next_event(), window_end);
      model.advance_to(next);
      if (next == window_end && !model.idle()) {
        if (counted) {
          figures.compute_watts.push_back((model.joules() - window_joules) / (model.platform.refresh_ms * 1e-3));
          figures.compute_mhz.push_back(model.engine.gpu(0).clock_mhz());
        }
        window_joules = model.joules();
        window_end += static_cast<Time>(model.platform.refresh_ms * kMs);
      }
    }
    const Time middle = model.clock_ns;
    const double middle_joules = model.joules();
    for (const double bytes : step.all_reduce_bytes) {
      model.collective(Pattern::kAllReduce, bytes);
      if (lock_mhz != 0) model.lock_later(lock_mhz);
      model.finish();
      if (lock_mhz != 0) model.lock_later(0);
    }
    if (!counted) continue;
    figures.compute_ms += static_cast<double>(middle - begun) * 1e-6 / iterations;
    figures.compute_joules += (middle_joules - begun_joules) / iterations;
    figures.comm_ms += static_cast<double>(model.clock_ns - middle) * 1e-6 / iterations;
    figures.comm_joules += (model.joules() - middle_joules) / iterations;
    figures.joules += (model.joules() - begun_joules) / iterations;
    figures.iteration_ms += static_cast<double>(model.clock_ns - begun) * 1e-6 / iterations;
  }
  return figures;
}

}  // namespace powerccl::physics
