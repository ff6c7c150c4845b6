// SPDX-License-Identifier: Apache-2.0
// Who holds which device, what its clock is, and what is to be done about it next. No sockets, threads or files are
// known here. Time comes in as an argument, and what is to be done goes out through Actions. So a test can try any
// order of events.
//
// What holds at every moment. A device has at most one lease, or several that one user shares, and one job under way.
// It has another clock than the default only while the state file has its mark. Without a lease it has the default
// clock, or a job to restore that is under way or due.
//
// Those who share a device each have a wish, and the highest is carried out. Where the newest is to count instead
// (Sharing), it replaces the wishes of all.
#pragma once
#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "abi/lease.h"
#include "daemon/driver.h"
#include "daemon/sharing.h"

namespace powerccl::daemon {

// One call of the driver.
struct Job {
  enum Kind { kSet, kRestore, kRead } kind = kRead;
  size_t device = 0;
  uint32_t min_mhz = 0, max_mhz = 0;
  // Whom to answer, and with what beside the outcome; session 0: no session.
  uint64_t session = 0, serial = 0, lease = 0;
  uint32_t flags = 0, interval_ms = 0;
};

struct Done {
  Job job;
  Outcome outcome;
};

using SessionId = uint64_t;  // 0: none

struct Holder {
  SessionId session = 0;
  uint32_t uid = 0, pid = 0;
  std::string run;
  bool shares = false;  // with others of the same user who do so too
};

struct Answer {
  int32_t status = POWERCCL_LEASE_OK;
  uint32_t flags = 0;
  uint64_t lease = 0;
  uint32_t min_mhz = 0, max_mhz = 0;
  Outcome outcome;
  uint32_t holder_pid = 0, holder_uid = 0, interval_ms = 0;
  std::string text;
};

// Why a lease ends, for the log and the metrics.
enum class Ending { kReleased, kGone, kMissed, kRevoked, kStopping };
inline constexpr int kEndings = 5;
const char* text_of(Ending ending);

class Actions {
 public:
  virtual ~Actions() = default;
  // Puts a call of the driver into its queue, for a thread to make (worker_pool.cpp). The outcome answers the session
  // that the job names, and comes back as call_done(). The table itself answers what takes no job.
  virtual void enqueue(Job job) = 0;
  // The state file; 0 or an errno.
  virtual int mark(const std::string& device, const Holder& holder) = 0;
  virtual int clear(const std::string& device) = 0;
  virtual void reply(SessionId session, uint64_t serial, const Answer& answer) = 0;
  virtual void tell(SessionId session, uint16_t type, const Answer& answer) = 0;
  virtual uint64_t new_lease_number() = 0;
};

// What can be said of a device.
struct DeviceView {
  const DeviceAbout* about = nullptr;
  const Holder* holder = nullptr;  // of those who share it the first; null: none
  size_t leases = 0;
  int64_t held_since_ns = 0;
  uint64_t changes = 0;
  uint32_t min_mhz = 0, max_mhz = 0;  // set; 0: the default
  bool pending = false;               // still to be restored
};

struct Counters {
  uint64_t granted = 0, refused = 0;
  uint64_t ended[kEndings] = {};
  uint64_t changes = 0, superseded = 0, clamped = 0, restores = 0, driver_failures = 0, restore_failures = 0;
  uint64_t driver_us = 0;
};

class LeaseTable {
 public:
  explicit LeaseTable(Actions* actions) : actions_(actions) {}

  // Before anything else: the driver's devices, and the least time between two clocks set on one of them.
  void take_devices(const std::vector<DeviceAbout>& devices, int64_t interval_ns, int64_t settle_ns, Sharing sharing);
  // The number of a device by one of its names.
  std::optional<size_t> find(const std::string& name) const;
  size_t size() const { return devices_.size(); }
  DeviceView view(size_t device) const;
  std::vector<Holder> holders(size_t device) const;

  // A device that may have another clock, such as one that an earlier daemon left. Its clock is restored now, and again
  // until that succeeds. `marked`: the state file has it.
  void restore(size_t device, bool marked, int64_t now_ns);
  // The same for every device, whatever is known of it, held or not.
  void restore_all(int64_t now_ns);

