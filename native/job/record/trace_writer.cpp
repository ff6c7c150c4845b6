// SPDX-License-Identifier: Apache-2.0
#include "record/trace_writer.h"

#include <errno.h>
#include <pthread.h>
#include <sys/mman.h>

#include <new>

#include "base/log.h"
#include "base/own_thread.h"
#include "record/record_file.h"
#include "record/records.h"

#ifndef MADV_WIPEONFORK
#define MADV_WIPEONFORK 18
#endif

namespace powerccl {
namespace {

// The thread looks so often while records come. This is what a killed process loses: with its wake-up, below 100 ms. At
// 40 ms the thread would wake twice as often, for some 20 us each time; at 160 ms twice as much would be lost.
constexpr uint64_t kLookNs = 80000000u;
// While none come it sleeps twice as long each time, up to this: one look a second costs nothing that can be measured.
constexpr uint64_t kLongestSleepNs = 1000000000u;
// The writer is woken before that by every so many records. Three quarters of the ring are then left for the time until
// it gets a core and writes.
constexpr uint64_t kWakeEvery = TraceWriter::kRingRecords / 4;
// Threads that may be between their look at the ring and their reservation in it at the same time.
constexpr uint64_t kRacing = 1024;
constexpr uint64_t kWriteRecords = 4096;   // one write: 256 KiB
constexpr size_t kStackBytes = 192 << 10;  // touched where it is used, a few KiB
// Records that are being written when all are asked for are waited for as long.
constexpr uint64_t kUnfinishedNs = 20000000u;
// How long file systems that hang may hold the job: as a trace is opened, and in all as traces are ended.
constexpr uint64_t kOpenNs = 10000000000u;
std::atomic<int64_t> g_patience_ns{2000000000};
// The same for a thread that is to end while the process goes on.
constexpr uint64_t kEndNs = 2000000000u;

enum : uint32_t { kOpening, kOpen, kFailed, kGivenUp };

std::atomic_ref<uint16_t> kind_of(powerccl_trace_record& record) {
  return std::atomic_ref<uint16_t>(record.kind);
}

// The kind is stored last, by the caller.
void copy_behind_kind(const powerccl_trace_record& record, powerccl_trace_record* slot) {
  memcpy(reinterpret_cast<char*>(slot) + sizeof(slot->kind),
         reinterpret_cast<const char*>(&record) + sizeof(slot->kind), sizeof(*slot) - sizeof(slot->kind));
}

void ring_bell(std::atomic<uint32_t>* bell) {
  bell->fetch_add(1, std::memory_order_seq_cst);
  futex_wake_all(bell);
}

}  // namespace

// All that the two sides share is in one mapping of its own. A forked child finds it empty: its parent's records are
// not written twice, whatever the child calls.
struct TraceWriter::Ring {
  std::atomic<bool> alive{true};
  uint64_t limit = 0;
  pid_t process = 0;
  pthread_t thread = {};

  alignas(64) std::atomic<uint64_t> next{0};     // the next record to reserve
  alignas(64) std::atomic<uint64_t> drained{0};  // records before this one are in the file, or will never be
  std::atomic<bool> stopped{false};              // nothing more is reserved
  alignas(64) std::atomic<uint64_t> dropped{0};  // that were never reserved
  std::atomic<bool> overflowed{false}, complained{false};
  bool overflow_noted = false;

  std::atomic<uint32_t> state{kOpening}, bell{0}, asked{0}, answered{0};
  std::atomic<bool> stopping{false}, ended{false};
  std::atomic<int> fault{0};
  std::atomic<uint64_t> written{0};
  RecordFile file;
  powerccl_trace_header header = {};
  char path[PATH_MAX + 64] = "";

  alignas(64) powerccl_trace_record records[kRingRecords];

