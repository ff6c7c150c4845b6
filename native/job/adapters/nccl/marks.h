// SPDX-License-Identifier: Apache-2.0
// Marks in the job's streams: pairs of timing events, around a wait or around NCCL's launch, and later their times.
//
// Nothing here waits for the GPU. Events are queried while the job makes other calls, and reported to the
// runtime as host times.
#pragma once
#include "adapters/nccl/adapter.h"
#include "record/mark_allowance.h"

namespace powerccl::nccl {

// What a pair is about, once both events are in the stream.
struct MarkOf {
  CallOfStream call;
  uint64_t stream = 0;  // the handle, as the trace has it
  bool waited = false;  // computation waited between the two
  uint32_t burst = 0;   // as affordable() has it
  bool ran = false;     // a kernel ran between the two: `kernel`, without its times
  KernelRan kernel;
  bool graph = false;  // a graph ran between the two
};

struct MarkContext;
// A pair that has its first event in a stream. Null: there is none.
struct MarkPair;

class Marks {
 public:
  static constexpr uint32_t kContexts = 16;  // CUDA contexts; in others nothing is marked
  static constexpr uint32_t kPairs = 1024;   // on the GPU at a time; without a free one nothing is marked

  // Puts the first event into the stream. Null, and nothing has happened, if the stream is being captured, if no pair
  // is free, or for want of anything else.
  MarkPair* begin(void* stream);
  // Puts the second one into it.
  void end(MarkPair* pair, void* stream, const MarkOf& of);
  // The pair is about nothing after all.
  void drop(MarkPair* pair);

  // Whether another pair is within what marks may cost: the GPU's time, and that of the job's thread. Once no, then no
  // until a whole burst can be had again. `burst`: its number, from 1.
  bool affordable(uint32_t* burst);

  // Asks some of the events and tells what they say. Seldom does anything, and never waits.
  void look();
  // The communicator is being destroyed: reports its finished waits, and forgets the others.
  void finish(Communicator* communicator);

  // Some context is about to be destroyed, and which of the events with it is not known: no marks from here on.
  void give_up();

  bool capturing(void* stream) const;

 private:
  MarkContext* context_of(void* stream);
  void look_at(MarkContext* context, bool last);
  void tell(MarkContext* context, MarkPair* pair);

  std::atomic<bool> given_up_{false};
  SpinLock looking_;
  std::atomic<uint64_t> looked_ns_{0};
  std::atomic<uint64_t> host_ns_{0};  // time of the job's threads that marks took since the last allowance
  SpinLock spending_;
  MarkAllowance allowance_;  // under spending_
};

// One per process.
Marks& marks();

}  // namespace powerccl::nccl
