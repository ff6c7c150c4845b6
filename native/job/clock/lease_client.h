// SPDX-License-Identifier: Apache-2.0
// The clock client `lease`: asks powerccld, which sets clocks for processes that may not, and resets them however the
// process ends. It is no failure if the daemon is absent, restarts, or has given another process the lease. Meanwhile
// the clock is at its default, and the client asks for a lease again in the background.
#pragma once
#include <stdint.h>

#include "abi/lease.h"
#include "clock/clock_client.h"

namespace powerccl {

// What the daemon says to one that asks for clocks.
union LeaseMessage {
  powerccl_lease_header header;
  powerccl_lease_welcome welcome;
  powerccl_lease_reply reply;
};

// One connection to powerccld: whole messages (abi/lease.h) out and in. Nothing here waits past the given deadline, and
// messages are checked on arrival. One thread's but for forget().
//
// The job may close the descriptor and be given its number again, so before each use the socket is shown to be this
// one. Where it is not, the connection is over, and the descriptor is not touched.
class LeaseConnection {
 public:
  // kNothing: not in time. kGone: it has ended. The others mean that the daemon does not speak this protocol.
  enum class Got { kMessage, kNothing, kGone, kNonsense, kOtherVersion };

  LeaseConnection() = default;
  LeaseConnection(const LeaseConnection&) = delete;
  LeaseConnection& operator=(const LeaseConnection&) = delete;

  // 0 or an errno value, without waiting: EAGAIN where too many wait to be accepted already.
  int open(const char* path);

  // Fills in the header and sends the message, with `file` unless it is -1. 0 or an errno value, without waiting:
  // EAGAIN where the daemon has not read what it was sent before.
  int send(powerccl_lease_header* message, powerccl_lease_type type, uint32_t size, int file = -1);
  // The serial of what was sent last.
  uint64_t serial() const { return serial_; }

  // Waits until `deadline_ns` (CLOCK_MONOTONIC), not at all where that has passed.
  Got receive(LeaseMessage* message, uint64_t deadline_ns);

  // Whether the daemon runs as root or as this very user: then it is believed which file is a GPU's.
  bool trusted() const;

  // Ends the connection, also for copies of it that forked children have.
  void close();
  // A forked child: gives its copy away, and the parent's connection stays.
  void forget();

 private:
  bool is_ours() const;

  int descriptor_ = -1;
  uint64_t inode_ = 0;  // of the socket: no two live at a time with one number
  uint64_t serial_ = 0;
};

struct LeaseTerms {
  const char* socket_path = "";
  const char* run = "";     // names the holder to others that ask for the device
  const char* device = "";  // a GPU's UUID or PCI bus id
  bool speaks = true;       // says what all ranks of the host would say alike
  bool debug = false;       // also says when a lease is back
};

// One device's. After open(), the clock thread's alone but for forget().
class LeaseClient final : public ClockClient {
 public:
  static constexpr uint64_t kAttemptNs = 200000000u;       // for all of getting a lease
  static constexpr uint64_t kAnswerNs = 2000000000u;       // for a clock: the daemon's rate limit and a slow driver
  static constexpr uint64_t kReleaseNs = 100000000u;       // for a release
  static constexpr uint64_t kFirstBackOffNs = 100000000u;  // before the next attempt; doubles up to
  static constexpr uint64_t kLastBackOffNs = 5000000000u;
  static constexpr uint64_t kLookNs = 1000000000u;  // how soon, at the latest, the end of a lease is noticed

  // Statuses of CLOCK records beside powerccl_lease_status and kClockNotNow.
  enum OwnStatus : int {
    kNotReachable = -65,
    kGone = -66,
    kSilent = -67,
    kNonsense = -68,
    kOtherVersion = -69,
    kNoFile = -70,
  };

  // 0: clocks can be asked for, though there may be no lease yet. Else they are refused for good: a code, with a text
  // and a hint.
  int open(const LeaseTerms& terms, char* text, uint32_t text_size, const char** hint);

  // A forked child: the connection is its parent's.
  void forget() { connection_.forget(); }

  int set(uint32_t mhz) override;
  int reset() override;
  bool can_read() const override { return true; }
  int read(ClockPolicy::Reading* reading) override;
  const char* explain(int code, const char** hint) override;
  uint64_t tick() override;
  uint64_t grant() const override { return lease_ != 0 ? grants_ : 0; }
  uint64_t delay_ns(uint32_t mhz) const override;
  void close() override;
  bool dry() const override { return dry_; }

 private:
  enum class Heard { kAnswer, kOther, kNothing, kLost };

  // These return 0, the driver's code, kClockNotNow or the status that the client is refused for good with.
  int attempt(uint64_t deadline_ns);
  int acquire(uint64_t deadline_ns, LeaseMessage* answer);
  int request(powerccl_lease_type type, uint32_t mhz, LeaseMessage* answer);
  int ask(powerccl_lease_header* message, powerccl_lease_type type, uint32_t size, int file, uint64_t deadline_ns,
          LeaseMessage* answer);

  Heard hear(uint64_t serial, uint64_t deadline_ns, LeaseMessage* message);
  uint64_t until_attempt_ns() const;

  // lease_outcomes.cpp
  int lose(int status, const powerccl_lease_reply* reply = nullptr, const char* detail = nullptr);
  void works();
  void set_text(int status, const powerccl_lease_reply* reply, const char* detail);

  LeaseConnection connection_;
  char socket_path_[108] = "", run_[64] = "", device_[48] = "";
  bool speaks_ = true, debug_ = false, dry_ = false;

  uint64_t lease_ = 0;   // 0: none
  uint64_t grants_ = 0;  // leases there have been
  int refused_ = 0;      // for good; 0: not
  uint64_t heartbeat_ns_ = 0;
  uint64_t interval_ns_ = 0;  // the daemon's least time between two clocks
  LoweringLimit limit_;
  uint64_t sent_ns_ = 0;        // the last request
  uint64_t unanswered_ns_ = 0;  // the first request since the daemon was last heard; 0: none
  uint64_t back_off_ns_ = kFirstBackOffNs, attempt_at_ns_ = 0;
  bool said_ = false, said_holder_ = false;  // since it worked last

  char text_[256] = "";  // why there is no lease, or what the driver said
  const char* hint_ = "";
};

}  // namespace powerccl
