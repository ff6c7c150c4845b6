// SPDX-License-Identifier: Apache-2.0
// The sampling thread: reads every GPU at fixed moments and writes rows into the power file.
#pragma once
#include <array>
#include <cstdint>
#include <string>
#include <vector>

#include "agent/cadence.h"
#include "agent/power_file.h"
#include "agent/ticker.h"
#include "device/nvml_sample.h"

namespace powerccl::agent {

class Sampler {
 public:
  // `sampling` is NVML as main opened it, or closed with `nvml_error` saying why: then the file gets its header and a
  // `# nvml:` line, and there is nothing to do.
  Sampler(const device::Sampling& sampling, const std::string& nvml_error, int64_t interval_ns);
  ~Sampler();
  Sampler(const Sampler&) = delete;
  Sampler& operator=(const Sampler&) = delete;

  // Writes the header and the first row of every GPU, then starts the thread. Returns 0, or the errno of the file that
  // could not be written (already said on stderr).
  int start(const std::string& path);
  // Has the thread take the last rows, flush and end. Waits for nothing: an NVML call on a broken GPU may hang.
  void ask_to_stop();
  // The same, and waits for it.
  void stop();

 private:
  struct Gpu {
    const device::SampledGpu* about = nullptr;
    std::array<int64_t, device::kMetrics> last{};    // -1: not known
    std::array<int64_t, device::kMetrics> due_ns{};  // next read
    int failed_ticks = 0;
    bool given_up = false;
  };

  std::string comments() const;
  void plan(int64_t start_ns);
  bool tick(int64_t deadline_ns, bool last_one);
  int sample_gpu(Gpu& gpu, int64_t deadline_ns, bool everything);
  void file_failed(int number);

  const device::Sampling& sampling_;
  std::string nvml_error_;
  int64_t interval_ns_;
  std::array<int64_t, device::kMetrics> period_ns_{};
  std::vector<Gpu> gpus_;
  SampleFile file_;
  Ticker ticker_;  // last: its thread uses the others
};

}  // namespace powerccl::agent
