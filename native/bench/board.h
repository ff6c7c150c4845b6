// SPDX-License-Identifier: Apache-2.0
// One page shared by all ranks of a run and their supervisors: rendezvous, barriers, reductions of a few doubles, the
// news that somebody failed, and rank 0's mailbox to its supervisor. Nothing here waits longer than it takes to notice
// a failure, whoever has died.
#ifndef POWERCCL_BENCH_BOARD_H
#define POWERCCL_BENCH_BOARD_H
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <string>

#include "bench/nccl_api.h"

namespace powerccl::bench {

inline constexpr int kMaxRanks = 64;
inline constexpr int kMaxBuckets = 32;

uint64_t monotonic_ns();

struct RankAbout {
  int32_t device, sm_count;
  char name[96], uuid[48], pci[24];
};

// What rank 0 tells its supervisor. Times in ns are CLOCK_MONOTONIC.
enum class Tell : uint32_t { kNothing, kStart, kClock, kPoint, kStep, kIteration, kFinish };

struct StartNews {
  int32_t nccl_version, cuda_version;
  char nccl_path[512];
  double compute_iterations_per_ms;  // 0: declared durations
  int32_t blocks, threads;
};
struct PointNews {
  uint64_t index;  // in the plan
  uint64_t iterations, start_ns, end_ns;
  double time_us, low_us, high_us, device_us, event_us;  // negative: not measured
  int64_t wrong;                                         // -1: not checked
};
struct StepNews {
  int32_t iteration, warmup, buckets;
  double step_ms, forward_ms, backward_ms, sync_ms, communication_ms;
  uint64_t start_ns, forward_end_ns, backward_end_ns, end_ns;
  uint64_t bucket_start_ns[kMaxBuckets], bucket_end_ns[kMaxBuckets];
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
  // Sleeps until somebody failed or `ns` are over; true if failed.
  bool sleep_unless_failed(uint64_t ns);

  // ---- for ranks; each throws Aborted once somebody failed.
  void barrier();
  double max(int rank, double value);
  double sum(int rank, double value);
  void publish_id(const NcclUniqueId& id);
  NcclUniqueId wait_for_id();

  // ---- the moment by which rank 0 wants to be done with what it does now; 0: none.
  std::atomic<uint64_t> deadline_ns;

  // ---- mailbox: rank 0 tells and waits for the supervisor's answer. The payload lies in the fields below.
  int32_t tell(Tell what);
  // Supervisor: waits for news at most `ns`. kNothing when none came.
  Tell wait_for_news(uint64_t ns);
  void answer(int32_t value);
  int32_t clock_mhz;
  StartNews start;
  PointNews point;
  StepNews step;
  IterationNews iteration;

  // ---- each rank's times of an iteration, by its parity: read by rank 0 behind the next iteration's barrier.
  IterationTimes times[2][kMaxRanks];

 private:
  double reduce(int rank, double value, double (*combine)(double, double));

  char magic_[8];
  uint32_t ranks_;
  uint32_t creator_pid_;
  std::atomic<uint32_t> ready_, attached_;
  std::atomic<uint32_t> failed_, failing_;
  int32_t exit_code_;
  char reason_[600], hint_[300];
  std::atomic<uint32_t> arrived_, generation_;
  std::atomic<uint32_t> id_ready_;
  NcclUniqueId id_;
  double values_[kMaxRanks];
  std::atomic<uint32_t> news_, answered_;
  Tell told_;
  int32_t answer_;
};

}  // namespace powerccl::bench
#endif
