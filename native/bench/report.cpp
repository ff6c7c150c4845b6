// SPDX-License-Identifier: Apache-2.0
#include "bench/report.h"

#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstring>

#include "bench/failure.h"
#include "bench/machine.h"
#include "bench/report_json.h"

namespace powerccl::bench {
namespace {

constexpr uint64_t kNewsNs = 50'000'000;
constexpr uint64_t kRememberNs = 1'000'000'000;

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
    if (lines_ == nullptr) {
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
      case Tell::kLoad:
        on_load();
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
      default:
        break;  // a server's
    }
    board_.answer(answer);
  }
}

void Report::on_start() {
  start_ = board_.start;
  // Loaded only now: the guard was forked from a process without NVML.
  sampler_ = std::make_unique<Sampler>(board_, options_.sample_ms);
  if (options_.resume && !resumes()) return;
  started_ = true;
  if (options_.energy) sampler_->start();
  // A counter must have moved before the run begins, or nothing tells of the energy until it does.
  if (options_.mode == Mode::kScenario) sampler_->wait_past(monotonic_ns());
  if (lines_ != nullptr && (!options_.resume || setting_.keep_json_lines_bytes == 0)) {
    write_line(json::Object().add("type", "header").merge(common()).text());
  }
  table_header();
}

bool Report::resumes() {
  try {
    check_same_machine(options_.json_lines, machine_object(board_, &start_, sampler_.get()));
  } catch (const Failure& failure) {
    board_.fail(failure.code(), failure.what(), failure.hint());
    return false;
  }
  // A last line that was cut off goes, and only from a file that is ours to continue.
  if (ftruncate(fileno(lines_), static_cast<off_t>(setting_.keep_json_lines_bytes)) != 0) {
    board_.fail(kExitMissing, "cannot write " + options_.json_lines + ": " + std::strerror(errno));
    return false;
  }
  return true;
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
  if (options_.energy) take_emulated_energy(news, board_.ranks(), window);
  sampler_->forget_before(news.end_ns > kRememberNs ? news.end_ns - kRememberNs : 0);
  wrong_ += std::max<int64_t>(news.wrong, 0);
  if (!news.valid) ++invalid_;
  bandwidth_sum_ += algbw_gbs(point, news) * bus_factor(point.pattern, board_.ranks());
  ++points_;
  const json::Object object =
      point_object(point, news, window, board_.ranks(), setting_.clock_control == "set", cost_of(point, news, window));
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
  json::Object object =
      header_object(options_, setting_, launch_, started_unix_s_, started_ ? &start_ : nullptr, sampler_.get());
  if (options_.mode != Mode::kSweep) {
    const int clock = setting_.clock_control == "set" ? options_.clocks_mhz.front() : kClockAsFound;
    object.add("clock_requested_mhz", clock == kClockAsFound ? std::nullopt : std::optional<int>(clock));
    if (options_.mode == Mode::kTrain) add_train(object);
    if (options_.mode == Mode::kScenario) add_scenario(object);
    const auto if_known = [](auto value) { return value > 0 ? std::optional(value) : std::nullopt; };
    const double per_ms = start_.compute_iterations_per_ms, unit_ms = start_.compute_unit_ms;
    object.add("compute", json::Object()
                              .add("kind", compute_name_of(options_.compute))
                              .add("declared", per_ms <= 0 && unit_ms <= 0)
                              .add("iterations_per_ms", if_known(per_ms))
                              .add("unit_ms", if_known(unit_ms))
                              .add("blocks", if_known(start_.blocks))
                              .add("threads", if_known(start_.threads))
                              .raw());
  }
  return object;
}

int Report::conclude() {
  if (line_open_) std::printf("\n");
  line_open_ = false;
  if (started_ && options_.mode == Mode::kTrain) conclude_train();
  if (started_ && options_.mode == Mode::kScenario) conclude_scenario();
  if (started_ && options_.mode == Mode::kSweep) {
    if (points_ > 0) {
      std::printf("# Out of bounds values : %lld %s\n", static_cast<long long>(wrong_), wrong_ != 0 ? "FAILED" : "OK");
      std::printf("# Avg bus bandwidth    : %g\n", bandwidth_sum_ / static_cast<double>(points_));
    } else {
      std::printf("# Out of bounds values : N/A\n# Avg bus bandwidth    : N/A (no point was measured in this run)\n");
    }
    if (!measured_.empty()) ways_table();
    if (sampler_ != nullptr && !sampler_->trouble().empty()) {
      std::printf("# NVML failed at times  : %s\n", sampler_->trouble().c_str());
    }
    std::printf("#\n");
  }
  if (invalid_ > 0) {
    std::printf(
        "# Invalid              : %zu of %zu results: this machine was too slow for the emulator, times are not "
        "the platform's\n",
        invalid_, points_);
  }
  std::fflush(stdout);
  guard_.reset();  // clocks are default again from here on
  if (!options_.json.empty()) write_json(finished_ && !board_.failed());
  return wrong_ != 0 ? kExitWrongElements : invalid_ != 0 ? kExitMissing : kExitOk;
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
