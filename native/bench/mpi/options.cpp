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
    {"latency", Test::kLatency, false, false},
    {"bw", Test::kBandwidth, false, false},
    {"bibw", Test::kBothWays, false, false},
    {"barrier", Test::kBarrier, false, false},
    {"bcast", Test::kBroadcast, false, false},
    {"reduce", Test::kReduce, true, false},
    {"allreduce", Test::kAllReduce, true, false},
    {"allgather", Test::kAllGather, false, true},
    {"reduce_scatter", Test::kReduceScatter, true, false},
    {"alltoall", Test::kAllToAll, false, true},
    {"gather", Test::kGather, false, true},
    {"scatter", Test::kScatter, false, true},
    {"wait", Test::kWait, false, false},
    {"stencil", Test::kStencil, false, false},
};

constexpr const char* kHint = "powerccl-bench-mpi --help";

[[noreturn]] void usage_error(const std::string& what, const std::string& hint = kHint) {
  throw Failure(kExitUsage, what, hint);
}

constexpr double kMostUs = 3.6e9;  // an hour

OptionTable table_of(Options& options) {
  OptionTable table(kHint);
  table.size("-b,--minbytes", &options.min_bytes);
  table.size("-e,--maxbytes", &options.max_bytes);
  table.size("-i,--stepbytes", &options.step_bytes);
  table.number("-f,--stepfactor", &options.factor, 1.0001, 1e6);
  table.integer("-n,--iters", &options.iterations, 1);
  table.integer("-w,--warmup_iters", &options.warmup, 0);
  table.integer("-c,--check", &options.check, 0);
  table.integer("--back-to-back", &options.back_to_back, 1, 1'000'000);
  table.integer("--window", &options.window, 1, 65536);
  table.number("--compute-us", &options.compute_us, 0, kMostUs);
  table.number("--imbalance-us", &options.imbalance_us, 0, kMostUs);
  table.number("--imbalance-pct", &options.imbalance_pct, 0, 1e6);
  table.text("--json", &options.json);
  table.text("--library", &options.library);
  table.number("--wait-us", &options.wait.wait_us, 0, kMostUs);
  table.integer("--repeat", &options.wait.repeat, 1);
  table.flag("--collective", &options.wait.collective);
  table.number("--step-us", &options.stencil.step_us, 1, kMostUs);
  table.integer("--iterations", &options.stencil.iterations, 1);
  table.integer("--columns", &options.stencil.columns, 3, 1 << 16);
  table.integer("--rows", &options.stencil.rows, 1, 1 << 16);
  table.integer("--sweeps", &options.stencil.sweeps, 1);
  table.value("--halo", [&](const std::string& text) {
    if (text != "sendrecv" && text != "isend") usage_error("--halo: sendrecv or isend, not '" + text + "'");
    options.stencil.sendrecv = text == "sendrecv";
  });
  table.flag("-h,--help", [&] { options.test = Test::kHelp; });
  table.flag("--version", [&] { options.test = Test::kVersion; });
  return table;
}

std::string known_tests() {
  std::string names;
  for (const TestInfo& each : kTests) names += (names.empty() ? "" : ", ") + std::string(each.name);
  return names;
}

void name_test(Options& options, const std::vector<std::string>& words) {
  if (words.empty()) usage_error("no test is named", known_tests());
  const std::string& name = words[0];
  const auto* const found = std::ranges::find_if(kTests, [&](const TestInfo& each) { return name == each.name; });
  if (found == std::end(kTests)) usage_error("no test is called '" + name + "'", known_tests());
  if (words.size() > 1) usage_error("one test at a time; what is '" + words[1] + "'?");
  options.test = found->test;
}

}  // namespace

const TestInfo& info_of(Test test) {
  const auto* const found = std::ranges::find(kTests, test, &TestInfo::test);
  return *found;
}

Options parse_options(int argc, char** argv) {
  Options options;
  options.test = Test::kWait;  // until one is named
  options.command.assign(argv, argv + argc);
  const std::vector<std::string> words = table_of(options).parse(argc, argv);
  if (options.test == Test::kHelp || options.test == Test::kVersion) return options;
  name_test(options, words);
  if (options.min_bytes > options.max_bytes) usage_error("-b is greater than -e");
  if (options.imbalance_pct > 0 && options.compute_us == 0 && options.test != Test::kStencil) {
    usage_error("--imbalance-pct is a part of --compute-us", "add --compute-us, or use --imbalance-us");
  }
  return options;
}

std::vector<size_t> sizes_of(const Options& options, size_t element_bytes) {
  std::vector<size_t> sizes;
  for (size_t size = options.min_bytes; size <= options.max_bytes;) {
    const size_t whole = std::max(size / element_bytes, size_t{1}) * element_bytes;
    if (whole <= std::max(options.max_bytes, element_bytes) && (sizes.empty() || sizes.back() != whole)) {
      sizes.push_back(whole);
    }
    const size_t next = options.step_bytes > 0 ? size + options.step_bytes
                                               : static_cast<size_t>(static_cast<double>(size) * options.factor);
    if (next <= size) break;  // 0, or a factor too small to move on
    size = next;
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
