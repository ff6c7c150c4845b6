// SPDX-License-Identifier: Apache-2.0
#include "bench/mpi/report.h"

#include <unistd.h>

#include <cerrno>
#include <cstdarg>
#include <cstdio>
#include <cstdlib>
#include <cstring>

#include "bench/failure.h"
#include "bench/mpi/clock.h"
#include "bench/version.h"

namespace powerccl::bench::mpi {
namespace {

// What decides how a rank waits.
constexpr const char* kWaitingVariables[] = {
    "LD_PRELOAD",
    "POWERCCL_MPI",
    "POWERCCL_MPI_MAX_DELAY",
    "POWERCCL_MPI_BUDGET",  // the old name, until 0.2
    "POWERCCL_MPI_METHOD",
    "POWERCCL_MPI_COLLECTIVES",
    "MPIR_CVAR_CH4_PROGRESS_THROTTLE",
    "MPIR_CVAR_CH4_PROGRESS_THROTTLE_NO_PROGRESS_COUNT",
    "MPIR_CVAR_ENABLE_HEAVY_YIELD",
    "OMPI_MCA_mpi_yield_when_idle",
    "I_MPI_WAIT_MODE",
    "I_MPI_THREAD_YIELD",
};

json::Object environment() {
  json::Object found;
  for (const char* name : kWaitingVariables) {
    const char* value = std::getenv(name);
    if (value != nullptr) found.add(name, value);
  }
  return found;
}

std::string host() {
  char name[256] = "";
  gethostname(name, sizeof name - 1);
  return name;
}

const char* mode_of(Test test) {
  switch (test) {
    case Test::kLatency:
    case Test::kBandwidth:
    case Test::kBothWays:
      return "point_to_point";
    case Test::kWait:
      return "wait";
    case Test::kStencil:
      return "stencil";
    default:
      return "collective";
  }
}

}  // namespace

Report::Report(const Options& options, const Mpi& mpi)
    : options_(options),
      mpi_(mpi),
      started_unix_s_(1e-9 * static_cast<double>(read_clock_ns(CLOCK_REALTIME))),
      started_ns_(now_ns()) {
  say("# powerccl-bench-mpi %s: %s, %d rank%s\n# %s (%s ABI), %s\n", kVersion, info_of(options.test).name, mpi.size(),
      mpi.size() == 1 ? "" : "s", mpi.version().c_str(), mpi.abi().name, mpi.path().c_str());
}

void Report::say(const char* format, ...) const {
  if (!mpi_.leads()) return;
  va_list arguments;
  va_start(arguments, format);
  std::vprintf(format, arguments);
  va_end(arguments);
  std::fflush(stdout);
}

void Report::write(const std::string& error) const {
  if (!mpi_.leads() || options_.json.empty()) return;
  json::Object file;
  file.add("schema", 1).add("mode", mode_of(options_.test)).add("test", info_of(options_.test).name);
  file.add("version", kVersion).add("finished", error.empty());
  file.add("error", error.empty() ? json::Raw{"null"} : json::Raw{json::quote(error)});
  file.add("command", options_.command).add("started_unix_s", started_unix_s_);
  file.add("seconds", 1e-9 * static_cast<double>(now_ns() - started_ns_)).add("host", host());
  file.add("mpi_version", mpi_.version()).add("mpi_abi", mpi_.abi().name).add("mpi_path", mpi_.path());
  file.add("ranks", mpi_.size()).add("environment", environment().raw());
  file.add("compute_us", options_.compute_us).add("imbalance_us", options_.imbalance_us);
  file.add("imbalance_pct", options_.imbalance_pct);
  file.add("results", results_).add("summary", summary_.raw());
  const std::string temporary = options_.json + "." + std::to_string(getpid());
  std::FILE* out = std::fopen(temporary.c_str(), "w");
  const std::string text = file.text() + "\n";
  bool fine = out != nullptr && std::fwrite(text.data(), 1, text.size(), out) == text.size();
  if (out != nullptr) fine = std::fclose(out) == 0 && fine;
  if (!fine || std::rename(temporary.c_str(), options_.json.c_str()) != 0) {
    const std::string reason = std::strerror(errno);
    std::remove(temporary.c_str());
    throw Failure(kExitMissing, "--json: cannot write " + options_.json + ": " + reason);
  }
}

}  // namespace powerccl::bench::mpi
