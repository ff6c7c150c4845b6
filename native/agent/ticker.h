// SPDX-License-Identifier: Apache-2.0
// A thread that does something at fixed moments until it is told to stop.
#pragma once
#include <cstdint>
#include <functional>
#include <thread>

namespace powerccl::agent {

class Ticker {
 public:
  // Called at each deadline, and once more (`last_one`) when asked to stop. False ends the thread.
  using Tick = std::function<bool(int64_t deadline_ns, bool last_one)>;

  Ticker() = default;
  ~Ticker();
  Ticker(const Ticker&) = delete;
  Ticker& operator=(const Ticker&) = delete;

  // The first deadline is `start_ns + interval_ns`. `slack_ns`: how late the kernel may wake the thread to save a
  // wake-up. Returns 0 or an errno.
  int start(int64_t start_ns, int64_t interval_ns, unsigned long slack_ns, Tick tick);
  void ask_to_stop();
  // The same, and waits for the last tick's end.
  void stop();

 private:
  void run(int64_t deadline_ns, int64_t interval_ns, const Tick& tick) const;

  int stop_event_ = -1;
  std::thread thread_;
};

}  // namespace powerccl::agent
