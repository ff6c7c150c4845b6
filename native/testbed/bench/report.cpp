// SPDX-License-Identifier: Apache-2.0
#include "bench/report.h"

#include <poll.h>
#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <fstream>
#include <map>
#include <set>

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

namespace {

struct Field {
  const char *name, *label;
};
constexpr Field kFields[] = {
    {"host", "host"},
    {"gpu_models", "GPUs"},
    {"nvlinks", "NVLinks per GPU"},
    {"driver", "driver"},
    {"nccl_version", "NCCL"},
    {"nccl_variables", "NCCL's variables"},
    {"emulated_platform", "emulated platform"},
};

// "4 x NVIDIA H200"
std::string gpu_models(const Board& board) {
  std::map<std::string, int> counts;
  for (int rank = 0; rank < board.ranks(); ++rank) ++counts[board.about[rank].name];
  std::string text;
  for (const auto& [name, count] : counts) text += (text.empty() ? "" : " + ") + std::to_string(count) + " x " + name;
  return text;
}

// All that NCCL reads from the environment, in one order. Its log and the profiler plugin change no result, and the
// plugin's path may differ between runs.
std::string nccl_variables() {
  std::set<std::string> variables;
  for (char** entry = environ; *entry != nullptr; ++entry) {
    const std::string text = *entry;
    if (!text.starts_with("NCCL_") || text.starts_with("NCCL_DEBUG") || text.starts_with("NCCL_PROFILER")) continue;
    variables.insert(text);
  }
  std::string all;
  for (const std::string& text : variables) all += (all.empty() ? "" : " ") + text;
  return all;
}

std::string shown(const std::string& value) {
  return value == "null" ? "not known" : value.empty() ? "none" : value;
}

std::string version_of_cuda(int version) {
  return std::to_string(version / 1000) + "." + std::to_string(version % 1000 / 10);
}

constexpr const char* kModes[] = {"sweep", "scenario", "serve"};  // as Mode

// The shape of what `matmul` multiplied, as --products takes it; nothing where nothing was.
std::optional<std::string> products_of(const Options& options) {
  const auto multiplies = [](Beside kind) { return kind == Beside::kMatmul || kind == Beside::kBoth; };
  if (!multiplies(options.compute) && std::ranges::none_of(options.besides, multiplies)) return std::nullopt;
  const Products& shape = options.products;
  return std::to_string(shape.tokens) + "x" + std::to_string(shape.width) + "x" + std::to_string(shape.hidden);
}

std::optional<double> measured(double value) {
  return json::when(value >= 0, value);
}

}  // namespace

json::Object machine_object(const Board& board, const StartNews* start, const Sampler* sampler) {
  const auto if_started = [&](auto text) { return start != nullptr ? text() : std::optional<std::string>(); };
  json::Object object;
  object.add("host", host_name())
      .add("gpu_models", if_started([&] { return std::optional(gpu_models(board)); }))
      .add("nvlinks", if_started([&] { return sampler->nvlinks(); }))
      .add("driver", if_started([&] { return unless_empty(sampler->driver()); }))
      .add("nccl_version", if_started([&] { return std::optional(nccl_version_text(start->nccl_version)); }))
      .add("nccl_variables", if_started([] { return std::optional(nccl_variables()); }))
      .add("emulated_platform", if_started([&] { return std::optional(sampler->emulated_platform()); }));
  return object;
}

void check_same_machine(const std::string& path, const json::Object& here) {
  const std::string hint = "measure into a new file, or leave out --resume to start this one again";
  const std::string now = here.text();
  std::ifstream file(path);
  bool known = false;
  for (std::string line; std::getline(file, line) && !file.eof() && line.ends_with('}');) {
    const std::string type = json::field(line, "type");
    if (type == "header") {
      known = !json::field(line, "gpu_models").empty();
      const char* other = " is from another machine (";
      std::string differs;
      for (const Field& field : kFields) {
        const std::string before = json::field(line, field.name), value = json::field(now, field.name);
        if (before == value) continue;
        differs.append(differs.empty() ? "" : "; ").append(field.label).append(": ");
        differs.append(shown(before)).append(" there, ").append(shown(value)).append(" here");
      }
      if (known && !differs.empty()) {
        throw Failure(kExitUsage, std::string("--resume: ").append(path).append(other).append(differs).append(")"),
                      hint);
      }
    }
    if (!known) {
      throw Failure(kExitUsage, "--resume: " + path + " does not say of which machine it is: an older version wrote it",
                    hint);
    }
  }
}

