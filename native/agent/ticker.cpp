// SPDX-License-Identifier: Apache-2.0
#include "agent/ticker.h"

#include <poll.h>
#include <sys/eventfd.h>
#include <sys/prctl.h>
#include <unistd.h>

#include <cerrno>
#include <utility>

#include "agent/clock.h"

namespace powerccl::agent {

Ticker::~Ticker() {
  stop();
  if (stop_event_ >= 0) close(stop_event_);
}

int Ticker::start(int64_t start_ns, int64_t interval_ns, unsigned long slack_ns, Tick tick) {
  stop_event_ = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
  if (stop_event_ < 0) return errno;
  thread_ = std::thread([this, start_ns, interval_ns, slack_ns, tick = std::move(tick)] {
    prctl(PR_SET_TIMERSLACK, slack_ns);
    run(start_ns, interval_ns, tick);
  });
  return 0;
}

void Ticker::ask_to_stop() {
  uint64_t one = 1;
  while (thread_.joinable() && write(stop_event_, &one, sizeof one) < 0 && errno == EINTR) {
  }
}

void Ticker::stop() {
  if (!thread_.joinable()) return;
  ask_to_stop();
  thread_.join();
}

void Ticker::run(int64_t deadline_ns, int64_t interval_ns, const Tick& tick) const {
  for (;;) {
    deadline_ns += interval_ns;
    int64_t wait_ns = deadline_ns - now_ns();
    if (wait_ns < 0) {  // late by whole intervals: skip them rather than crowd the next rows
      deadline_ns += -wait_ns / interval_ns * interval_ns;
      wait_ns = 0;
    }
    timespec wait{wait_ns / 1'000'000'000, wait_ns % 1'000'000'000};
    pollfd stopping{stop_event_, POLLIN, 0};
    bool last_one = ppoll(&stopping, 1, &wait, nullptr) > 0;
    if (!tick(deadline_ns, last_one) || last_one) return;
  }
}

}  // namespace powerccl::agent
