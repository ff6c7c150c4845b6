// SPDX-License-Identifier: Apache-2.0
// One random schedule against the daemon: sessions that do good and bad, fall silent and go, a daemon that is killed
// and stopped, a driver that fails and dawdles; and what must be true all the while and afterwards.
//
// All sessions are of this one process, so that the order of what they hear is known. tests/e2e has what takes
// processes: clients that are killed, stopped, or outlived by a child that has their socket.
#pragma once
#include <deque>
#include <string>
#include <vector>

#include "lease_machine.h"
#include "random.h"
#include "session.h"

namespace powerccl::leases {

class Schedule {
 public:
  Schedule(Machine* machine, uint64_t seed);
  // What was violated, empty: nothing.
  std::vector<std::string> run();

 private:
  bool start_daemon(bool may_fail);
  void kill_daemon();
  void stop_daemon();
  void write_config();
  void act(Session* session);
  void set(Session* session);
  void meddle(Session* session);
  void babble(Session* session);
  void disturb();
  void listen();
  void keep_alive();
  void require_exclusive(int64_t now);
  void settle();
  std::string unsettled() const;
  std::string fault_of(uint32_t gpu, const powerccl_lease_device& device) const;
  void end();
  Session* any();
  uint32_t any_gpu() { return random_.between(0, machine_->gpus() - 1); }
  uint32_t held_by(const Session& session);
  void violated(const std::string& text);

  Machine* machine_;
  Random random_;
  const bool short_heartbeat_;
  const uint32_t heartbeat_ms_;
  const Range allowed_;
  bool ailing_ = false;  // the daemon's driver can reset no clock, so that answers may never come
  Child daemon_;
  std::deque<Session> sessions_;
  std::vector<std::string> violations_;
};

}  // namespace powerccl::leases
