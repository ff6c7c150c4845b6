// SPDX-License-Identifier: Apache-2.0
#include "record/record_file.h"

#include <errno.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "base/basics.h"
#include "base/log.h"
#include "base/own_time.h"
#include "libc/calls.h"

namespace powerccl {

bool is_full(int fault) {
  return fault == ENOSPC || fault == EDQUOT || fault == EFBIG;
}

const char* fault_text(int fault, char* buffer, size_t size) {
  if (fault == RecordFile::kDeleted) return "the file was deleted or replaced";
  if (fault == RecordFile::kCut) return "the file was truncated";
  return error_text(fault, buffer, size);
}

int RecordFile::create(const char* path, const powerccl_trace_header& header) {
  if (strlen(path) >= sizeof(path_)) return ENAMETOOLONG;
  copy_text(path_, sizeof(path_), path);
  records_ = dropped_ = 0;
  descriptor_ = static_cast<int>(syscall(SYS_openat, AT_FDCWD, path, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0644));
  if (descriptor_ < 0) return errno;
  struct stat status;
  int error = status_of_file(descriptor_, &status) == 0 ? 0 : errno;
  if (error == 0) {
    device_ = status.st_dev;
    inode_ = status.st_ino;
    char page[POWERCCL_TRACE_HEADER_BYTES] = {};
    memcpy(page, &header, sizeof(header));
    // The magic comes last: a file without it was never begun.
    memset(page, 0, sizeof(header.magic));
    uint64_t done = 0;
    error = write(page, sizeof(page), 0, &done);
    if (error == 0) error = write(header.magic, sizeof(header.magic), 0, &done);
  }
  if (error != 0) remove();
  return error;
}

int RecordFile::append(const powerccl_trace_record* records, uint64_t count, uint64_t* written) {
  *written = 0;
  int fault = check();
  if (fault != 0) return fault;
  uint64_t done = 0;
  fault = write(records, count * POWERCCL_TRACE_RECORD_BYTES,
                POWERCCL_TRACE_HEADER_BYTES + records_ * POWERCCL_TRACE_RECORD_BYTES, &done);
  *written = done / POWERCCL_TRACE_RECORD_BYTES;
  records_ += *written;
  if (fault != 0 && !is_full(fault)) return fault;
  const int counted = write_counters(records_, dropped_);
  return fault != 0 ? fault : counted;
}

bool RecordFile::replace_last(const powerccl_trace_record& record) {
  if (records_ == 0 || check() != 0) return false;
  uint64_t done = 0;
  return write(&record, sizeof(record), POWERCCL_TRACE_HEADER_BYTES + (records_ - 1) * POWERCCL_TRACE_RECORD_BYTES,
               &done) == 0;
}

int RecordFile::count_dropped(uint64_t dropped) {
  if (dropped == dropped_) return 0;
  int fault = check();
  if (fault != 0) return fault;
  fault = write_counters(records_, dropped);
  if (fault == 0) dropped_ = dropped;
  return fault;
}

int RecordFile::state_own() {
  uint64_t own_ns[kOwnWorks], all = 0;
  for (uint32_t i = 0; i < kOwnWorks; ++i) all += own_ns[i] = g_own_ns[i].load(std::memory_order_relaxed);
  if (all == own_ns_) return 0;
  uint64_t done = 0;
  int fault = check();
  if (fault == 0) fault = write(own_ns, sizeof(own_ns), offsetof(powerccl_trace_header, own_ns), &done);
  if (fault == 0) own_ns_ = all;
  return fault;
}

void RecordFile::close() {
  if (descriptor_ >= 0) syscall(SYS_close, descriptor_);
  descriptor_ = -1;
}

void RecordFile::remove() {
  struct stat status;
  if (status_of_link(path_, &status) == 0 && status.st_dev == device_ && status.st_ino == inode_) unlink(path_);
  close();
}

// Before each write: 0 if the file is the one that was created, with all that was written to it, else a fault.
int RecordFile::check() const {
  struct stat status;
  if (status_of_file(descriptor_, &status) != 0) return errno;
  if (!S_ISREG(status.st_mode) || status.st_dev != device_ || status.st_ino != inode_) return kDeleted;
  if (status.st_nlink == 0) return kDeleted;
  const uint64_t least = POWERCCL_TRACE_HEADER_BYTES + records_ * POWERCCL_TRACE_RECORD_BYTES;
  return static_cast<uint64_t>(status.st_size) < least ? static_cast<int>(kCut) : 0;
}

// Past RLIMIT_FSIZE the kernel sends SIGXFSZ, which this thread blocks, and answers EFBIG.
int RecordFile::write(const void* data, uint64_t bytes, uint64_t at, uint64_t* done) {
  *done = 0;
  while (*done < bytes) {
    const long written =
        syscall(SYS_pwrite64, descriptor_, static_cast<const char*>(data) + *done, bytes - *done, at + *done);
    if (written < 0 && errno == EINTR) continue;
    if (written <= 0) return written < 0 ? errno : ENOSPC;
    *done += static_cast<uint64_t>(written);
  }
  return 0;
}

int RecordFile::write_counters(uint64_t committed, uint64_t dropped) {
  const uint64_t counters[2] = {committed, dropped};
  static_assert(offsetof(powerccl_trace_header, dropped) == offsetof(powerccl_trace_header, committed) + 8);
  uint64_t done = 0;
  return write(counters, sizeof(counters), offsetof(powerccl_trace_header, committed), &done);
}

}  // namespace powerccl
