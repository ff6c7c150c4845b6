// SPDX-License-Identifier: Apache-2.0
#include "daemon/lease_table.h"

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>

#include "daemon/log.h"

namespace powerccl::daemon {
namespace {

constexpr int64_t kMs = 1'000'000;
constexpr int64_t kFirstRetryNs = 50 * kMs;
constexpr int64_t kLastRetryNs = 5000 * kMs;
constexpr int64_t kNever = INT64_MAX;

int64_t retry_after(int failures) {
  return std::min(kFirstRetryNs << std::min(failures, 10), kLastRetryNs);
}

}  // namespace

const char* text_of(Ending ending) {
  switch (ending) {
    case Ending::kReleased:
      return "released";
    case Ending::kGone:
      return "gone";
    case Ending::kMissed:
      return "silent";
    case Ending::kRevoked:
      return "revoked";
    case Ending::kStopping:
      return "stopping";
  }
  return "";
}

void LeaseTable::add_driver(const std::vector<DeviceAbout>& devices, int64_t interval_ns, int64_t settle_ns) {
  for (size_t index = 0; index < devices.size(); ++index) {
    Device device;
    device.about = &devices[index];
    device.driver = drivers_;
    device.index = index;
    device.interval_ns = interval_ns;
    device.settle_ns = settle_ns;
    names_[devices[index].device] = devices_.size();
    if (!devices[index].pci.empty()) names_[devices[index].pci] = devices_.size();
    devices_.push_back(std::move(device));
  }
  ++drivers_;
}

std::optional<size_t> LeaseTable::find(const std::string& name) const {
  const auto found = names_.find(name);
  if (found == names_.end()) return std::nullopt;
  return found->second;
}

DeviceView LeaseTable::view(size_t number) const {
  const Device& device = devices_[number];
  DeviceView view;
  view.about = device.about;
  if (device.holder) view.holder = &*device.holder;
  view.held_since_ns = device.held_since_ns;
  view.changes = device.changes;
  view.min_mhz = device.min_mhz;
  view.max_mhz = device.max_mhz;
  view.pending = must_put_back(device);
  return view;
}

// ---- Requests

void LeaseTable::refuse(SessionId session, uint64_t serial, int32_t status, const std::string& text) {
  Answer answer;
  answer.status = status;
  answer.text = text;
  ++counters_.refused;
  actions_->reply(session, serial, answer);
}

LeaseTable::Device* LeaseTable::leased(SessionId session, uint64_t lease) {
  if (lease == 0) return nullptr;
  for (Device& device : devices_)
    if (device.lease == lease && device.holder && device.holder->session == session) return &device;
  return nullptr;
}

bool LeaseTable::holds_any(SessionId session) const {
  return std::any_of(devices_.begin(), devices_.end(),
                     [&](const Device& device) { return device.holder && device.holder->session == session; });
}

void LeaseTable::acquire(const Holder& holder, uint64_t serial, size_t number, int64_t now_ns) {
  Device& device = devices_[number];
  Answer answer;
  answer.min_mhz = device.about->lowest_mhz;
  answer.max_mhz = device.about->highest_mhz;
  if (device.holder && device.holder->session != holder.session) {
    answer.status = POWERCCL_LEASE_HELD;
    answer.holder_pid = device.holder->pid;
    answer.holder_uid = device.holder->uid;
    ++counters_.refused;
    return actions_->reply(holder.session, serial, answer);
  }
  if (device.holder) {  // asked for again by who has it
    answer.lease = device.lease;
    return actions_->reply(holder.session, serial, answer);
  }
  if (draining) return refuse(holder.session, serial, POWERCCL_LEASE_DRAINING, "the administrator grants none for now");
  if (device.failures > 0)
    return refuse(holder.session, serial, POWERCCL_LEASE_RESTORING, "its clock could not be put back to usual yet");
  device.holder = holder;
  device.lease = actions_->new_lease_number();
  device.held_since_ns = now_ns;
  device.changes = 0;
  device.warned = false;
  answer.lease = device.lease;
  ++counters_.granted;
  log(kInfo, "%s: leased to process %u of user %u%s%s", device.about->device.c_str(), holder.pid, holder.uid,
      holder.run.empty() ? "" : ", run ", holder.run.c_str());
  actions_->reply(holder.session, serial, answer);
}

void LeaseTable::clamp(const Device& device, Wish* wish) {
  if (wish->max_mhz == 0) return;
  const uint32_t least = device.about->lowest_mhz, most = device.about->highest_mhz;
  const uint32_t min_mhz = std::clamp(wish->min_mhz, least, most), max_mhz = std::clamp(wish->max_mhz, least, most);
  if (min_mhz != wish->min_mhz || max_mhz != wish->max_mhz) {
    wish->flags |= POWERCCL_LEASE_CLAMPED;
    ++counters_.clamped;
  }
  wish->min_mhz = min_mhz;
  wish->max_mhz = max_mhz;
}

void LeaseTable::set(SessionId session, uint64_t serial, uint64_t lease, uint32_t min_mhz, uint32_t max_mhz,
                     int64_t now_ns) {
  Device* device = leased(session, lease);
  if (device == nullptr) return refuse(session, serial, POWERCCL_LEASE_NONE, "this session has no such lease");
  if (min_mhz > max_mhz || (min_mhz == 0 && max_mhz != 0))
    return refuse(session, serial, POWERCCL_LEASE_BAD_MESSAGE, "impossible clocks");
  Wish wish{session, serial, min_mhz, max_mhz, 0};
  clamp(*device, &wish);
  if (device->waiting) {
    Answer answer;
    answer.status = POWERCCL_LEASE_SUPERSEDED;
    answer.lease = device->lease;
    ++counters_.superseded;
    actions_->reply(device->waiting->session, device->waiting->serial, answer);
  }
  device->waiting = wish;
  proceed(*device, now_ns);
}

void LeaseTable::read(SessionId session, uint64_t serial, uint64_t lease) {
  Device* device = leased(session, lease);
  if (device == nullptr) return refuse(session, serial, POWERCCL_LEASE_NONE, "this session has no such lease");
  actions_->run(device->driver, job_of(*device, Job::kRead, {session, serial, 0, 0, 0}));
}

void LeaseTable::release(SessionId session, uint64_t serial, uint64_t lease, int64_t now_ns) {
  Device* device = leased(session, lease);
  if (device == nullptr) return refuse(session, serial, POWERCCL_LEASE_NONE, "this session has no such lease");
  drop(*device, Ending::kReleased, false, now_ns);
  actions_->reply(session, serial, Answer{});
}

void LeaseTable::end(size_t number, Ending ending, int64_t now_ns) {
  if (devices_[number].holder) drop(devices_[number], ending, true, now_ns);
}

void LeaseTable::end_session(SessionId session, Ending ending, int64_t now_ns) {
  for (Device& device : devices_)
    if (device.holder && device.holder->session == session)
      drop(device, ending, ending != Ending::kGone && ending != Ending::kReleased, now_ns);
}

void LeaseTable::drop(Device& device, Ending ending, bool tell, int64_t now_ns) {
  const Holder holder = device.holder.value_or(Holder{});
  Answer answer;
  answer.lease = device.lease;
  answer.status = ending == Ending::kMissed    ? POWERCCL_LEASE_MISSED
                  : ending == Ending::kRevoked ? POWERCCL_LEASE_REVOKED
                                               : POWERCCL_LEASE_STOPPING;
  log(kInfo, "%s: lease of process %u ended (%s) after %llu clock change%s", device.about->device.c_str(), holder.pid,
      text_of(ending), static_cast<unsigned long long>(device.changes), device.changes == 1 ? "" : "s");
  ++counters_.ended[static_cast<int>(ending)];
  if (device.waiting) {
    Answer late = answer;
    if (ending == Ending::kReleased) late.status = POWERCCL_LEASE_NONE;
    if (ending != Ending::kGone) actions_->reply(device.waiting->session, device.waiting->serial, late);
    device.waiting.reset();
  }
  // Put back even if somebody else has the device by then: the next holder does not start at this one's clock.
  if (device.busy || device.other) device.put_back = true;
  device.holder.reset();
  device.lease = 0;
  device.settle_at_ns = 0;
  if (tell) actions_->tell(holder.session, POWERCCL_LEASE_ENDED, answer);
  proceed(device, now_ns);
}

// ---- Putting back

void LeaseTable::put_back(size_t number, const std::string& mark, int64_t now_ns) {
  Device& device = devices_[number];
  if (!mark.empty()) device.mark = mark;
  device.other = true;
  device.put_back = true;
  device.retry_ns = 0;
  proceed(device, now_ns);
}

void LeaseTable::put_back_all(int64_t now_ns) {
  for (size_t i = 0; i < devices_.size(); ++i) put_back(i, "", now_ns);
}

bool LeaseTable::must_put_back(const Device& device) const {
  return device.put_back || (device.other && !device.holder);
}

// ---- What is due

void LeaseTable::proceed(Device& device, int64_t now_ns) {
  if (device.busy) return;
  if (must_put_back(device)) {
    if (now_ns >= device.retry_ns) start_restore(device, Wish{});
    return;
  }
  if (!device.waiting) return;
  const Wish wish = *device.waiting;
  if (wish.max_mhz == 0) {
    device.waiting.reset();
    // Back to usual may be asked for any number of times, so what is there already costs the driver nothing.
    if (device.other) return start_restore(device, wish);
    Answer answer;
    answer.lease = device.lease;
    return actions_->reply(wish.session, wish.serial, answer);
  }
  if (now_ns < device.allowed_ns) return;
  device.waiting.reset();
  start_set(device, wish, now_ns);
}

void LeaseTable::start_set(Device& device, const Wish& wish, int64_t now_ns) {
  if (device.mark.empty()) {
    const std::string mark = actions_->mark_of(device.driver, device.index);
    const int error = mark.empty() ? ENODEV : actions_->mark(mark, device.holder.value_or(Holder{}));
    if (error != 0) {
      log(kError, "%s: no clock is set, as its mark cannot be written: %s", device.about->device.c_str(),
          std::strerror(error));
      return refuse(wish.session, wish.serial, POWERCCL_LEASE_SYSTEM,
                    std::string("its mark cannot be written: ") + std::strerror(error));
    }
    device.mark = mark;
  }
  device.allowed_ns = now_ns + device.interval_ns;
  device.busy = true;
  device.settle_at_ns = 0;
  actions_->run(device.driver, job_of(device, Job::kSet, wish));
}

void LeaseTable::start_restore(Device& device, const Wish& wish) {
  device.busy = true;
  device.settle_at_ns = 0;
  actions_->run(device.driver, job_of(device, Job::kRestore, wish));
}

Job LeaseTable::job_of(const Device& device, Job::Kind kind, const Wish& wish) const {
  Job job;
  job.kind = kind;
  job.device = number_of(device);
  job.index = device.index;
  job.min_mhz = wish.min_mhz;
  job.max_mhz = wish.max_mhz;
  if (kind == Job::kRestore) job.mark = device.mark;
  job.session = wish.session;
  job.serial = wish.serial;
  job.lease = device.lease;
  job.flags = wish.flags;
  return job;
}

void LeaseTable::forget_mark(Device& device) {
  if (device.mark.empty()) return;
  const int error = actions_->clear(device.mark);
  if (error != 0) {
    // Harmless: it would be put back once more.
    log(kWarning, "%s: its mark stays in the state file: %s", device.about->device.c_str(), std::strerror(error));
    return;
  }
  device.mark.clear();
}

void LeaseTable::done(const Done& done, int64_t now_ns) {
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
    device.other = true;
    device.min_mhz = job.min_mhz;
    device.max_mhz = job.max_mhz;
    if (device.lease == job.lease) ++device.changes;
    ++counters_.changes;
    const bool arrived = outcome.now_mhz == 0 || (outcome.now_mhz >= job.min_mhz && outcome.now_mhz <= job.max_mhz);
    if (!arrived && device.holder) device.settle_at_ns = now_ns + device.settle_ns;
    log(kDebug, "%s: set to %u to %u MHz, reads %u MHz, %u us, reasons 0x%llx", device.about->device.c_str(),
        job.min_mhz, job.max_mhz, outcome.now_mhz, outcome.driver_us, static_cast<unsigned long long>(outcome.reasons));
  } else {
    ++counters_.driver_failures;
    log(kWarning, "%s: cannot be set to %u to %u MHz: %s", device.about->device.c_str(), job.min_mhz, job.max_mhz,
        outcome.text.c_str());
    if (!outcome.untouched) {
      device.other = true;  // the driver failed, so who knows
      device.put_back = true;
    } else if (!device.other) {
      forget_mark(device);
    }
  }
}