  // Requests. Each is answered through Actions::reply, now or when it has been carried out.
  void acquire(const Holder& holder, uint64_t serial, size_t device, int64_t now_ns);
  void set(SessionId session, uint64_t serial, uint64_t lease, uint32_t min_mhz, uint32_t max_mhz, int64_t now_ns);
  void read(SessionId session, uint64_t serial, uint64_t lease);
  void release(SessionId session, uint64_t serial, uint64_t lease, int64_t now_ns);
  // Ends the device's leases, if it has any, and tells their holders.
  void end(size_t device, Ending ending, int64_t now_ns);
  // All leases of a session; it is notified unless it is gone or has released them.
  void end_session(SessionId session, Ending ending, int64_t now_ns);

  void call_done(const Done& done, int64_t now_ns);
  // Does what has come due. next_ns() is when it wants to be called again, INT64_MAX: not before something happens.
  void advance(int64_t now_ns);
  int64_t next_ns() const;

  // Whether nothing is under way, due or set.
  bool at_rest() const;
  // Whether everything that restore() was called for has its default clock.
  bool all_restored() const;
  bool holds_any(SessionId session) const;
  bool draining = false;
  const Counters& counters() const { return counters_; }

 private:
  struct Clocks {
    uint32_t min_mhz = 0, max_mhz = 0;  // 0: the default
    bool is_default() const { return max_mhz == 0; }
    bool operator==(const Clocks& other) const { return min_mhz == other.min_mhz && max_mhz == other.max_mhz; }
  };
  struct Lease {
    uint64_t number = 0;
    Holder holder;
    Clocks wish;
    int64_t since_ns = 0;
    uint64_t changes = 0;
  };
  // Whom to answer when a clock has been set.
  struct Asker {
    SessionId session = 0;
    uint64_t serial = 0, lease = 0;
    uint32_t flags = 0;
    Clocks wish;
  };
  struct Device {
    const DeviceAbout* about = nullptr;
    std::vector<Lease> leases;
    uint64_t wisher = 0;  // the lease that wished last
    bool warned = false;  // once a holder that its clock does not arrive

    bool marked = false;       // in the state file
    bool changed = false;      // its clock is, or may be, another than the default
    Clocks clocks;             // set; the default, or not known
    bool restore_due = false;  // to be restored for any holder
    int failures = 0;          // of restoring it, in a row
    int64_t retry_ns = 0;

    bool busy = false;             // a job is under way
    std::optional<Asker> waiting;  // the newest, while it is not yet allowed or finds the device busy
    int64_t allowed_ns = 0;
    int64_t settle_at_ns = 0;  // 0: not to be read again
  };

  // Each of those who share a device may change its clock so much less often.
  uint32_t interval_ms(const Device& device) const;
  Device* leased(SessionId session, uint64_t number, Lease** lease);
  size_t number_of(const Device& device) const { return static_cast<size_t>(&device - devices_.data()); }
  void refuse(SessionId session, uint64_t serial, int32_t status, const std::string& text);
  // Of a wish that is carried out already, or is not to be for now.
  void answer_with_present(const Device& device, const Asker& asker);
  uint32_t clamp(const Device& device, Clocks* wish);
  static Clocks highest_wish(const Device& device);
  // A wish that failed is not tried again without a new request. Requests without an answer rely on this.
  void forget_wishes(Device* device, const Clocks& instead) const;
  // Starts what is due on a device that is not busy.
  void proceed(Device& device, int64_t now_ns);
  bool must_restore(const Device& device) const;
  void start_set(Device& device, const Clocks& clocks, int64_t now_ns);
  void start_restore(Device& device);
  Job job_of(const Device& device, Job::Kind kind, const Clocks& clocks, const Asker& asker) const;
  void set_done(Device& device, const Job& job, const Outcome& outcome, int64_t now_ns);
  void restore_done(Device& device, const Outcome& outcome, int64_t now_ns);
  void read_done(Device& device, const Outcome& outcome);
  // Of what came of the newest wish, where its answer could not tell.
  void tell_wisher(const Device& device, const Outcome& outcome);
  void count_change(Device* device);
  void drop(Device& device, size_t which, Ending ending, bool tell, int64_t now_ns);
  void forget_mark(Device& device);

  Actions* actions_;
  int64_t interval_ns_ = 0, settle_ns_ = 0;
  Sharing sharing_ = Sharing::kNewest;
  std::vector<Device> devices_;
  std::map<std::string, size_t> names_;
  Counters counters_;
};

}  // namespace powerccl::daemon
