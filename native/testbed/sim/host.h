// SPDX-License-Identifier: Apache-2.0
// One rank's process in virtual time. It runs a scenario's iterations as powerccl-bench does. It sees what PowerCCL's
// runtime sees of them, as late as that does.
#pragma once
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <optional>
#include <random>
#include <vector>

#include "bench/scenario.h"
#include "clock/policy_table.h"
#include "policy/per_call_policy.h"
#include "record/mark_allowance.h"
#include "record/records.h"
#include "sim/server.h"

namespace powerccl::sim {

// What a rank's calls go by.
struct Rules {
  const PolicyTable* table = nullptr;  // of per-call, else null
  PerCallPolicy* per_call = nullptr;   // of this rank's calls
  bool marks = true;                   // where computation waits
  bool off = false;                    // by one iteration: the policy does not see the first
};

// A call of NCCL, as its records name it.
struct Call {
  uint64_t id = 0;
  uint32_t comm = 0;  // index of the communicator in this trace
  uint8_t pattern = 0;
  uint64_t bytes = 0;  // NCCL tests' size
  Peer to, from;       // of a message: the other rank in the communicator
  int sends = 0, receives = 0;
  uint64_t received_bytes = 0;  // of an all-to-all whose messages vary
  bool captured = false;
};

class Host {
 public:
  // `comms`: by group, the rank's communicator; 0: none. `at_barrier`: the rank has come to the end of an iteration.
  Host(Server& server, const bench::Scenario& scenario, uint32_t rank, uint32_t ranks, uint64_t seed,
       std::vector<uint64_t> comms, const Rules& rules, ClockPolicy& policy, const Lease& lease, Trace& trace,
       std::function<void()> at_barrier);

  void begin(int iteration, const bench::Section& section);  // all ranks have come
  void poll();                                               // something may have happened on the GPU

  // The job is over: the last that the runtime records.
  void finish();

  double exposed_ms() const;  // waits that have no marks are taken to be like those that have
  ClockDriver& clock() { return clock_; }

 private:
  struct Flight {  // a collective that is enqueued
    Call call;     // where it is captured, the policy does not see it
    uint32_t slot;
    uint64_t number;
    bool started = false, held = false;
  };
  struct Mark {  // around a wait of a computing stream, or around a graph
    uint64_t call;
    uint32_t events[2];
    uint64_t number;
    bool graph = false;
    uint32_t comm = 0, stream = 0, burst = 0;  // of a wait
    int line = 0;                              // of the scenario
  };
  struct Span {
    uint64_t begin_ns, end_ns;
  };
  struct Waits {  // of one line of the scenario, so far
    double marked_ms = 0;
    uint64_t marked = 0, unmarked = 0;
    void add(const Span& span) {
      marked_ms += static_cast<double>(span.end_ns - span.begin_ns) * 1e-6;
      ++marked;
    }
  };

  void next();
  Time enqueue(const bench::Operation& operation);  // what it takes of the host's time
  Time communicate(const bench::Operation& operation);
  void launch_graph(int line);
  void captured(const bench::Operation& operation);
  Flight next_flight(const Call& call);
  Call call_of(const bench::Operation& operation) const;  // without its number
  uint64_t piece_bytes(const bench::Operation& operation, int to) const;
  int compute(const bench::Operation& operation, uint32_t stream);
  Time cross(const bench::Operation& operation);
  void mark(const bench::Operation& operation, const Call& call, const std::function<void()>& wait);
  Mark events_around(uint32_t stream, uint64_t call, const std::function<void()>& what);
  std::optional<uint32_t> next_burst();
  void look_at_kernels();
  void look_at_marks();
  std::optional<Span> span_of(const Mark& mark) const;  // once it is over
  void record_communicators(bool ended);
  void record_call(const Call& call, uint32_t stream, bool managed);
  uint64_t now_ns() const { return static_cast<uint64_t>(server_.now()); }
  bool has_all() const;                                         // of what it waits for
  bool tells() const { return iteration_ > 0 || !rules_.off; }  // the policy of calls
  Time some(Time usual);
  std::vector<std::byte> plan_of(const bench::Operation& operation) const;

  Server& server_;
  const bench::Scenario& scenario_;
  uint32_t rank_;
  std::vector<uint64_t> comms_;
  std::vector<bench::Place> places_;
  Rules rules_;
  ClockPolicy& policy_;
  Trace& trace_;
  ClockDriver clock_;
  std::function<void()> at_barrier_;
  std::mt19937_64 random_;

  const bench::Section* section_ = nullptr;
  size_t at_ = 0;
  int iteration_ = 0;
  std::vector<uint32_t> waits_for_;  // streams
  bool ends_ = false;                // waits for all, behind the iteration

  uint64_t calls_ = 0, numbers_ = 0;
  std::vector<bool> computes_;   // by stream
  std::vector<Call> last_call_;  // by stream; number 0: none
  std::map<const bench::Operation*, Call> captured_;
  std::vector<uint32_t> last_stream_;  // by group, of its last operation
  std::deque<Flight> flights_;
  std::deque<Mark> marks_;
  Time looked_ = 0;
  MarkAllowance allowance_;
  std::map<int, Waits> waits_;  // by line of the scenario
};

}  // namespace powerccl::sim