void LeaseTable::restore_done(Device& device, const Outcome& outcome, int64_t now_ns) {
  if (outcome.code == 0) {
    if (device.failures > 0) log(kInfo, "%s: put back to usual at last", device.about->device.c_str());
    device.other = false;
    device.put_back = false;
    device.min_mhz = device.max_mhz = 0;
    device.failures = 0;
    device.retry_ns = 0;
    if (device.holder) ++device.changes;
    ++counters_.restores;
    forget_mark(device);
    log(kDebug, "%s: back to usual, %u us", device.about->device.c_str(), outcome.driver_us);
  } else {
    ++counters_.restore_failures;
    if (device.failures == 0)
      log(kError, "%s: cannot be put back to usual, tried again until it can: %s", device.about->device.c_str(),
          outcome.text.c_str());
    device.put_back = true;
    device.retry_ns = now_ns + retry_after(device.failures);
    ++device.failures;
  }
}

void LeaseTable::read_done(Device& device, const Outcome& outcome) {
  if (!device.holder || device.max_mhz == 0 || outcome.code != 0) return;
  Answer answer;
  answer.lease = device.lease;
  answer.min_mhz = device.min_mhz;
  answer.max_mhz = device.max_mhz;
  answer.outcome = outcome;
  const bool arrived = outcome.now_mhz >= device.min_mhz && outcome.now_mhz <= device.max_mhz;
  if (!arrived && !device.warned) {
    device.warned = true;
    log(kWarning, "%s: set to %u to %u MHz and reads %u MHz (reasons 0x%llx); not said again in this lease",
        device.about->device.c_str(), device.min_mhz, device.max_mhz, outcome.now_mhz,
        static_cast<unsigned long long>(outcome.reasons));
  }
  actions_->tell(device.holder->session, POWERCCL_LEASE_SETTLED, answer);
}

void LeaseTable::advance(int64_t now_ns) {
  for (Device& device : devices_) {
    proceed(device, now_ns);
    if (device.settle_at_ns == 0 || now_ns < device.settle_at_ns) continue;
    device.settle_at_ns = 0;
    actions_->run(device.driver, job_of(device, Job::kRead, Wish{}));
  }
}

int64_t LeaseTable::next_ns() const {
  int64_t next = kNever;
  for (const Device& device : devices_) {
    if (device.settle_at_ns != 0) next = std::min(next, device.settle_at_ns);
    if (device.busy) continue;
    if (must_put_back(device))
      next = std::min(next, device.retry_ns);
    else if (device.waiting)
      next = std::min(next, device.allowed_ns);
  }
  return next;
}

bool LeaseTable::all_put_back() const {
  return std::none_of(devices_.begin(), devices_.end(), [](const Device& device) { return device.put_back; });
}

bool LeaseTable::at_rest() const {
  return std::none_of(devices_.begin(), devices_.end(),
                      [](const Device& device) { return device.busy || device.other || device.put_back; });
}

}  // namespace powerccl::daemon
