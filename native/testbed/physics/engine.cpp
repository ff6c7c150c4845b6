// SPDX-License-Identifier: Apache-2.0
#include "physics/engine.h"

#include <sys/mman.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <random>
#include <utility>

#include "physics/clockwork.h"
#include "physics/streams.h"

namespace powerccl::physics {

Memory::~Memory() {
  if (data != nullptr) munmap(data, bytes);
}

struct Engine::Parts {
  Parts(const Platform& platform, Time start, Outside& to)
      : clockwork(platform, start),
        streams(clockwork, to),
        outside(to),
        calls_until(platform.hosts),
        gpu_calls_until(platform.gpus, start),
        locks(platform.gpus) {
    for (uint32_t i = 0; i < platform.gpus; ++i) locks[i].random.seed(i + 1);
  }

  // How a GPU's lock changes.
  struct Lock {
    uint32_t min_mhz = 0, max_mhz = 0;  // as asked for last
    TimerId transition = 0;             // under way; 0: none
    std::mt19937_64 random;             // the same calls take the same times again
    // A median's multiple: times of calls and transitions have long tails.
    double times(double spread) {
      return spread > 0 ? std::exp(std::normal_distribution<double>(0, spread)(random)) : 1;
    }
  };

  Clockwork clockwork;
  Streams streams;
  Outside& outside;
  Time data_late = 0;
  std::vector<Time> calls_until;  // by host: its driver carries out one clock call at a time
  std::vector<Time> gpu_calls_until;
  std::vector<Lock> locks;  // by GPU
};

Engine::Engine(const Platform& platform, Time start, Outside& outside)
    : parts_(std::make_unique<Parts>(platform, start, outside)) {}

Engine::~Engine() = default;

Time Engine::now() const {
  return parts_->clockwork.now();
}

const Platform& Engine::platform() const {
  return parts_->clockwork.platform();
}

Gpu& Engine::gpu(uint32_t index) {
  return parts_->clockwork.gpu(index);
}

void Engine::start(OpId op, const Communication& communication) {
  parts_->streams.start_collective(op, communication);
}

void Engine::finish(OpId op, int32_t result) {
  parts_->streams.finish_collective(op, result);
}

WorkId Engine::start_work(std::vector<uint32_t> gpus, double total, std::function<double(std::span<const double>)> rate,
                          std::function<void(Time)> done) {
  return parts_->clockwork.add_work(std::move(gpus), total, std::move(rate), std::move(done), false);
}

void Engine::cancel_work(WorkId work) {
  parts_->clockwork.cancel_work(work);
}

void Engine::refresh_work(WorkId work) {
  parts_->clockwork.refresh_work(work);
}

TimerId Engine::at(Time when, std::function<void(Time)> action) {
  return parts_->clockwork.at(when, std::move(action));
}

void Engine::cancel_timer(TimerId timer) {
  parts_->clockwork.cancel_timer(timer);
}

void Engine::reply(ClientId client, uint64_t request, int32_t error, std::span<const std::byte> body) {
  parts_->outside.reply(client, request, error, body);
}

std::shared_ptr<Memory> Engine::memory(ClientId client, uint64_t allocation) {
  return parts_->outside.memory(client, allocation);
}

void Engine::run_in_worker(std::function<void()> job, std::function<void(Time)> done) {
  parts_->outside.run_in_worker(std::move(job), std::move(done));
}

void Engine::data_came_late(Time by) {
  parts_->data_late += std::max<Time>(by, 0);
}

Time Engine::data_late() const {
  return parts_->data_late;
}

void Engine::set_collective_handler(CollectiveHandler* handler) {
  parts_->streams.set_collective_handler(handler);
}

void Engine::advance(Time to) {
  parts_->clockwork.advance(to);
}

Time Engine::next_event() const {
  return parts_->clockwork.next();
}

bool Engine::next_is_precise() const {
  return parts_->clockwork.next_is_precise();
}

void Engine::add_client(ClientId client, ClientPage* page) {
  parts_->streams.add_client(client, page);
}

void Engine::remove_client(ClientId client) {
  parts_->streams.remove_client(client);
}

void Engine::submit(ClientId client, std::span<const std::byte> message) {
  if (message.size() < sizeof(Header)) return;
  Header header;
  memcpy(&header, message.data(), sizeof header);
  auto copy = std::make_shared<std::vector<std::byte>>(message.begin(), message.end());
  if (header.type == static_cast<uint32_t>(Message::kCallbackDone)) {  // model time waits for it
    parts_->streams.process(client, std::move(*copy));
    return;
  }
  parts_->clockwork.at(static_cast<Time>(header.stamp_ns),
                       [this, client, copy](Time) { parts_->streams.process(client, std::move(*copy)); });
}

void Engine::from_outside(std::function<void(Time)> action, Time stamp) {
  parts_->clockwork.at(stamp, std::move(action));
}

Time Engine::set_locked_clocks(uint32_t gpu, uint32_t min_mhz, uint32_t max_mhz, bool change, Time stamp,
                               std::function<void(Time)> done) {
  Clockwork& clockwork = parts_->clockwork;
  const Platform& platform = clockwork.platform();
  Time& until =
      platform.set_clock_serialised ? parts_->calls_until[platform.host_of(gpu)] : parts_->gpu_calls_until[gpu];
  until = after_us(std::max({clockwork.now(), stamp, until}),
                   platform.set_clock_call_us * parts_->locks[gpu].times(platform.set_clock_call_spread));
  if (change) clockwork.at(until, [this, gpu, min_mhz, max_mhz](Time now) { change_lock(gpu, min_mhz, max_mhz, now); });
  clockwork.at(until, std::move(done));
  return until;
}

void Engine::change_lock(uint32_t gpu, uint32_t min_mhz, uint32_t max_mhz, Time now) {
  Clockwork& clockwork = parts_->clockwork;
  const Platform& platform = clockwork.platform();
  Parts::Lock& lock = parts_->locks[gpu];
  if (lock.min_mhz == min_mhz && lock.max_mhz == max_mhz) return;
  lock.min_mhz = min_mhz;
  lock.max_mhz = max_mhz;
  if (platform.set_clock_stall_us > 0) clockwork.stall(gpu, after_us(now, platform.set_clock_stall_us));
  // A GPU goes to where it was sent last: what it was on its way to before is never reached.
  clockwork.cancel_timer(lock.transition);
  const double us = platform.transition_us(max_mhz) * lock.times(platform.clock_transition_spread);
  lock.transition = clockwork.at(after_us(now, us), [this, gpu, min_mhz, max_mhz](Time) {
    parts_->locks[gpu].transition = 0;
    parts_->clockwork.change_gpu(gpu, [=](Gpu& changed) { changed.lock(min_mhz, max_mhz); });
  });
}

bool Engine::stop_time(ClientId client, uint64_t stop, Time patience) {
  return parts_->streams.stop_time(client, stop, patience);
}

bool Engine::start_time(ClientId client, uint64_t stop) {
  return parts_->streams.start_time(client, stop);
}

void Engine::start_all(ClientId client) {
  parts_->streams.start_all(client);
}

void Engine::publish(BoardPage& page) {
  parts_->clockwork.publish(page);
}

void Engine::keep_truth(Truth& truth) {
  for (uint32_t i = 0; i < parts_->clockwork.gpus(); ++i) gpu(i).keep_truth(truth, i);
}

void Engine::settle() {
  for (uint32_t i = 0; i < parts_->clockwork.gpus(); ++i) gpu(i).settle(now());
}

}  // namespace powerccl::physics
