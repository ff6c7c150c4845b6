// SPDX-License-Identifier: Apache-2.0
#include "emulator/server/worker.h"

#include <unistd.h>

#include "abi/host_clock.h"

namespace powerccl::emulator {

Worker::~Worker() {
  {
    const std::lock_guard lock(mutex_);
    stops_ = true;
  }
  ready_.notify_all();
  if (thread_.joinable()) thread_.join();
}

void Worker::add(std::function<void()> job, Done done, int wake) {
  {
    const std::lock_guard lock(mutex_);
    jobs_.emplace_back(std::move(job), std::move(done));
    if (!thread_.joinable()) thread_ = std::thread([this, wake] { work(wake); });
  }
  ready_.notify_one();
}

std::vector<std::pair<Worker::Done, Time>> Worker::take_ended() {
  const std::lock_guard lock(mutex_);
  return std::exchange(ended_, {});
}

void Worker::work(int wake) {
  std::unique_lock lock(mutex_);
  while (true) {
    ready_.wait(lock, [this] { return stops_ || !jobs_.empty(); });
    if (stops_) return;
    auto [job, done] = std::move(jobs_.front());
    jobs_.pop_front();
    lock.unlock();
    job();
    lock.lock();
    ended_.emplace_back(std::move(done), host_now_ns());
    const uint64_t one = 1;
    if (write(wake, &one, sizeof one) < 0) continue;  // the counter is full: the loop is awake anyway
  }
}

}  // namespace powerccl::emulator
