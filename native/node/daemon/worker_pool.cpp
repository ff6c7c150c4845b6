// SPDX-License-Identifier: Apache-2.0
// The server's threads: all wait for events, and make device calls in turns.
#include <pthread.h>
#include <sys/epoll.h>
#include <sys/timerfd.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstring>

#include "daemon/clock.h"
#include "daemon/log.h"
#include "daemon/server.h"

namespace powerccl::daemon {
namespace {

constexpr int64_t kMs = 1'000'000;

}  // namespace

void Server::start_workers() {
  while (workers_.size() < 2) {
    workers_.emplace_back([this] {
      pthread_setname_np(pthread_self(), "powerccld-pool");
      work();
    });
  }
}

void Server::work() {
  Lock lock(mutex_);
  while (!over_) {
    // A mutex has no queue, and a flood of events would have this thread come again before another wakes up.
    if (entering_.load() > 0) entered_.wait(lock, [this] { return entering_.load() == 0; });
    if (!queue_.busy && !queue_.empty()) {
      make_call(&lock);
    } else {
      lock.unlock();
      epoll_event event;
      const int count = epoll_wait(epoll_, &event, 1, -1);
      enter(&lock);
      if (count > 0) handle(event.data.u64, event.events);
      keep_time(now_ns());
      sweep();
    }
    set_timer();
    if (!serving_ || stopping_) changed_.notify_one();
  }
}

void Server::enter(Lock* lock) {
  ++entering_;
  lock->lock();
  if (--entering_ == 0) entered_.notify_all();
}

void Server::set_timer() {
  const int64_t next = next_ns();
  // One that rings too early does no harm; setting it costs more.
  if (next >= timer_ns_) return;
  timer_ns_ = next;
  itimerspec when{};
  when.it_value.tv_sec = next / (1000 * kMs);
  when.it_value.tv_nsec = std::max<int64_t>(next % (1000 * kMs), 1);  // zero would stop it
  timerfd_settime(timer_, TFD_TIMER_ABSTIME, &when, nullptr);
}

void Server::wait_until(Lock* lock, int64_t deadline_ns, const std::function<bool()>& done) {
  while (!done()) {
    if (deadline_ns == INT64_MAX) {
      changed_.wait(*lock);
      continue;
    }
    const int64_t left_ns = deadline_ns - now_ns();
    if (left_ns <= 0) break;
    changed_.wait_for(*lock, std::chrono::nanoseconds(left_ns));
  }
}

void Server::make_call(Lock* lock) {
  std::deque<Job>& from = !queue_.urgent.empty() ? queue_.urgent : !queue_.jobs.empty() ? queue_.jobs : queue_.reads;
  Done done;
  done.job = from.front();
  from.pop_front();
  queue_.busy = true;
  const Session* asking = find(done.job.session);
  const std::shared_ptr<Connection> connection = asking == nullptr ? nullptr : asking->connection;
  lock->unlock();
  done.outcome = make(done.job);
  if (connection != nullptr) answer(connection.get(), done.job, done.outcome);
  enter(lock);
  queue_.busy = false;
  finished(done);
  sweep();
}

Outcome Server::make(const Job& job) {
  switch (job.kind) {
    case Job::kSet:
      return driver_->set(job.device, job.min_mhz, job.max_mhz);
    case Job::kRestore:
      return driver_->restore(job.device);
    case Job::kRead:
      return driver_->read(job.device);
  }
  return {};
}

void Server::answer(Connection* connection, const Job& job, const Outcome& outcome) const {
  Answer answer;
  answer.status = outcome.code;
  answer.flags = job.flags | (settings_.dry ? static_cast<uint32_t>(POWERCCL_LEASE_DRY) : 0u);
  answer.lease = job.lease;
  answer.min_mhz = job.min_mhz;
  answer.max_mhz = job.max_mhz;
  answer.outcome = outcome;
  answer.interval_ms = job.interval_ms;
  answer.text = outcome.text;
  connection->send(encode_reply(POWERCCL_LEASE_REPLY, job.serial, answer));
}

void Server::finished(const Done& done) {
  if (done.job.kind == Job::kRead && done.job.session == kQuerySession) return take_reading(done);
  table_.call_done(done, now_ns());
  if (Session* session = find(done.job.session); session != nullptr) {
    const bool was_blocked = blocked(*session);
    if (done.job.kind == Job::kRead) --session->reads;
    if (session->connection->failed())
      closing_.emplace_back(done.job.session, Ending::kGone);
    else if (was_blocked && !session->paused)
      watch_session(done.job.session, *session);
  }
  if (!state_->doubtful() || !table_.all_restored()) return;
  if (const int error = state_->settle_doubt(); error != 0)
    log(kError, "cannot repair the state file: %s", std::strerror(error));
}

}  // namespace powerccl::daemon
