// SPDX-License-Identifier: Apache-2.0
// One client of a schedule, in a process of its own: does what its seed says, good and bad, and keeps a log of what it
// believes.
#pragma once
#include <sys/types.h>

#include <cstdint>
#include <map>
#include <vector>

#include "abi/lease.h"
#include "machine.h"
#include "random.h"
#include "shared.h"

namespace powerccl::leases {

// Longer than any answer may take from a daemon that lives and whose driver works.
inline constexpr int64_t kAnswerPatienceMs = 20'000;

class Client {
 public:
  Client(Shared* shared, uint32_t number, uint64_t seed);
  // Ends the process.
  [[noreturn]] void run();

 private:
  struct Asked {
    uint16_t type = 0;
    uint16_t gpu = 0;
    uint64_t lease = 0;
    bool of_others = false;  // names a lease of another session
    bool shares = false;     // of an ACQUIRE
    int64_t sent_ns = 0;
  };

  // Actions
  void act();
  void acquire();
  void set(uint16_t gpu);
  void ask(uint16_t type, uint16_t gpu);
  void release(uint16_t gpu);
  void meddle();
  void repeat();
  void babble();
  void revoke();
  void bequeath();
  [[noreturn]] void settle();
  [[noreturn]] void end(bool release_first);

  // The connection (client_connection.cpp)
  bool connect();
  void disconnect();
  template <typename Message>
  void send(Message message, uint16_t gpu, bool of_others = false);
  void send_bytes(const void* bytes, size_t length);
  // Takes in what has come, waiting at most so long for something.
  void take(int wait_ms);
  void take_answers();
  void understand(const char* bytes, size_t length);
  void understand_reply(const powerccl_lease_reply& reply, const Asked& asked);
  void wait_longer(int64_t asked_us, int64_t took_us);
  void forget_all();
  void log(What what, uint16_t gpu, int32_t detail = 0);
  void fault(const char* format, ...) __attribute__((format(printf, 2, 3)));

  int holding() const;
  uint16_t any_held();

  Shared* shared_;
  ClientSlot* slot_;
  Random random_;
  uint32_t wanted_;  // GPUs
  int socket_ = -1;
  uint32_t life_ = 0;
  bool bequeathed_ = false;
  bool doomed_ = false;  // the daemon is going to close the connection: what it still grants is worth nothing
  uint64_t serial_ = 0;
  std::map<uint64_t, Asked> asked_;
  uint64_t awaited_ = 0;  // the first of them, for which there is so much patience left
  Patience patience_{kAnswerPatienceMs};
  std::vector<char> last_;             // the message sent last
  uint64_t given_up_[kMostGpus] = {};  // the lease of a GPU that was released last
};

}  // namespace powerccl::leases
