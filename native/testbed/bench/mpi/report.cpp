// SPDX-License-Identifier: Apache-2.0
#include "bench/mpi/report.h"

#include <sys/resource.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <iterator>
#include <limits>
#include <numeric>

#include "bench/option_table.h"
#include "bench/values.h"

namespace powerccl::bench::mpi {
namespace {

constexpr size_t kLargeBytes = 8192;  // OSU's limit between many and few repetitions

constexpr TestInfo kTests[] = {
    {"latency", Test::kLatency, "point_to_point", {}},
    {"bw", Test::kBandwidth, "point_to_point", {}},
    {"bibw", Test::kBothWays, "point_to_point", {}},
    {"barrier", Test::kBarrier, "collective", {}},
    {"bcast", Test::kBroadcast, "collective", Pattern::kBroadcast},
    {"reduce", Test::kReduce, "collective", Pattern::kReduce},
    {"allreduce", Test::kAllReduce, "collective", Pattern::kAllReduce},
    {"allgather", Test::kAllGather, "collective", Pattern::kAllGather},
    {"reduce_scatter", Test::kReduceScatter, "collective", Pattern::kReduceScatter},
    {"alltoall", Test::kAllToAll, "collective", Pattern::kAllToAll},
    {"gather", Test::kGather, "collective", Pattern::kGather},
    {"scatter", Test::kScatter, "collective", Pattern::kScatter},
    {"wait", Test::kWait, "wait", {}},
    {"stencil", Test::kStencil, "stencil", {}},
};

constexpr const char* kHint = "powerccl-bench-mpi --help";

[[noreturn]] void usage_error(const std::string& what, const std::string& hint = kHint) {
  throw Failure(kExitUsage, what, hint);
}

constexpr double kMostUs = 3.6e9;  // an hour

constexpr const char* kAbout = R"(powerccl-bench-mpi: measure an MPI library, and how its ranks wait

usage: mpiexec -n N powerccl-bench-mpi TEST [options]

TEST
  latency bw bibw         messages between two ranks
  barrier bcast reduce allreduce allgather reduce_scatter alltoall gather
  scatter                 time of each call, averaged over ranks; a barrier
                          follows each call (as in the OSU benchmarks)
  wait                    rank 0 waits in MPI_Recv while rank 1 computes: CPU
                          time used, and how late rank 0 continues
  stencil                 mini-application: Jacobi on slabs, with a halo
                          exchange and an all-reduce in each iteration
Defaults are in parentheses. docs/reference/bench.md has tests and files.
)";
constexpr const char* kExits = R"(exit codes: 0 success; 1 wrong results; 2 wrong usage; 3 something is missing;
            4 a rank failed)";

void add_sweeps(OptionTable& table, Options& options) {
  table.group("sweeps");
  table.size("-b,--minbytes", "first size (1)", &options.min_bytes);
  table.size("-e,--maxbytes", "last size (1M)", &options.max_bytes);
  table.number("-f,--stepfactor", "N", "factor from one size to the next (2)", &options.factor, 1.0001, 1e6);
  table.size("-i,--stepbytes", "difference from one size to the next, instead of -f", &options.step_bytes);
  table.integer("-n,--iters", "measured operations (OSU's: fewer above 8 KiB)", &options.iterations, 1);
  table.integer("-w,--warmup_iters", "operations before them (OSU's)", &options.warmup, 0);
  table.integer("-c,--check", "1: check results; 0: do not (1)", &options.check, 0);
  table.integer("--window", "messages in flight for bw and bibw (64)", &options.window, 1, 65536);
  table.integer("--back-to-back", "time N calls together, without barriers (1)", &options.back_to_back, 1, 1'000'000);
  table.number("--compute-us", "X", "microseconds that each rank computes before each operation\n(0)",
               &options.compute_us, 0, kMostUs);
  table.number("--imbalance-us", "X", "extra microseconds of the last rank; those between compute\na part of them (0)",
               &options.imbalance_us, 0, kMostUs);
  table.number("--imbalance-pct", "X", "the same, in percent of --compute-us; of stencil: extra work\nof the last rank",
               &options.imbalance_pct, 0, 1e6);
}

