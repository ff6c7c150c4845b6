// SPDX-License-Identifier: Apache-2.0
#include "bench/mpi/report.h"

#include <sys/resource.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <limits>
#include <numeric>

#include "bench/failure.h"
#include "bench/values.h"

namespace powerccl::bench::mpi {
namespace {

// What decides how a rank waits.
constexpr const char* kWaitingVariables[] = {
    "LD_PRELOAD",
    "POWERCCL_MPI",
    "POWERCCL_MPI_MAX_DELAY",
    "POWERCCL_MPI_METHOD",
    "POWERCCL_MPI_COLLECTIVES",
    "MPIR_CVAR_CH4_PROGRESS_THROTTLE",
    "MPIR_CVAR_CH4_PROGRESS_THROTTLE_NO_PROGRESS_COUNT",
    "MPIR_CVAR_ENABLE_HEAVY_YIELD",
    "OMPI_MCA_mpi_yield_when_idle",
    "I_MPI_WAIT_MODE",
    "I_MPI_THREAD_YIELD",
};

json::Object waiting_variables() {
  json::Object variables;
  for (const char* name : kWaitingVariables) {
    const char* value = std::getenv(name);
    if (value != nullptr) variables.add(name, value);
  }
  return variables;
}

// The value that `part` (0 to 1) of the sorted values are below, interpolated between neighbours.
double quantile(const std::vector<double>& sorted, double part) {
  if (sorted.empty()) return std::numeric_limits<double>::quiet_NaN();
  const double place = part * static_cast<double>(sorted.size() - 1);
  const auto below = static_cast<size_t>(place);
  const size_t above = std::min(below + 1, sorted.size() - 1);
  return std::lerp(sorted[below], sorted[above], place - static_cast<double>(below));
}

}  // namespace

double process_cpu_s() {
  rusage used{};
  getrusage(RUSAGE_SELF, &used);
  const auto seconds = [](const timeval& time) {
    return static_cast<double>(time.tv_sec) + 1e-6 * static_cast<double>(time.tv_usec);
  };
  return seconds(used.ru_utime) + seconds(used.ru_stime);
}

void compute_us(double us) {
  if (us <= 0) return;
  const int64_t end = host_now_ns() + static_cast<int64_t>(us * 1000);
  while (host_now_ns() < end) {
  }
}

Spread Spread::of(std::vector<double> values) {
  std::ranges::sort(values);
  const double sum = std::accumulate(values.begin(), values.end(), 0.0);
  return {.mean = values.empty() ? std::numeric_limits<double>::quiet_NaN() : sum / static_cast<double>(values.size()),
          .median = quantile(values, 0.5),
          .low = quantile(values, 0.25),
          .high = quantile(values, 0.75),
          .min = quantile(values, 0),
          .max = quantile(values, 1)};
}

json::Raw Spread::json() const {
  return json::Object()
      .add("mean", mean)
      .add("median", median)
      .add("low", low)
      .add("high", high)
      .add("min", min)
      .add("max", max)
      .raw();
}

Report::Report(const Options& options, const Mpi& mpi) : options_(options), mpi_(mpi), started_ns_(host_now_ns()) {
  const TestInfo& test = info_of(options.test);
  header_.add("schema", 1).add("mode", test.mode).add("test", test.name).add("version", kVersion);
  header_.add("command", options.command);
  header_.add("started_unix_s", 1e-9 * static_cast<double>(read_clock_ns(CLOCK_REALTIME)));
  header_.add("host", host_name()).add("mpi_version", mpi.version()).add("mpi_abi", mpi.abi().name);
  header_.add("mpi_path", mpi.path()).add("ranks", mpi.size()).add("environment", waiting_variables().raw());
  header_.add("compute_us", options.compute_us).add("imbalance_us", options.imbalance_us);
  header_.add("imbalance_pct", options.imbalance_pct);
  write_line("header", header_);
}

void Report::write_line(const char* type, const json::Object& object) const {
  if (!mpi_.leads()) return;
  std::puts(json::Object().add("type", type).merge(object).text().c_str());
  std::fflush(stdout);
}

void Report::add(const json::Object& result) {
  results_.push_back(result.raw());
  write_line("result", result);
}

void Report::conclude() const {
  json::Object ending;
  ending.add("finished", true).add("error", std::nullopt).add("seconds", 1e-6 * us_since(started_ns_));
  write_line("summary", json::Object().merge(ending).merge(summary_));
  if (!mpi_.leads() || options_.json.empty()) return;
  json::Object file = header_;
  file.merge(ending).add("results", results_).add("summary", summary_.raw());
  const std::string reason = write_whole(options_.json, file.text() + "\n");
  if (!reason.empty()) throw Failure(kExitMissing, "--json: " + reason);
}

}  // namespace powerccl::bench::mpi
