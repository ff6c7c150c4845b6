// SPDX-License-Identifier: Apache-2.0
// Clocks, and computing for a given time.
#ifndef POWERCCL_BENCH_MPI_CLOCK_H
#define POWERCCL_BENCH_MPI_CLOCK_H
#include <sys/resource.h>
#include <time.h>

#include <cstdint>

namespace powerccl::bench::mpi {

inline int64_t read_clock_ns(clockid_t clock) {
  timespec now{};
  clock_gettime(clock, &now);
  return static_cast<int64_t>(now.tv_sec) * 1'000'000'000 + now.tv_nsec;
}

inline int64_t now_ns() {
  return read_clock_ns(CLOCK_MONOTONIC);
}

inline int64_t thread_cpu_ns() {
  return read_clock_ns(CLOCK_THREAD_CPUTIME_ID);
}

// All threads of the process: a library may have its progress thread.
inline double process_cpu_s() {
  rusage used{};
  getrusage(RUSAGE_SELF, &used);
  const auto seconds = [](const timeval& time) {
    return static_cast<double>(time.tv_sec) + 1e-6 * static_cast<double>(time.tv_usec);
  };
  return seconds(used.ru_utime) + seconds(used.ru_stime);
}

inline double to_us(int64_t ns) {
  return 1e-3 * static_cast<double>(ns);
}

// Keeps the core busy until the time has passed.
inline void compute_us(double us) {
  if (us <= 0) return;
  const int64_t end = now_ns() + static_cast<int64_t>(us * 1000);
  while (now_ns() < end) {
  }
}

}  // namespace powerccl::bench::mpi
#endif
