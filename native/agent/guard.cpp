// SPDX-License-Identifier: Apache-2.0
#include "agent/guard.h"

#include <sys/syscall.h>
#include <unistd.h>

#include <string>
#include <utility>

#include "agent/clock.h"
#include "agent/log.h"
#include "agent/options.h"
#include "device/core_clock.h"
#include "device/nvml_clock.h"

#ifndef SYS_pidfd_open
#define SYS_pidfd_open 434
#endif

namespace powerccl::agent {
namespace {

constexpr int64_t kRetryNs = 200'000'000;
constexpr int kTries = 25;  // five seconds of them

uint32_t load(const uint32_t& word) {
  return __atomic_load_n(&word, __ATOMIC_ACQUIRE);
}

int open_pidfd(uint32_t pid) {
  return static_cast<int>(syscall(SYS_pidfd_open, static_cast<pid_t>(pid), 0));
}

}  // namespace

int reset_device(const char* device, device::Error* error) {
  if (device::is_core_clock(device)) {
    const std::string cores = sysfs_root() + "/devices/system/cpu";
    return device::core_clock_restore_named(cores.c_str(), device, error);
  }
  device::ClockDevice gpu;
  int code = device::clock_open(&gpu, device, error);
  if (code != device::kOk) return code;
  code = device::clock_reset(&gpu, error);
  device::clock_close(&gpu);
  return code;
}

Guard::Guard(powerccl_journal* journal, ResetClock reset, bool dry)
    : journal_(journal), reset_(std::move(reset)), dry_(dry) {}

Guard::~Guard() {
  for (Watch& watch : watches_) end_watch(&watch);
}

void Guard::begin_watch(const powerccl_journal_slot& slot, uint32_t pid, Watch* watch) {
  end_watch(watch);
  watch->pid = pid;
  watch->start_ticks = __atomic_load_n(&slot.pid_start_ticks, __ATOMIC_ACQUIRE);
  watch->pidfd = open_pidfd(pid);
}

// A pidfd tells of the whole process, also when only its first thread has ended, and cannot be fooled by a reused
// number once it is open; that it was opened on the right process is what the start time is for.
bool Guard::died(const powerccl_journal_slot& slot, const Watch& watch) {
  if (watch.pidfd < 0) return !device::journal_owner_alive(&slot);
  pollfd entry{watch.pidfd, POLLIN, 0};
  if (poll(&entry, 1, 0) > 0) return true;
  uint64_t ticks = watch.verified ? 0 : device::process_start_ticks(static_cast<pid_t>(watch.pid));
  return ticks != 0 && watch.start_ticks != 0 && ticks != watch.start_ticks;
}

void Guard::end_watch(Watch* watch) {
  if (watch->pidfd >= 0) close(watch->pidfd);
  *watch = Watch{};
}

void Guard::scan() {
  for (unsigned i = 0; i < POWERCCL_JOURNAL_SLOTS; ++i) {
    powerccl_journal_slot* slot = &journal_->slot[i];
    Watch* watch = &watches_[i];
    uint32_t pid = load(slot->pid);
    if (pid == 0) {
      if (watch->pid != 0) end_watch(watch);
      continue;
    }
    uint64_t ticks = __atomic_load_n(&slot->pid_start_ticks, __ATOMIC_ACQUIRE);
    if (watch->pid != pid || watch->start_ticks != ticks) begin_watch(*slot, pid, watch);
    if (!watch->dead) watch->dead = died(*slot, *watch);
    watch->verified = true;
    if (watch->dead) bury(slot, watch);
  }
}

void Guard::bury(powerccl_journal_slot* slot, Watch* watch) {
  if (load(slot->state) != POWERCCL_CLOCK_DEFAULT) {
    if (watch->abandoned || now_ns() < watch->next_try_ns) return;
    if (dry_ && !device::is_core_clock(slot->device)) {
      watch->abandoned = true;
      say("process %u died with the clock of %s marked as locked; clocks are dry here, so it stays.\n"
          "hint: powerccl-agent --restore-all --run-folder <this run's folder>, without POWERCCL_CLOCKS=dry",
          watch->pid, slot->device);
      return;
    }
    device::Error error;
    if (reset_(slot->device, &error) != device::kOk) {
      watch->next_try_ns = now_ns() + kRetryNs;
      watch->abandoned = ++watch->tries >= kTries;
      if (watch->tries == 1 || watch->abandoned)
        say("the clock of %s, left locked by process %u, cannot be reset%s: %s%s", slot->device, watch->pid,
            watch->abandoned ? "; giving up" : " yet", error.text,
            watch->abandoned ? "\nhint: as root: nvidia-smi --reset-gpu-clocks, or powerccl-agent --restore-all" : "");
      return;
    }
    __atomic_add_fetch(&slot->restored_by_agent, 1, __ATOMIC_RELAXED);
    device::journal_clear(slot);
    say("process %u died with the clock of %s locked: reset", watch->pid, slot->device);
  }
  device::journal_release(slot);
  end_watch(watch);
}

void Guard::add_poll_entries(std::vector<pollfd>* entries) const {
  for (const Watch& watch : watches_)
    if (watch.pidfd >= 0 && !watch.dead) entries->push_back({watch.pidfd, POLLIN, 0});
}

std::vector<uint32_t> Guard::living_owners() const {
  std::vector<uint32_t> owners;
  for (const Watch& watch : watches_)
    if (watch.pid != 0 && !watch.dead) owners.push_back(watch.pid);
  return owners;
}

bool Guard::work_left() const {
  for (const Watch& watch : watches_)
    if (watch.dead && !watch.abandoned) return true;
  return false;
}

unsigned Guard::left_locked() const {
  unsigned count = 0;
  for (const Watch& watch : watches_) count += watch.dead ? 1 : 0;
  return count;
}

}  // namespace powerccl::agent
