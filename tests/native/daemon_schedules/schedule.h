// SPDX-License-Identifier: Apache-2.0
// One random schedule against the daemon: clients that do good and bad, are killed and stopped, a daemon that is killed
// and stopped, a driver that fails and dawdles; and what must be true afterwards.
#pragma once
#include <string>
#include <vector>

#include "machine.h"
#include "random.h"
#include "shared.h"

namespace powerccl::leases {

struct Counts {
  uint64_t clients = 0, requests = 0, answers = 0, kills = 0, stops = 0, daemon_kills = 0, daemon_stops = 0, grants = 0,
           missed = 0, failing = 0, slow = 0;
  int64_t longest_wait_ns = 0;
};

class Schedule {
 public:
  Schedule(Machine* machine, Shared* shared, uint64_t seed);
  ~Schedule();
  // What was violated, empty: nothing.
  std::vector<std::string> run();
  const Counts& counts() const { return counts_; }

 private:
  void prepare();
  void write_config();
  bool start_daemon(bool may_fail);
  void kill_daemon();
  void stop_daemon();
  void spawn();
  void look_for_ended();
  void reap_clients();
  void disturb();
  void wake_all();
  void settle();
  std::string unsettled() const;
  void check_gpu(uint32_t gpu, const powerccl_lease_device& device, std::string* fault) const;
  void end_clients();
  std::string account() const;
  void check_usual();
  void end_daemon();
  void gather();
  int any_alive();
  void violated(const std::string& text) { violations_.push_back(text); }

  Machine* machine_;
  Shared* shared_;
  uint64_t seed_;
  Random random_;
  Child daemon_;
  uint32_t spawned_ = 0;
  std::vector<pid_t> ended_;  // not reaped yet
  bool short_heartbeat_ = false;
  int64_t stopped_until_ns_[kMostClients] = {};  // 0: not stopped
  std::vector<std::string> violations_;
  Counts counts_;
};

}  // namespace powerccl::leases
