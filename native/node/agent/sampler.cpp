// SPDX-License-Identifier: Apache-2.0
#include "agent/sampler.h"

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <system_error>
#include <thread>
#include <utility>

#include "abi/host_clock.h"
#include "agent/cadence.h"
#include "agent/log.h"
#include "agent/ticker.h"

namespace powerccl::agent {
namespace {

constexpr int64_t kMs = 1'000'000;
constexpr int64_t kS = 1'000 * kMs;
constexpr unsigned long kTimerSlackNs = 1000;  // the kernel's 50 us would date samples late

// A call that takes longer hangs, and the other GPUs get a thread without it. The others then miss less than three
// intervals, which no report takes for a gap. They miss half an interval here, 20 ms between two looks of watch(), and
// one interval since the last row. At half, threads are started for calls that are merely slow. At double, the others
// have a gap. With
// long intervals it is 100 ms, so that a hang in the last visit is found before the end stops waiting
// (kStopPatienceNs).
constexpr int64_t kShortestHangNs = 10 * kMs;
constexpr int64_t kLongestHangNs = 100 * kMs;
// Looks that are further apart tell nothing: the machine was stopped or overloaded, and held the other threads back
// too.
constexpr int64_t kLooksApartNs = 500 * kMs;
// The first visit describes the GPU and measures prices, in tens of calls of up to 4 ms.
constexpr int64_t kFirstHangNs = 150 * kMs;
// After that long without a hang a GPU returns to the common thread. At half, a GPU that hangs now and then delays the
// others more often; at double, an extra thread wakes for longer.
constexpr int64_t kWithoutHangNs = 60 * kS;
// When to say that a call hangs. Drivers take seconds for a reset, which is no news.
constexpr int64_t kSayHangNs = 10 * kS;
// How long the job waits for NVML to start, which takes seconds where no process keeps the driver loaded, and then for
// the first rows. `powerccl run` waits 3 s for both (AGENT_READY_S).
constexpr int64_t kStartNs = 2'500 * kMs;
constexpr int64_t kFirstRowsNs = 500 * kMs;
constexpr auto kLook = std::chrono::milliseconds(5);  // between two looks for hangs while the main thread waits

}  // namespace

Sampler::Sampler(std::string path, int64_t interval_ns, std::string job_environment)
    : path_(std::move(path)), interval_ns_(interval_ns), job_environment_(std::move(job_environment)) {}

// ---- Start, watch and end: on the main thread

int Sampler::start() {
  std::unique_lock lock(mutex_);
  workers_.push_back(std::make_unique<Worker>());
  common_ = workers_.back().get();
  started_ns_ = host_now_ns();
  int number = stop_.open();
  if (number == 0 && !start_worker(common_, started_ns_, true)) number = EAGAIN;
  if (number != 0) {
    workers_.clear();
    say("no power samples: cannot start a thread: %s", std::strerror(number));
    return number;
  }
  while (!head_written_ && host_now_ns() < started_ns_ + kStartNs) {
    changed_.wait_for(lock, kLook);
    find_hangs();
  }
  return error_;
}

void Sampler::watch() {
  const std::lock_guard lock(mutex_);
  find_hangs();
}

void Sampler::ask_to_stop() {
  const std::lock_guard lock(mutex_);
  stopping_ = true;
  stop_.ask();
}

bool Sampler::stop() {
  ask_to_stop();
  std::unique_lock lock(mutex_);
  const int64_t end_ns = host_now_ns() + kStopPatienceNs;
  for (int64_t at_ns = host_now_ns(); at_ns < end_ns && !workers_.empty() && !only_hangs_left(at_ns);
       at_ns = host_now_ns()) {
    changed_.wait_for(lock, kLook);
    find_hangs();
  }
  for (const auto& worker : workers_) tell_hang(*worker, host_now_ns());
  if (!head_written_) write_head();
  if (const int number = file_.flush(); number != 0) file_failed(number);
  return workers_.empty();
}

bool Sampler::only_hangs_left(int64_t at_ns) const {
  return std::all_of(workers_.begin(), workers_.end(),
                     [&](const auto& worker) { return worker->gpu && at_ns - worker->since_ns > kStopPatienceNs; });
}

void Sampler::find_hangs() {
  const int64_t at_ns = host_now_ns();
  if (at_ns - std::exchange(looked_ns_, at_ns) > kLooksApartNs) return;
  for (size_t i = 0; i < workers_.size(); ++i) {  // split() adds to them
    Worker* worker = workers_[i].get();
    if (!worker->gpu) continue;
    const int64_t hangs_ns =
        worker->gpu->answered ? std::clamp(interval_ns_ / 2, kShortestHangNs, kLongestHangNs) : kFirstHangNs;
    if (at_ns - worker->since_ns < hangs_ns) continue;
    worker->gpu->last_hang_ns = at_ns;
    split(worker, at_ns);
    if (at_ns - worker->since_ns >= kSayHangNs) tell_hang(*worker, at_ns);
  }
  if (head_written_) return;
  if (opened_ns_ == 0 && at_ns - started_ns_ >= kSayHangNs && !std::exchange(said_nvml_hangs_, true))
    say("NVML has not started for %.0f s; no GPU is sampled until it has", static_cast<double>(kSayHangNs) / kS);
  const bool any = std::any_of(gpus_.begin(), gpus_.end(), [](const Gpu& gpu) { return gpu.answered; });
  if (any && at_ns - opened_ns_ >= kFirstRowsNs) write_head();
}

// The thread that hangs keeps its GPU; a new one has the others, and reads them immediately.
void Sampler::split(Worker* worker, int64_t at_ns) {
  const auto is_other = [&](const Gpu& gpu) { return gpu.worker == worker && &gpu != worker->gpu; };
  if (std::none_of(gpus_.begin(), gpus_.end(), is_other)) return;
  workers_.push_back(std::make_unique<Worker>());
  Worker* next = workers_.back().get();
  const int64_t grid_ns = at_ns - (at_ns - opened_ns_) % interval_ns_;
  if (!start_worker(next, grid_ns - interval_ns_, false)) {  // no thread to be had: the next look tries again
    workers_.pop_back();
    return;
  }
  for (Gpu& gpu : gpus_)
    if (is_other(gpu)) gpu.worker = next;
  if (common_ == worker) common_ = next;
}

// ---- The threads

bool Sampler::start_worker(Worker* worker, int64_t start_ns, bool first) {
  try {
    std::thread([this, worker, start_ns, first]() mutable {
      if (first) {
        open_nvml(worker);
        start_ns = host_now_ns() - interval_ns_;  // the first visits come now
      }
      if (!gpus_.empty())
        run_ticks(stop_, start_ns, interval_ns_, kTimerSlackNs,
                  [=, this](int64_t deadline_ns, bool last_one) { return tick(worker, deadline_ns, last_one); });
      const std::lock_guard lock(mutex_);
      std::erase_if(workers_, [&](const auto& each) { return each.get() == worker; });
      changed_.notify_all();
    }).detach();
  } catch (const std::system_error&) {
    return false;
  }
  return true;
}

void Sampler::open_nvml(Worker* worker) {
  device::Sampling opened;
  device::Error error;
  const int code = device::sampling_start(&opened, &error);
  if (code != device::kOk) say("no power samples: %s%s", error.text, hint_line(code));
  const std::lock_guard lock(mutex_);
  if (code != device::kOk) nvml_error_ = error.text;
  sampling_ = opened;
  opened_ns_ = host_now_ns();
  for (uint32_t i = 0; i < opened.gpus_listed; ++i) gpus_.emplace_back(i, interval_ns_, worker);
  if (gpus_.empty()) write_head();
}

bool Sampler::tick(Worker* worker, int64_t deadline_ns, bool last_one) {
  for (Gpu& gpu : gpus_) {
    if (!begin_visit(worker, &gpu, deadline_ns)) continue;
    PowerRow row;
    const bool has_row = visit(&gpu, deadline_ns, last_one, &row);
    end_visit(worker, has_row ? &row : nullptr);
  }
  const std::lock_guard lock(mutex_);
  if (error_ == 0 && (last_one || file_.due(host_now_ns() + interval_ns_)))
    if (const int number = file_.flush(); number != 0) file_failed(number);
  return error_ == 0 && !hand_back(worker);
}

bool Sampler::begin_visit(Worker* worker, Gpu* gpu, int64_t deadline_ns) {
  const std::lock_guard lock(mutex_);
  if (gpu->worker != worker || !gpu->reader.due(deadline_ns)) return false;
  worker->gpu = gpu;
  worker->since_ns = host_now_ns();
  return true;
}

// Without the lock: only this thread reads this GPU, and what it uses of the rest does not change any more.
bool Sampler::visit(Gpu* gpu, int64_t deadline_ns, bool everything, PowerRow* row) {
  if (!gpu->described && !describe(gpu)) return false;
  return gpu->reader.read(sampling_, gpu->about, periods_, deadline_ns, everything, row);
}

bool Sampler::describe(Gpu* gpu) {
  device::SampledGpu about;
  if (device::sampling_describe(&sampling_, gpu->reader.index(), &about, &gpu->reader.error) != device::kOk)
    return false;
  const auto count = static_cast<unsigned>(gpus_.size());
  bool planned = false;
  {
    const std::lock_guard lock(mutex_);
    planned = planned_;
  }
  Periods periods{};
  if (!planned) periods = plan_periods(sampling_, about, count, interval_ns_);
  const std::lock_guard lock(mutex_);
  if (!std::exchange(planned_, true)) periods_ = periods;
  gpu->about = about;
  gpu->described = true;
  gpu->reader.stagger(periods_, opened_ns_, count);
  if (head_written_) {  // it came late: readers take comments between rows too
    const std::string text = comments_of(*gpu);
    file_.append(host_now_ns(), text.data(), text.size());
  }
  return true;
}

void Sampler::end_visit(Worker* worker, const PowerRow* row) {
  const std::lock_guard lock(mutex_);
  Gpu* gpu = std::exchange(worker->gpu, nullptr);
  gpu->answered = true;
  if (row) {
    if (gpu->said == Said::kMissing) {
      gpu->said = Said::kBack;
      say("GPU %u answers again after %.0f s; its energy in between is not known", gpu->reader.index(),
          static_cast<double>(row->time_ns - std::max(gpu->last_row_ns, opened_ns_)) / kS);
    }
    gpu->last_row_ns = row->time_ns;
    if (const int number = append_power_row(&file_, *row); number != 0) file_failed(number);
  } else if (gpu->reader.failed(host_now_ns()) && gpu->described && gpu->said == Said::kNothing) {
    // Nothing is said of a GPU that never opened: a container that was given two GPUs of eight may see eight listed.
    gpu->said = Said::kMissing;
    say("GPU %u is not sampled: %s; its energy is not known from then on%s", gpu->reader.index(),
        gpu->reader.error.text, hint_line(gpu->reader.error.code));
  }
  const bool all = std::all_of(gpus_.begin(), gpus_.end(), [](const Gpu& each) { return each.answered; });
  if (!head_written_ && all) write_head();
}

bool Sampler::hand_back(const Worker* worker) {
  if (worker == common_ || stopping_) return false;
  const int64_t at_ns = host_now_ns();
  for (const Gpu& gpu : gpus_)
    if (gpu.worker == worker && at_ns - gpu.last_hang_ns < kWithoutHangNs) return false;
  for (Gpu& gpu : gpus_)
    if (gpu.worker == worker) gpu.worker = common_;
  return true;
}

// ---- What is said and written

void Sampler::tell_hang(const Worker& worker, int64_t at_ns) {
  if (!worker.gpu || worker.gpu->said != Said::kNothing) return;
  worker.gpu->said = Said::kMissing;
  const double seconds = static_cast<double>(at_ns - worker.since_ns) / kS;
  say("GPU %u: an NVML call has not returned for %.*f s; its energy is not known from then on",
      worker.gpu->reader.index(), seconds < 10 ? 1 : 0, seconds);
}

std::string Sampler::comments_of(const Gpu& gpu) {
  const device::SampledGpu& about = gpu.about;
  const std::string key = "gpu" + std::to_string(about.index);
  std::string text = comment(key + "_name", about.name);
  text += comment(key + "_uuid", about.uuid);
  text += comment(key + "_pci", about.pci);
  text += comment(key + "_power", about.power_is_instant ? "instant" : "usage");
  if (about.power_limit_mw > 0) text += comment(key + "_power_limit_mw", std::to_string(about.power_limit_mw));
  if (about.power_limit_max_mw > 0)
    text += comment(key + "_power_limit_max_mw", std::to_string(about.power_limit_max_mw));
  return text;
}

std::string Sampler::comments() const {
  std::string text = common_comments(interval_ns_);
  if (!job_environment_.empty()) text += comment("job_environment", job_environment_);
  if (!nvml_error_.empty()) return text + comment("nvml", nvml_error_) + comment("gpu_count", "0");
  text += comment("driver", sampling_.driver);
  text += comment("nvml", sampling_.nvml_version);
  text += comment("emulated", sampling_.emulated ? "1" : "0");
  const auto refused =
      std::count_if(gpus_.begin(), gpus_.end(), [](const Gpu& gpu) { return gpu.answered && !gpu.described; });
  text += comment("gpu_count", std::to_string(static_cast<long>(gpus_.size()) - refused));
  if (refused > 0) text += comment("gpus_refused", std::to_string(refused));
  for (const Gpu& gpu : gpus_)
    if (gpu.described) text += comments_of(gpu);
  for (unsigned m = 0; planned_ && m < device::kMetrics; ++m)
    text += comment(std::string("read_every_ns_") + kMetricNames[m], std::to_string(periods_[m]));
  return text;
}

void Sampler::write_head() {
  head_written_ = true;
  const auto is_there = [](const Gpu& gpu) { return gpu.described || !gpu.answered; };
  if (opened_ns_ == 0) {
    nvml_error_ = "NVML did not start while the job ran";
  } else if (nvml_error_.empty() && std::none_of(gpus_.begin(), gpus_.end(), is_there)) {
    nvml_error_ = "no GPU";
    say("no power samples: NVML finds no GPU here that this process may open");
  }
  if (const int number = file_.open(path_, comments() + kPowerColumns); number != 0) file_failed(number);
  changed_.notify_all();
}

void Sampler::file_failed(int number) {
  if (std::exchange(error_, number) == 0) file_.say_failed(number, "Sampling has ended");
}

}  // namespace powerccl::agent
