// SPDX-License-Identifier: Apache-2.0
// The lease table's clocks: what is to be set and restored, and what comes of it.
#include <algorithm>
#include <cstring>

#include "daemon/lease_table.h"
#include "daemon/log.h"

namespace powerccl::daemon {
namespace {

constexpr int64_t kMs = 1'000'000;
// Of a restore that failed, doubled each time. A driver that resets a GPU is back within seconds. Half of the last only
// repeats failures more often; double of it leaves a clock low for longer.
constexpr int64_t kFirstRetryNs = 50 * kMs;
constexpr int64_t kLastRetryNs = 5000 * kMs;
constexpr int64_t kNever = INT64_MAX;

int64_t retry_after(int failures) {
  return std::min(kFirstRetryNs << std::min(failures, 10), kLastRetryNs);
}

}  // namespace

// ---- Restoring

void LeaseTable::restore(size_t number, bool marked, int64_t now_ns) {
  Device& device = devices_[number];
  device.marked = device.marked || marked;
  device.changed = true;
  device.restore_due = true;
  device.retry_ns = 0;
  forget_wishes(&device, {});
  proceed(device, now_ns);
}

void LeaseTable::restore_all(int64_t now_ns) {
  for (size_t i = 0; i < devices_.size(); ++i) restore(i, false, now_ns);
}

bool LeaseTable::must_restore(const Device& device) const {
  return device.restore_due || (device.changed && device.leases.empty());
}

// ---- What is due

LeaseTable::Clocks LeaseTable::highest_wish(const Device& device) {
  Clocks highest;
  for (const Lease& lease : device.leases) {
    if (lease.wish.is_default()) return {};
    highest.min_mhz = std::max(highest.min_mhz, lease.wish.min_mhz);
    highest.max_mhz = std::max(highest.max_mhz, lease.wish.max_mhz);
  }
  return highest;
}

void LeaseTable::forget_wishes(Device* device, const Clocks& instead) const {
  if (sharing_ == Sharing::kNewest && device->waiting) return;  // its wish is that of all leases
  for (Lease& lease : device->leases) {
    const bool waits = device->waiting && device->waiting->lease == lease.number;
    if (!waits && !lease.wish.is_default()) lease.wish = instead;
  }
}

void LeaseTable::answer_with_present(const Device& device, const Asker& asker) {
  Answer answer;
  answer.lease = asker.lease;
  answer.flags = asker.flags;
  answer.min_mhz = device.clocks.min_mhz;
  answer.max_mhz = device.clocks.max_mhz;
  answer.interval_ms = interval_ms(device);
  if (!(device.clocks == asker.wish)) answer.flags |= POWERCCL_LEASE_SHARED;
  actions_->reply(asker.session, asker.serial, answer);
}

void LeaseTable::proceed(Device& device, int64_t now_ns) {
  if (device.busy) return;
  if (must_restore(device)) {
    // A wish that waits is carried out, and answered, behind it.
    if (now_ns >= device.retry_ns) {
      device.busy = true;
      device.settle_at_ns = 0;
      actions_->enqueue(job_of(device, Job::kRestore, {}, {}));
    }
    return;
  }
  const Clocks highest = highest_wish(device);
  if (highest.is_default() && device.changed) return start_restore(device);
  // The default may be asked for any number of times, so what is there already costs the driver nothing.
  if (highest.is_default() && device.waiting) {
    answer_with_present(device, *device.waiting);
    device.waiting.reset();
  }
  if (highest.is_default() || (!device.waiting && highest == device.clocks)) return;
  // Up is the way back to the default, and a quick request for less keeps no job slow.
  const bool rises = !device.clocks.is_default() && highest.max_mhz > device.clocks.max_mhz;
  if (rises || now_ns >= device.allowed_ns) return start_set(device, highest, now_ns);
  // Who shares the device may want to take the wish back at any time, so is not kept waiting.
  if (device.waiting && device.leases.size() > 1) {
    answer_with_present(device, *device.waiting);
    device.waiting.reset();
  }
}

void LeaseTable::start_set(Device& device, const Clocks& clocks, int64_t now_ns) {
  const Asker asker = device.waiting.value_or(Asker{});
  device.waiting.reset();
  if (!device.marked) {
    if (const int error = actions_->mark(device.about->device, device.leases.front().holder); error != 0) {
      log_for(device.leases.front().holder.uid, Topic::kClocks, kError,
              "%s: cannot set the clock: cannot write its mark to the state file: %s", device.about->device.c_str(),
              std::strerror(error));
      forget_wishes(&device, {});
      if (asker.session == 0) return;
      return refuse(asker.session, asker.serial, POWERCCL_LEASE_SYSTEM,
                    std::string("cannot write its mark to the state file: ") + std::strerror(error));
    }
    device.marked = true;
  }
  const bool rises = !device.clocks.is_default() && clocks.max_mhz > device.clocks.max_mhz;
  if (!rises) device.allowed_ns = now_ns + interval_ns_;
  device.busy = true;
  device.settle_at_ns = 0;
  actions_->enqueue(job_of(device, Job::kSet, clocks, asker));
}

void LeaseTable::start_restore(Device& device) {
  const Asker asker = device.waiting.value_or(Asker{});
  device.waiting.reset();
  device.busy = true;
  device.settle_at_ns = 0;
  actions_->enqueue(job_of(device, Job::kRestore, {}, asker));
}

Job LeaseTable::job_of(const Device& device, Job::Kind kind, const Clocks& clocks, const Asker& asker) const {
  Job job;
  job.kind = kind;
  job.device = number_of(device);
  job.min_mhz = clocks.min_mhz;
  job.max_mhz = clocks.max_mhz;
  job.session = asker.session;
  job.serial = asker.serial;
  job.lease = asker.lease;
  job.flags = asker.flags;
  job.interval_ms = interval_ms(device);
  if (kind != Job::kRead && asker.session != 0 && !(clocks == asker.wish)) job.flags |= POWERCCL_LEASE_SHARED;
  return job;
}

void LeaseTable::forget_mark(Device& device) {
  if (!device.marked) return;
  const int error = actions_->clear(device.about->device);
  if (error != 0) {
    // Harmless: it would be restored once more.
    log_for(0, Topic::kClocks, kWarning, "%s: cannot remove its mark from the state file: %s",
            device.about->device.c_str(), std::strerror(error));
    return;
  }
  device.marked = false;
}

void LeaseTable::call_done(const Done& done, int64_t now_ns) {
  Device& device = devices_[done.job.device];
  counters_.driver_us += done.outcome.driver_us;
  if (done.job.kind == Job::kRead) {
    if (done.job.session == 0) read_done(device, done.outcome);
    return;
  }
  device.busy = false;
  if (done.job.kind == Job::kSet)
    set_done(device, done.job, done.outcome, now_ns);
  else
    restore_done(device, done.outcome, now_ns);
  proceed(device, now_ns);
}

void LeaseTable::set_done(Device& device, const Job& job, const Outcome& outcome, int64_t now_ns) {
  if (outcome.code == 0) {
    device.changed = true;
    device.clocks = {job.min_mhz, job.max_mhz};
    const bool wished = !device.restore_due;  // not of one who has left meanwhile
    if (wished) count_change(&device);
    ++counters_.changes;
    const bool arrived = outcome.now_mhz == 0 || (outcome.now_mhz >= job.min_mhz && outcome.now_mhz <= job.max_mhz);
    if (!arrived && !device.leases.empty()) device.settle_at_ns = now_ns + settle_ns_;
    if (wished && job.session == 0) tell_wisher(device, outcome);
    log(kDebug, "%s: set to %u to %u MHz, reads %u MHz, %u us, reasons 0x%llx", device.about->device.c_str(),
        job.min_mhz, job.max_mhz, outcome.now_mhz, outcome.driver_us, static_cast<unsigned long long>(outcome.reasons));
  } else {
    ++counters_.driver_failures;
    forget_wishes(&device, outcome.untouched ? device.clocks : Clocks{});
    log_for(device.leases.empty() ? 0 : device.leases.front().holder.uid, Topic::kClocks, kWarning,
            "%s: cannot be set to %u to %u MHz: %s", device.about->device.c_str(), job.min_mhz, job.max_mhz,
            outcome.text.c_str());
    if (!outcome.untouched) {
      device.changed = true;  // the driver failed, so who knows
      device.restore_due = true;
    } else if (!device.changed) {
      device.restore_due = false;  // its lease ended meanwhile, and nothing was set for it
      forget_mark(device);
    }
  }
}

void LeaseTable::restore_done(Device& device, const Outcome& outcome, int64_t now_ns) {
  if (outcome.code == 0) {
    if (device.failures > 0)
      log_for(0, Topic::kClocks, kInfo, "%s: clock restored after earlier failures", device.about->device.c_str());
    if (!device.restore_due) count_change(&device);
    device.changed = false;
    device.restore_due = false;
    device.clocks = {};
    device.failures = 0;
    device.retry_ns = 0;
    ++counters_.restores;
    // A GPU keeps its mark while it is leased: writing it takes as long as the rest of a request.
    if (device.leases.empty()) forget_mark(device);
    log(kDebug, "%s: clock restored, %u us", device.about->device.c_str(), outcome.driver_us);
  } else {
    ++counters_.restore_failures;
    if (device.failures == 0)
      log_for(0, Topic::kClocks, kError, "%s: cannot restore the clock, will try again: %s",
              device.about->device.c_str(), outcome.text.c_str());
    device.restore_due = true;
    device.retry_ns = now_ns + retry_after(device.failures);
    ++device.failures;
  }
}

void LeaseTable::count_change(Device* device) {
  for (Lease& lease : device->leases) ++lease.changes;
}

void LeaseTable::tell_wisher(const Device& device, const Outcome& outcome) {
  for (const Lease& lease : device.leases) {
    if (lease.number != device.wisher) continue;
    Answer answer;
    answer.lease = lease.number;
    answer.flags = device.clocks == lease.wish ? 0u : static_cast<uint32_t>(POWERCCL_LEASE_SHARED);
    answer.min_mhz = device.clocks.min_mhz;
    answer.max_mhz = device.clocks.max_mhz;
    answer.outcome = outcome;
    actions_->tell(lease.holder.session, POWERCCL_LEASE_SETTLED, answer);
  }
}

void LeaseTable::read_done(Device& device, const Outcome& outcome) {
  if (device.leases.empty() || device.clocks.is_default() || outcome.code != 0) return;
  const Clocks& clocks = device.clocks;
  const bool arrived = outcome.now_mhz >= clocks.min_mhz && outcome.now_mhz <= clocks.max_mhz;
  if (!arrived && !device.warned) {
    device.warned = true;
    log_for(device.leases.front().holder.uid, Topic::kClocks, kWarning,
            "%s: set to %u to %u MHz and reads %u MHz (reasons 0x%llx); not repeated in this lease",
            device.about->device.c_str(), clocks.min_mhz, clocks.max_mhz, outcome.now_mhz,
            static_cast<unsigned long long>(outcome.reasons));
  }
  tell_wisher(device, outcome);
}

void LeaseTable::advance(int64_t now_ns) {
  for (Device& device : devices_) {
    proceed(device, now_ns);
    if (device.settle_at_ns == 0 || now_ns < device.settle_at_ns) continue;
    device.settle_at_ns = 0;
    actions_->enqueue(job_of(device, Job::kRead, {}, {}));
  }
}

int64_t LeaseTable::next_ns() const {
  int64_t next = kNever;
  for (const Device& device : devices_) {
    if (device.settle_at_ns != 0) next = std::min(next, device.settle_at_ns);
    if (device.busy) continue;
    if (must_restore(device))
      next = std::min(next, device.retry_ns);
    else if (device.waiting || !(highest_wish(device) == device.clocks))
      next = std::min(next, device.allowed_ns);
  }
  return next;
}

bool LeaseTable::all_restored() const {
  return std::none_of(devices_.begin(), devices_.end(), [](const Device& device) { return device.restore_due; });
}

bool LeaseTable::at_rest() const {
  return std::none_of(devices_.begin(), devices_.end(),
                      [](const Device& device) { return device.busy || device.changed || device.restore_due; });
}

}  // namespace powerccl::daemon
