// SPDX-License-Identifier: Apache-2.0
#include "daemon/lease_table.h"

#include <algorithm>
#include <utility>

#include "daemon/log.h"

namespace powerccl::daemon {
namespace {

constexpr int64_t kMs = 1'000'000;

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

void LeaseTable::take_devices(const std::vector<DeviceAbout>& devices, int64_t interval_ns, int64_t settle_ns,
                              Sharing sharing) {
  interval_ns_ = interval_ns;
  settle_ns_ = settle_ns;
  sharing_ = sharing;
  for (const DeviceAbout& about : devices) {
    Device device;
    device.about = &about;
    names_[about.device] = devices_.size();
    if (!about.pci.empty()) names_[about.pci] = devices_.size();
    devices_.push_back(std::move(device));
  }
}

std::optional<size_t> LeaseTable::find(const std::string& name) const {
  const auto entry = names_.find(name);
  if (entry == names_.end()) return std::nullopt;
  return entry->second;
}

DeviceView LeaseTable::view(size_t number) const {
  const Device& device = devices_[number];
  DeviceView view;
  view.about = device.about;
  view.leases = device.leases.size();
  if (!device.leases.empty()) {
    const Lease& first = device.leases.front();
    view.holder = &first.holder;
    view.held_since_ns = first.since_ns;
    view.changes = first.changes;
  }
  view.min_mhz = device.clocks.min_mhz;
  view.max_mhz = device.clocks.max_mhz;
  view.pending = must_restore(device);
  return view;
}

std::vector<Holder> LeaseTable::holders(size_t number) const {
  std::vector<Holder> holders;
  for (const Lease& lease : devices_[number].leases) holders.push_back(lease.holder);
  return holders;
}

// ---- Requests

void LeaseTable::refuse(SessionId session, uint64_t serial, int32_t status, const std::string& text) {
  Answer answer;
  answer.status = status;
  answer.text = text;
  ++counters_.refused;
  actions_->reply(session, serial, answer);
}

uint32_t LeaseTable::interval_ms(const Device& device) const {
  const int64_t sharers = std::max<int64_t>(1, static_cast<int64_t>(device.leases.size()));
  return static_cast<uint32_t>(std::min<int64_t>(interval_ns_ * sharers / kMs, UINT32_MAX));
}

LeaseTable::Device* LeaseTable::leased(SessionId session, uint64_t number, Lease** lease) {
  if (number == 0) return nullptr;
  for (Device& device : devices_) {
    for (Lease& one : device.leases) {
      if (one.number != number || one.holder.session != session) continue;
      *lease = &one;
      return &device;
    }
  }
  return nullptr;
}

bool LeaseTable::holds_any(SessionId session) const {
  return std::any_of(devices_.begin(), devices_.end(), [&](const Device& device) {
    return std::any_of(device.leases.begin(), device.leases.end(),
                       [&](const Lease& lease) { return lease.holder.session == session; });
  });
}

void LeaseTable::acquire(const Holder& holder, uint64_t serial, size_t number, int64_t now_ns) {
  Device& device = devices_[number];
  Answer answer;
  answer.min_mhz = device.about->lowest_mhz;
  answer.max_mhz = device.about->highest_mhz;
  for (const Lease& lease : device.leases) {
    if (lease.holder.session != holder.session) continue;
    answer.lease = lease.number;  // asked for again by who has it
    return actions_->reply(holder.session, serial, answer);
  }
  if (!device.leases.empty()) {
    const Holder& first = device.leases.front().holder;
    const bool together = sharing_ != Sharing::kNone && holder.shares && first.shares;
    if (!together || first.uid != holder.uid) {
      answer.status = POWERCCL_LEASE_HELD;
      answer.holder_pid = first.pid;
      answer.holder_uid = first.uid;
      ++counters_.refused;
      return actions_->reply(holder.session, serial, answer);
    }
    answer.flags |= POWERCCL_LEASE_SHARED;
  }
  if (draining)
    return refuse(holder.session, serial, POWERCCL_LEASE_DRAINING, "the administrator has stopped new leases");
  if (device.failures > 0)
    return refuse(holder.session, serial, POWERCCL_LEASE_RESTORING, "its clock is not restored yet");
  Lease lease;
  lease.number = actions_->new_lease_number();
  lease.holder = holder;
  lease.since_ns = now_ns;
  answer.lease = lease.number;
  if (sharing_ == Sharing::kNewest && !device.leases.empty()) lease.wish = device.leases.front().wish;
  device.warned = false;
  device.leases.push_back(std::move(lease));
  ++counters_.granted;
  log_for(holder.uid, Topic::kLeases, kInfo, "%s: leased to process %u of user %u%s%s%s", device.about->device.c_str(),
          holder.pid, holder.uid, holder.run.empty() ? "" : ", run ", holder.run.c_str(),
          device.leases.size() > 1 ? ", who shares it" : "");
  answer.interval_ms = interval_ms(device);
  actions_->reply(holder.session, serial, answer);
  proceed(device, now_ns);  // the clock may be one that it has not wished for
}

uint32_t LeaseTable::clamp(const Device& device, Clocks* wish) {
  if (wish->is_default()) return 0;
  const uint32_t least = device.about->lowest_mhz, most = device.about->highest_mhz;
  const Clocks clamped{std::clamp(wish->min_mhz, least, most), std::clamp(wish->max_mhz, least, most)};
  if (clamped == *wish) return 0;
  *wish = clamped;
  ++counters_.clamped;
  return POWERCCL_LEASE_CLAMPED;
}

void LeaseTable::set(SessionId session, uint64_t serial, uint64_t number, uint32_t min_mhz, uint32_t max_mhz,
                     int64_t now_ns) {
  Lease* lease = nullptr;
  Device* device = leased(session, number, &lease);
  if (device == nullptr) return refuse(session, serial, POWERCCL_LEASE_NONE, "this session has no such lease");
  if (min_mhz > max_mhz || (min_mhz == 0 && max_mhz != 0))
    return refuse(session, serial, POWERCCL_LEASE_BAD_MESSAGE, "impossible clocks");
  Asker asker{session, serial, number, 0, {min_mhz, max_mhz}};
  asker.flags = clamp(*device, &asker.wish);
  lease->wish = asker.wish;
  device->wisher = number;
  if (sharing_ == Sharing::kNewest)
    for (Lease& other : device->leases) other.wish = asker.wish;
  if (device->waiting) {
    Answer answer;
    answer.status = POWERCCL_LEASE_SUPERSEDED;
    answer.lease = device->waiting->lease;
    ++counters_.superseded;
    actions_->reply(device->waiting->session, device->waiting->serial, answer);
  }
  device->waiting = asker;
  proceed(*device, now_ns);
}

void LeaseTable::read(SessionId session, uint64_t serial, uint64_t number) {
  Lease* lease = nullptr;
  const Device* device = leased(session, number, &lease);
  if (device == nullptr) return refuse(session, serial, POWERCCL_LEASE_NONE, "this session has no such lease");
  actions_->enqueue(job_of(*device, Job::kRead, {}, {session, serial, number, 0, {}}));
}

void LeaseTable::release(SessionId session, uint64_t serial, uint64_t number, int64_t now_ns) {
  Lease* lease = nullptr;
  Device* device = leased(session, number, &lease);
  if (device == nullptr) return refuse(session, serial, POWERCCL_LEASE_NONE, "this session has no such lease");
  drop(*device, static_cast<size_t>(lease - device->leases.data()), Ending::kReleased, false, now_ns);
  actions_->reply(session, serial, Answer{});
}

void LeaseTable::end(size_t number, Ending ending, int64_t now_ns) {
  Device& device = devices_[number];
  while (!device.leases.empty()) drop(device, device.leases.size() - 1, ending, true, now_ns);
}

void LeaseTable::end_session(SessionId session, Ending ending, int64_t now_ns) {
  const bool tell = ending != Ending::kGone && ending != Ending::kReleased;
  for (Device& device : devices_)
    for (size_t i = device.leases.size(); i-- > 0;)
      if (device.leases[i].holder.session == session) drop(device, i, ending, tell, now_ns);
}

void LeaseTable::drop(Device& device, size_t which, Ending ending, bool tell, int64_t now_ns) {
  const Lease lease = device.leases[which];
  device.leases.erase(device.leases.begin() + static_cast<std::ptrdiff_t>(which));
  Answer answer;
  answer.lease = lease.number;
  answer.status = ending == Ending::kMissed    ? POWERCCL_LEASE_MISSED
                  : ending == Ending::kRevoked ? POWERCCL_LEASE_REVOKED
                                               : POWERCCL_LEASE_STOPPING;
  log_for(lease.holder.uid, Topic::kLeases, kInfo, "%s: lease of process %u ended (%s) after %llu clock change%s",
          device.about->device.c_str(), lease.holder.pid, text_of(ending),
          static_cast<unsigned long long>(lease.changes), lease.changes == 1 ? "" : "s");
  ++counters_.ended[static_cast<int>(ending)];
  if (device.waiting && device.waiting->lease == lease.number) {
    Answer late = answer;
    if (ending == Ending::kReleased) late.status = POWERCCL_LEASE_NONE;
    if (ending != Ending::kGone) actions_->reply(device.waiting->session, device.waiting->serial, late);
    device.waiting.reset();
  }
  if (sharing_ == Sharing::kNewest && device.wisher == lease.number)
    for (Lease& other : device.leases) other.wish = {};
  if (device.leases.empty()) {
    // Restored even if another session has the device by then: the next holder does not start at this one's clock.
    if (device.busy || device.changed)
      device.restore_due = true;
    else
      forget_mark(device);
    device.settle_at_ns = 0;
  }
  if (tell) actions_->tell(lease.holder.session, POWERCCL_LEASE_ENDED, answer);
  proceed(device, now_ns);
}

}  // namespace powerccl::daemon
