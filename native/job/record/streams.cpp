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
  Stream* state = streams_.find_or_add(stream, &added);
  if (added) state->clear();
  return state;
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
  const Stream* state = streams_.find(stream);
  return state != nullptr && computes(*state);
}

void Streams::called(uint64_t stream, const CallOfStream& call) {
  SpinGuard guard(lock_);
  Stream* state = stream_of(stream);
  if (state == nullptr) return;
  state->last = call;
  state->kernels_at_call = state->kernels.load(std::memory_order_relaxed);
}

CallOfStream Streams::last_call(uint64_t stream) {
  SpinGuard guard(lock_);
  const Stream* state = streams_.find(stream);
  return state != nullptr ? state->last : CallOfStream();
}

// The event's entry, made at the cost of the one recorded longest ago if there is no room.
Streams::Event* Streams::room_for(uint64_t event) {
  bool added = false;
  if (Event* known = events_.find_or_add(event, &added)) return known;
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
  const Stream* state = streams_.find(stream);
  if (state == nullptr || state->last.call == 0 ||
      state->kernels.load(std::memory_order_relaxed) - state->kernels_at_call > kFewKernels) {
    events_.remove(event);
    return;
  }
  Event* entry = room_for(event);
  if (entry == nullptr) return;
  entry->stream = stream;
  entry->recorded = ++records_;
  entry->call = state->last;
}

CallOfStream Streams::waits(uint64_t stream, uint64_t event, bool* stalls) {
  *stalls = false;
  SpinGuard guard(lock_);
  const Event* entry = events_.find(event);
  if (entry == nullptr || entry->stream == stream) return {};
  const CallOfStream waited = entry->call;
  Stream* state = stream_of(stream);
  if (state == nullptr) return waited;
  for (const Handle each : state->waited_for) {
    if (each == waited.call) return waited;
  }
  if (waited.call == state->last.call) return waited;
  state->waited_for[state->next_wait++ % kRememberedWaits] = waited.call;
  *stalls = computes(*state);
  // Calls count up, and what comes behind both ends with the later one.
  if (state->last.call == 0 || serial_of(waited.call) > serial_of(state->last.call)) {
    state->last = waited;
    state->kernels_at_call = state->kernels.load(std::memory_order_relaxed);
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
