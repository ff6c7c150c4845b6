// SPDX-License-Identifier: Apache-2.0
#include "device/clock_journal.h"

#include <errno.h>
#include <fcntl.h>
#include <sched.h>
#include <stdio.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "device/process.h"
#include "libc/calls.h"

namespace powerccl::device {
namespace {

constexpr uint32_t kNobody = 0;
constexpr off_t kBytes = sizeof(powerccl_journal);

uint64_t now_ns() {
  timespec now;
  clock_gettime(CLOCK_MONOTONIC, &now);
  return static_cast<uint64_t>(now.tv_sec) * 1000000000u + static_cast<uint64_t>(now.tv_nsec);
}

off_t offset_of(unsigned index) {
  return static_cast<off_t>(offsetof(powerccl_journal, slot) + index * sizeof(powerccl_journal_slot));
}

int lock_bytes(int fd, short type, off_t begin, off_t length) {
  struct flock range = {};
  range.l_type = type;
  range.l_whence = SEEK_SET;
  range.l_start = begin;
  range.l_len = length;
  return fcntl(fd, F_OFD_SETLK, &range);
}

int lock_slot(int fd, short type, unsigned index) {
  return lock_bytes(fd, type, offset_of(index), sizeof(powerccl_journal_slot));
}

bool is_mine(const Journal& journal, unsigned index) {
  return (__atomic_load_n(&journal.mine[index / 64], __ATOMIC_ACQUIRE) >> (index % 64) & 1) != 0;
}

void set_mine(Journal* journal, unsigned index, bool mine) {
  const uint64_t bit = uint64_t{1} << (index % 64);
  if (mine) {
    __atomic_fetch_or(&journal->mine[index / 64], bit, __ATOMIC_RELEASE);
  } else {
    __atomic_fetch_and(&journal->mine[index / 64], ~bit, __ATOMIC_RELEASE);
  }
}

// One thread of the process at a time: its threads share the descriptor, and with it every lock.
class ThreadLock {
 public:
  explicit ThreadLock(Journal* journal) : journal_(journal) {
    while (__atomic_exchange_n(&journal_->busy, 1, __ATOMIC_ACQUIRE) != 0) sched_yield();
  }
  ~ThreadLock() { __atomic_store_n(&journal_->busy, 0, __ATOMIC_RELEASE); }
  ThreadLock(const ThreadLock&) = delete;
  ThreadLock& operator=(const ThreadLock&) = delete;

