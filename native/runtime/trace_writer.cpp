// SPDX-License-Identifier: Apache-2.0
#include "runtime/trace_writer.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/stat.h>

#include "runtime/log.h"

namespace powerccl {
namespace {

constexpr uint64_t kRecordsPerChunk = TraceWriter::kChunkBytes / POWERCCL_TRACE_RECORD_BYTES;
// The file grows while this many records are still free, so that there is room to say that it cannot.
constexpr uint64_t kSpareRecords = 16;

std::atomic_ref<uint64_t> shared(uint64_t& counter) {
  return std::atomic_ref<uint64_t>(counter);
}
std::atomic_ref<uint16_t> kind_of(powerccl_trace_record& record) {
  return std::atomic_ref<uint16_t>(record.kind);
}

// Makes the blocks from `begin` to `end` exist. Returns 0 or an errno value.
int allocate(int descriptor, uint64_t begin, uint64_t end) {
  // Past RLIMIT_FSIZE the kernel would send SIGXFSZ, which ends the job.
  rlimit limit;
  if (getrlimit(RLIMIT_FSIZE, &limit) == 0 && limit.rlim_cur != RLIM_INFINITY && end > limit.rlim_cur) return EFBIG;
  int result;
  do {
    result = fallocate(descriptor, 0, static_cast<off_t>(begin), static_cast<off_t>(end - begin));
  } while (result != 0 && errno == EINTR);
  if (result == 0) return 0;
  if (errno != EOPNOTSUPP && errno != ENOSYS) return errno;
  // File systems without fallocate (older NFS): writing zeroes is what allocates there.
  static constexpr char kZeroes[4096] = {};
  for (uint64_t at = begin; at < end;) {
    const uint64_t length = end - at < sizeof(kZeroes) ? end - at : sizeof(kZeroes);
    const ssize_t written = pwrite(descriptor, kZeroes, length, static_cast<off_t>(at));
    if (written < 0 && errno == EINTR) continue;
    if (written <= 0) return written < 0 ? errno : ENOSPC;
    at += static_cast<uint64_t>(written);
  }
  return 0;
}

}  // namespace

int TraceWriter::open(const char* path, const powerccl_trace_header& header, uint64_t limit_bytes) {
  const int descriptor = ::open(path, O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0644);
  if (descriptor < 0) return errno;
  const uint64_t records = limit_bytes > POWERCCL_TRACE_HEADER_BYTES + kChunkBytes
                               ? (limit_bytes - POWERCCL_TRACE_HEADER_BYTES) / POWERCCL_TRACE_RECORD_BYTES
                               : kRecordsPerChunk;
  const uint64_t first_chunk = records < kRecordsPerChunk ? records : kRecordsPerChunk;
  const uint64_t mapped = POWERCCL_TRACE_HEADER_BYTES + records * POWERCCL_TRACE_RECORD_BYTES;
  int error = allocate(descriptor, 0, POWERCCL_TRACE_HEADER_BYTES + first_chunk * POWERCCL_TRACE_RECORD_BYTES);
  void* map = MAP_FAILED;
  if (error == 0) {
    map = mmap(nullptr, mapped, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_NORESERVE, descriptor, 0);
    if (map == MAP_FAILED) error = errno;
  }
  if (error != 0) {
    ::close(descriptor);
    unlink(path);
    return error;
  }
  descriptor_ = descriptor;
  header_ = static_cast<powerccl_trace_header*>(map);
  records_ = reinterpret_cast<powerccl_trace_record*>(static_cast<char*>(map) + POWERCCL_TRACE_HEADER_BYTES);
  limit_records_ = records;
  allocated_.store(first_chunk, std::memory_order_relaxed);
  next_.store(0, std::memory_order_relaxed);
  full_.store(false, std::memory_order_relaxed);
  complained_.store(false, std::memory_order_relaxed);

  *header_ = header;
  header_->version = POWERCCL_TRACE_VERSION;
  header_->header_bytes = POWERCCL_TRACE_HEADER_BYTES;
  header_->record_bytes = POWERCCL_TRACE_RECORD_BYTES;
  header_->committed = 0;
  header_->dropped = 0;
  header_->limit_records = records;
  // The magic comes last: a file without it was never begun.
  memcpy(header_->magic, POWERCCL_TRACE_MAGIC, sizeof(header_->magic));
  open_.store(true, std::memory_order_release);
  return 0;
}

bool TraceWriter::append(const powerccl_trace_record& record) {
  if (!is_open()) return false;
  if (full_.load(std::memory_order_relaxed)) {
    shared(header_->dropped).fetch_add(1, std::memory_order_relaxed);
    return false;
  }
  const uint64_t index = next_.fetch_add(1, std::memory_order_relaxed);
  if (index + kSpareRecords >= allocated_.load(std::memory_order_acquire) && !grow(index)) {
    shared(header_->dropped).fetch_add(1, std::memory_order_relaxed);
    return false;
  }
  powerccl_trace_record& slot = records_[index];
  memcpy(reinterpret_cast<char*>(&slot) + sizeof(slot.kind), reinterpret_cast<const char*>(&record) + sizeof(slot.kind),
         sizeof(slot) - sizeof(slot.kind));
  publish(index, record.kind);
  return true;
}

// Finishes record `index` and moves `committed` as far as all is finished. Two finishers must not each miss the other's
// record, hence sequential consistency: "my record is finished" comes before "how far are we" in one order for all.
void TraceWriter::publish(uint64_t index, uint16_t kind) {
  kind_of(records_[index]).exchange(kind, std::memory_order_seq_cst);
  auto committed = shared(header_->committed);
  uint64_t at = committed.load(std::memory_order_seq_cst);
  while (at < allocated_.load(std::memory_order_acquire) &&
         kind_of(records_[at]).load(std::memory_order_seq_cst) != POWERCCL_REC_NONE) {
    if (committed.compare_exchange_weak(at, at + 1, std::memory_order_seq_cst)) ++at;
  }
}

// True if record `index` may be written.
bool TraceWriter::grow(uint64_t index) {
  SpinGuard guard(growing_);
  uint64_t allocated = allocated_.load(std::memory_order_relaxed);
  int error = 0;
  while (index + kSpareRecords >= allocated && !full_.load(std::memory_order_relaxed)) {
    const uint64_t more = limit_records_ - allocated < kRecordsPerChunk ? limit_records_ - allocated : kRecordsPerChunk;
    if (more == 0) {
      error = ENOSPC;
    } else {
      const uint64_t begin = POWERCCL_TRACE_HEADER_BYTES + allocated * POWERCCL_TRACE_RECORD_BYTES;
      error = allocate(descriptor_, begin, begin + more * POWERCCL_TRACE_RECORD_BYTES);
    }
    if (error != 0) {
      full_.store(true, std::memory_order_relaxed);
      break;
    }
    allocated += more;
    allocated_.store(allocated, std::memory_order_release);
  }
  if (error != 0 && !complained_.exchange(true, std::memory_order_relaxed)) {
    const bool limit = allocated == limit_records_;
    char reason[64];
    say(limit ? "raise POWERCCL_TRACE_LIMIT_MB" : "make room on the disk of the run folder",
        "the trace cannot grow (%s); what comes now is counted and dropped",
        limit ? "its limit is reached" : error_text(error, reason, sizeof(reason)));
    const uint64_t spare = next_.fetch_add(1, std::memory_order_relaxed);
    if (spare < allocated) {
      powerccl_trace_record& slot = records_[spare];
      slot.note.time_ns = monotonic_ns();
      copy_text(slot.note.text, sizeof(slot.note.text), limit ? "trace limit reached" : "trace cannot grow: disk");
      publish(spare, POWERCCL_REC_NOTE);
    }
  }
  return index < allocated;
}

void TraceWriter::note(const char* text) {
  powerccl_trace_record record = {};
  record.kind = POWERCCL_REC_NOTE;
  record.note.time_ns = monotonic_ns();
  memcpy(record.note.text, text, strnlen(text, sizeof(record.note.text)));
  append(record);
}

void TraceWriter::close() {
  if (!open_.exchange(false, std::memory_order_acq_rel)) return;
  munmap(header_, POWERCCL_TRACE_HEADER_BYTES + limit_records_ * POWERCCL_TRACE_RECORD_BYTES);
  ::close(descriptor_);
}

uint64_t TraceWriter::committed() const {
  return is_open() ? shared(header_->committed).load(std::memory_order_acquire) : 0;
}
uint64_t TraceWriter::dropped() const {
  return is_open() ? shared(header_->dropped).load(std::memory_order_relaxed) : 0;
}

}  // namespace powerccl
