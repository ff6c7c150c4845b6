// SPDX-License-Identifier: Apache-2.0
// What a call was: its communicator, its bytes, its peer. Never asks the library about an argument that the standard
// lets a rank leave undefined.
#include "adapters/mpi/adapter.h"
#include "record/records.h"

namespace powerccl::mpi {
namespace {

int64_t count_at(const Word* arguments, int place, bool large) {
  return large ? static_cast<int64_t>(arguments[place]) : static_cast<int32_t>(arguments[place]);
}

uint64_t sum_of(Word array, int entries, bool large) {
  int64_t sum = 0;
  for (int i = 0; i < entries; ++i) {
    sum += large ? pointer_to<int64_t>(array)[i] : pointer_to<int32_t>(array)[i];
  }
  return sum > 0 ? static_cast<uint64_t>(sum) : 0;
}

uint64_t bytes_of(ThreadState* thread, Function function, bool large, const Word* arguments,
                  const CommunicatorKnown& communicator) {
  const Signature& signature = kSignatures[function];
  // NOLINTNEXTLINE(bugprone-signed-char-misuse): -1 is none
  int count = signature.count, type = signature.type;
  if (type < 0) return 0;
  const bool collective = signature.kind == Kind::COLLECTIVE || signature.kind == Kind::COLLECTIVE_V;
  // Between two groups, ranks that take no part pass what they like; MPI_ROOT and MPI_PROC_NULL are negative.
  if (collective && (communicator.inter || communicator.index == Communicators::kUnknown)) return 0;
  if (collective && function != kReduce_scatter && arguments[count - 1] == g_adapter.library.in_place) {
    // This rank's own count and type are ignored; where all ranks' are alike, the other side's say the same.
    if (function != kAllgather && function != kAlltoall && function != kGather) return 0;
    count = 4;
    type = 5;
  }
  const uint64_t size = size_of_type(thread, arguments[type]);
  if (signature.kind == Kind::COLLECTIVE_V) return sum_of(arguments[count], communicator.size, large) * size;
  const int64_t elements = count_at(arguments, count, large);
  return elements > 0 ? static_cast<uint64_t>(elements) * size : 0;
}

// Of each octave of a communicator's synchronising calls, so many are recorded, however short: the clocks of hosts are
// aligned by them. At half, the alignment of a short run rests on too few. At double, a run of a million calls has 64
// KiB more a rank.
constexpr uint64_t kSampledOfOctave = 64;

// No rank leaves such a call before all ranks have entered. Without data, only a barrier is sure to wait. A rank that
// gets nothing of a reduce-scatter with counts may leave early.
bool synchronises(Function function, const CommunicatorKnown& communicator, uint64_t bytes) {
  if (communicator.inter || communicator.size < 2) return false;
  switch (function) {
    case kBarrier:
      return true;
    case kAllreduce:
    case kAllgather:
    case kAlltoall:
    case kReduce_scatter_block:
      return bytes > 0;
    default:
      return false;
  }
}

// Whether the call with this number is recorded. All ranks agree by counting.
bool is_sampled(uint64_t number) {
  if (number == 0) return false;
  const int octave = 63 - __builtin_clzll(number);
  const uint64_t step = (uint64_t{1} << octave) / kSampledOfOctave;
  return step <= 1 || number % step == 0;
}

void record_call(ThreadState* thread, Function function, const CommunicatorKnown& communicator, const Word* arguments,
                 uint64_t bytes, uint64_t stop, uint64_t number) {
  uint64_t left = g_adapter.long_calls_left.load(std::memory_order_relaxed);
  if (left == 0) return;
  g_adapter.long_calls_left.store(left - 1, std::memory_order_relaxed);
  powerccl_trace_record record = new_record(POWERCCL_REC_MPI_CALL, communicator.index);
  auto& call = record.mpi_call;
  call.start_ns = g_adapter.clock.time_ns(thread->start);
  call.stop_ns = g_adapter.clock.time_ns(stop);
  call.wait_ns = g_adapter.clock.length_ns(thread->waiter.wait_ticks());
  call.sleep_ns = g_adapter.clock.length_ns(thread->waiter.sleep_ticks());
  call.bytes = bytes;
  call.function = function;
  call.thread = thread->index;
  const int8_t peer = kSignatures[function].peer;
  call.peer = peer >= 0 ? static_cast<int32_t>(arguments[peer]) : -1;
  call.sequence = number;
  g_adapter.trace.append(record);
}

}  // namespace

uint64_t size_of_type(ThreadState* thread, Word word) {
  const Word handle = g_adapter.library.handle(word);
  const uint32_t generation = g_adapter.type_generation.load(std::memory_order_acquire);
  auto& cached =
      thread->types[((static_cast<uint64_t>(handle) >> 4) ^ static_cast<uint64_t>(handle)) % ThreadState::kCached];
  if (cached.handle != handle || cached.generation != generation) {
    int bytes = 0;
    if (g_adapter.library.type_size(word, &bytes) != 0 || bytes < 0) bytes = 0;
    cached.handle = handle;
    cached.generation = generation;
    cached.bytes = static_cast<uint32_t>(bytes);
  }
  return cached.bytes;
}

CommunicatorKnown communicator_of(ThreadState* thread, Word word) {
  const Word handle = g_adapter.library.handle(word);
  const uint32_t generation = g_adapter.communicators.generation();
  auto& cached = thread->communicators[((static_cast<uint64_t>(handle) >> 6) ^ static_cast<uint64_t>(handle)) %
                                       ThreadState::kCached];
  if (cached.handle != handle || cached.generation != generation) {
    cached.known = g_adapter.communicators.look_up(g_adapter.library, handle, &g_adapter.trace);
    cached.handle = handle;
    cached.generation = generation;
  }
  return cached.known;
}

uint32_t before_free(ThreadState* thread, Function function, const Word* arguments) {
  if (kSignatures[function].kind == Kind::TYPE_FREE) {
    g_adapter.type_generation.fetch_add(1, std::memory_order_acq_rel);
    return Communicators::kUnknown;
  }
  if (arguments[0] == 0) return Communicators::kUnknown;
  Word handle = 0;
  if (g_adapter.library.int_handles) {
    handle = *pointer_to<int32_t>(arguments[0]);
  } else {
    handle = *pointer_to<Word>(arguments[0]);
  }
  if (handle == g_adapter.library.comm_null) return Communicators::kUnknown;
  const uint32_t index = communicator_of(thread, handle).index;
  g_adapter.communicators.freed(g_adapter.library.handle(handle));
  return index;
}

void account(ThreadState* thread, Function function, bool large, const Word* arguments, Word result, uint32_t freed) {
  const uint64_t stop = ticks();
  const Signature& signature = kSignatures[function];
  CommunicatorKnown communicator;
  communicator.index = freed;
  CallMade call;
  // A call that failed may have failed for its arguments: the library is not asked about them.
  if (static_cast<int32_t>(result) == 0) {
    if (signature.comm >= 0) communicator = communicator_of(thread, arguments[signature.comm]);
    call.bytes = bytes_of(thread, function, large, arguments, communicator);
  }
  call.function = function;
  call.comm = communicator.index;
  call.call_ticks = stop > thread->start ? stop - thread->start : 0;  // Arm may read the counter early
  call.wait_ticks = thread->waiter.wait_ticks();
  call.sleep_ticks = thread->waiter.sleep_ticks();
  thread->accounts.add(call);
  const uint64_t number = synchronises(function, communicator, call.bytes)
                              ? g_adapter.communicators.count_synchronising(communicator.index)
                              : 0;
  if (__builtin_expect(call.call_ticks >= g_adapter.long_call_ticks || is_sampled(number), 0)) {
    record_call(thread, function, communicator, arguments, call.bytes, stop, number);
  }
  if (__builtin_expect(stop - thread->flushed >= g_adapter.flush_ticks, 0)) flush(thread, stop);
}

}  // namespace powerccl::mpi
