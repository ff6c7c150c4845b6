// SPDX-License-Identifier: Apache-2.0
// One random schedule against the daemon: sessions that do good and bad, fall silent and go, a daemon that is killed
// and stopped, a driver that fails and dawdles; and what must be true all the while and afterwards.
//
// All sessions are of this one process, so that the order of what they hear is known. tests/e2e has what takes
// processes: clients that are killed, stopped, or outlived by a child that has their socket.
#pragma once
#include <cstdint>
#include <deque>
#include <map>
#include <string>
#include <vector>

#include "abi/lease.h"
#include "lease_machine.h"

namespace powerccl::leases {

// SplitMix64: the same numbers from the same seed everywhere, and cheap to seed once a client.
class Random {
 public:
  explicit Random(uint64_t seed) : state_(seed) {}

  uint64_t next() {
    uint64_t value = state_ += 0x9e3779b97f4a7c15u;
    value = (value ^ (value >> 30)) * 0xbf58476d1ce4e5b9u;
    value = (value ^ (value >> 27)) * 0x94d049bb133111ebu;
    return value ^ (value >> 31);
  }
  // From `least` to `most`, both included.
  uint32_t between(uint32_t least, uint32_t most) {
    return least + static_cast<uint32_t>(next() % (uint64_t{most} - least + 1));
  }
  bool chance(uint32_t percent) { return next() % 100 < percent; }

 private:
  uint64_t state_;
};

// One connection of a schedule: what it has asked, and what it believes to hold.
struct Held {
  uint64_t lease = 0;  // 0: none
  bool shared = false;
  Range told;  // what the daemon said that it had set
};

class Session {
 public:
  // `allowed`: the administrator's range.
  Session(const Machine* machine, const Range& allowed)
      : machine_(machine), allowed_(allowed), held_(machine->gpus()), given_up_(machine->gpus()) {}
  ~Session() { disconnect(); }
  Session(const Session&) = delete;
  Session& operator=(const Session&) = delete;

  bool connect();  // and says hello
  void disconnect();
  bool connected() const { return socket_ >= 0; }

  void ask(uint16_t type);  // what takes no more than a header
  // ACQUIRE, REVOKE or RESTORE; the last two of all GPUs where `gpu` is none.
  void ask_for(uint16_t type, uint32_t gpu, bool shares = false);
  // SET, READ or RELEASE of a lease, whosever it is.
  void ask_about(uint16_t type, uint32_t gpu, uint64_t lease, const Range& wish = {});
  // The last message again, as somebody would who recorded it: its serial number is used up.
  void repeat();
  // Bytes that are no message: the daemon has to close the connection, and what it still grants is worth nothing.
  void talk_nonsense(const void* bytes, size_t length);
  uint64_t used_up() { return ++serial_; }

  // Takes in what has come. False: nothing had.
  bool take();

  const Held& held(uint32_t gpu) const { return held_[gpu]; }
  int holding() const;
  size_t unanswered() const { return asked_.size(); }
  bool doomed() const { return doomed_ && connected(); }
  const std::string& fault() const { return fault_; }  // of the daemon's; empty: none

  int64_t stopped_until_ns = 0;  // it neither speaks nor hears
  int64_t spoke_ns = 0;

 private:
  struct Asked {
    uint16_t type = 0;
    uint32_t gpu = 0;
    uint64_t lease = 0;
    bool of_others = false, shares = false;
  };
  void send(void* message, size_t length, Asked asked);
  void understand(const char* bytes, size_t length);
  void understand_reply(const powerccl_lease_reply& reply, const Asked& asked);
  void faulty(const std::string& text);

  const Machine* machine_;
  const Range allowed_;
  int socket_ = -1;
  bool doomed_ = false;
  uint64_t serial_ = 0;
  std::map<uint64_t, Asked> asked_;
  std::vector<char> last_;
  std::vector<Held> held_;
  std::vector<uint64_t> given_up_;  // the lease of a GPU that was released last
  std::string fault_;
};

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
