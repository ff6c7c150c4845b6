// SPDX-License-Identifier: Apache-2.0
#include "agent/owner.h"

#include <dirent.h>
#include <poll.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>

#include "device/process.h"

#ifndef SYS_pidfd_open
#define SYS_pidfd_open 434
#endif

namespace powerccl::agent {
namespace {

int open_pidfd(int pid) {
  return static_cast<int>(syscall(SYS_pidfd_open, pid, 0));
}

// The last number of a line of a file in /proc that begins with `key`; 0: there is none.
int last_number(const char* path, const char* key) {
  std::FILE* file = std::fopen(path, "re");
  if (file == nullptr) return 0;
  char line[512];
  int number = 0;
  while (number == 0 && std::fgets(line, sizeof line, file) != nullptr) {
    if (std::strncmp(line, key, std::strlen(key)) != 0) continue;
    const char* at = line + std::strcspn(line, "\t ");
    for (char* end; *at != '\0'; at = end) {
      const long found = std::strtol(at, &end, 10);
      if (end == at) break;
      number = static_cast<int>(found);
    }
  }
  std::fclose(file);
  return number;
}

bool started_then(int number, const powerccl_journal_slot& slot) {
  const uint64_t ticks = device::process_start_ticks(number);
  return ticks != 0 && (slot.pid_start_ticks == 0 || slot.pid_start_ticks == ticks);
}

// The number in /proc of the process that its namespace knows by the slot's; 0: it cannot be seen.
int search(const powerccl_journal_slot& slot) {
  DIR* all = opendir("/proc");
  if (all == nullptr) return 0;
  int found = 0;
  while (const dirent* entry = readdir(all)) {
    const int number = static_cast<int>(std::strtol(entry->d_name, nullptr, 10));
    if (number <= 0 || device::pid_namespace(number) != slot.pid_namespace) continue;
    char path[40];
    std::snprintf(path, sizeof path, "/proc/%d/status", number);
    if (last_number(path, "NSpid:") == static_cast<int>(slot.pid) && started_then(number, slot)) {
      found = number;
      break;
    }
  }
  closedir(all);
  return found;
}

}  // namespace

void Owner::find(const powerccl_journal_slot& slot) {
  forget();
  if (slot.pid_namespace == 0) return;
  const bool proc_is_own = device::proc_is_own();
  if (slot.pid_namespace != device::pid_namespace(-1)) {
    number_ = search(slot);
    if (number_ == 0 || !proc_is_own) return;
    pidfd_ = open_pidfd(number_);
  } else {
    pidfd_ = open_pidfd(static_cast<int>(slot.pid));
    gone_ = pidfd_ < 0 && errno == ESRCH;
    number_ = static_cast<int>(slot.pid);
    if (!proc_is_own) {
      char path[48];
      std::snprintf(path, sizeof path, "/proc/self/fdinfo/%d", pidfd_);
      number_ = last_number(path, "Pid:");
    }
  }
  // The number may be another process's by now; that it is not is what the start time is for. A process whose first
  // thread has ended shows none, and its pidfd tells of all of it.
  const uint64_t ticks = device::process_start_ticks(number_);
  if (ticks == 0 || started_then(number_, slot)) return;
  const bool was_gone = gone_;
  forget();
  gone_ = was_gone;
}

void Owner::forget() {
  if (pidfd_ >= 0) close(pidfd_);
  pidfd_ = -1;
  number_ = 0;
  gone_ = false;
}

bool Owner::died(device::Journal* journal, unsigned index, const powerccl_journal_slot& slot) {
  if (gone_) return true;
  if (pidfd_ >= 0) {
    pollfd entry{pidfd_, POLLIN, 0};
    return poll(&entry, 1, 0) > 0;
  }
  if (number_ > 0 && started_then(number_, slot)) return false;
  if (device::journal_slot_locked(journal, index)) return false;
  find(slot);
  return gone_ || number_ == 0 || !started_then(number_, slot);
}

}  // namespace powerccl::agent
