// SPDX-License-Identifier: Apache-2.0
#include "bench/report.h"

#include <poll.h>
#include <signal.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <cstring>

#include "bench/failure.h"
#include "bench/measurement.h"
#include "bench/values.h"

namespace powerccl::bench {
namespace {

constexpr uint64_t kNewsNs = 50'000'000;

}  // namespace

double unix_s() {
  return std::chrono::duration<double>(std::chrono::system_clock::now().time_since_epoch()).count();
}

std::optional<double> median_of(const std::vector<double>& values) {
  return json::when(!values.empty(), median(values));
}

Report::Report(const Options& options, const Setting& setting, const Launch& launch)
    : options_(options),
      setting_(setting),
      launch_(launch),
      board_(*launch.board),
      started_unix_s_(unix_s()),
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
  if (setting_.clock_control == "set") clocks_ = std::make_unique<ClockSocket>(options.clock_socket);
}

Report::~Report() {
  if (lines_ != nullptr) std::fclose(lines_);
}

void Report::run() {
  while (!finished_) {
    const Tell what = board_.wait_for_news(kNewsNs);
    if (pollfd reader{STDOUT_FILENO, 0, 0}; poll(&reader, 1, 0) > 0 && (reader.revents & POLLERR) != 0) {
      board_.fail(128 + SIGPIPE, "no process reads the results any more");
    }
    if (what == Tell::kNothing && board_.failed()) return;
    if (what == Tell::kNothing) continue;
    int answer = 0;
    if (what == Tell::kStart) {
      on_start();
    } else if (what == Tell::kClock) {
      answer = on_clock();
    } else if (what == Tell::kFinish) {
      finished_ = true;
    } else {
      on_news(what);
    }
    board_.answer(answer);
  }
}

void Report::on_start() {
  start_ = board_.start;
  sampler_ = std::make_unique<Sampler>(board_, options_.sample_ms);
  if (options_.resume && !resumes()) return;
  started_ = true;
  if (options_.energy) sampler_->start();
  // A counter must have moved before the run begins, or the energy until it does is not known.
  if (options_.mode == Mode::kScenario) sampler_->wait_past(monotonic_ns());
  write_line("header", common(), !options_.resume || setting_.keep_json_lines_bytes == 0);
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
  if (!clocks_) return 0;
  const std::string problem = clocks_->set(board_.clock_mhz);
  if (problem.empty()) return 0;
  if (!clock_holds()) return 1;
  setting_.clock_control = "refused";
  setting_.clock_reason = problem;
  std::fprintf(stderr, "powerccl-bench: clocks are left as found: %s\n", problem.c_str());
  return 1;
}

bool Report::clock_holds() {
  const std::string lost = clocks_->check();
  if (lost.empty()) return true;
  board_.fail(kExitMissing, "the clock did not hold: " + lost, "what was measured before is kept for --resume");
  return false;
}

void Report::write_line(const char* type, const json::Object& object, bool keep) {
  const std::string line = json::Object().add("type", type).merge(object).text() + "\n";
  std::fputs(line.c_str(), stdout);
  std::fflush(stdout);
  if (!keep || lines_ == nullptr) return;
  if (std::fputs(line.c_str(), lines_) < 0 || std::fflush(lines_) != 0) {
    board_.fail(kExitMissing, "cannot write " + options_.json_lines + ": " + std::strerror(errno), "is the disk full?");
  }
}

std::optional<double> Report::joules(uint64_t from_ns, uint64_t to_ns) const {
  return sampler_->running() ? sampler_->joules_all_gpus(from_ns, to_ns) : std::nullopt;
}

std::optional<double> Report::clock_mhz(uint64_t from_ns, uint64_t to_ns) const {
  return sampler_->running() ? sampler_->window(from_ns, to_ns).clock_mean_mhz : std::nullopt;
}

json::Object Report::common() const {
  json::Object object =
      header_object(options_, setting_, launch_, started_unix_s_, started_ ? &start_ : nullptr, sampler_.get());
  if (options_.mode == Mode::kSweep) return object;
  const int clock = setting_.clock_control == "set" ? options_.clocks_mhz.front() : kClockAsFound;
  object.add("clock_requested_mhz", json::when(clock != kClockAsFound, clock));
  add_mode(object);
  const auto if_known = [](auto value) { return json::when(value > 0, value); };
  const double per_ms = start_.compute_iterations_per_ms, unit_ms = start_.compute_unit_ms;
  return object.add("compute", json::Object()
                                   .add("kind", compute_name_of(options_.compute))
                                   .add("declared", per_ms <= 0 && unit_ms <= 0)
                                   .add("iterations_per_ms", if_known(per_ms))
                                   .add("unit_ms", if_known(unit_ms))
                                   .add("blocks", if_known(start_.blocks))
                                   .add("threads", if_known(start_.threads))
                                   .raw());
}

json::Object Report::ending() const {
  json::Object object;
  return object.add("finished", finished_ && !board_.failed())
      .add("error", json::when(board_.failed(), board_.reason()))
      .add("seconds", static_cast<double>(monotonic_ns() - started_ns_) * 1e-9);
}

int Report::conclude() {
  if (started_) on_end();
  clocks_.reset();  // clocks are default again from here on
  if (!options_.json.empty()) {
    const json::Object object = common().merge(ending()).add("results", results_).add("summary", summary().raw());
    const std::string reason = write_whole(options_.json, object.text() + "\n");
    if (!reason.empty()) board_.fail(kExitMissing, reason, "name a file in a folder that exists and has room");
  }
  if (started_) write_line("summary", ending().merge(summary()));
  return wrong_ != 0 ? kExitWrongElements : invalid_ != 0 ? kExitMissing : kExitOk;
}

}  // namespace powerccl::bench