  // Reserved records are in the ring, in the file, or lost to a fault.
  uint64_t reserved() const {
    const uint64_t all = next.load(std::memory_order_acquire);
    return all < limit ? all : limit;
  }
  uint64_t all_dropped() const {
    const bool stays = stopped.load(std::memory_order_acquire);
    const uint64_t lost = stays ? reserved() - drained.load(std::memory_order_relaxed) : 0;
    return dropped.load(std::memory_order_relaxed) + lost;
  }
  void stop(int why) {
    fault.store(why, std::memory_order_relaxed);
    stopped.store(true, std::memory_order_release);
  }
  bool opened(int error);
  bool write_some();
  bool write_all();
  bool look();
};

int TraceWriter::open(const char* path, const powerccl_trace_header& header, uint64_t limit_bytes) {
  void* memory =
      mmap(nullptr, sizeof(Ring), PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (memory == MAP_FAILED) return errno;
  madvise(memory, sizeof(Ring), MADV_WIPEONFORK);
  madvise(memory, sizeof(Ring), MADV_NOHUGEPAGE);  // a huge page is zeroed while a thread of the job waits
  Ring* ring = new (memory) Ring;                  // leaves the records alone, which are zero already
  ring->limit = limit_bytes > POWERCCL_TRACE_HEADER_BYTES + kLeastLimitRecords * POWERCCL_TRACE_RECORD_BYTES
                    ? (limit_bytes - POWERCCL_TRACE_HEADER_BYTES) / POWERCCL_TRACE_RECORD_BYTES
                    : kLeastLimitRecords;
  ring->process = getpid();
  ring->header = header;
  ring->header.version = POWERCCL_TRACE_VERSION;
  ring->header.header_bytes = POWERCCL_TRACE_HEADER_BYTES;
  ring->header.record_bytes = POWERCCL_TRACE_RECORD_BYTES;
  ring->header.committed = 0;
  ring->header.dropped = 0;
  ring->header.limit_records = ring->limit;
  memcpy(ring->header.magic, POWERCCL_TRACE_MAGIC, sizeof(ring->header.magic));
  copy_text(ring->path, sizeof(ring->path), path);

  int error = start_thread(&ring->thread, "powerccl-record", thread_main, ring, kStackBytes);
  if (error != 0) {
    munmap(ring, sizeof(Ring));
    return error;
  }
  const uint64_t deadline = monotonic_ns() + kOpenNs;
  for (uint64_t now = 0;
       ring->state.load(std::memory_order_acquire) == kOpening && (now = monotonic_ns()) < deadline;) {
    futex_wait(&ring->state, kOpening, deadline - now);
  }
  uint32_t state = kOpening;
  if (ring->state.compare_exchange_strong(state, kGivenUp, std::memory_order_acq_rel)) {
    pthread_detach(ring->thread);  // it removes what it makes, if ever it does; the mapping is left to it
    return ETIMEDOUT;
  }
  if (state == kFailed) {
    error = ring->fault.load(std::memory_order_relaxed);
    pthread_join(ring->thread, nullptr);
    munmap(ring, sizeof(Ring));
    return error;
  }
  ring_.store(ring, std::memory_order_release);
  return 0;
}

bool TraceWriter::append(const powerccl_trace_record& record) {
  Ring* ring = ring_.load(std::memory_order_acquire);
  if (ring == nullptr || !ring->alive.load(std::memory_order_relaxed)) return false;
  if (ring->stopped.load(std::memory_order_relaxed)) return refuse(ring);
  const uint64_t seen = ring->next.load(std::memory_order_relaxed);
  if (seen >= ring->limit) return refuse(ring);
  if (seen + kRacing >= ring->drained.load(std::memory_order_acquire) + kRingRecords) {
    ring->overflowed.store(true, std::memory_order_relaxed);
    ring->dropped.fetch_add(1, std::memory_order_relaxed);
    return false;
  }
  const uint64_t index = ring->next.fetch_add(1, std::memory_order_relaxed);
  if (index >= ring->limit) return refuse(ring);
  // More threads raced than can be: the place is not free yet, and a hole in front would hold the thread for ever.
  if (index >= ring->drained.load(std::memory_order_acquire) + kRingRecords) {
    ring->stop(EOVERFLOW);
    return false;
  }
  powerccl_trace_record& slot = ring->records[index % kRingRecords];
  const bool last = index + 1 == ring->limit;
  if (__builtin_expect(last, 0)) {
    copy_behind_kind(note_record("trace limit reached", monotonic_ns()), &slot);
    kind_of(slot).store(POWERCCL_REC_NOTE, std::memory_order_release);
    return refuse(ring);
  }
  copy_behind_kind(record, &slot);
  kind_of(slot).store(record.kind, std::memory_order_release);
  if (__builtin_expect(index % kWakeEvery == kWakeEvery - 1, 0)) ring_bell(&ring->bell);
  return true;
}

// The trace takes nothing more.
bool TraceWriter::refuse(Ring* ring) {
  ring->dropped.fetch_add(1, std::memory_order_relaxed);
  complain(ring);
  return false;
}

// Reported by the first job thread that sees it: the writer thread has no standard error.
void TraceWriter::complain(Ring* ring) {
  if (ring->complained.load(std::memory_order_relaxed)) return;
  if (ring->complained.exchange(true, std::memory_order_relaxed)) return;
  if (!ring->stopped.load(std::memory_order_acquire)) {
    say("raise POWERCCL_TRACE_LIMIT_MB",
        "the trace has reached its size limit; further records are counted and dropped");
    return;
  }
  const int fault = ring->fault.load(std::memory_order_relaxed);
  char reason[64];
  const char* hint = is_full(fault) ? "make room on the disk of the run folder" : nullptr;
  if (fault < 0) hint = "do not change files of a run folder while its job runs";
  say(hint, "cannot write the trace (%s); further records are counted and dropped",
      fault_text(fault, reason, sizeof(reason)));
}

void TraceWriter::note(const char* text) {
  append(note_record(text, monotonic_ns()));
}

bool TraceWriter::flush() {
  Ring* ring = ring_.load(std::memory_order_acquire);
  if (ring == nullptr || !ring->alive.load(std::memory_order_relaxed)) return false;
  if (ring->ended.load(std::memory_order_acquire) || ring->process != getpid()) return false;
  const uint32_t asked = ring->asked.fetch_add(1, std::memory_order_seq_cst) + 1;
  ring_bell(&ring->bell);
  const uint64_t begin = monotonic_ns();
  const int64_t patience = g_patience_ns.load(std::memory_order_relaxed);
  const uint64_t deadline = begin + (patience > 0 ? static_cast<uint64_t>(patience) : 0);
  uint32_t answered = ring->answered.load(std::memory_order_acquire);
  uint64_t now = begin;
  while (static_cast<int32_t>(asked - answered) > 0 && !ring->ended.load(std::memory_order_acquire) && now < deadline) {
    futex_wait(&ring->answered, answered, deadline - now);
    answered = ring->answered.load(std::memory_order_acquire);
    now = monotonic_ns();
  }
  const bool done = static_cast<int32_t>(asked - answered) <= 0;
  // Only a wait in vain counts: a job with many communicators has as many ends of them.
  if (!done) g_patience_ns.fetch_sub(static_cast<int64_t>(now - begin), std::memory_order_relaxed);
  if (ring->stopped.load(std::memory_order_acquire)) complain(ring);
  return done && !ring->stopped.load(std::memory_order_acquire);
}

void TraceWriter::close() {
  Ring* ring = ring_.exchange(nullptr, std::memory_order_acq_rel);
  if (ring == nullptr || !ring->alive.load(std::memory_order_relaxed) || ring->process != getpid()) return;
  ring->stopping.store(true, std::memory_order_seq_cst);
  ring_bell(&ring->bell);
  pthread_join(ring->thread, nullptr);
  munmap(ring, sizeof(Ring));
}

void TraceWriter::end(const char* why) {
  Ring* ring = ring_.load(std::memory_order_acquire);
  if (ring == nullptr || !ring->alive.load(std::memory_order_relaxed) || ring->process != getpid()) return;
  note(why);
  ring->complained.store(true, std::memory_order_relaxed);
  flush();
  ring->stopped.store(true, std::memory_order_release);
  if (ring->stopping.exchange(true, std::memory_order_seq_cst)) return;
  ring_bell(&ring->bell);
  const uint64_t deadline = monotonic_ns() + kEndNs;
  for (uint64_t now = 0; !ring->ended.load(std::memory_order_acquire) && (now = monotonic_ns()) < deadline;) {
    futex_wait(&ring->answered, ring->answered.load(std::memory_order_acquire), kEndNs / 100);
  }
  // A thread that a file system holds is left behind, lest the job wait for it.
  if (ring->ended.load(std::memory_order_acquire)) pthread_join(ring->thread, nullptr);
}

uint64_t TraceWriter::committed() const {
  const Ring* ring = ring_.load(std::memory_order_acquire);
  return ring != nullptr ? ring->written.load(std::memory_order_acquire) : 0;
}
uint64_t TraceWriter::dropped() const {
  const Ring* ring = ring_.load(std::memory_order_acquire);
  return ring != nullptr ? ring->all_dropped() : 0;
}

// ---- The thread.

void* TraceWriter::thread_main(void* data) {
  Ring* ring = static_cast<Ring*>(data);
  const int error = run_with_own_descriptors(record, ring);
  if (error != 0) ring->opened(error);
  return nullptr;
}

void TraceWriter::record(void* data) {
  Ring* ring = static_cast<Ring*>(data);
  const int error = ring->file.create(ring->path, ring->header);
  const bool wanted = ring->opened(error);
  if (error != 0) return;
  if (!wanted) {
    ring->file.remove();
    return;
  }
  uint64_t sleep_ns = kLookNs;
  for (bool stopping = false; !stopping;) {
    const uint32_t bell = ring->bell.load(std::memory_order_seq_cst);
    const uint32_t asked = ring->asked.load(std::memory_order_seq_cst);
    stopping = ring->stopping.load(std::memory_order_seq_cst);
    const bool all = stopping || asked != ring->answered.load(std::memory_order_relaxed);
    const bool some = all ? ring->write_all() : ring->write_some();
    if (!ring->look()) break;
    if (all) {
      ring->answered.store(asked, std::memory_order_release);
      futex_wake_all(&ring->answered);
    }
    sleep_ns = some ? kLookNs : 2 * sleep_ns < kLongestSleepNs ? 2 * sleep_ns : kLongestSleepNs;
    if (!stopping) futex_wait(&ring->bell, bell, sleep_ns);
  }
  ring->file.close();
  ring->ended.store(true, std::memory_order_release);
  ring_bell(&ring->answered);
}

// False: the thread that opens the trace has given it up.
bool TraceWriter::Ring::opened(int error) {
  fault.store(error, std::memory_order_relaxed);
  uint32_t before = kOpening;
  const bool wanted = state.compare_exchange_strong(before, error == 0 ? kOpen : kFailed, std::memory_order_acq_rel);
  futex_wake_all(&state);
  return wanted;
}

// Writes the finished records in front. False: there were none.
bool TraceWriter::Ring::write_some() {
  bool some = false;
  while (!stopped.load(std::memory_order_relaxed)) {
    const uint64_t begin = drained.load(std::memory_order_relaxed);
    powerccl_trace_record* first = records + begin % kRingRecords;
    uint64_t most = kRingRecords - begin % kRingRecords;
    if (most > kWriteRecords) most = kWriteRecords;
    uint64_t count = 0;
    while (count < most && kind_of(first[count]).load(std::memory_order_acquire) != POWERCCL_REC_NONE) ++count;
    if (count == 0) break;
    some = true;
    uint64_t done = 0;
    const int why = file.append(first, count, &done);
    written.store(file.records(), std::memory_order_release);
    if (why != 0) {
      drained.store(begin + done, std::memory_order_release);
      stop(why);
      const powerccl_trace_record last = note_record("trace cannot grow: disk", monotonic_ns());
      // The last record that found room gives it to the note.
      if (is_full(why) && file.replace_last(last)) dropped.fetch_add(1, std::memory_order_relaxed);
      break;
    }
    for (uint64_t i = 0; i < count; ++i) kind_of(first[i]).store(POWERCCL_REC_NONE, std::memory_order_relaxed);
    drained.store(begin + count, std::memory_order_release);
  }
  return some;
}

// The same, and waits a little for records that other threads are writing this moment.
bool TraceWriter::Ring::write_all() {
  const uint64_t end = reserved(), deadline = monotonic_ns() + kUnfinishedNs;
  bool some = write_some();
  while (drained.load(std::memory_order_relaxed) < end && !stopped.load(std::memory_order_relaxed) &&
         monotonic_ns() < deadline) {
    sleep_ns(100000);
    some = write_some() || some;
  }
  return some;
}

// Keeps the count of what was dropped. False: the file is not to be touched any more.
bool TraceWriter::Ring::look() {
  const int why = fault.load(std::memory_order_relaxed);
  if (stopped.load(std::memory_order_relaxed) && !is_full(why) && why != EOVERFLOW) return false;
  if (!overflow_noted && overflowed.load(std::memory_order_relaxed) && !stopped.load(std::memory_order_relaxed)) {
    overflow_noted = true;
    const powerccl_trace_record note = note_record("records dropped: they came too fast", monotonic_ns());
    uint64_t done = 0;
    if (const int fails = file.append(&note, 1, &done); fails != 0) stop(fails);
    written.store(file.records(), std::memory_order_release);
  }
  int fails = file.count_dropped(all_dropped());
  if (fails == 0) fails = file.state_own();
  if (fails != 0) stop(fails);
  return fails == 0 || is_full(fails);
}

}  // namespace powerccl
