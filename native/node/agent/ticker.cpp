// SPDX-License-Identifier: Apache-2.0
#include "agent/ticker.h"

#include <poll.h>
#include <sys/eventfd.h>
#include <sys/prctl.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <system_error>
#include <utility>

#include "abi/host_clock.h"

namespace powerccl::agent {

StopEvent::~StopEvent() {
  if (fd_ >= 0) close(fd_);
}

int StopEvent::open() {
  fd_ = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
  return fd_ < 0 ? errno : 0;
}

void StopEvent::ask() {
  const uint64_t one = 1;
  while (fd_ >= 0 && write(fd_, &one, sizeof one) < 0 && errno == EINTR) {
  }
}

bool StopEvent::wait(int64_t wait_ns) const {
  const timespec wait{wait_ns / 1'000'000'000, wait_ns % 1'000'000'000};
  pollfd stopping{fd_, POLLIN, 0};
  return ppoll(&stopping, 1, &wait, nullptr) > 0;
}

void run_ticks(const StopEvent& stop, int64_t start_ns, int64_t interval_ns, unsigned long slack_ns, const Tick& tick) {
  prctl(PR_SET_TIMERSLACK, slack_ns);
  int64_t deadline_ns = start_ns;
  for (;;) {
    deadline_ns += interval_ns;
    const int64_t late_ns = host_now_ns() - deadline_ns;
    if (late_ns > 0) deadline_ns += late_ns / interval_ns * interval_ns;
    const bool last_one = stop.wait(std::max<int64_t>(-late_ns, 0));
    if (!tick(deadline_ns, last_one) || last_one) return;
  }
}

int64_t next_due_ns(int64_t due_ns, int64_t period_ns, int64_t now_ns) {
  return due_ns > now_ns ? due_ns : due_ns + ((now_ns - due_ns) / period_ns + 1) * period_ns;
}

Ticker::~Ticker() {
  end();
}

void Ticker::end() {
  if (!thread_.joinable()) return;
  ask_to_stop();
  thread_.join();
}

int Ticker::start(int64_t start_ns, int64_t interval_ns, unsigned long slack_ns, Tick tick) {
  if (const int number = stop_.open(); number != 0) return number;
  std::promise<void> end;
  ended_ = end.get_future();
  try {
    thread_ =
        std::thread([this, start_ns, interval_ns, slack_ns, tick = std::move(tick), end = std::move(end)]() mutable {
          run_ticks(stop_, start_ns, interval_ns, slack_ns, tick);
          end.set_value();
        });
  } catch (const std::system_error& error) {  // a limit on processes
    return error.code().value();
  }
  return 0;
}

void Ticker::ask_to_stop() {
  stop_.ask();
}

bool Ticker::stop(int64_t patience_ns) {
  if (!thread_.joinable()) return true;
  ask_to_stop();
  if (ended_.wait_for(std::chrono::nanoseconds(patience_ns)) != std::future_status::ready) return false;
  thread_.join();
  return true;
}

}  // namespace powerccl::agent
