// SPDX-License-Identifier: Apache-2.0
// The discrete-event engine of the emulated server, in model time.
//
// Model time is CLOCK_MONOTONIC nanoseconds but independent of wall time: the engine's driver calls advance().
// The server drives it with the real clock; calibration tests drive it as fast as they like. One thread only, except
// what run_in_worker() runs.
#pragma once
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <vector>

#include "physics/gpu.h"
#include "physics/interfaces.h"
#include "physics/messages.h"
#include "physics/platform.h"

namespace powerccl::physics {

class Engine {
 public:
  Engine(const Platform& platform, Time start, Outside& outside);
  ~Engine();
  Engine(const Engine&) = delete;
  Engine& operator=(const Engine&) = delete;

  // ---- For the collective engine.
  Time now() const;
  const Platform& platform() const;
  // The op's kernel is on the GPU from now: the start is published and the GPU draws what `communication` draws and
  // is slowed by it.
  void start(OpId op, const Communication& communication);
  // The op is over; its stream goes on. `result` is published in the op's slot (0: fine). Without start() it counts as
  // started now. Unknown ids are ignored.
  void finish(OpId op, int32_t result = 0);
  // Work of size `total` on these GPUs, progressing at rate(clock of each GPU in MHz) per ns; re-evaluated exactly
  // whenever one of the clocks changes. `done` is called when it is through, unless cancelled.
  WorkId start_work(std::vector<uint32_t> gpus, double total,
                    std::function<double(std::span<const double> clocks_mhz)> rate, std::function<void(Time)> done);
  void cancel_work(WorkId work);
  void refresh_work(WorkId work);  // its rate depends on more than clocks, and that has changed
  TimerId at(Time when, std::function<void(Time)> action);  // `when` in the past: as soon as possible
  void cancel_timer(TimerId timer);
  void reply(ClientId client, uint64_t request, int32_t error, std::span<const std::byte> body);
  std::shared_ptr<Memory> memory(ClientId client, uint64_t allocation);  // null: unknown
  void run_in_worker(std::function<void()> job, std::function<void(Time)> done);
  Gpu& gpu(uint32_t index);

  // A collective's end has waited so long for its data, which this machine moves slower than the platform would.
  void data_came_late(Time by);

  // ---- For the engine's driver.
  Time data_late() const;  // in all
  void set_collective_handler(CollectiveHandler* handler);
  void advance(Time to);         // carries out everything due up to and including `to`
  Time next_event() const;       // when something is due next; INT64_MAX if nothing is
  bool next_is_precise() const;  // that moment is visible outside: worth spinning for
  void add_client(ClientId client, ClientPage* page);
  void remove_client(ClientId client);
  // A submission, a callback's end or a message of the collective engine; takes effect at max(now, its stamp).
  void submit(ClientId client, std::span<const std::byte> message);
  void from_outside(std::function<void(Time)> action, Time stamp);
  // nvmlDeviceSetGpuLockedClocks, or its reset (0, 0): `done` when the call returns; the clock follows the platform's
  // delay later, and what runs may stand still. Returns when the call will return.
  Time set_locked_clocks(uint32_t gpu, uint32_t min_mhz, uint32_t max_mhz, bool change, Time stamp,
                         std::function<void(Time)> done);
  // Streams' functions of these names.
  bool stop_time(ClientId client, uint64_t stop, Time patience);
  bool start_time(ClientId client, uint64_t stop);
  void start_all(ClientId client);
  void publish(BoardPage& page);  // keep the board page up to date from now on
  void keep_truth(Truth& truth);  // likewise what each state of each GPU takes
  void settle();                  // all GPUs' sums up to now()

 private:
  void change_lock(uint32_t gpu, uint32_t min_mhz, uint32_t max_mhz, Time now);

  struct Parts;
  std::unique_ptr<Parts> parts_;
};

}  // namespace powerccl::physics
