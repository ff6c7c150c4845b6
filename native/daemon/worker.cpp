// SPDX-License-Identifier: Apache-2.0
#include "daemon/worker.h"

#include <pthread.h>
#include <unistd.h>

#include <utility>

namespace powerccl::daemon {

Worker::Worker(Driver* driver, const char* name, int bell, AnswerJob answer)
    : driver_(driver), bell_(bell), answer_(std::move(answer)), thread_([this] { work(); }) {
  pthread_setname_np(thread_.native_handle(), name);
}

Worker::~Worker() {
  if (!thread_.joinable()) return;
  {
    const std::lock_guard lock(mutex_);
    ending_ = true;
  }
  some_.notify_one();
  thread_.join();
}

void Worker::abandon() {
  if (thread_.joinable()) thread_.detach();
}

void Worker::add(Job job) {
  {
    const std::lock_guard lock(mutex_);
    (job.kind == Job::kRestore ? urgent_ : jobs_).push_back(std::move(job));
  }
  some_.notify_one();
}

std::vector<Done> Worker::take() {
  const std::lock_guard lock(mutex_);
  return std::exchange(done_, {});
}

void Worker::work() {
  std::unique_lock lock(mutex_);
  for (;;) {
    some_.wait(lock, [this] { return ending_ || !urgent_.empty() || !jobs_.empty(); });
    if (ending_) return;
    std::deque<Job>& from = urgent_.empty() ? jobs_ : urgent_;
    Job job = std::move(from.front());
    from.pop_front();
    lock.unlock();
    Outcome outcome;
    switch (job.kind) {
      case Job::kSet:
        outcome = driver_->set(job.index, job.min_mhz, job.max_mhz);
        break;
      case Job::kRestore:
        outcome = driver_->restore(job.index, job.mark);
        break;
      case Job::kRead:
        outcome = driver_->read(job.index);
        break;
    }
    if (job.session != 0) answer_(job, outcome);
    lock.lock();
    done_.push_back({std::move(job), std::move(outcome)});
    const uint64_t one = 1;
    if (write(bell_, &one, sizeof one) < 0) continue;  // full: the loop has not looked yet, and will
  }
}

}  // namespace powerccl::daemon
