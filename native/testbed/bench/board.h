// SPDX-License-Identifier: Apache-2.0
// One page shared by all ranks of a run and their supervisors: rendezvous, barriers, reductions, the first
// failure, and rank 0's mailbox to its supervisor. All waits here end when a process has failed or died.
#pragma once
#include <atomic>
#include <cstdint>
#include <optional>
#include <string>

#include "bench/nccl_api.h"
#include "bench/plan.h"

namespace powerccl::bench {

inline constexpr int kMaxRanks = 64;
inline constexpr int kMaxRepeats = 64;

uint64_t monotonic_ns();

struct RankAbout {
  int32_t device, sm_count;
  char name[96], uuid[48], pci[24];
};

// What rank 0 tells its supervisor. Times in ns are CLOCK_MONOTONIC.
enum class Tell : uint32_t { kNothing, kStart, kClock, kLoad, kPoint, kIteration, kOpened, kClosed, kRefused, kFinish };

struct StartNews {
  int32_t nccl_version, cuda_version;
  char nccl_path[512];
  double compute_iterations_per_ms;  // 0: declared durations, or units
  double compute_unit_ms;            // of a scenario's computation; 0: declared durations, or no units
  int32_t blocks, threads;
};
struct PointNews {
  uint64_t index;  // in the plan
  uint64_t iterations, start_ns, end_ns;
  double time_us, low_us, high_us, device_us, event_us;  // negative: not measured
  int64_t wrong;                                         // -1: not checked
  double emulated_joules;  // of an operation, all GPUs together, as the emulator knows it; negative: not emulated
  bool valid;              // false: emulated, and this machine was too slow for the times to be the platform's
  int32_t repeats;
  double times_us[kMaxRepeats];  // of each repeat; time_us is their median
  double unit_us;                // of the computation beside it, a unit; negative: there was none
};
// Computation alone, before collectives are measured beside it.
struct LoadNews {
  Beside beside;
  uint64_t start_ns, end_ns;
  double unit_us;          // mean over GPUs
  double emulated_joules;  // of a unit, all GPUs together; negative: not emulated
};
// One iteration of a scenario on one rank. Negative: not known, since it ran in a CUDA graph.
struct IterationTimes {
  double step_ms, compute_ms, communication_ms, exposed_ms;
};
struct IterationNews {
  int32_t iteration, warmup;
  uint64_t start_ns;
  IterationTimes ranks[kMaxRanks];
};

// Of a server (serve.h). What all ranks are asked to do next; they answer through rank 0.
enum class Ask : uint32_t { kNothing, kOpen, kMeasure, kClose, kQuit };
struct Measuring {
  int32_t iterations, warmup, check, repeats;
  double min_time_s;
  bool blocking;
};
struct Request {
  Ask ask;
  char library[64];      // kOpen: the file to load NCCL from
  char variables[8192];  // kOpen: NAME=VALUE, each ending in NUL, an empty one last
  Point point;           // kMeasure
  Measuring measuring;
};
struct OpenedNews {
  int32_t nccl_version;
  bool fresh;
};
struct RefusedNews {  // NCCL refused a call on all ranks alike
  char reason[600], hint[300];
};

class Board {
 public:
  // In anonymous memory, inherited by fork; zeroed.
  static Board* create(int ranks);
  // In `folder`/powerccl-bench-<key>, for processes started by a launcher: `creator` makes it, the others wait for it.
  static Board* meet(const std::string& folder, const std::string& key, int ranks, bool creator, double timeout_s);

  int ranks() const { return static_cast<int>(ranks_); }
  RankAbout about[kMaxRanks];

  // ---- failure: the first one's words stay.
  void fail(int exit_code, const std::string& reason, const std::string& hint = {});
  bool failed() const { return failed_.load(std::memory_order_acquire) != 0; }
  int exit_code() const { return exit_code_; }
  std::string reason() const { return reason_; }
  std::string hint() const { return hint_; }
  // Sleeps until a process failed or `ns` are over; true if failed.
  bool sleep_unless_failed(uint64_t ns);
  void wake_sleepers();

  // ---- for ranks; each throws Aborted once a process failed.
  void barrier();
  double max(int rank, double value);
  double sum(int rank, double value);
  // What rank 0 gives; nothing if it had none to give.
  std::optional<NcclUniqueId> exchange_id(int rank, const NcclUniqueId* rank_0s);
  // For a rank to which NCCL has refused a call: true once all ranks are refused, so that none waits inside NCCL for
  // another. False if they are not within `ns`.
  bool all_refused(uint64_t ns);

  // ---- the moment by which rank 0 wants to be done with what it does now; 0: none.
  std::atomic<uint64_t> deadline_ns;

  // ---- mailbox: rank 0 tells and waits for the supervisor's answer. The payload is in the fields below.
  int32_t tell(Tell what);
  // Supervisor: waits for news at most `ns`. kNothing when none came.
  Tell wait_for_news(uint64_t ns);
  void answer(int32_t value);
  int32_t clock_mhz;
  StartNews start;
  PointNews point;
  LoadNews load;
  IterationNews iteration;
  int32_t iterations;  // of a scenario, without warm-up; 0: not agreed on yet

  // ---- requests: the supervisor asks once rank 0 has answered the one before.
  void ask(const Request& request);
  // For ranks: waits for the next one after number `seen`, which it counts up.
  Request next_request(uint32_t& seen);
  OpenedNews opened;
  bool unloaded;  // kClosed: NCCL has left all ranks' processes
  RefusedNews refused;

  // ---- each rank's times of an iteration, by its parity: read by rank 0 behind the next iteration's barrier.
  IterationTimes times[2][kMaxRanks];

 private:
  struct Barrier {
    std::atomic<uint32_t> arrived, generation;
  };
  // False if not all ranks have come within `ns`.
  bool wait_at(Barrier& barrier, uint64_t ns);
  double reduce(int rank, double value, double (*combine)(double, double));

  char magic_[8];
  uint32_t ranks_, creator_pid_;
  std::atomic<uint32_t> ready_, attached_;
  std::atomic<uint32_t> failed_, failing_;
  int32_t exit_code_;
  char reason_[600], hint_[300];
  Barrier barrier_, refusal_;
  bool id_known_;
  NcclUniqueId id_;
  double values_[kMaxRanks];
  std::atomic<uint32_t> news_, answered_;
  Tell news_kind_;
  int32_t answer_;
  std::atomic<uint32_t> asked_;
  Request request_;
};

}  // namespace powerccl::bench
