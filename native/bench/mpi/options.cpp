// SPDX-License-Identifier: Apache-2.0
#include "bench/mpi/options.h"

#include <getopt.h>

#include <algorithm>
#include <iterator>

#include "bench/failure.h"
#include "bench/values.h"

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

enum Long {
  kJson = 256,
  kLibrary,
  kWindow,
  kComputeUs,
  kImbalanceUs,
  kImbalancePct,
  kWaitUs,
  kRepeat,
  kCollective,
  kStepUs,
  kIterationsOf,
  kColumns,
  kRows,
  kSweeps,
  kHalo,
  kBackToBack,
  kVersionFlag,
};

const option kLongOptions[] = {
    {"minbytes", required_argument, nullptr, 'b'},
    {"maxbytes", required_argument, nullptr, 'e'},
    {"stepbytes", required_argument, nullptr, 'i'},
    {"stepfactor", required_argument, nullptr, 'f'},
    {"iters", required_argument, nullptr, 'n'},
    {"warmup_iters", required_argument, nullptr, 'w'},
    {"check", required_argument, nullptr, 'c'},
    {"back-to-back", required_argument, nullptr, kBackToBack},
    {"window", required_argument, nullptr, kWindow},
    {"compute-us", required_argument, nullptr, kComputeUs},
    {"imbalance-us", required_argument, nullptr, kImbalanceUs},
    {"imbalance-pct", required_argument, nullptr, kImbalancePct},
    {"wait-us", required_argument, nullptr, kWaitUs},
    {"repeat", required_argument, nullptr, kRepeat},
    {"collective", no_argument, nullptr, kCollective},
    {"step-us", required_argument, nullptr, kStepUs},
    {"iterations", required_argument, nullptr, kIterationsOf},
    {"columns", required_argument, nullptr, kColumns},
    {"rows", required_argument, nullptr, kRows},
    {"sweeps", required_argument, nullptr, kSweeps},
    {"halo", required_argument, nullptr, kHalo},
    {"json", required_argument, nullptr, kJson},
    {"library", required_argument, nullptr, kLibrary},
    {"help", no_argument, nullptr, 'h'},
    {"version", no_argument, nullptr, kVersionFlag},
    {nullptr, 0, nullptr, 0},
};

[[noreturn]] void usage_error(const std::string& what, const std::string& hint = "powerccl-bench-mpi --help") {
  throw Failure(kExitUsage, what, hint);
}

constexpr double kMostUs = 3.6e9;  // an hour

void apply_scenario(Options& options, int code, const std::string& value, const std::string& name) {
  switch (code) {
    case kWaitUs:
      options.wait.wait_us = parse_number(value, name, 0, kMostUs);
      break;
    case kRepeat:
      options.wait.repeat = parse_integer(value, name, 1);
      break;
    case kCollective:
      options.wait.collective = true;
      break;
    case kStepUs:
      options.stencil.step_us = parse_number(value, name, 1, kMostUs);
      break;
    case kIterationsOf:
      options.stencil.iterations = parse_integer(value, name, 1);
      break;
    case kColumns:
      options.stencil.columns = parse_integer(value, name, 3, 1 << 16);
      break;
    case kRows:
      options.stencil.rows = parse_integer(value, name, 1, 1 << 16);
      break;
    case kSweeps:
      options.stencil.sweeps = parse_integer(value, name, 1);
      break;
    case kHalo:
      if (value != "sendrecv" && value != "isend") usage_error("--halo: sendrecv or isend, not '" + value + "'");
      options.stencil.sendrecv = value == "sendrecv";
      break;
    default:
      break;
  }
}

void apply(Options& options, int code, const std::string& value, const std::string& name) {
  switch (code) {
    case 'b':
      options.min_bytes = parse_size(value, "-b");
      break;
    case 'e':
      options.max_bytes = parse_size(value, "-e");
      break;
    case 'i':
      options.step_bytes = parse_size(value, "-i");
      break;
    case 'f':
      options.factor = parse_number(value, "-f", 1.0001, 1e6);
      break;
    case 'n':
      options.iterations = parse_integer(value, "-n", 1);
      break;
    case 'w':
      options.warmup = parse_integer(value, "-w", 0);
      break;
    case 'c':
      options.check = parse_integer(value, "-c", 0) > 0;
      break;
    case 'h':
      options.test = Test::kHelp;
      break;
    case kVersionFlag:
      options.test = Test::kVersion;
      break;
    case kBackToBack:
      options.back_to_back = parse_integer(value, name, 1, 1'000'000);
      break;
    case kWindow:
      options.window = parse_integer(value, name, 1, 65536);
      break;
    case kComputeUs:
      options.compute_us = parse_number(value, name, 0, kMostUs);
      break;
    case kImbalanceUs:
      options.imbalance_us = parse_number(value, name, 0, kMostUs);
      break;
    case kImbalancePct:
      options.imbalance_pct = parse_number(value, name, 0, 1e6);
      break;
    case kJson:
      options.json = value;
      break;
    case kLibrary:
      options.library = value;
      break;
    default:
      apply_scenario(options, code, value, name);
  }
}

std::string known_tests() {
  std::string names;
  for (const TestInfo& each : kTests) names += (names.empty() ? "" : ", ") + std::string(each.name);
  return names;
}

void name_test(Options& options, int argc, char** argv) {
  if (optind >= argc) usage_error("no test is named", known_tests());
  const std::string name = argv[optind];
  const auto* const found = std::ranges::find_if(kTests, [&](const TestInfo& each) { return name == each.name; });
  if (found == std::end(kTests)) usage_error("no test is called '" + name + "'", known_tests());
  if (optind + 1 < argc) usage_error("one test at a time; what is '" + std::string(argv[optind + 1]) + "'?");
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
  optind = 0;
  opterr = 0;
  int index = -1;
  for (int code; (code = getopt_long(argc, argv, ":b:e:i:f:n:w:c:h", kLongOptions, &index)) != -1; index = -1) {
    if (code == '?') usage_error("no option is called '" + std::string(argv[optind - 1]) + "'");
    if (code == ':') usage_error(std::string(argv[optind - 1]) + " takes a value");
    const std::string name = index >= 0 ? "--" + std::string(kLongOptions[index].name) : "-";
    apply(options, code, optarg != nullptr ? optarg : "", name);
  }
  if (options.test == Test::kHelp || options.test == Test::kVersion) return options;
  name_test(options, argc, argv);
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
