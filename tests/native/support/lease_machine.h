// SPDX-License-Identifier: Apache-2.0
// An emulated machine with a powerccld on it, as child processes: what schedules and crash tests are run against.
#pragma once
#include <sys/types.h>

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "emulator/client/connection.h"
#include "lease_client.h"

namespace powerccl::leases {

// Until the condition holds, at most so long.
template <typename Condition>
bool within(int64_t patience_ms, Condition condition) {
  Patience patience(patience_ms);
  for (int64_t pause_us = 200; !condition(); pause_us = pause_us < 2500 ? pause_us * 2 : 5000) {
    if (patience.over()) return false;
    const int64_t begin_ns = now_ns();
    sleep_us(pause_us);
    patience.spend(pause_us, (now_ns() - begin_ns) / 1000);
  }
  return true;
}

// What a GPU is locked to; 0 to 0: nothing, its usual clock.
struct Range {
  uint32_t min_mhz = 0, max_mhz = 0;
  bool operator==(const Range&) const = default;
  bool usual() const { return max_mhz == 0; }
};
std::string text_of(const Range& range);

// Whether a child has ended; it stays to be reaped.
bool has_ended(pid_t pid);
// A program with a pipe at each end. It is told to end by the end of its input.
class Child {
 public:
  ~Child();
  Child() = default;
  Child(const Child&) = delete;
  Child& operator=(const Child&) = delete;

  // Standard error goes to `errors`, appended. False: it did not say `ready` within the time; it is gone then.
  bool start(const std::vector<std::string>& command, const std::vector<std::string>& environment,
             const std::string& errors, int64_t patience_ms);
  void signal(int number) const;
  void close_input();
  // As waitpid tells it; -1: it has not ended in time.
  int wait_end(int64_t patience_ms);
  void kill_hard();
  bool running() const { return pid_ > 0; }
  pid_t pid() const { return pid_; }
  // Where start() failed: what it ended with, as waitpid tells it; -1: it had not ended.
  int status() const { return status_; }

 private:
  bool wait_ready(int64_t patience_ms);

  pid_t pid_ = -1;
  int input_ = -1, output_ = -1, status_ = -1;
};

// Eight emulated GPUs, and a folder in memory for the sockets and files of this machine.
class Machine {
 public:
  // `stage`: a build's stage folder. `folder` is made, and removed with the machine.
  Machine(std::string stage, std::string folder);
  ~Machine();
  Machine(const Machine&) = delete;
  Machine& operator=(const Machine&) = delete;

  bool up() const { return board_ != nullptr; }
  uint32_t gpus() const { return board_->board().gpus; }
  std::string uuid(uint32_t gpu) const { return board_->board().gpu[gpu].uuid; }
  uint32_t lowest_mhz() const { return board_->board().clock_min_mhz; }
  uint32_t highest_mhz() const { return board_->board().clock_max_mhz; }
  // The truth, whatever anybody believes.
  Range locked(uint32_t gpu) const;
  bool all_usual() const;
  std::string clocks() const;  // of those that are not usual, for messages

  std::string path(const char* name) const { return folder_ + "/" + name; }
  std::string socket() const { return path("d.sock"); }
  std::string state() const { return path("state"); }
  std::string config() const { return path("config.toml"); }
  // The daemon's command line and environment on this machine.
  std::vector<std::string> daemon_command(bool with_config) const;
  std::vector<std::string> environment() const;

 private:
  std::string stage_, folder_;
  Child server_;
  std::unique_ptr<emulator::Connection> board_;
};

// Marks in the state file; 0 also where there is none; -1: it is not one of only whole slots.
int marks_in(const std::string& state);

}  // namespace powerccl::leases
