// SPDX-License-Identifier: Apache-2.0
#include "sim/recorder.h"

#include <cstring>

#include "bench/failure.h"
#include "clock/budget_record.h"
#include "clock/clock_client.h"
#include "physics/collective_types.h"

namespace powerccl::sim {
namespace {

constexpr size_t kAtOnce = 4096;  // records: 256 KiB, as a job's trace writer writes

powerccl_trace_record of_kind(uint16_t kind, uint32_t comm = 0) {
  powerccl_trace_record record = {};
  record.kind = kind;
  record.comm = comm;
  return record;
}

uint64_t ns(Time time) {
  return static_cast<uint64_t>(time);
}

uint16_t flag(bool set, unsigned value) {
  return static_cast<uint16_t>(set ? value : 0u);
}

void check(int fault, const std::string& path) {
  if (fault == 0) return;
  char reason[128];
  throw bench::Failure(bench::kExitUsage, "cannot write " + path + ": " + fault_text(fault, reason, sizeof reason),
                       "name a new folder on a file system with some space");
}

}  // namespace

Recorder::Recorder(const std::string& path, const powerccl_trace_header& header) : path_(path) {
  check(file_.create(path.c_str(), header), path);
}

void Recorder::add(const powerccl_trace_record& record) {
  records_.push_back(record);
  if (records_.size() == kAtOnce) write();
}

void Recorder::write() {
  uint64_t written = 0;
  check(file_.append(records_.data(), records_.size(), &written), path_);
  records_.clear();
}

void Recorder::communicator(const Communicator& communicator, Time at, bool ended) {
  powerccl_trace_record record = of_kind(POWERCCL_REC_COMM, communicator.index);
  record.flags = flag(ended, POWERCCL_FLAG_ENDED);
  record.comm_up.time_ns = ns(at);
  record.comm_up.comm_id = communicator.id;
  record.comm_up.nranks = communicator.ranks;
  record.comm_up.rank = communicator.rank;
  record.comm_up.nnodes = communicator.hosts;
  record.comm_up.device = communicator.device;
  add(record);
}

void Recorder::called(const Call& call, uint32_t stream, bool managed, Time start, Time stop) {
  powerccl_trace_record record = of_kind(POWERCCL_REC_CALL, call.comm);
  record.flags = static_cast<uint16_t>(POWERCCL_FLAG_KERNEL_ASKED | flag(call.captured, POWERCCL_FLAG_CAPTURED) |
                                       flag(managed, POWERCCL_FLAG_MANAGED));
  record.call.call_id = call.id;
  record.call.start_ns = ns(start);
  record.call.stop_ns = ns(stop);
  record.call.bytes = call.bytes;
  record.call.stream = stream + 1;  // 0 would be CUDA's default stream
  record.call.root_or_peer = -1;
  record.call.pattern = call.pattern;
  record.call.datatype = static_cast<uint8_t>(physics::DataType::kFloat16);
  record.call.sends = static_cast<uint8_t>(call.sends_to >= 0 ? 1 : call.messages);
  record.call.receives = static_cast<uint8_t>(call.receives_from >= 0 ? 1 : call.messages);
  record.call.received_kib = static_cast<uint32_t>(call.received_bytes >> 10);
  add(record);
}

void Recorder::ran(const Call& call, uint64_t start_ns, uint64_t stop_ns) {
  powerccl_trace_record record = of_kind(POWERCCL_REC_KERNEL, call.comm);
  record.flags = static_cast<uint16_t>(POWERCCL_FLAG_HOST_TIMES | flag(call.captured, POWERCCL_FLAG_CAPTURED));
  record.kernel.call_id = call.id;
  record.kernel.gpu_start_ns = record.kernel.seen_start_ns = start_ns;
  record.kernel.gpu_stop_ns = record.kernel.seen_stop_ns = stop_ns;
  record.kernel.bytes = call.bytes;
  record.kernel.pattern = call.pattern;
  const auto to = static_cast<uint32_t>(call.sends_to + 1), from = static_cast<uint32_t>(call.receives_from + 1);
  record.kernel.peers[0] = static_cast<uint8_t>(to);
  record.kernel.peers[1] = static_cast<uint8_t>(to >> 8 | from << 4);
  record.kernel.peers[2] = static_cast<uint8_t>(from >> 4);
  add(record);
}

void Recorder::called_back(const Call& call, Time at) {
  powerccl_trace_record record = of_kind(POWERCCL_REC_CALLBACK, call.comm);
  record.callback = {call.id, ns(at)};
  add(record);
}

void Recorder::waited(uint64_t call, uint32_t comm, uint32_t stream, uint32_t burst, uint64_t stall_ns,
                      uint64_t resume_ns) {
  powerccl_trace_record record = of_kind(POWERCCL_REC_WAIT, comm);
  record.wait = {call, stall_ns, resume_ns, stream + 1, burst, 0};
  add(record);
}

void Recorder::paused(uint32_t burst, uint64_t marked, uint64_t unmarked, Time at) {
  powerccl_trace_record record = of_kind(POWERCCL_REC_PAUSE);
  record.pause = {ns(at), marked, unmarked, burst, 0};
  add(record);
}

void Recorder::clock_set(const ClockPolicy::Wanted& wanted, Time begin, Time end) {
  powerccl_trace_record record = of_kind(POWERCCL_REC_CLOCK);
  record.clock.call_id = wanted.call;
  record.clock.asked_ns = wanted.asked_ns != 0 ? wanted.asked_ns : ns(begin);
  record.clock.begin_ns = ns(begin);
  record.clock.end_ns = ns(end);
  record.clock.min_mhz = record.clock.max_mhz = wanted.mhz;
  add(record);
}

void Recorder::lease_lost(Time at) {
  powerccl_trace_record record = of_kind(POWERCCL_REC_NOTE);
  record.note.time_ns = ns(at);
  static_assert(sizeof kLeaseLostNote <= sizeof record.note.text);
  std::memcpy(record.note.text, kLeaseLostNote, sizeof kLeaseLostNote);
  add(record);
}

void Recorder::policy_came_to(const ClockPolicy::State& state, Time at) {
  add(budget_record(state, ns(at)));
}

}  // namespace powerccl::sim
