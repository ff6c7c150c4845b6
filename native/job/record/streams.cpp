// SPDX-License-Identifier: Apache-2.0
#include "record/streams.h"

namespace powerccl {

void Streams::Stream::clear() {
  kernels.store(0, std::memory_order_relaxed);
  kinds.store(0, std::memory_order_relaxed);
  kernels_at_call = 0;
  last = {};
  for (Handle& each : waited_for) each = 0;
  next_wait = 0;
}

// Under the lock.
Streams::Stream* Streams::stream_of(uint64_t stream) {
  bool added = false;
  Stream* its = streams_.find_or_add(stream, &added);
  if (added) its->clear();
  return its;
}

Streams::Stream* Streams::first_seen(uint64_t stream) {
  SpinGuard guard(lock_);
  return stream_of(stream);
}

void Streams::new_kind(Stream* stream, uint64_t kinds) {
  stream->kinds.store(kinds, std::memory_order_relaxed);
  const auto count = static_cast<uint64_t>(__builtin_popcountll(kinds));
  if (count > most_kinds_.load(std::memory_order_relaxed)) most_kinds_.store(count, std::memory_order_relaxed);
}

bool Streams::computes(const Stream& stream) const {
  const uint64_t kernels = stream.kernels.load(std::memory_order_relaxed);
  const auto kinds = static_cast<uint64_t>(__builtin_popcountll(stream.kinds.load(std::memory_order_relaxed)));
  return kernels > 0 && kernels >= busiest_.load(std::memory_order_relaxed) / kPartOfBusiest &&
         kinds * kPartOfKinds >= most_kinds_.load(std::memory_order_relaxed);
}

bool Streams::computes(uint64_t stream) {
  const Stream* its = streams_.find(stream);
  return its != nullptr && computes(*its);
}

void Streams::called(uint64_t stream, const CallOfStream& call) {
  SpinGuard guard(lock_);
  Stream* its = stream_of(stream);
  if (its == nullptr) return;
  its->last = call;
  its->kernels_at_call = its->kernels.load(std::memory_order_relaxed);
}

CallOfStream Streams::last_call(uint64_t stream) {
  SpinGuard guard(lock_);
  const Stream* its = streams_.find(stream);
  return its != nullptr ? its->last : CallOfStream();
}

// The event's entry, made at the cost of the one recorded longest ago if there is no room.
Streams::Event* Streams::room_for(uint64_t event) {
  bool added = false;
  if (Event* its = events_.find_or_add(event, &added)) return its;
  uint64_t oldest = 0, oldest_recorded = UINT64_MAX;
  for (uint32_t way = 0; way < decltype(events_)::kWays; ++way) {
    uint64_t holds = 0;
    const Event* candidate = events_.at(event, way, &holds);
    if (candidate->recorded < oldest_recorded) {
      oldest = holds;
      oldest_recorded = candidate->recorded;
    }
  }
  events_.remove(oldest);
  return events_.find_or_add(event, &added);
}

void Streams::recorded(uint64_t event, uint64_t stream) {
  SpinGuard guard(lock_);
  const Stream* its = streams_.find(stream);
  if (its == nullptr || its->last.call == 0 ||
      its->kernels.load(std::memory_order_relaxed) - its->kernels_at_call > kFewKernels) {
    events_.remove(event);
    return;
  }
  Event* entry = room_for(event);
  if (entry == nullptr) return;
  entry->stream = stream;
  entry->recorded = ++records_;
  entry->call = its->last;
}

CallOfStream Streams::waits(uint64_t stream, uint64_t event, bool* stalls) {
  *stalls = false;
  SpinGuard guard(lock_);
  const Event* entry = events_.find(event);
  if (entry == nullptr || entry->stream == stream) return {};
  const CallOfStream waited = entry->call;
  Stream* its = stream_of(stream);
  if (its == nullptr) return waited;
  for (const Handle each : its->waited_for) {
    if (each == waited.call) return waited;
  }
  if (waited.call == its->last.call) return waited;
  its->waited_for[its->next_wait++ % kRememberedWaits] = waited.call;
  *stalls = computes(*its);
  // Calls count up, and what comes behind both ends with the later one.
  if (its->last.call == 0 || serial_of(waited.call) > serial_of(its->last.call)) {
    its->last = waited;
    its->kernels_at_call = its->kernels.load(std::memory_order_relaxed);
  }
  return waited;
}

void Streams::event_gone(uint64_t event) {
  SpinGuard guard(lock_);
  events_.remove(event);
}

void Streams::stream_gone(uint64_t stream) {
  SpinGuard guard(lock_);
  streams_.remove(stream);
}

}  // namespace powerccl
