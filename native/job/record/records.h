// SPDX-License-Identifier: Apache-2.0
// Records of a trace (abi/trace.h), filled in. The runtime and the simulator make theirs here. Times are
// CLOCK_MONOTONIC in ns.
#pragma once
#include <stdint.h>
#include <string.h>

#include "abi/trace.h"

namespace powerccl {

// All zero but for these.
inline powerccl_trace_record new_record(powerccl_record_kind kind, uint32_t comm = 0, unsigned flags = 0) {
  powerccl_trace_record record = {};
  record.kind = static_cast<uint16_t>(kind);
  record.flags = static_cast<uint16_t>(flags);
  record.comm = comm;
  return record;
}

struct CommunicatorMade {
  uint64_t id = 0;
  int nranks = 0, rank = 0, nnodes = 0, device = -1;
  const char* name = "";
};
inline powerccl_trace_record communicator_record(uint32_t comm, const CommunicatorMade& made, uint64_t time_ns,
                                                 bool ended) {
  powerccl_trace_record record = new_record(POWERCCL_REC_COMM, comm, ended ? POWERCCL_FLAG_ENDED : 0u);
  record.comm_up = {time_ns, made.id, made.nranks, made.rank, made.nnodes, made.device, ""};
  memcpy(record.comm_up.name, made.name, strnlen(made.name, sizeof(record.comm_up.name)));
  return record;
}

struct EnqueuedCall {
  uint64_t id, start_ns, stream;
  int root;  // -1: it has none
  uint8_t pattern, datatype;
};
// What comes later is for the caller to fill in: its size, its parts, its end.
inline powerccl_trace_record call_record(uint32_t comm, const EnqueuedCall& made, unsigned flags) {
  powerccl_trace_record record = new_record(POWERCCL_REC_CALL, comm, flags);
  record.call.call_id = made.id;
  record.call.start_ns = made.start_ns;
  record.call.stream = made.stream;
  record.call.root_or_peer = made.root;
  record.call.pattern = made.pattern;
  record.call.datatype = made.datatype;
  return record;
}

// A kernel that was timed on the host's clock.
inline powerccl_trace_record kernel_record(uint32_t comm, uint64_t call, uint64_t start_ns, uint64_t stop_ns,
                                           unsigned flags) {
  powerccl_trace_record record = new_record(POWERCCL_REC_KERNEL, comm, flags | POWERCCL_FLAG_HOST_TIMES);
  record.kernel.call_id = call;
  record.kernel.gpu_start_ns = record.kernel.seen_start_ns = start_ns;
  record.kernel.gpu_stop_ns = record.kernel.seen_stop_ns = stop_ns;
  return record;
}

// The one rank that a kernel sends to, or receives from.
struct Peer {
  static constexpr uint16_t kMost = (1u << 12) - 1;  // that a record has room for
  uint16_t number = 0;                               // plus 1; 0: none, or not known
  bool several = false;
  void add(int rank) {
    const auto added = static_cast<uint16_t>(rank >= 0 && rank < kMost ? rank + 1 : 0);
    several = several || added == 0 || (number != 0 && number != added);
    number = several ? 0 : added;
  }
};
inline void set_peers(powerccl_trace_record* kernel, const Peer& to, const Peer& from) {
  kernel->kernel.peers[0] = static_cast<uint8_t>(to.number);
  kernel->kernel.peers[1] = static_cast<uint8_t>(to.number >> 8 | from.number << 4);
  kernel->kernel.peers[2] = static_cast<uint8_t>(from.number >> 4);
}

inline powerccl_trace_record callback_record(uint32_t comm, uint64_t call, uint64_t time_ns) {
  powerccl_trace_record record = new_record(POWERCCL_REC_CALLBACK, comm);
  record.callback = {call, time_ns};
  return record;
}

struct WaitMarked {
  uint64_t call, stall_ns, resume_ns, stream;
  uint32_t burst;
};
inline powerccl_trace_record wait_record(uint32_t comm, const WaitMarked& wait) {
  powerccl_trace_record record = new_record(POWERCCL_REC_WAIT, comm);
  record.wait = {wait.call, wait.stall_ns, wait.resume_ns, wait.stream, wait.burst, 0};
  return record;
}

inline powerccl_trace_record pause_record(uint32_t burst, uint64_t marked, uint64_t unmarked, uint64_t time_ns) {
  powerccl_trace_record record = new_record(POWERCCL_REC_PAUSE);
  record.pause = {time_ns, marked, unmarked, burst, 0};
  return record;
}

// The text is cut to what fits.
inline powerccl_trace_record note_record(const char* text, uint64_t time_ns) {
  powerccl_trace_record record = new_record(POWERCCL_REC_NOTE);
  record.note.time_ns = time_ns;
  memcpy(record.note.text, text, strnlen(text, sizeof(record.note.text)));
  return record;
}

}  // namespace powerccl
