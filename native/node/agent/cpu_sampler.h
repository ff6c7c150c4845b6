// SPDX-License-Identifier: Apache-2.0
// Writes <run folder>/cpu-<host>.csv: energy (RAPL) and time of this host's processors.
//
// Slower than the GPUs are sampled. A job's sum needs its two ends only, and the ticks between show where a counter
// wrapped and how power changed.
#pragma once
#include <cstdint>
#include <string>

#include "agent/sample_file.h"
#include "agent/ticker.h"
#include "device/rapl.h"

namespace powerccl::agent {

inline constexpr int64_t kCpuIntervalNs = 100'000'000;

class CpuSampler {
 public:
  // `interval_ns` is that of the GPUs' samples; the processors' is never shorter than kCpuIntervalNs.
  CpuSampler(const std::string& sysfs, int64_t interval_ns);
  ~CpuSampler();
  CpuSampler(const CpuSampler&) = delete;
  CpuSampler& operator=(const CpuSampler&) = delete;

  // Writes the header and the first rows, then starts the thread. Returns 0, or the errno of the file that could not be
  // written (already said on stderr). Counters that cannot be read are no error: the header tells why.
  int start(const std::string& path);
  void ask_to_stop();
  // The same, and waits for the last rows. False: the thread hangs in a read or write and uses this object still.
  bool stop();

 private:
  // the kernel makes /proc/stat at each read, for all processors and interrupts: slow on large hosts, so read less
  // often there. The same goes for the counters, which are asked on their own package.
  struct Reading {
    int64_t period_ns = 0;
    int64_t due_ns = 0;
  };

  std::string head() const;
  void plan(int64_t start_ns);
  bool tick(int64_t deadline_ns, bool last_one);
  struct Row {
    const char* domain;
    int64_t energy_uj = -1;
    int64_t busy_ns = -1;
    int64_t idle_ns = -1;
  };
  int append(int64_t before_ns, const Row& row);
  int append_energy();
  int append_time();
  int append_end();

  int64_t interval_ns_;
  device::Rapl rapl_;
  int proc_stat_ = -1;
  Reading energy_;
  Reading time_;
  SampleFile file_;
  Ticker ticker_;  // last: its thread uses the others
};

}  // namespace powerccl::agent
