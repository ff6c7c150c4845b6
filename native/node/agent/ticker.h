// SPDX-License-Identifier: Apache-2.0
// Does something at fixed moments until it is stopped.
#pragma once
#include <cstdint>
#include <functional>
#include <future>
#include <thread>

namespace powerccl::agent {

// Tells any number of threads to stop, once.
class StopEvent {
 public:
  StopEvent() = default;
  ~StopEvent();
  StopEvent(const StopEvent&) = delete;
  StopEvent& operator=(const StopEvent&) = delete;

  int open();  // 0 or an errno
  void ask();
  // Waits until then, or until asked; true if asked.
  bool wait(int64_t wait_ns) const;

 private:
  int fd_ = -1;
};

// Called at each deadline, and once more (`last_one`) when asked to stop. False ends the series.
using Tick = std::function<bool(int64_t deadline_ns, bool last_one)>;

// Runs a series on this thread. The first deadline is `start_ns + interval_ns`, the next one each `interval_ns` later.
// A series that is late by whole intervals skips them: no burst of ticks follows a thread that the kernel held back.
// `slack_ns`: how late the kernel may wake the thread to save a wake-up.
void run_ticks(const StopEvent& stop, int64_t start_ns, int64_t interval_ns, unsigned long slack_ns, const Tick& tick);

// The first of the moments `due_ns + n * period_ns` after `now_ns`.
int64_t next_due_ns(int64_t due_ns, int64_t period_ns, int64_t now_ns);

// A series on a thread of its own.
class Ticker {
 public:
  Ticker() = default;
  ~Ticker();
  Ticker(const Ticker&) = delete;
  Ticker& operator=(const Ticker&) = delete;

  // Returns 0 or an errno.
  int start(int64_t start_ns, int64_t interval_ns, unsigned long slack_ns, Tick tick);
  void ask_to_stop();
  // The same, and waits for the last tick's end. False: it did not end within `patience_ns`, and the thread uses this
  // object still.
  bool stop(int64_t patience_ns);
  // The same, and waits however long it takes.
  void end();

 private:
  StopEvent stop_;
  std::thread thread_;
  std::future<void> ended_;
};

}  // namespace powerccl::agent
