// SPDX-License-Identifier: Apache-2.0
// Calls as they are made: groups, collectives, sends and receives, and the decision to manage them.
#include "runtime/runtime.h"

namespace powerccl {
namespace {

constexpr uint64_t kForgottenGroupNs = 60000000000u;  // a group that was begun so long ago and found no end

powerccl_trace_record new_call(Communicator* communicator, const CallSeen& call, bool asked, bool sees_calls) {
  const uint64_t id = communicator->gpu->calls.fetch_add(1, std::memory_order_relaxed) + 1;
  return call_record(communicator->index, {id, monotonic_ns(), call.stream, call.root, call.pattern, call.datatype},
                     (call.captured ? POWERCCL_FLAG_CAPTURED : 0u) | (asked ? POWERCCL_FLAG_KERNEL_ASKED : 0u) |
                         (sees_calls ? 0u : POWERCCL_FLAG_COLL_EVENT));
}

// The slot says which GPU counted the call and which group, if any, holds it.
Handle call_handle(const Communicator* communicator, Handle group, const powerccl_trace_record& record) {
  const uint32_t group_slot = kind_of(group) == HandleKind::kGroup ? slot_of(group) + 1 : 0;
  return make_handle(HandleKind::kCall, communicator->gpu->index + group_slot * Runtime::kGpus, record.call.call_id,
                     record.flags & POWERCCL_FLAG_CAPTURED ? kCapturedBit : 0);
}

uint8_t capped(uint32_t count) {
  return static_cast<uint8_t>(count < 255 ? count : 255);
}

}  // namespace

CallGroup* Runtime::find_group(Handle handle) {
  if (kind_of(handle) != HandleKind::kGroup || slot_of(handle) >= kGroups) return nullptr;
  CallGroup* group = &groups_[slot_of(handle)];
  return group->serial.load(std::memory_order_acquire) == serial_of(handle) ? group : nullptr;
}

// A call of a group that has not ended. Only on the thread that made it.
powerccl_trace_record* Runtime::find_call(const Communicator* communicator, Handle call) {
  const uint32_t slot = slot_of(call) / kGpus;  // 0: the call was made outside of all groups
  if (kind_of(call) != HandleKind::kCall || slot == 0 || slot > kGroups) return nullptr;
  CallGroup& group = groups_[slot - 1];
  for (uint32_t i = 0; i < group.call_count; ++i) {
    powerccl_trace_record& record = group.calls[i].record;
    if (group.calls[i].communicator == communicator && record.call.call_id == serial_of(call)) return &record;
  }
  return nullptr;
}

void Runtime::carried_out(Communicator* communicator, Handle call, uint16_t flags) {
  if (powerccl_trace_record* record = armed() ? find_call(communicator, call) : nullptr) record->flags |= flags;
}

Handle Runtime::group_begins(Communicator* communicator) {
  if (!armed() || communicator == nullptr) return 0;
  uint32_t slot = 0;
  uint64_t serial = 0;
  CallGroup* group = take_slot(groups_, &group_serial_, &slot, &serial);
  if (group == nullptr) {
    left_out_.fetch_add(1, std::memory_order_relaxed);
    evict_groups();
    return 0;
  }
  group->opened_ns.store(monotonic_ns(), std::memory_order_relaxed);
  group->number = group->call_count = group->exchange_count = 0;
  group->recorded_some = false;
  return make_handle(HandleKind::kGroup, slot, serial);
}

// Groups whose end never came (the library failed in between) would use up the pool.
void Runtime::evict_groups() {
  const uint64_t now = monotonic_ns();
  for (CallGroup& group : groups_) {
    uint64_t serial = group.serial.load(std::memory_order_relaxed);
    if (serial == 0 || now - group.opened_ns.load(std::memory_order_relaxed) < kForgottenGroupNs) continue;
    group.serial.compare_exchange_strong(serial, 0, std::memory_order_acq_rel);
  }
}

Handle Runtime::collective(Communicator* communicator, Handle group_handle, const CallSeen& call) {
  if (!armed() || communicator == nullptr || !communicator->alive.load(std::memory_order_relaxed)) return 0;
  const bool asked = selection_.asked();
  powerccl_trace_record record = new_call(communicator, call, asked, adapter_.sees_calls);
  record.call.bytes = total_bytes(call.pattern, call.message_bytes, communicator->nranks);
  if (call.captured) communicator->gpu->captured.store(communicator, std::memory_order_release);
  if (!call.captured) {
    const uint32_t kind = call_kind(communicator->id, call.pattern, record.call.bytes);
    communicator->gpu->clock_policy->called(record.call.call_id, kind);
  }
  record.flags |=
      hold_clock(communicator, group_handle, call.pattern, record.call.bytes, record.flags, record.call.call_id);
  const Handle handle = call_handle(communicator, group_handle, record);
  record_tag(record, communicator, call.tag);
  if (CallGroup* group = find_group(group_handle)) {
    if (group->call_count == CallGroup::kCalls) flush_calls(group, monotonic_ns(), true);
    group->calls[group->call_count++] = {communicator, record};
  } else {
    record_call(communicator, &record, record.call.start_ns, 0);
  }
  note_stream(communicator, handle, call);
  selection_.made({communicator->index, call.pattern, record.call.bytes, call.captured}, asked);
  return handle;
}

Handle Runtime::point_to_point(Communicator* communicator, Handle group_handle, bool send, const CallSeen& call) {
  if (!armed() || communicator == nullptr || !communicator->alive.load(std::memory_order_relaxed)) return 0;
  CallGroup* group = find_group(group_handle);
  CallGroup::Exchange* exchange = nullptr;
  CallGroup::Exchange alone = {};
  if (group != nullptr) {
    for (uint32_t i = 0; i < group->exchange_count && exchange == nullptr; ++i) {
      if (group->exchanges[i].communicator == communicator) exchange = &group->exchanges[i];
    }
    if (exchange == nullptr && group->exchange_count < CallGroup::kCalls) {
      if (group->exchange_count == 0) selection_.point_to_point_begins(send);
      exchange = &group->exchanges[group->exchange_count++];
      *exchange = {};
    }
  }
  const bool by_itself = exchange == nullptr;
  if (by_itself) exchange = &alone;
  if (exchange->communicator == nullptr) {
    exchange->communicator = communicator;
    exchange->record = new_call(communicator, call, selection_.asked(), adapter_.sees_calls);
    record_tag(exchange->record, communicator, call.tag);
  }
  (send ? exchange->parts.sends : exchange->parts.receives) += 1;
  (send ? exchange->parts.sent_bytes : exchange->parts.received_bytes) += call.message_bytes;
  const Handle handle = call_handle(communicator, group_handle, exchange->record);
  note_stream(communicator, handle, call);
  if (by_itself) {
    close_exchange(exchange, group_handle, true);
    record_call(communicator, &exchange->record, exchange->record.call.start_ns, 0);
  }
  return handle;
}

void Runtime::close_exchange(CallGroup::Exchange* exchange, Handle group, bool may_manage) {
  if (exchange->closed) return;
  exchange->closed = true;
  Communicator* communicator = exchange->communicator;
  powerccl_trace_record& record = exchange->record;
  const Classified classified = classify(exchange->parts, static_cast<uint32_t>(communicator->nranks));
  record.call.pattern = classified.pattern;
  record.call.bytes = classified.bytes;
  record.call.sends = capped(exchange->parts.sends);
  record.call.receives = capped(exchange->parts.receives);
  if (classified.pattern == POWERCCL_ALL_TO_ALL) {
    record.call.received_kib = static_cast<uint32_t>(exchange->parts.received_bytes / 1024);
  }
  if ((record.flags & POWERCCL_FLAG_CAPTURED) == 0) {
    // What is exchanged between pairs may be of another size each time.
    communicator->gpu->clock_policy->called(record.call.call_id, call_kind(communicator->id, classified.pattern, 0));
  }
  if (may_manage) {
    record.flags |=
        hold_clock(communicator, group, classified.pattern, classified.bytes, record.flags, record.call.call_id);
  }
  remember(call_handle(communicator, group, record), classified.pattern, classified.bytes);
}

void Runtime::group_ending(Handle handle) {
  CallGroup* group = armed() ? find_group(handle) : nullptr;
  if (group == nullptr) return;
  for (uint32_t i = 0; i < group->exchange_count; ++i) close_exchange(&group->exchanges[i], handle, true);
}

void Runtime::group_ends(Handle handle) {
  CallGroup* group = armed() ? find_group(handle) : nullptr;
  if (group == nullptr) return;
  // Without group_ending the launch is already made: too late to manage.
  for (uint32_t i = 0; i < group->exchange_count; ++i) close_exchange(&group->exchanges[i], handle, false);
  if (adapter_.sees_calls) launch_the_rest(group, handle);
  const uint32_t exchanges = group->exchange_count;
  flush_calls(group, monotonic_ns(), false);
  if (exchanges > 0) {
    selection_.point_to_point_ends();
    for (uint32_t i = 0; i < exchanges; ++i) {
      const powerccl_trace_record& record = group->exchanges[i].record;
      selection_.made(
          {record.comm, record.call.pattern, record.call.bytes, (record.flags & POWERCCL_FLAG_CAPTURED) != 0},
          (record.flags & POWERCCL_FLAG_KERNEL_ASKED) != 0);
    }
  }
  group->serial.store(0, std::memory_order_release);
}

void Runtime::flush_calls(CallGroup* group, uint64_t stop_ns, bool more_follow) {
  const uint32_t calls = group->call_count + (more_follow ? 0 : group->exchange_count);
  if ((more_follow || group->recorded_some || calls > 1) && group->number == 0) {
    group->number = group_number_.fetch_add(1, std::memory_order_relaxed) + 1;
  }
  for (uint32_t i = 0; i < group->call_count; ++i) {
    record_call(group->calls[i].communicator, &group->calls[i].record, stop_ns, group->number);
  }
  group->call_count = 0;
  group->recorded_some = true;
  if (more_follow) return;
  for (uint32_t i = 0; i < group->exchange_count; ++i) {
    record_call(group->exchanges[i].communicator, &group->exchanges[i].record, stop_ns, group->number);
  }
}

void Runtime::record_tag(const powerccl_trace_record& call, Communicator* communicator, uint64_t tag) {
  if (tag == 0) return;
  powerccl_trace_record record = new_record(POWERCCL_REC_TAG, call.comm);
  record.tag = {call.call.call_id, tag};
  communicator->gpu->trace.append(record);
}

void Runtime::record_call(Communicator* communicator, powerccl_trace_record* record, uint64_t stop_ns,
                          uint32_t group_number) {
  record->call.stop_ns = stop_ns;
  record->call.group = group_number;
  if (group_number != 0) record->flags |= POWERCCL_FLAG_GROUPED;
  communicator->gpu->trace.append(*record);
}

uint16_t Runtime::hold_clock(Communicator* communicator, Handle group, uint8_t pattern, uint64_t bytes, uint16_t flags,
                             uint64_t call_id) {
  Gpu* gpu = communicator->gpu;
  if (!gpu->holds_calls() || gpu->withdrawn.load(std::memory_order_acquire)) return 0;
  // Captured calls run when their graph is replayed.
  if ((flags & POWERCCL_FLAG_CAPTURED) != 0) return 0;
  const uint32_t mhz = gpu->table.lookup(pattern, bytes);
  if (mhz == 0 || gpu->actuator.failed()) return 0;  // the clock thread has said why it failed
  // Where only kernel events show the end, a call is managed once such calls have been seen to have them.
  if (!adapter_.sees_calls && !selection_.answers(pattern, bytes)) return 0;
  const uint64_t serial = serial_of(group);
  // Holds of an older group were never launched. They go after the new one has come, lest the clock jump in between.
  const bool newer = communicator->held_group.load(std::memory_order_relaxed) != serial;
  const uint32_t never_launched = newer ? communicator->held.exchange(0, std::memory_order_acq_rel) : 0;
  communicator->held_group.store(serial, std::memory_order_relaxed);
  communicator->held_call.store(call_id, std::memory_order_relaxed);
  communicator->held.fetch_add(1, std::memory_order_release);
  gpu->per_call.hold(mhz, call_id);
  if (never_launched > 0) gpu->per_call.release(never_launched, call_id);
  return POWERCCL_FLAG_MANAGED;
}

// The holds of managed calls that are not launched yet, and now never will be.
void Runtime::drop_holds(Communicator* communicator) {
  const uint32_t held = communicator->held.exchange(0, std::memory_order_acq_rel);
  if (held > 0) communicator->gpu->per_call.release(held, communicator->held_call.load(std::memory_order_relaxed));
}

void Runtime::remember(Handle call, uint8_t pattern, uint64_t bytes) {
  const uint64_t key = retyped(call, HandleKind::kCall);
  RecentCall& recent = recent_[serial_of(call) % kRecentCalls];
  recent.key.store(0, std::memory_order_relaxed);
  recent.bytes.store(bytes, std::memory_order_release);
  recent.pattern.store(pattern, std::memory_order_release);
  recent.key.store(key, std::memory_order_release);
}

bool Runtime::recall(Handle call, uint8_t* pattern, uint64_t* bytes) {
  const uint64_t key = retyped(call, HandleKind::kCall);
  const RecentCall& recent = recent_[serial_of(call) % kRecentCalls];
  if (recent.key.load(std::memory_order_acquire) != key) return false;
  *bytes = recent.bytes.load(std::memory_order_acquire);
  *pattern = static_cast<uint8_t>(recent.pattern.load(std::memory_order_acquire));
  return recent.key.load(std::memory_order_relaxed) == key;
}

}  // namespace powerccl