 private:
  Journal* journal_;
};

// Claims and creation are rare and short, so one lock on the file's first byte serialises them; the kernel drops it
// with its holder. A holder that was stopped (SIGSTOP) must not stop us too: after a second this gives up.
class FileLock {
 public:
  explicit FileLock(int fd) : fd_(fd) {
    const timespec pause = {0, 10000000};
    for (int attempt = 0; attempt < 100; ++attempt) {
      held_ = lock_bytes(fd_, F_WRLCK, 0, 1) == 0;
      if (held_ || (errno != EAGAIN && errno != EACCES && errno != EINTR)) return;
      nanosleep(&pause, nullptr);
    }
  }
  ~FileLock() {
    if (held_) lock_bytes(fd_, F_UNLCK, 0, 1);
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

int allocate(int fd) {
  // Past RLIMIT_FSIZE the kernel would send SIGXFSZ, which ends the job.
  rlimit limit;
  if (getrlimit(RLIMIT_FSIZE, &limit) == 0 && limit.rlim_cur < static_cast<rlim_t>(kBytes)) return EFBIG;
  return posix_fallocate(fd, 0, kBytes);
}

int prepare(int fd, bool create, const char* path, Error* error) {
  struct stat status;
  if (status_of_file(fd, &status) != 0) return fail_errno(error, "cannot read", path, errno);
  powerccl_journal_slot first;  // whole or not, a header fits
  constexpr size_t kHead = offsetof(powerccl_journal, host);
  static_assert(kHead <= sizeof first);
  memset(&first, 0, sizeof first);
  if (status.st_size == 0 && create) {
    int number = allocate(fd);
    if (number != 0) {
      if (ftruncate(fd, 0) != 0) number = errno;
      return fail_errno(error, "cannot allocate", path, number);
    }
  } else if (status.st_size != kBytes) {
    return fail(error, kJournalBad, "%s is not a clock journal", path);
  } else if (pread(fd, &first, kHead, 0) != static_cast<ssize_t>(kHead)) {
    return fail_errno(error, "cannot read", path, errno);
  }
  uint32_t version[2];
  memcpy(version, first.device + 8, sizeof version);
  if (memcmp(first.device, POWERCCL_JOURNAL_MAGIC, 8) == 0 && version[0] == POWERCCL_JOURNAL_VERSION &&
      version[1] == POWERCCL_JOURNAL_SLOTS)
    return kOk;
  // All zero: it was allocated just now, or by somebody who died before the next line.
  if (!create || first.device[0] != '\0')
    return fail(error, kJournalBad, "%s is not a clock journal of version %u", path, POWERCCL_JOURNAL_VERSION);
  char head[offsetof(powerccl_journal, slot)] = POWERCCL_JOURNAL_MAGIC;
  version[0] = POWERCCL_JOURNAL_VERSION;
  version[1] = POWERCCL_JOURNAL_SLOTS;
  memcpy(head + 8, version, sizeof version);
  host_name(head + offsetof(powerccl_journal, host), sizeof(powerccl_journal::host));
  if (pwrite(fd, head, sizeof head, 0) != static_cast<ssize_t>(sizeof head))
    return fail_errno(error, "cannot write", path, errno);
  return kOk;
}

int open_journal(Journal* journal, const char* run_folder, bool create, Error* error) {
  *journal = Journal{};
  char host[64];
  host_identity(host, sizeof host);
  char* path = journal->path;
  if (snprintf(path, sizeof journal->path, "%s/clocks-%s.journal", run_folder, host) >=
      static_cast<int>(sizeof journal->path))
    return fail(error, kBadArgument, "the run folder's path is too long");
  const int fd = open(path, O_RDWR | O_CLOEXEC | O_NONBLOCK | (create ? O_CREAT : 0), 0644);
  if (fd < 0) return fail_errno(error, "cannot open", path, errno);
  int code;
  {
    FileLock lock(fd);
    code = lock.held() ? prepare(fd, create, path, error) : fail_errno(error, "cannot lock", path, errno);
  }
  struct stat status;
  if (code == kOk && status_of_file(fd, &status) != 0) code = fail_errno(error, "cannot read", path, errno);
  if (code != kOk) {
    close(fd);
    return code;
  }
  journal->device = status.st_dev;
  journal->inode = status.st_ino;
  journal->fd = fd;
  return kOk;
}

enum class Seen { kOurs, kCutShort, kAnother };

Seen look(const Journal& journal, int fd) {
  struct stat status;
  if (fd < 0 || status_of_file(fd, &status) != 0 || status.st_dev != journal.device || status.st_ino != journal.inode)
    return Seen::kAnother;
  return status.st_size == kBytes ? Seen::kOurs : Seen::kCutShort;
}

// The name again, if it is still the same file; with it the locks, which went with the descriptor.
int open_again(Journal* journal, Error* error) {
  ThreadLock lock(journal);
  if (look(*journal, journal->fd) == Seen::kOurs) return kOk;  // another thread did
  const int fd = open(journal->path, O_RDWR | O_CLOEXEC | O_NONBLOCK);
  if (fd < 0) return fail_errno(error, "cannot open again", journal->path, errno);
  bool whole = look(*journal, fd) == Seen::kOurs;
  for (unsigned i = 0; whole && i < POWERCCL_JOURNAL_SLOTS; ++i)
    if (is_mine(*journal, i)) whole = lock_slot(fd, F_WRLCK, i) == 0;
  if (!whole) {
    close(fd);
    return fail(error, kJournalBad, "%s was replaced by another file", journal->path);
  }
  __atomic_store_n(&journal->fd, fd, __ATOMIC_RELEASE);
  return kOk;
}

// Shows that the descriptor is the journal's, and the file whole.
int verify(Journal* journal, Error* error) {
  if (journal->path[0] == '\0') return fail(error, kBadArgument, "the clock journal is not open");
  switch (look(*journal, __atomic_load_n(&journal->fd, __ATOMIC_ACQUIRE))) {
    case Seen::kOurs:
      return kOk;
    case Seen::kCutShort:
      return fail(error, kJournalBad, "%s was truncated", journal->path);
    case Seen::kAnother:
      break;
  }
  return open_again(journal, error);
}

int write_claim(JournalClaim* claim, uint32_t state, Error* error) {
  if (!claim->journal) return fail(error, kBadArgument, "this process has not claimed the clock");
  powerccl_journal_slot slot = claim->slot;
  slot.changed_ns = now_ns();
  slot.state = state;
  const int code = journal_write_slot(claim->journal, claim->index, slot, error);
  if (code == kOk) claim->slot = slot;
  return code;
}

// The file may be somebody else's: a name ends, and does nothing to a terminal. No device has one that this changes.
void clean_name(powerccl_journal_slot* slot) {
  slot->device[sizeof slot->device - 1] = '\0';
  for (char* at = slot->device; *at != '\0'; ++at)
    if (*at < ' ' || *at > '~') *at = '?';
}

}  // namespace

int journal_open(Journal* journal, const char* run_folder, Error* error) {
  return open_journal(journal, run_folder, true, error);
}

int journal_open_existing(Journal* journal, const char* run_folder, Error* error) {
  return open_journal(journal, run_folder, false, error);
}

void journal_close(Journal* journal) {
  if (look(*journal, journal->fd) != Seen::kAnother) close(journal->fd);
  *journal = Journal{};
}

int journal_claim(Journal* journal, const char* device, JournalClaim* claim, Error* error) {
  *claim = JournalClaim{};
  if (!device || !*device || strlen(device) >= sizeof(powerccl_journal_slot::device))
    return fail(error, kBadArgument, "no GPU to claim");
  if (const int code = verify(journal, error); code != kOk) return code;
  ThreadLock threads(journal);
  const int fd = journal->fd;
  FileLock lock(fd);
  if (!lock.held()) return fail_errno(error, "cannot lock", journal->path, errno);
  powerccl_journal_slot slot;
  unsigned free = POWERCCL_JOURNAL_SLOTS;
  uint32_t restored = 0;  // is counted on
  for (unsigned i = 0; i < POWERCCL_JOURNAL_SLOTS; ++i) {
    if (pread(fd, &slot, sizeof slot, offset_of(i)) != static_cast<ssize_t>(sizeof slot))
      return fail(error, kJournalBad, "%s was truncated", journal->path);
    if (slot.pid != kNobody) {
      if (strncmp(slot.device, device, sizeof slot.device) != 0 || !journal_owner_alive(journal, i, slot)) continue;
      if (free != POWERCCL_JOURNAL_SLOTS) lock_slot(fd, F_UNLCK, free);
      return fail(error, kOwned, "process %u has the clock of %s", slot.pid, device);
    } else if (free == POWERCCL_JOURNAL_SLOTS && !is_mine(*journal, i) && lock_slot(fd, F_WRLCK, i) == 0) {
      free = i;
      restored = slot.restored_by_agent;
    }
  }
  if (free == POWERCCL_JOURNAL_SLOTS)
    return fail(error, kJournalFull, "all %u slots of the clock journal are taken", POWERCCL_JOURNAL_SLOTS);
  slot = powerccl_journal_slot{};
  memcpy(slot.device, device, strlen(device));
  slot.pid = static_cast<uint32_t>(getpid());
  slot.pid_start_ticks = own_start_ticks();
  slot.pid_namespace = pid_namespace(-1);
  slot.changed_ns = now_ns();
  slot.restored_by_agent = restored;
  // Locked before it is written: whoever sees the new owner sees it alive.
  if (pwrite(fd, &slot, sizeof slot, offset_of(free)) != static_cast<ssize_t>(sizeof slot)) {
    const int code = fail_errno(error, "cannot write", journal->path, errno);
    lock_slot(fd, F_UNLCK, free);
    return code;
  }
  set_mine(journal, free, true);
  claim->slot = slot;
  claim->index = free;
  claim->journal = journal;
  return kOk;
}

void journal_release(JournalClaim* claim) {
  Journal* journal = claim->journal;
  if (!journal || claim->slot.state != POWERCCL_CLOCK_DEFAULT) return;
  claim->slot.pid = kNobody;
  claim->slot.pid_start_ticks = claim->slot.pid_namespace = 0;
  if (journal_write_slot(journal, claim->index, claim->slot, nullptr) == kOk) {
    ThreadLock lock(journal);
    if (look(*journal, journal->fd) != Seen::kAnother) lock_slot(journal->fd, F_UNLCK, claim->index);
    set_mine(journal, claim->index, false);
  }
  *claim = JournalClaim{};
}

int journal_mark(JournalClaim* claim, Error* error) {
  return write_claim(claim, POWERCCL_CLOCK_LOCKED, error);
}

int journal_clear(JournalClaim* claim, Error* error) {
  return write_claim(claim, POWERCCL_CLOCK_DEFAULT, error);
}

bool journal_read_slot(Journal* journal, unsigned index, powerccl_journal_slot* slot) {
  if (verify(journal, nullptr) == kOk &&
      pread(journal->fd, slot, sizeof *slot, offset_of(index)) == static_cast<ssize_t>(sizeof *slot)) {
    clean_name(slot);
    return true;
  }
  memset(slot, 0, sizeof *slot);
  return false;
}

bool journal_read(Journal* journal, powerccl_journal* copy) {
  if (verify(journal, nullptr) == kOk && pread(journal->fd, copy, sizeof *copy, 0) == kBytes) {
    for (powerccl_journal_slot& slot : copy->slot) clean_name(&slot);
    return true;
  }
  memset(static_cast<void*>(copy), 0, sizeof *copy);
  return false;
}

int journal_write_slot(Journal* journal, unsigned index, const powerccl_journal_slot& slot, Error* error) {
  if (const int code = verify(journal, error); code != kOk) return code;
  const ssize_t written = pwrite(journal->fd, &slot, sizeof slot, offset_of(index));
  if (written == static_cast<ssize_t>(sizeof slot)) return kOk;
  return fail_errno(error, "cannot write", journal->path, written < 0 ? errno : EIO);
}

bool journal_slot_locked(Journal* journal, unsigned index) {
  if (is_mine(*journal, index)) return true;
  if (look(*journal, journal->fd) == Seen::kAnother) return false;
  struct flock range = {};
  range.l_type = F_WRLCK;
  range.l_whence = SEEK_SET;
  range.l_start = offset_of(index);
  range.l_len = sizeof(powerccl_journal_slot);
  return fcntl(journal->fd, F_OFD_GETLK, &range) == 0 && range.l_type != F_UNLCK;
}

bool journal_owner_alive(Journal* journal, unsigned index, const powerccl_journal_slot& slot) {
  if (slot.pid == kNobody) return false;
  if (journal_slot_locked(journal, index)) return true;
  if (slot.pid_namespace == 0 || slot.pid_namespace != pid_namespace(-1) || !proc_is_own()) return false;
  const uint64_t ticks = process_start_ticks(static_cast<pid_t>(slot.pid));
  return ticks != 0 && (slot.pid_start_ticks == 0 || slot.pid_start_ticks == ticks);
}

}  // namespace powerccl::device