void add_waiting(OptionTable& table, Options& options) {
  table.group("wait");
  table.number("--wait-us", "X", "microseconds that rank 1 computes (1000000)", &options.wait.wait_us, 0, kMostUs);
  table.integer("--repeat", "number of waits (5)", &options.wait.repeat, 1);
  table.flag("--collective", "all ranks wait for the last one in MPI_Barrier", &options.wait.collective);
  StencilOptions& stencil = options.stencil;
  table.group("stencil");
  table.number("--step-us", "X",
               "microseconds of computation per iteration (20000);\ncalibrated, unless --sweeps is given",
               &stencil.step_us, 1, kMostUs);
  table.integer("--sweeps", "sweeps over a rank's rows per iteration; the work is then\nthe same in all runs",
                &stencil.sweeps, 1);
  table.integer("--iterations", "number of iterations (50)", &stencil.iterations, 1);
  table.integer("--rows", "rows of a rank's slab (128)", &stencil.rows, 1, 1 << 16);
  table.integer("--columns", "columns of a rank's slab (512)", &stencil.columns, 3, 1 << 16);
  table.value("--halo", "HOW", "sendrecv, or isend (Irecv, Isend, Waitall)", [&](const std::string& text) {
    if (text != "sendrecv" && text != "isend") usage_error("--halo: sendrecv or isend, not '" + text + "'");
    stencil.sendrecv = text == "sendrecv";
  });
  table.group("all");
  table.text("--json", "FILE", "write all results as one object", &options.json);
  table.text("--library", "FILE", "MPI library (POWERCCL_BENCH_MPI_LIBRARY, else the launcher's)", &options.library);
}

void name_test(Options& options, const std::vector<std::string>& words) {
  if (words.empty()) usage_error("no test is named", names_of(kTests));
  const std::string& name = words[0];
  const auto* const test = std::ranges::find_if(kTests, [&](const TestInfo& each) { return name == each.name; });
  if (test == std::end(kTests)) usage_error("no test is called '" + name + "'", names_of(kTests));
  if (words.size() > 1) usage_error("one test at a time; what is '" + words[1] + "'?");
  options.test = test->test;
}

}  // namespace

const TestInfo& info_of(Test test) {
  return *std::ranges::find(kTests, test, &TestInfo::test);
}

Options parse_options(int argc, char** argv) {
  Options options;
  options.command.assign(argv, argv + argc);
  OptionTable table("powerccl-bench-mpi", kAbout, kExits);
  add_sweeps(table, options);
  add_waiting(table, options);
  const std::vector<std::string> words = table.parse(argc, argv, &options.says);
  if (!options.says.empty()) return options;
  name_test(options, words);
  if (options.min_bytes > options.max_bytes) usage_error("-b is greater than -e");
  if (options.imbalance_pct > 0 && options.compute_us == 0 && options.test != Test::kStencil) {
    usage_error("--imbalance-pct is a part of --compute-us", "add --compute-us, or use --imbalance-us");
  }
  return options;
}

std::vector<size_t> sizes_of(const Options& options, size_t element_bytes) {
  std::vector<size_t> sizes;
  for (const size_t size : sizes_between(options.min_bytes, options.max_bytes, options.step_bytes, options.factor)) {
    const size_t whole = std::max(size / element_bytes, size_t{1}) * element_bytes;
    if (whole <= std::max(options.max_bytes, element_bytes) && (sizes.empty() || sizes.back() != whole)) {
      sizes.push_back(whole);
    }
  }
  return sizes;
}

Iterations iterations_of(const Options& options, size_t bytes) {
  const bool large = bytes > kLargeBytes;
  Iterations osu{};
  switch (options.test) {
    case Test::kLatency:
      osu = large ? Iterations{1000, 10} : Iterations{10000, 100};
      break;
    case Test::kBandwidth:
    case Test::kBothWays:
      osu = large ? Iterations{20, 2} : Iterations{100, 10};
      break;
    default:
      osu = large ? Iterations{100, 10} : Iterations{1000, 100};
  }
  if (options.iterations > 0) osu.measured = options.iterations;
  if (options.warmup >= 0) osu.warmup = options.warmup;
  return osu;
}

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
