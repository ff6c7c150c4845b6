// SPDX-License-Identifier: Apache-2.0
#include "adapters/mpi/core_clocks.h"

#include <sched.h>
#include <stdio.h>

#include "base/basics.h"
#include "base/log.h"

namespace powerccl::mpi {
namespace {

constexpr uint32_t kKhz = 1000;             // in a MHz
constexpr uint64_t kSettleNs = 200000000u;  // for the end of a thread; the daemon puts back what it did not hear of

}  // namespace

ThreadCore::By ThreadCore::find(CoreClocks* clocks) {
  tried_ = true;
  cpu_set_t cores;
  if (sched_getaffinity(0, sizeof cores, &cores) != 0 || CPU_COUNT(&cores) != 1) return By::kNobody;
  const int cpu = sched_getcpu();
  if (device::core_clock_find(&clock_, clocks->sysfs_cores, cpu, nullptr) != device::kOk) return By::kNobody;
  if (clocks->by_lease) return find_lease(*clocks);
  const int code = device::core_clock_open(&clock_, clocks->sysfs_cores, cpu, nullptr);
  if (code == device::kSystem) return find_lease(*clocks);  // it may not be written
  // At its lowest already, it is somebody else's: what is usual is not known.
  if (code == device::kOk && clock_.usual_khz > clock_.lowest_khz &&
      device::journal_claim(&clocks->journal, clock_.name, &claim_, nullptr) == device::kOk) {
    return By::kItself;
  }
  clock_ = device::CoreClock{};
  return By::kNobody;
}

ThreadCore::By ThreadCore::find_lease(const CoreClocks& clocks) {
  const Environment& environment = *clocks.environment;
  char device[16];
  snprintf(device, sizeof(device), "cpu%d", clock_.cpu);
  LeaseTerms terms;
  terms.socket_path = environment.lease_socket;
  terms.run = file_name(environment.run_folder);
  terms.device = device;
  terms.thread = static_cast<uint32_t>(syscall(SYS_gettid));
  terms.at_once = false;  // this is a wait
  terms.speaks = environment.speaks();
  terms.debug = environment.debug >= 1;
  ClockClient client;
  char text[256] = "";
  const char* hint = nullptr;
  if (lease_.open(terms, &client, text, sizeof(text), &hint) != 0) {
    if (terms.speaks) say(hint, "core clocks are not changed: %s", text);
    return By::kNobody;
  }
  client.speaks = terms.speaks;
  return actuator_.start(client, per_call_.policy(), clocks.trace, environment.debug >= 2) ? By::kLease : By::kNobody;
}

void ThreadCore::lower(CoreClocks* clocks) {
  if (lowered_) return;
  if (!tried_) by_ = find(clocks);
  if (by_ == By::kNobody || sched_getcpu() != clock_.cpu) return;  // bound elsewhere since
  lowered_ = true;
  if (by_ == By::kLease) {
    const uint32_t lowest_mhz = clock_.lowest_khz / kKhz;
    per_call_.hold(lowest_mhz > 0 ? lowest_mhz : 1, 0);
    return;
  }
  if (device::journal_mark(&claim_, nullptr) != device::kOk) {  // nobody could put it back
    lowered_ = false;
    by_ = By::kNobody;
  } else if (device::core_clock_lower(&clock_, nullptr) != device::kOk) {
    restore();
  }
}

void ThreadCore::restore() {
  if (!lowered_) return;
  lowered_ = false;
  if (by_ == By::kLease) {
    per_call_.release(1, 0);
  } else {
    restore_itself();
  }
}

void ThreadCore::restore_itself() {
  device::Error error;
  if (device::core_clock_restore(&clock_, &error) == device::kOk) {
    device::journal_clear(&claim_, nullptr);
    return;
  }
  // The mark stays, and with it powerccl-agent's duty; this thread lowers nothing again.
  say("powerccl-agent restores it when this process ends", "%s", error.text);
  clock_ = device::CoreClock{};
  claim_ = device::JournalClaim{};
  by_ = By::kNobody;
}

void ThreadCore::leave() {
  restore();
  // A clock thread that does not end in time ends later, with the daemon's answer: nobody else can have its place.
  const bool ended = by_ != By::kLease || actuator_.stop(kSettleNs);
  device::journal_release(&claim_);
  clock_ = device::CoreClock{};
  by_ = By::kNobody;
  tried_ = !ended;
}

}  // namespace powerccl::mpi
