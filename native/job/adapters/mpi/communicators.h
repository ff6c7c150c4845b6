// SPDX-License-Identifier: Apache-2.0
// What is known of the process's communicators and datatypes, by handle. Handles are used again after they were freed,
// so the hooks of free functions report each free.
#pragma once
#include <pthread.h>
#include <stdint.h>

#include <atomic>

#include "adapters/mpi/library.h"
#include "record/trace_writer.h"

namespace powerccl::mpi {

struct CommunicatorKnown {
  uint32_t index = 0;  // in the trace
  int size = 0, rank = 0;
  bool inter = false;
  bool in_world = false;  // all its members are of this process's MPI_COMM_WORLD, and so on each of them
};

class Communicators {
 public:
  static constexpr uint32_t kMost = 4096;         // communicators of a process; calls on more are of kUnknown
  static constexpr uint32_t kUnknown = 0xffffff;  // the largest number that a record holds

  // Looks the handle up, asks the library the first time, and records it. Takes a lock: callers keep their own cache,
  // valid while `generation` stays the same. A communicator with the same members as an earlier one is that one: what
  // identifies it is the same on all ranks without asking them.
  // Beyond `kMost` handles at a time it asks the library each time: what is known never depends on how many there are.
  CommunicatorKnown look_up(const Library& library, Word handle, TraceWriter* trace);
  void freed(Word handle);
  // Handles have another meaning from now on: MPI was down meanwhile. What is in the trace keeps its index.
  void forget_handles();

  // Counts calls on a communicator that no rank leaves before all ranks have entered, from 1. All its ranks make them
  // in one order, so that a number names the same call on each. Threads in duplicates of a communicator break that, and
  // so does a call that failed on some ranks. Readers leave out numbers that contradict each other.
  uint64_t count_synchronising(uint32_t index) {
    return index < kMost ? synchronising_[index].fetch_add(1, std::memory_order_relaxed) + 1 : 0;
  }

  uint32_t generation() const { return generation_.load(std::memory_order_acquire); }

 private:
  struct Slot {
    Word handle = 0;
    bool used = false;
    CommunicatorKnown known;
  };
  struct Members {
    uint64_t id = 0;
    int size = 0;
  };
  bool ask(const Library& library, Word handle, CommunicatorKnown* known, uint64_t* id);
  bool members(const Library& library, Word handle, CommunicatorKnown* known, uint64_t* id);
  uint32_t index_of(Word handle, const Library& library, const CommunicatorKnown& known, uint64_t id,
                    TraceWriter* trace);

  pthread_mutex_t mutex_ = PTHREAD_MUTEX_INITIALIZER;
  std::atomic<uint32_t> generation_{1};
  Slot slots_[kMost];
  Members members_[kMost];  // by index
  std::atomic<uint64_t> synchronising_[kMost] = {};
  uint32_t indices_ = 0;
  Word world_group_ = 0;
};

}  // namespace powerccl::mpi
