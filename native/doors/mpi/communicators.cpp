// SPDX-License-Identifier: Apache-2.0
#include "doors/mpi/communicators.h"

#include <stdlib.h>
#include <string.h>

#include "runtime/basics.h"

namespace powerccl::mpi {
namespace {

uint64_t mixed(uint64_t hash, uint64_t value) {
  hash ^= value + 0x9e3779b97f4a7c15u + (hash << 6) + (hash >> 2);
  return hash * 0xff51afd7ed558ccdu;
}

}  // namespace

// A hash of the members' ranks in MPI_COMM_WORLD, in order. Members that are not of this world (spawned, connected)
// count as such.
uint64_t Communicators::members_id(const Library& library, Word handle, int size, bool* sound) {
  *sound = false;
  Word group = 0;
  if (library.comm_group(handle, &group) != 0) return 0;
  if (world_group_ == 0 && library.comm_group(library.comm_world, &world_group_) != 0) return 0;
  int* ranks = static_cast<int*>(malloc(2 * sizeof(int) * static_cast<size_t>(size)));
  uint64_t id = static_cast<uint64_t>(size);
  if (ranks != nullptr) {
    for (int i = 0; i < size; ++i) ranks[i] = i;
    if (library.group_translate_ranks(group, size, ranks, world_group_, ranks + size) == 0) {
      for (int i = 0; i < size; ++i) id = mixed(id, static_cast<uint64_t>(static_cast<uint32_t>(ranks[size + i])));
      *sound = true;
    }
    free(ranks);
  }
  library.group_free(&group);
  return id;
}

CommunicatorKnown Communicators::look_up(const Library& library, Word handle, TraceWriter* trace) {
  pthread_mutex_lock(&mutex_);
  const uint32_t start = static_cast<uint32_t>((static_cast<uint64_t>(handle) * 0x9e3779b97f4a7c15u) >> 52);
  Slot* slot = nullptr;
  for (uint32_t tried = 0; tried < kMost; ++tried) {
    Slot& candidate = slots_[(start + tried) % kMost];
    if (candidate.used && candidate.handle == handle) {
      const CommunicatorKnown known = candidate.known;
      pthread_mutex_unlock(&mutex_);
      return known;
    }
    if (!candidate.used) {
      slot = &candidate;
      break;
    }
  }
  CommunicatorKnown known;
  known.index = kUnknown;
  int inter = 0;
  bool sound = false;
  uint64_t id = 0;
  if (slot != nullptr && library.comm_size(handle, &known.size) == 0 && library.comm_rank(handle, &known.rank) == 0 &&
      library.comm_test_inter(handle, &inter) == 0 && known.size > 0) {
    known.inter = inter != 0;
    id = handle == library.comm_world ? 1 : members_id(library, handle, known.size, &sound);
    sound = sound || handle == library.comm_world;
    if (known.inter) id = mixed(id, 2);
  }
  if (!sound) {
    pthread_mutex_unlock(&mutex_);
    return known;
  }
  for (uint32_t i = 0; i < indices_ && known.index == kUnknown; ++i) {
    if (members_[i].id == id && members_[i].size == known.size) known.index = i;
  }
  if (known.index == kUnknown && indices_ < kMost) {
    known.index = indices_++;
    members_[known.index] = {id, known.size};
    powerccl_trace_record record = {};
    record.kind = POWERCCL_REC_COMM;
    record.comm = known.index;
    record.comm_up.time_ns = monotonic_ns();
    record.comm_up.comm_id = id;
    record.comm_up.nranks = known.size;
    record.comm_up.rank = known.rank;
    record.comm_up.device = -1;
    const char* name = handle == library.comm_world ? "world" : handle == library.comm_self ? "self" : "";
    memcpy(record.comm_up.name, name, strlen(name));
    trace->append(record);
  }
  slot->used = true;
  slot->handle = handle;
  slot->known = known;
  pthread_mutex_unlock(&mutex_);
  return known;
}

void Communicators::freed(Word handle) {
  pthread_mutex_lock(&mutex_);
  uint32_t at = static_cast<uint32_t>((static_cast<uint64_t>(handle) * 0x9e3779b97f4a7c15u) >> 52);
  for (uint32_t tried = 0; tried < kMost && slots_[at].used; ++tried, at = (at + 1) % kMost) {
    if (slots_[at].handle != handle) continue;
    // Those behind it are put in again, so that no search ends at the gap.
    slots_[at].used = false;
    for (uint32_t next = (at + 1) % kMost; slots_[next].used; next = (next + 1) % kMost) {
      const Slot moved = slots_[next];
      slots_[next].used = false;
      uint32_t to = static_cast<uint32_t>((static_cast<uint64_t>(moved.handle) * 0x9e3779b97f4a7c15u) >> 52);
      while (slots_[to].used) to = (to + 1) % kMost;
      slots_[to] = moved;
    }
    break;
  }
  pthread_mutex_unlock(&mutex_);
  generation_.fetch_add(1, std::memory_order_acq_rel);
}

}  // namespace powerccl::mpi
