// SPDX-License-Identifier: Apache-2.0
#include "runtime/record_file.h"

#include <errno.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "runtime/basics.h"
#include "runtime/log.h"

namespace powerccl {
namespace {

// Where the job's descriptors are shared, ours is moved up here: a job that closes all of its own opens the next file
// under the lowest free number.
constexpr int kHighDescriptor = 768;

int open_file(const char* path, int flags) {
  return static_cast<int>(
      syscall(SYS_openat, AT_FDCWD, path, O_WRONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK | O_NOCTTY | flags, 0644));
}

int close_file(int descriptor) {
  return static_cast<int>(syscall(SYS_close, descriptor));
}

bool look_at(int descriptor, struct stat* status) {
  return syscall(SYS_fstat, descriptor, status) == 0;
}

}  // namespace

bool is_full(int fault) {
  return fault == ENOSPC || fault == EDQUOT || fault == EFBIG;
}

const char* fault_text(int fault, char* buffer, size_t size) {
  if (fault == RecordFile::kDeleted) return "somebody deleted or replaced it";
  if (fault == RecordFile::kCut) return "somebody cut it short";
  return error_text(fault, buffer, size);
}

int RecordFile::create(const char* path, const powerccl_trace_header& header, bool keep_open) {
  if (strlen(path) >= sizeof(path_)) return ENAMETOOLONG;
  copy_text(path_, sizeof(path_), path);
  keep_open_ = keep_open;
  records_ = dropped_ = 0;
  descriptor_ = open_file(path, O_CREAT | O_EXCL);
  if (descriptor_ < 0) return errno;
  struct stat status;
  int error = look_at(descriptor_, &status) ? 0 : errno;
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
  release();
  return error;
}

int RecordFile::append(const powerccl_trace_record* records, uint64_t count, uint64_t* written) {
  *written = 0;
  int fault = begin();
  if (fault != 0) return fault;
  uint64_t done = 0;
  fault = write(records, count * POWERCCL_TRACE_RECORD_BYTES,
                POWERCCL_TRACE_HEADER_BYTES + records_ * POWERCCL_TRACE_RECORD_BYTES, &done);
  *written = done / POWERCCL_TRACE_RECORD_BYTES;
  records_ += *written;
  const int counted = write_counters(records_, dropped_);
  release();
  return fault != 0 ? fault : counted;
}

bool RecordFile::replace_last(const powerccl_trace_record& record) {
  if (records_ == 0 || begin() != 0) return false;
  uint64_t done = 0;
  const bool written = write(&record, sizeof(record),
                             POWERCCL_TRACE_HEADER_BYTES + (records_ - 1) * POWERCCL_TRACE_RECORD_BYTES, &done) == 0;
  release();
  return written;
}

int RecordFile::count_dropped(uint64_t dropped) {
  if (dropped == dropped_) return 0;
  int fault = begin();
  if (fault != 0) return fault;
  fault = write_counters(records_, dropped);
  release();
  if (fault == 0) dropped_ = dropped;
  return fault;
}

void RecordFile::close() {
  if (descriptor_ >= 0) close_file(descriptor_);
  descriptor_ = -1;
}

void RecordFile::remove() {
  struct stat status;
  if (lstat(path_, &status) == 0 && status.st_dev == device_ && status.st_ino == inode_) unlink(path_);
  close();
}

// Opens the file if it is not kept open. Returns 0 or a fault.
int RecordFile::hold() {
  if (keep_open_) return descriptor_ >= 0 ? 0 : EBADF;
  const int low = open_file(path_, 0);
  if (low < 0) return errno == ENOENT || errno == ELOOP ? static_cast<int>(kDeleted) : errno;
  const long high = syscall(SYS_fcntl, low, F_DUPFD_CLOEXEC, kHighDescriptor);
  if (high >= 0) close_file(low);
  descriptor_ = high >= 0 ? static_cast<int>(high) : low;
  return 0;
}

void RecordFile::release() {
  if (!keep_open_) close();
}

// Before each write: the file is held, and it is the one that was created, with all that was written to it.
int RecordFile::begin() {
  int fault = hold();
  if (fault != 0) return fault;
  struct stat status;
  if (!look_at(descriptor_, &status)) {
    fault = errno;
  } else if (!S_ISREG(status.st_mode) || status.st_dev != device_ || status.st_ino != inode_ || status.st_nlink == 0) {
    fault = kDeleted;
  } else if (static_cast<uint64_t>(status.st_size) <
             POWERCCL_TRACE_HEADER_BYTES + records_ * POWERCCL_TRACE_RECORD_BYTES) {
    fault = kCut;
  }
  if (fault != 0) release();
  return fault;
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
