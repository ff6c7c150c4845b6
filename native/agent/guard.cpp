// SPDX-License-Identifier: Apache-2.0
#include "agent/guard.h"

#include <cstring>
#include <string>

#include "agent/clock.h"
#include "agent/log.h"
#include "agent/options.h"
#include "device/core_clock.h"

namespace powerccl::agent {
namespace {

// A core that goes off line for a moment is back within seconds. Half of it gives up on some, double only costs time at
// the end of a run whose core cannot be restored.
constexpr int64_t kRetryNs = 200'000'000;
constexpr int kTries = 25;  // five seconds of them

bool same_owner(const powerccl_journal_slot& a, const powerccl_journal_slot& b) {
  return a.pid == b.pid && a.pid_start_ticks == b.pid_start_ticks && a.pid_namespace == b.pid_namespace &&
         std::memcmp(a.device, b.device, sizeof a.device) == 0;
}

// A slot that nobody ever used, or one of a file that somebody cut short.
bool blank(const powerccl_journal_slot& slot) {
  return slot.device[0] == '\0';
}

}  // namespace

int restore_core(const char* name, device::Error* error) {
  const std::string cores = sysfs_root() + "/devices/system/cpu";
  return device::core_clock_restore_named(cores.c_str(), name, error);
}

void Guard::end_watch(Watch* watch) {
  watch->owner.forget();
  watch->slot = powerccl_journal_slot{};
  watch->tries = 0;
  watch->next_try_ns = 0;
  watch->dead = watch->abandoned = false;
}

void Guard::scan() {
  device::journal_read(journal_, &copy_);
  for (unsigned i = 0; i < POWERCCL_JOURNAL_SLOTS; ++i) look(i, copy_.slot[i]);
}

void Guard::look(unsigned index, powerccl_journal_slot slot) {
  Watch* watch = &watches_[index];
  // A file that was cut short tells nothing: what is known of living owners is what it said before.
  if (blank(slot)) slot = watch->slot;
  if (slot.pid == 0) {
    if (watch->slot.pid != 0) end_watch(watch);
    return;
  }
  if (!same_owner(watch->slot, slot)) {
    end_watch(watch);
    watch->owner.find(slot);
  }
  watch->slot = slot;
  if (!watch->dead) watch->dead = watch->owner.died(journal_, index, slot);
  if (watch->dead) bury(index, watch);
}

void Guard::bury(unsigned index, Watch* watch) {
  // What it did last, now that it does no more. If the file no longer says, it may have set the clock.
  powerccl_journal_slot slot;
  const bool known = device::journal_read_slot(journal_, index, &slot) && !blank(slot);
  if (known && !same_owner(slot, watch->slot)) {
    end_watch(watch);
    return;
  }
  if (!known) {
    slot = watch->slot;
    slot.state = POWERCCL_CLOCK_LOCKED;
  }
  if (slot.state != POWERCCL_CLOCK_DEFAULT) {
    if (watch->abandoned || now_ns() < watch->next_try_ns) return;
    device::Error error;
    if (restore_(slot.device, &error) != device::kOk) {
      watch->next_try_ns = now_ns() + kRetryNs;
      watch->abandoned = ++watch->tries >= kTries;
      if (watch->tries == 1 || watch->abandoned)
        say("the clock of %s, left lowered by process %u, cannot be restored%s: %s%s", slot.device, slot.pid,
            watch->abandoned ? "; giving up" : " yet", error.text,
            watch->abandoned ? "\nhint: as root: powerccl-agent --restore-all" : "");
      return;
    }
    ++slot.restored_by_agent;
    slot.state = POWERCCL_CLOCK_DEFAULT;
    say("process %u died with the clock of %s lowered: restored", slot.pid, slot.device);
  }
  slot.pid = 0;
  slot.pid_start_ticks = slot.pid_namespace = 0;
  if (known) device::journal_write_slot(journal_, index, slot, nullptr);
  end_watch(watch);
}

void Guard::add_poll_entries(std::vector<pollfd>* entries) const {
  for (const Watch& watch : watches_)
    if (watch.owner.pidfd() >= 0 && !watch.dead) entries->push_back({watch.owner.pidfd(), POLLIN, 0});
}

std::vector<uint32_t> Guard::living_owners() const {
  std::vector<uint32_t> owners;
  for (const Watch& watch : watches_)
    if (watch.slot.pid != 0 && !watch.dead) owners.push_back(watch.slot.pid);
  return owners;
}

bool Guard::work_left() const {
  for (const Watch& watch : watches_)
    if (watch.dead && !watch.abandoned) return true;
  return false;
}

unsigned Guard::left_marked() const {
  unsigned count = 0;
  for (const Watch& watch : watches_) count += watch.dead ? 1 : 0;
  return count;
}

}  // namespace powerccl::agent
