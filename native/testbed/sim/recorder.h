// SPDX-License-Identifier: Apache-2.0
// The trace of one rank in virtual time, as its runtime would write it (docs/reference/trace-format.md).
#ifndef POWERCCL_SIM_RECORDER_H
#define POWERCCL_SIM_RECORDER_H
#include <cstdint>
#include <string>
#include <vector>

#include "abi/trace.h"
#include "physics/interfaces.h"
#include "policy/clock_policy.h"
#include "record/record_file.h"

namespace powerccl::sim {

using physics::Time;

// A call of NCCL, as its records name it.
struct Call {
  uint64_t id = 0;
  uint32_t comm = 0;  // index of the communicator in this trace
  uint8_t pattern = 0;
  uint64_t bytes = 0;                     // NCCL tests' size
  int sends_to = -1, receives_from = -1;  // of a message: the other rank in the communicator
  uint64_t received_bytes = 0;            // of an all-to-all whose messages vary
  int messages = 0;                       // that one rank sends in an all-to-all
  bool captured = false;
};

struct Communicator {
  uint32_t index = 0;
  uint64_t id = 0;  // the same on all ranks
  int ranks = 0, rank = 0, hosts = 1;
  int device = 0;  // of this rank, on its host
};

class Recorder {
 public:
  // Creates the file, which must not exist yet. Throws bench::Failure.
  Recorder(const std::string& path, const powerccl_trace_header& header);

  void communicator(const Communicator& communicator, Time at, bool ended);
  void called(const Call& call, uint32_t stream, bool managed, Time start, Time stop);
  void ran(const Call& call, uint64_t start_ns, uint64_t stop_ns);
  void called_back(const Call& call, Time at);
  void waited(uint64_t call, uint32_t comm, uint32_t stream, uint32_t burst, uint64_t stall_ns, uint64_t resume_ns);
  void paused(uint32_t burst, uint64_t marked, uint64_t unmarked, Time at);
  void clock_set(const ClockPolicy::Wanted& wanted, Time begin, Time end);
  void lease_lost(Time at);
  void policy_came_to(const ClockPolicy::State& state, Time at);

  void write();  // what has come so far, into the file

 private:
  void add(const powerccl_trace_record& record);

  std::string path_;
  RecordFile file_;
  std::vector<powerccl_trace_record> records_;  // not yet in the file
};

}  // namespace powerccl::sim
#endif
