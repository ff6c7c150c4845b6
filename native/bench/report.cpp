// SPDX-License-Identifier: Apache-2.0
#include "bench/report.h"

#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstring>

#include "bench/failure.h"
#include "bench/version.h"

namespace powerccl::bench {
namespace {

constexpr uint64_t kNewsNs = 50'000'000;
constexpr uint64_t kRememberNs = 1'000'000'000;

std::string version_of_cuda(int version) {
  return std::to_string(version / 1000) + "." + std::to_string(version % 1000 / 10);
}

std::string host_name() {
  char name[256] = "";
  gethostname(name, sizeof name - 1);
  return name;
}

const char* mode_name(Mode mode) {
  return mode == Mode::kTrain ? "train" : mode == Mode::kScenario ? "scenario" : "sweep";
}

std::optional<double> measured(double value) {
  return value < 0 ? std::nullopt : std::optional<double>(value);
}

std::optional<std::string> unless_empty(const std::string& text) {
  return text.empty() ? std::nullopt : std::optional<std::string>(text);
}

}  // namespace

Report::Report(const Options& options, const Setting& setting, const std::vector<Point>& plan, const Launch& launch,
               const Model& model, const Scenario& scenario)
    : options_(options),
      setting_(setting),
      plan_(plan),
      launch_(launch),
      model_(model),
      scenario_(scenario),
      board_(*launch.board),
      started_unix_s_(std::chrono::duration<double>(std::chrono::system_clock::now().time_since_epoch()).count()),
      started_ns_(monotonic_ns()) {
  const std::string folder =
      options.json.find('/') != std::string::npos ? options.json.substr(0, options.json.rfind('/') + 1) : ".";
  if (!options.json.empty() && access(folder.c_str(), W_OK) != 0) {
    throw Failure(kExitUsage, "cannot write " + options.json + ": " + std::strerror(errno),
                  "name a file in a folder that exists and is yours");
  }
  if (!options.json_lines.empty()) {
    lines_ = std::fopen(options.json_lines.c_str(), options.resume ? "ae" : "we");
    const bool cut = lines_ != nullptr && options.resume &&
                     ftruncate(fileno(lines_), static_cast<off_t>(setting.keep_json_lines_bytes)) != 0;
    if (lines_ == nullptr || cut) {
      throw Failure(kExitUsage, "cannot write " + options.json_lines + ": " + std::strerror(errno));
    }
  }
  if (setting_.clock_control == "set") {
    guard_ = options.clock_socket < 0 ? std::make_unique<ClockGuard>(board_, options.set_clocks)
                                      : std::make_unique<ClockGuard>(options.clock_socket);
  }
}

Report::~Report() {
  if (lines_ != nullptr) std::fclose(lines_);
}

void Report::run() {
  while (!finished_) {
    const Tell what = board_.wait_for_news(kNewsNs);
    int answer = 0;
    switch (what) {
      case Tell::kNothing:
        if (board_.failed()) return;
        continue;
      case Tell::kStart:
        on_start();
        break;
      case Tell::kClock:
        answer = on_clock();
        break;
      case Tell::kPoint:
        on_point();
        break;
      case Tell::kStep:
        on_step();
        break;
      case Tell::kIteration:
        on_iteration();
        break;
      case Tell::kFinish:
        finished_ = true;
        break;
    }
    board_.answer(answer);
  }
}

void Report::on_start() {
  started_ = true;
  start_ = board_.start;
  // Loaded only now: the guard was forked from a process without NVML.
  sampler_ = std::make_unique<Sampler>(board_, options_.sample_ms);
  if (options_.energy) sampler_->start();
  if (lines_ != nullptr && (!options_.resume || setting_.keep_json_lines_bytes == 0)) {
    write_line(json::Object().add("type", "header").merge(common()).text());
  }
  table_header();
}

int Report::on_clock() {
  if (guard_ == nullptr) return 0;
  const std::string problem = guard_->set(board_.clock_mhz);
  if (problem.empty()) return 0;
  if (!clock_holds()) return 1;
  setting_.clock_control = "refused";
  setting_.clock_reason = problem;
  std::printf("# Clocks are left as found: %s\n", problem.c_str());
  std::fprintf(
      stderr,
      "powerccl-bench: clocks are left as found: %s\nhint: locking clocks takes root or a driver set up for it\n",
      problem.c_str());
  return 1;
}

bool Report::clock_holds() {
  const std::string lost = guard_->check();
  if (lost.empty()) return true;
  board_.fail(kExitMissing, "the clock did not hold: " + lost, "what was measured before is kept for --resume");
  return false;
}

void Report::on_point() {
  const PointNews news = board_.point;
  const Point& point = plan_[news.index];
  if (setting_.clock_control == "set" && !clock_holds()) return;  // nobody knows at which clock this was
  Window window;
  window.reason = "--no-energy";
  if (sampler_->running() || options_.energy) window = sampler_->window(news.start_ns, news.end_ns);
  sampler_->forget_before(news.end_ns > kRememberNs ? news.end_ns - kRememberNs : 0);
  wrong_ += std::max<int64_t>(news.wrong, 0);
  bandwidth_sum_ +=
      static_cast<double>(point.shape.size_bytes) / news.time_us * 1e-3 * bus_factor(point.pattern, board_.ranks());
  ++points_;
  const json::Object object = point_object(point, news, window);
  results_.push_back(object.raw());
  if (lines_ != nullptr) write_line(json::Object().add("type", "point").merge(object).text());
  table_line(point, news, window);
}

void Report::write_line(const std::string& line) {
  if (std::fprintf(lines_, "%s\n", line.c_str()) < 0 || std::fflush(lines_) != 0) {
    board_.fail(kExitMissing, "cannot write " + options_.json_lines + ": " + std::strerror(errno), "is the disk full?");
  }
}

json::Object Report::common() const {
  std::vector<json::Raw> gpus;
  for (int rank = 0; started_ && rank < board_.ranks(); ++rank) {
    const RankAbout& about = board_.about[rank];
    gpus.push_back(json::Object()
                       .add("rank", rank)
                       .add("device", about.device)
                       .add("nvml_index", sampler_->nvml_index(rank))
                       .add("name", about.name)
                       .add("uuid", about.uuid)
                       .add("pci", about.pci)
                       .add("sm_count", about.sm_count)
                       .raw());
  }
  const auto if_started = [&](const std::string& text) {
    return started_ ? std::optional<std::string>(text) : std::nullopt;
  };
  json::Object object;
  object.add("schema", 1)
      .add("mode", mode_name(options_.mode))
      .add("version", kVersion)
      .add("command", options_.command)
      .add("started_unix_s", json::Raw{std::to_string(started_unix_s_)})
      .add("host", host_name())
      .add("emulated", setting_.emulated)
      .add("moves_data", setting_.moves_data)
      .add("nccl_version", if_started(nccl_version_text(start_.nccl_version)))
      .add("nccl_path", if_started(start_.nccl_path))
      .add("cuda_version", if_started(version_of_cuda(start_.cuda_version)))
      .add("driver", started_ ? unless_empty(sampler_->driver()) : std::nullopt)
      .add("gpu", if_started(board_.about[0].name))
      .add("ranks", board_.ranks())
      .add("launch", launch_.kind)
      .add("gpus", gpus)
      .add("clock_control", setting_.clock_control)
      .add("clock_control_reason", unless_empty(setting_.clock_reason));
  if (options_.mode != Mode::kSweep) {
    const int clock = setting_.clock_control == "set" ? options_.clocks_mhz.front() : kClockAsFound;
    object.add("clock_requested_mhz", clock == kClockAsFound ? std::nullopt : std::optional<int>(clock));
    if (options_.mode == Mode::kTrain) add_train(object);
    if (options_.mode == Mode::kScenario) add_scenario(object);
    const double per_ms = start_.compute_iterations_per_ms;
    object.add("compute", json::Object()
                              .add("declared", per_ms <= 0)
                              .add("iterations_per_ms", per_ms > 0 ? std::optional<double>(per_ms) : std::nullopt)
                              .add("blocks", start_.blocks)
                              .add("threads", start_.threads)
                              .raw());
  }
  return object;
}

json::Object Report::point_object(const Point& point, const PointNews& news, const Window& window) const {
  const PatternInfo& about = info(point.pattern);
  const double algbw = static_cast<double>(point.shape.size_bytes) / news.time_us * 1e-3;
  const bool told = !window.source.empty();
  const auto if_told = [&](double value) { return told ? std::optional<double>(value) : std::nullopt; };
  const bool as_found = point.clock_mhz == kClockAsFound || setting_.clock_control != "set";
  std::optional<std::string> throttle;
  if (window.throttle_reasons) {
    char hex[24];
    std::snprintf(hex, sizeof hex, "0x%llx", *window.throttle_reasons);
    throttle = hex;
  }
  json::Object object;
  object.add("pattern", about.name)
      .add("size_bytes", point.shape.size_bytes)
      .add("count", point.shape.count)
      .add("dtype", info(point.type).name)
      .add("op", about.reduces ? std::optional<std::string>(info(point.op).name) : std::nullopt)
      .add("root", about.has_root ? std::optional<int>(point.root) : std::nullopt)
      .add("in_place", point.in_place)
      .add("ranks", board_.ranks())
      .add("clock_requested_mhz", as_found ? std::nullopt : std::optional<int>(point.clock_mhz))
      .add("iterations", news.iterations)
      .add("time_us", news.time_us)
      .add("device_time_us", news.device_us)
      .add("time_low_us", measured(news.low_us))
      .add("time_high_us", measured(news.high_us))
      .add("algbw_gbs", algbw)
      .add("busbw_gbs", algbw * bus_factor(point.pattern, board_.ranks()))
      .add("event_us", measured(news.event_us))
      .add("wrong", news.wrong < 0 ? std::nullopt : std::optional<int64_t>(news.wrong))
      .add("sm_clock_mhz", window.clock_mean_mhz)
      .add("sm_clock_min_mhz", window.clock_min_mhz)
      .add("sm_clock_max_mhz", window.clock_max_mhz)
      .add("watts_per_gpu", if_told(window.watts_per_gpu))
      .add("watts_all_gpus", if_told(window.watts_all_gpus))
      .add("joules_per_gpu", if_told(window.watts_per_gpu * news.time_us * 1e-6))
      .add("joules_all_gpus", if_told(window.watts_all_gpus * news.time_us * 1e-6))
      .add("energy_source", unless_empty(window.source))
      .add("energy_window_s", if_told(window.window_s))
      .add("energy_updates", if_told(window.updates))
      .add("energy_uncertainty_pct", if_told(window.uncertainty_pct))
      .add("energy_reason", told ? std::nullopt : unless_empty(window.reason))
      .add("temperature_c", window.temperature_c)
      .add("throttle_reasons", throttle)
      .add("start_ns", news.start_ns)
      .add("end_ns", news.end_ns);
  return object;
}

bool Report::conclude() {
  if (line_open_) std::printf("\n");
  line_open_ = false;
  if (started_ && options_.mode == Mode::kTrain) conclude_train();
  if (started_ && options_.mode == Mode::kScenario) conclude_scenario();
  if (started_ && options_.mode == Mode::kSweep) {
    std::printf("# Out of bounds values : %lld %s\n", static_cast<long long>(wrong_), wrong_ != 0 ? "FAILED" : "OK");
    std::printf("# Avg bus bandwidth    : %g\n", points_ > 0 ? bandwidth_sum_ / static_cast<double>(points_) : 0);
    if (sampler_ != nullptr && !sampler_->trouble().empty()) {
      std::printf("# NVML failed at times  : %s\n", sampler_->trouble().c_str());
    }
    std::printf("#\n");
  }
  std::fflush(stdout);
  guard_.reset();  // clocks are default again from here on
  if (!options_.json.empty()) write_json(finished_ && !board_.failed());
  return wrong_ != 0;
}

void Report::write_json(bool finished) {
  json::Object object = common();
  object.add("finished", finished)
      .add("error", board_.failed() ? std::optional<std::string>(board_.reason()) : std::nullopt)
      .add("seconds", static_cast<double>(monotonic_ns() - started_ns_) * 1e-9)
      .add("results", results_);
  if (options_.mode != Mode::kSweep) {
    object.add("summary", summary_.raw());
  } else {
    object.add("summary", json::Object()
                              .add("points", points_)
                              .add("skipped", setting_.skipped_points)
                              .add("wrong", wrong_)
                              .add("avg_busbw_gbs",
                                   points_ > 0 ? std::optional<double>(bandwidth_sum_ / static_cast<double>(points_))
                                               : std::nullopt)
                              .raw());
  }
  const std::string fresh = options_.json + "." + std::to_string(getpid());
  std::FILE* file = std::fopen(fresh.c_str(), "we");
  bool good = file != nullptr && std::fprintf(file, "%s\n", object.text().c_str()) > 0;
  good = (file == nullptr || std::fclose(file) == 0) && good;
  if (!good || std::rename(fresh.c_str(), options_.json.c_str()) != 0) {
    const std::string reason = "cannot write " + options_.json + ": " + std::strerror(errno);
    unlink(fresh.c_str());
    board_.fail(kExitMissing, reason, "name a file in a folder that exists and has room");
  }
}

}  // namespace powerccl::bench
