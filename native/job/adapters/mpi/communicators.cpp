// SPDX-License-Identifier: Apache-2.0
#include "adapters/mpi/communicators.h"

#include "base/basics.h"
#include "record/records.h"

namespace powerccl::mpi {
namespace {

uint64_t mixed(uint64_t hash, uint64_t value) {
  hash ^= value + 0x9e3779b97f4a7c15u + (hash << 6) + (hash >> 2);
  return hash * 0xff51afd7ed558ccdu;
}

constexpr int kAtOnce = 256;  // ranks translated in one call

static_assert(Communicators::kMost == 1u << 12);
uint32_t place_of(Word handle) {
  return static_cast<uint32_t>((static_cast<uint64_t>(handle) * 0x9e3779b97f4a7c15u) >> (64 - 12));
}

}  // namespace

// A hash of the members' ranks in MPI_COMM_WORLD, in order. Members that are not of this world (spawned, connected)
// count as such.
bool Communicators::members(const Library& library, Word handle, CommunicatorKnown* known, uint64_t* id) {
  Word group = 0;
  if (library.comm_group(handle, &group) != 0) return false;
  bool sound = world_group_ != 0 || library.comm_group(library.comm_world, &world_group_) == 0;
  *id = static_cast<uint64_t>(known->size);
  known->in_world = !known->inter;
  int there[kAtOnce], here[kAtOnce];
  for (int from = 0; sound && from < known->size; from += kAtOnce) {
    const int count = known->size - from < kAtOnce ? known->size - from : kAtOnce;
    for (int i = 0; i < count; ++i) there[i] = from + i;
    sound = library.group_translate_ranks(group, count, there, world_group_, here) == 0;
    for (int i = 0; sound && i < count; ++i) {
      *id = mixed(*id, static_cast<uint64_t>(static_cast<uint32_t>(here[i])));
      if (here[i] < 0) known->in_world = false;  // MPI_UNDEFINED
    }
  }
  library.group_free(&group);
  return sound;
}

bool Communicators::ask(const Library& library, Word handle, CommunicatorKnown* known, uint64_t* id) {
  int inter = 0;
  // The library would call an error handler for a call that the job did not make.
  if (!library.world_is_up.load(std::memory_order_acquire) || handle == library.comm_null) return false;
  if (library.comm_size(handle, &known->size) != 0 || library.comm_rank(handle, &known->rank) != 0 ||
      library.comm_test_inter(handle, &inter) != 0) {
    return false;
  }
  known->inter = inter != 0;
  if (handle == library.comm_world) {
    known->in_world = true;
    *id = 1;
    return true;
  }
  if (!members(library, handle, known, id)) {
    known->in_world = false;
    return false;
  }
  if (known->inter) *id = mixed(*id, 2);
  return true;
}

uint32_t Communicators::index_of(Word handle, const Library& library, const CommunicatorKnown& known, uint64_t id,
                                 TraceWriter* trace) {
  for (uint32_t i = 0; i < indices_; ++i) {
    if (members_[i].id == id && members_[i].size == known.size) return i;
  }
  if (indices_ == kMost) return kUnknown;
  members_[indices_] = {id, known.size};
  const char* name = handle == library.comm_world ? "world" : handle == library.comm_self ? "self" : "";
  const CommunicatorMade made{id, known.size, known.rank, 0, -1, name};
  trace->append(communicator_record(indices_, made, monotonic_ns(), false));
  return indices_++;
}

CommunicatorKnown Communicators::look_up(const Library& library, Word handle, TraceWriter* trace) {
  pthread_mutex_lock(&mutex_);
  Slot* slot = nullptr;
  for (uint32_t tried = 0, at = place_of(handle); tried < kMost; ++tried, at = (at + 1) % kMost) {
    if (slots_[at].used && slots_[at].handle != handle) continue;
    slot = &slots_[at];
    break;
  }
  CommunicatorKnown known;
  known.index = kUnknown;
  uint64_t id = 0;
  if (slot != nullptr && slot->used) {
    known = slot->known;
  } else if (ask(library, handle, &known, &id)) {
    known.index = index_of(handle, library, known, id, trace);
    if (slot != nullptr) *slot = {handle, true, known};
  }
  pthread_mutex_unlock(&mutex_);
  return known;
}

void Communicators::forget_handles() {
  pthread_mutex_lock(&mutex_);
  for (Slot& slot : slots_) slot.used = false;
  world_group_ = 0;
  pthread_mutex_unlock(&mutex_);
  generation_.fetch_add(1, std::memory_order_acq_rel);
}

void Communicators::freed(Word handle) {
  pthread_mutex_lock(&mutex_);
  uint32_t at = place_of(handle);
  for (uint32_t tried = 0; tried < kMost && slots_[at].used; ++tried, at = (at + 1) % kMost) {
    if (slots_[at].handle != handle) continue;
    // Those behind it are put in again, so that no search ends at the gap.
    slots_[at].used = false;
    for (uint32_t next = (at + 1) % kMost; slots_[next].used; next = (next + 1) % kMost) {
      const Slot moved = slots_[next];
      slots_[next].used = false;
      uint32_t to = place_of(moved.handle);
      while (slots_[to].used) to = (to + 1) % kMost;
      slots_[to] = moved;
    }
    break;
  }
  pthread_mutex_unlock(&mutex_);
  generation_.fetch_add(1, std::memory_order_acq_rel);
}

}  // namespace powerccl::mpi
