// SPDX-License-Identifier: Apache-2.0
// Samples every GPU at fixed moments and writes rows into the power file. No GPU can stop the others.
//
// One thread reads all GPUs in turn. A thread a GPU would wake eight times as often, for a fault that hardly ever
// happens. When an NVML call hangs, the thread that made it keeps this GPU alone. A new thread takes over the others
// within one interval. A GPU that has been quick for a minute goes back to the common thread. Neither start nor end
// waits for a thread that hangs: threads are detached, and the process ends under them.
// docs/decisions/0022-sampling-of-hanging-gpus.md
#pragma once
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "agent/gpu_reader.h"
#include "agent/sample_file.h"
#include "agent/ticker.h"
#include "device/nvml_sample.h"

namespace powerccl::agent {

class Sampler {
 public:
  // `job_environment` goes into the head of the file as it is.
  Sampler(std::string path, int64_t interval_ns, std::string job_environment = "");
  ~Sampler() = default;  // only after stop() was true: threads use this object
  Sampler(const Sampler&) = delete;
  Sampler& operator=(const Sampler&) = delete;

  // Starts NVML and sampling in a thread. Returns when the header and the first row of every GPU are written. Returns
  // earlier half a second after NVML has started, or two and a half seconds in all. What comes later is sampled from
  // then on. Returns 0 or an errno.
  int start();
  // Finds calls that hang. To be called as often as the others may be held up by one: every interval.
  void watch();
  // Has the threads take the last rows, flush and end. Waits for nothing.
  void ask_to_stop();
  // The same, and waits for them, a second at most. False: a thread hangs in NVML and uses this object still.
  bool stop();

 private:
  struct Gpu;
  struct Worker {          // one thread
    Gpu* gpu = nullptr;    // that it reads now
    int64_t since_ns = 0;  // began to read it
  };
  enum class Said { kNothing, kMissing, kBack };  // on stderr, of one GPU
  struct Gpu {
    Gpu(uint32_t index, int64_t interval_ns, Worker* its_worker) : reader(index, interval_ns), worker(its_worker) {}
    GpuReader reader;  // used by its worker alone
    device::SampledGpu about;
    bool described = false;  // about holds, and does not change any more
    Worker* worker;
    bool answered = false;  // the first visit is over, whatever it gave
    int64_t last_hang_ns = 0, last_row_ns = 0;
    Said said = Said::kNothing;
  };

  bool start_worker(Worker* worker, int64_t start_ns, bool first);
  void open_nvml(Worker* worker);
  bool tick(Worker* worker, int64_t deadline_ns, bool last_one);
  bool begin_visit(Worker* worker, Gpu* gpu, int64_t deadline_ns);
  bool visit(Gpu* gpu, int64_t deadline_ns, bool everything, PowerRow* row);
  bool describe(Gpu* gpu);
  void end_visit(Worker* worker, const PowerRow* row);

  // All with mutex_ held:
  bool hand_back(const Worker* worker);
  void find_hangs();
  void split(Worker* worker, int64_t at_ns);
  static void tell_hang(const Worker& worker, int64_t at_ns);
  bool only_hangs_left(int64_t at_ns) const;
  std::string comments() const;
  static std::string comments_of(const Gpu& gpu);
  void write_head();
  void file_failed(int number);

  const std::string path_;
  const int64_t interval_ns_;
  const std::string job_environment_;
  StopEvent stop_;
  std::mutex mutex_;  // over all that follows but each Gpu's reader
  std::condition_variable changed_;
  device::Sampling sampling_;
  std::string nvml_error_;
  Periods periods_{};
  bool planned_ = false;  // periods_ holds, and does not change any more
  std::deque<Gpu> gpus_;  // complete once opened_ns_ is set
  int64_t started_ns_ = 0;
  int64_t looked_ns_ = 0;  // for hangs
  int64_t opened_ns_ = 0;  // when NVML had started; 0: it has not
  std::vector<std::unique_ptr<Worker>> workers_;
  Worker* common_ = nullptr;  // has all GPUs but those that hung recently
  SampleFile file_;
  int error_ = 0;
  bool head_written_ = false, stopping_ = false, said_nvml_hangs_ = false;
};

}  // namespace powerccl::agent
