// SPDX-License-Identifier: Apache-2.0
#include "device/clock_journal.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

namespace powerccl::device {
namespace {

constexpr uint32_t kNobody = 0;

uint64_t now_ns() {
  timespec now;
  clock_gettime(CLOCK_MONOTONIC, &now);
  return static_cast<uint64_t>(now.tv_sec) * 1000000000u + static_cast<uint64_t>(now.tv_nsec);
}

// Claims and creation are rare and short, so one lock on the file serialises them; the kernel drops it with its holder.
// A holder that was stopped (SIGSTOP) must not stop us too: after a second this gives up.
class FileLock {
 public:
  explicit FileLock(int fd) : fd_(fd) {
    const timespec pause = {0, 10000000};
    for (int attempt = 0; attempt < 100; ++attempt) {
      if (flock(fd_, LOCK_EX | LOCK_NB) == 0) {
        held_ = true;
        return;
      }
      if (errno != EWOULDBLOCK && errno != EINTR) return;
      nanosleep(&pause, nullptr);
    }
  }
  ~FileLock() {
    if (held_) flock(fd_, LOCK_UN);
  }
  FileLock(const FileLock&) = delete;
  FileLock& operator=(const FileLock&) = delete;
  bool held() const { return held_; }

 private:
  int fd_;
  bool held_ = false;
};

int fail_errno(Error* error, const char* what, const char* path, int number) {
  return fail(error, kSystem, "%s %s: %s", what, path, strerror(number));
}

int prepare(int fd, bool create, const char* path, Error* error) {
  struct stat status;
  if (fstat(fd, &status) != 0) return fail_errno(error, "cannot read", path, errno);
  if (status.st_size == sizeof(powerccl_journal)) return kOk;
  if (status.st_size != 0 || !create) return fail(error, kJournalBad, "%s is not a clock journal", path);
  int number = posix_fallocate(fd, 0, sizeof(powerccl_journal));
  if (number != 0) {
    if (ftruncate(fd, 0) != 0) number = errno;
    return fail_errno(error, "cannot allocate", path, number);
  }
  powerccl_journal fresh;
  memset(&fresh, 0, sizeof fresh);
  memcpy(fresh.magic, POWERCCL_JOURNAL_MAGIC, sizeof fresh.magic);
  fresh.version = POWERCCL_JOURNAL_VERSION;
  fresh.slots = POWERCCL_JOURNAL_SLOTS;
  if (pwrite(fd, &fresh, sizeof fresh, 0) != static_cast<ssize_t>(sizeof fresh))
    return fail_errno(error, "cannot write", path, errno);
  return kOk;
}

int open_journal(Journal* journal, const char* run_folder, bool create, Error* error) {
  *journal = Journal{};
  char host[64];
  host_name(host, sizeof host);
  char path[4096];
  if (snprintf(path, sizeof path, "%s/clocks-%s.journal", run_folder, host) >= static_cast<int>(sizeof path))
    return fail(error, kBadArgument, "the run folder's path is too long");
  int fd = open(path, O_RDWR | O_CLOEXEC | (create ? O_CREAT : 0), 0644);
  if (fd < 0) return fail_errno(error, "cannot open", path, errno);
  int code;
  {
    FileLock lock(fd);
    code = lock.held() ? prepare(fd, create, path, error) : fail(error, kSystem, "cannot lock %s", path);
  }
  if (code != kOk) {
    close(fd);
    return code;
  }
  void* map = mmap(nullptr, sizeof(powerccl_journal), PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
  if (map == MAP_FAILED) {
    code = fail_errno(error, "cannot map", path, errno);
    close(fd);
    return code;
  }
  auto* mapped = static_cast<powerccl_journal*>(map);
  if (memcmp(mapped->magic, POWERCCL_JOURNAL_MAGIC, sizeof mapped->magic) != 0 ||
      mapped->version != POWERCCL_JOURNAL_VERSION || mapped->slots != POWERCCL_JOURNAL_SLOTS) {
    munmap(map, sizeof(powerccl_journal));
    close(fd);
    return fail(error, kJournalBad, "%s is not a clock journal of version %u", path, POWERCCL_JOURNAL_VERSION);
  }
  journal->map = mapped;
  journal->fd = fd;
  return kOk;
}

bool same_gpu(const powerccl_journal_slot& slot, const char* uuid) {
  return strncmp(slot.device, uuid, sizeof slot.device) == 0;
}

}  // namespace

void host_name(char* name, size_t size) {
  if (gethostname(name, size) != 0 || !*name) snprintf(name, size, "localhost");
  name[size - 1] = '\0';
  for (char* at = name; *at; ++at)
    if (*at == '/') *at = '_';
}

int journal_open(Journal* journal, const char* run_folder, Error* error) {
  return open_journal(journal, run_folder, true, error);
}

int journal_open_existing(Journal* journal, const char* run_folder, Error* error) {
  return open_journal(journal, run_folder, false, error);
}

void journal_close(Journal* journal) {
  if (journal->map) munmap(journal->map, sizeof(powerccl_journal));
  if (journal->fd >= 0) close(journal->fd);
  *journal = Journal{};
}

int journal_claim(Journal* journal, const char* device, powerccl_journal_slot** claimed, Error* error) {
  *claimed = nullptr;
  if (!journal->map) return fail(error, kBadArgument, "the clock journal is not open");
  if (!device || !*device || strlen(device) >= sizeof(powerccl_journal_slot::device))
    return fail(error, kBadArgument, "no GPU to claim");
  FileLock lock(journal->fd);
  if (!lock.held()) return fail(error, kSystem, "cannot lock the clock journal");
  for (powerccl_journal_slot& slot : journal->map->slot)
    if (__atomic_load_n(&slot.pid, __ATOMIC_ACQUIRE) != kNobody && same_gpu(slot, device) && journal_owner_alive(&slot))
      return fail(error, kOwned, "process %u has the clock of %s", slot.pid, device);
  for (powerccl_journal_slot& slot : journal->map->slot) {
    uint32_t nobody = kNobody;
    if (!__atomic_compare_exchange_n(&slot.pid, &nobody, static_cast<uint32_t>(getpid()), false, __ATOMIC_ACQ_REL,
                                     __ATOMIC_RELAXED))
      continue;
    memset(slot.device, 0, sizeof slot.device);
    memcpy(slot.device, device, strlen(device));
    __atomic_store_n(&slot.changed_ns, now_ns(), __ATOMIC_RELAXED);
    __atomic_store_n(&slot.pid_start_ticks, process_start_ticks(getpid()), __ATOMIC_RELEASE);
    *claimed = &slot;
    return kOk;
  }
  return fail(error, kJournalFull, "all %u slots of the clock journal are taken", POWERCCL_JOURNAL_SLOTS);
}

void journal_release(powerccl_journal_slot* slot) {
  if (__atomic_load_n(&slot->state, __ATOMIC_ACQUIRE) != POWERCCL_CLOCK_DEFAULT) return;
  __atomic_store_n(&slot->pid_start_ticks, 0, __ATOMIC_RELAXED);
  __atomic_store_n(&slot->pid, kNobody, __ATOMIC_RELEASE);
}

void journal_mark(powerccl_journal_slot* slot) {
  __atomic_store_n(&slot->changed_ns, now_ns(), __ATOMIC_RELAXED);
  __atomic_store_n(&slot->state, POWERCCL_CLOCK_LOCKED, __ATOMIC_RELEASE);
}

void journal_clear(powerccl_journal_slot* slot) {
  __atomic_store_n(&slot->changed_ns, now_ns(), __ATOMIC_RELAXED);
  __atomic_store_n(&slot->state, POWERCCL_CLOCK_DEFAULT, __ATOMIC_RELEASE);
}

uint64_t process_start_ticks(pid_t pid) {
  char path[40];
  snprintf(path, sizeof path, "/proc/%d/stat", static_cast<int>(pid));
  int fd = open(path, O_RDONLY | O_CLOEXEC);
  if (fd < 0) return 0;
  char text[1024];
  ssize_t length = read(fd, text, sizeof text - 1);
  close(fd);
  if (length <= 0) return 0;
  text[length] = '\0';
  // The name in parentheses may hold blanks and parentheses itself: fields count from the last one.
  char* at = strrchr(text, ')');
  if (!at || at[1] != ' ') return 0;
  at += 2;
  if (*at == 'Z' || *at == 'X') return 0;
  for (int field = 3; field < 22; ++field) {
    at = strchr(at, ' ');
    if (!at) return 0;
    ++at;
  }
  return strtoull(at, nullptr, 10);
}

bool journal_owner_alive(const powerccl_journal_slot* slot) {
  uint32_t pid = __atomic_load_n(&slot->pid, __ATOMIC_ACQUIRE);
  if (pid == kNobody) return false;
  uint64_t claimed_ticks = __atomic_load_n(&slot->pid_start_ticks, __ATOMIC_ACQUIRE);
  uint64_t ticks = process_start_ticks(static_cast<pid_t>(pid));
  return ticks != 0 && (claimed_ticks == 0 || claimed_ticks == ticks);
}

}  // namespace powerccl::device
