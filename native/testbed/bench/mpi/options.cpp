// SPDX-License-Identifier: Apache-2.0
#include "bench/mpi/options.h"

#include <algorithm>
#include <iterator>

#include "bench/failure.h"
#include "bench/option_table.h"

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

}  // namespace powerccl::bench::mpi
