// SPDX-License-Identifier: Apache-2.0
// One connection of a schedule: what it has asked, and what it believes to hold.
#pragma once
#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "abi/lease.h"
#include "lease_machine.h"

namespace powerccl::leases {

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

}  // namespace powerccl::leases