json::Object header_object(const Options& options, const Setting& setting, const Launch& launch, double started_unix_s,
                           const StartNews* start, Sampler* sampler) {
  const Board& board = *launch.board;
  std::vector<json::Raw> gpus;
  for (int rank = 0; start != nullptr && rank < board.ranks(); ++rank) {
    const RankAbout& about = board.about[rank];
    gpus.push_back(json::Object()
                       .add("rank", rank)
                       .add("device", about.device)
                       .add("nvml_index", sampler->nvml_index(rank))
                       .add("name", about.name)
                       .add("uuid", about.uuid)
                       .add("pci", about.pci)
                       .add("sm_count", about.sm_count)
                       .raw());
  }
  const auto if_started = [&](auto text) {
    return start != nullptr ? std::optional<std::string>(text()) : std::nullopt;
  };
  json::Object object;
  object.add("schema", 1)
      .add("mode", kModes[static_cast<size_t>(options.mode)])
      .add("version", kVersion)
      .add("command", options.command)
      .add("started_unix_s", json::Raw{std::to_string(started_unix_s)})
      .add("emulated", setting.emulated)
      .add("moves_data", setting.moves_data)
      .merge(machine_object(board, start, sampler))
      .add("nccl_path", if_started([&] { return start->nccl_path; }))
      .add("cuda_version", if_started([&] { return version_of_cuda(start->cuda_version); }))
      .add("gpu", if_started([&] { return board.about[0].name; }))
      .add("ranks", board.ranks())
      .add("launch", launch.kind)
      .add("products", products_of(options))
      .add("gpus", gpus)
      .add("clock_control", setting.clock_control)
      .add("clock_control_reason", unless_empty(setting.clock_reason));
  return object;
}

// The emulator knows what its GPUs used from the loop's first operation to its last. Its counters are read in real
// time, which on a busy machine is not the loop's.
void take_emulated_energy(const PointNews& news, int ranks, Window& window) {
  if (news.emulated_joules < 0) return;
  window.source = "emulator";
  window.reason.clear();
  window.watts_all_gpus = news.time_us > 0 ? news.emulated_joules / (news.time_us * 1e-6) : 0;
  window.watts_per_gpu = window.watts_all_gpus / ranks;
  window.window_s = news.time_us * 1e-6 * static_cast<double>(news.iterations) * news.repeats;
  window.updates = window.uncertainty_pct = 0;
}

double algbw_gbs(const Point& point, const PointNews& news) {
  return news.time_us > 0 ? static_cast<double>(point.shape.size_bytes) / news.time_us * 1e-3 : 0;
}

json::Object point_object(const Point& point, const PointNews& news, const Window& window, int ranks, bool clock_set,
                          const std::optional<BesideCost>& cost) {
  const PatternInfo& about = info(point.pattern);
  const double algbw = algbw_gbs(point, news);
  const bool known = !window.source.empty();
  const bool only_its = known && !cost;  // else the computation's joules are among them
  const auto if_known = [&](double value) { return json::when(known, value); };
  const bool as_found = point.clock_mhz == kClockAsFound || !clock_set;
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
      .add("op", json::when(about.reduces, info(point.op).name))
      .add("root", json::when(about.has_root(), point.root))
      .add("in_place", point.in_place)
      .add("way", json::when(point.way != Way::kAsGiven, point.way == Way::kAsGiven ? "" : info(point.way).name))
      .add("beside", json::when(cost.has_value(), info(point.beside).name))
      .add("ranks", ranks)
      .add("clock_requested_mhz", json::when(!as_found, point.clock_mhz))
      .add("iterations", news.iterations)
      .add("time_us", news.time_us)
      .add("device_time_us", news.device_us)
      .add("time_low_us", measured(news.low_us))
      .add("time_high_us", measured(news.high_us))
      .add("algbw_gbs", algbw)
      .add("busbw_gbs", algbw * bus_factor(point.pattern, ranks))
      .add("event_us", measured(news.event_us))
      .add("valid", news.valid)
      .add("wrong", json::when(news.wrong >= 0, news.wrong))
      .add("sm_clock_mhz", window.clock_mean_mhz)
      .add("sm_clock_min_mhz", window.clock_min_mhz)
      .add("sm_clock_max_mhz", window.clock_max_mhz)
      .add("watts_per_gpu", if_known(window.watts_per_gpu))
      .add("watts_all_gpus", if_known(window.watts_all_gpus))
      .add("joules_per_gpu", only_its ? if_known(window.watts_per_gpu * news.time_us * 1e-6) : std::nullopt)
      .add("joules_all_gpus", only_its ? if_known(window.watts_all_gpus * news.time_us * 1e-6) : std::nullopt)
      .add("energy_source", unless_empty(window.source))
      .add("energy_window_s", if_known(window.window_s))
      .add("energy_updates", if_known(window.updates))
      .add("energy_uncertainty_pct", if_known(window.uncertainty_pct))
      .add("energy_reason", known ? std::nullopt : unless_empty(window.reason))
      .add("temperature_c", window.temperature_c)
      .add("throttle_reasons", throttle)
      .add("start_ns", news.start_ns)
      .add("end_ns", news.end_ns);
  if (cost) {
    object.add("unit_us", news.unit_us)
        .add("unit_alone_us", cost->alone.us)
        .add("unit_alone_watts_per_gpu", cost->alone.watts_per_gpu)
        .add("slowed_pct", cost->slowed_pct)
        .add("added_us", cost->added_us)
        .add("added_joules_per_gpu", cost->added_joules);
  }
  return object;
}

}  // namespace powerccl::bench
