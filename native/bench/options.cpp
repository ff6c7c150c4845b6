// SPDX-License-Identifier: Apache-2.0
#include "bench/options.h"

#include <getopt.h>

#include <algorithm>

#include "bench/failure.h"
#include "bench/values.h"

namespace powerccl::bench {
namespace {

[[noreturn]] void usage_error(const std::string& what, const std::string& hint = "powerccl-bench --help") {
  throw Failure(kExitUsage, what, hint);
}

bool parse_switch(const std::string& text, const char* what) {
  return parse_integer(text, what, 0, 1) != 0;
}

void add_pattern(Options& options, Pattern pattern) {
  if (std::ranges::find(options.patterns, pattern) == options.patterns.end()) options.patterns.push_back(pattern);
}

void add_patterns(Options& options, const std::string& text) {
  for (const std::string& name : split(text, ',')) {
    if (name == "all") {
      for (const PatternInfo& each : patterns()) add_pattern(options, each.pattern);
    } else if (const auto pattern = pattern_named(name)) {
      add_pattern(options, *pattern);
    } else {
      usage_error("no pattern is called '" + name + "'",
                  "all, all_reduce, broadcast, reduce, all_gather, reduce_scatter, send_receive, scatter, gather, "
                  "all_to_all; or a mode: train, scenario FILE");
    }
  }
}

std::vector<Type> parse_types(const std::string& text) {
  std::vector<Type> chosen;
  for (const std::string& name : split(text, ',')) {
    if (name == "all") {
      for (const TypeInfo& each : types()) chosen.push_back(each.type);
    } else if (const auto type = type_named(name)) {
      chosen.push_back(*type);
    } else {
      usage_error("-d: no type is called '" + name + "'",
                  "float32 (float), float16 (half), bfloat16, float64 (double), int32, int64, all");
    }
  }
  return chosen;
}

std::vector<Op> parse_ops(const std::string& text) {
  std::vector<Op> chosen;
  for (const std::string& name : split(text, ',')) {
    if (name == "all") {
      for (const OpInfo& each : operators()) chosen.push_back(each.op);
    } else if (const auto op = op_named(name)) {
      chosen.push_back(*op);
    } else {
      usage_error("-o: no operator is called '" + name + "'", "sum, prod, max, min, avg, all");
    }
  }
  return chosen;
}

// "all", or names with commas.
std::vector<Way> parse_ways(const std::string& text) {
  std::vector<Way> chosen;
  for (const std::string& name : split(text, ',')) {
    if (name == "all") {
      for (const WayInfo& each : ways()) chosen.push_back(each.way);
    } else if (const auto way = way_named(name)) {
      chosen.push_back(*way);
    } else {
      usage_error("--way: no way is called '" + name + "'", "plain, symmetric, copy-engine, efficiency, all");
    }
  }
  return chosen;
}

// What else is computed: nothing first, then what was named, each once.
std::vector<Beside> parse_besides(const std::string& text) {
  std::vector<Beside> chosen{Beside::kNothing};
  const auto add = [&](Beside each) {
    if (std::ranges::find(chosen, each) == chosen.end()) chosen.push_back(each);
  };
  for (const std::string& name : split(text, ',')) {
    if (name == "all") {
      for (size_t i = 0; i < kBesides; ++i) add(static_cast<Beside>(i));
    } else if (const auto beside = beside_named(name)) {
      add(*beside);
    } else {
      usage_error("--beside: no computation is called '" + name + "'", "matmul, memory, both, all");
    }
  }
  return chosen;
}

Beside parse_compute(const std::string& text) {
  for (size_t i = 0; i < kBesides; ++i) {
    if (text == compute_name_of(static_cast<Beside>(i))) return static_cast<Beside>(i);
  }
  usage_error("--compute: no computation is called '" + text + "'", "fma, matmul, memory, both");
}

Products parse_products(const std::string& text) {
  const std::vector<std::string> sides = split(text, 'x');
  if (sides.size() != 3) usage_error("--products: TOKENSxWIDTHxHIDDEN, not '" + text + "'", "4096x4096x14336");
  const auto side = [&](size_t index) { return parse_integer(sides[index], "--products", 16, 1 << 20); };
  return {side(0), side(1), side(2)};
}

enum LongOnly {
  kThreads = 256,
  kInPlace,
  kGrouped,
  kWay,
  kBeside,
  kProducts,
  kJson,
  kJsonLines,
  kResume,
  kSkip,
  kMinTime,
  kNoEnergy,
  kNccl,
  kRendezvous,
  kClock,
  kSetClocks,
  kClockSocket,
  kSettle,
  kSampleMs,
  kEvents,
  kBlocking,
  kVersionFlag,
  kModel,
  kTrainIterations,
  kSeconds,
  kCompute,
  kForward,
  kBackward,
  kBuckets,
  kOverlap,
  kTrials,
};

const option kLongOptions[] = {
    {"minbytes", required_argument, nullptr, 'b'},
    {"maxbytes", required_argument, nullptr, 'e'},
    {"stepbytes", required_argument, nullptr, 'i'},
    {"stepfactor", required_argument, nullptr, 'f'},
    {"iters", required_argument, nullptr, 'n'},
    {"warmup_iters", required_argument, nullptr, 'w'},
    {"check", required_argument, nullptr, 'c'},
    {"datatype", required_argument, nullptr, 'd'},
    {"dtype", required_argument, nullptr, 'd'},
    {"op", required_argument, nullptr, 'o'},
    {"root", required_argument, nullptr, 'r'},
    {"ngpus", required_argument, nullptr, 'g'},
    {"gpus", required_argument, nullptr, 'g'},
    {"cudagraph", required_argument, nullptr, 'G'},
    {"graph", required_argument, nullptr, 'G'},
    {"timeout", required_argument, nullptr, 'T'},
    {"per_iter_timing", required_argument, nullptr, 'I'},
    {"output_file", required_argument, nullptr, kJson},
    {"events", no_argument, nullptr, kEvents},
    {"blocking", no_argument, nullptr, kBlocking},
    {"local_register", required_argument, nullptr, 'R'},
    {"way", required_argument, nullptr, kWay},
    {"beside", required_argument, nullptr, kBeside},
    {"threads", no_argument, nullptr, kThreads},
    {"in-place", no_argument, nullptr, kInPlace},
    {"grouped", no_argument, nullptr, kGrouped},
    {"json", required_argument, nullptr, kJson},
    {"json-lines", required_argument, nullptr, kJsonLines},
    {"resume", no_argument, nullptr, kResume},
    {"skip", required_argument, nullptr, kSkip},
    {"min-time", required_argument, nullptr, kMinTime},
    {"no-energy", no_argument, nullptr, kNoEnergy},
    {"nccl", required_argument, nullptr, kNccl},
    {"rendezvous", required_argument, nullptr, kRendezvous},
    {"clock", required_argument, nullptr, kClock},
    {"clocks", required_argument, nullptr, kClock},
    {"set-clocks", no_argument, nullptr, kSetClocks},
    {"clock-socket", required_argument, nullptr, kClockSocket},
    {"settle", required_argument, nullptr, kSettle},
    {"sample-ms", required_argument, nullptr, kSampleMs},
    {"model", required_argument, nullptr, kModel},
    {"iterations", required_argument, nullptr, kTrainIterations},
    {"seconds", required_argument, nullptr, kSeconds},
    {"compute", required_argument, nullptr, kCompute},
    {"products", required_argument, nullptr, kProducts},
    {"forward-ms", required_argument, nullptr, kForward},
    {"backward-ms", required_argument, nullptr, kBackward},
    {"buckets", required_argument, nullptr, kBuckets},
    {"overlap", required_argument, nullptr, kOverlap},
    {"trials-per-process", required_argument, nullptr, kTrials},
    {"help", no_argument, nullptr, 'h'},
    {"version", no_argument, nullptr, kVersionFlag},
    {nullptr, 0, nullptr, 0},
};

void apply_train(Options& options, int code, const std::string& value) {
  TrainOptions& train = options.train;
  switch (code) {
    case kModel:
      train.model = value;
      break;
    case kTrainIterations:
      train.iterations = parse_integer(value, "--iterations", 1);
      options.scenario_iterations = train.iterations;
      break;
    case kSeconds:
      options.seconds = parse_number(value, "--seconds", 0.001, 86400);
      break;
    case kCompute:
      options.compute = parse_compute(value);
      break;
    case kForward:
      train.forward_ms = parse_number(value, "--forward-ms", 0, 1e6);
      break;
    case kBackward:
      train.backward_ms = parse_number(value, "--backward-ms", 0, 1e6);
      break;
    case kBuckets:
      train.buckets_bytes.clear();
      for (const std::string& each : split(value, ',')) train.buckets_bytes.push_back(parse_size(each, "--buckets"));
      if (train.buckets_bytes.size() > 32) usage_error("--buckets: at most 32");
      break;
    case kOverlap:
      if (value != "none" && value != "backward") usage_error("--overlap: none or backward, not '" + value + "'");
      train.overlap = value == "none" ? Overlap::kNone : Overlap::kBackward;
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
      options.warmup = options.train.warmup = parse_integer(value, "-w", 0);
      break;
    case 'c':
      options.check = parse_integer(value, "-c", 0);
      break;
    case 'd':
      options.types = parse_types(value);
      options.train.type = options.types.front();
      break;
    case 'o':
      options.ops = parse_ops(value);
      break;
    case 'r':
      options.root = value == "all" ? -1 : parse_integer(value, "-r", 0);
      break;
    case 'g':
      options.gpus = parse_integer(value, "-g", 1, 64);
      break;
    case 'z':
      options.blocking = parse_integer(value, "-z", 0, 3) != 0;
      break;
    case kWay:
      options.ways = parse_ways(value);
      break;
    case kBeside:
      options.besides = parse_besides(value);
      break;
    case kProducts:
      options.products = parse_products(value);
      break;
    case 'R':
      options.registration = parse_integer(value, "-R", 0, 2);
      if (options.registration == 1)
        usage_error("-R 1 is not offered: use 0 (not registered) or 2 (symmetric windows)");
      break;
    case 'G':
      options.graph_launches = parse_integer(value, "-G", 0);
      break;
    case 'T':
      options.timeout_s = parse_integer(value, "-T", 0);
      break;
    case 'I':
      options.events = parse_switch(value, "-I");
      break;
    case 'J':
    case kJson:
      options.json = value;
      break;
    case 'h':
      options.mode = Mode::kHelp;
      break;
    case kVersionFlag:
      options.mode = Mode::kVersion;
      break;
    case kEvents:
      options.events = true;
      break;
    case kBlocking:
      options.blocking = true;
      break;
    case kThreads:
      options.threads = true;
      break;
    case kInPlace:
      options.in_place = true;
      break;
    case kGrouped:
      options.grouped = true;
      break;
    case kJsonLines:
      options.json_lines = value;
      break;
    case kResume:
      options.resume = true;
      break;
    case kSkip:
      options.skip.push_back(value);
      break;
    case kMinTime:
      options.min_time_s = parse_number(value, "--min-time", 0, 3600);
      break;
    case kNoEnergy:
      options.energy = false;
      break;
    case kNccl:
      options.nccl = value;
      break;
    case kRendezvous:
      options.rendezvous = value;
      break;
    case kClock:
      options.clocks_mhz = parse_clocks(value);
      break;
    case kSetClocks:
      options.set_clocks = true;
      break;
    case kClockSocket:
      options.clock_socket = parse_integer(value, "--clock-socket", 3, 1 << 20);
      break;
    case kSettle:
      options.settle_s = parse_number(value, "--settle", 0, 60);
      break;
    case kSampleMs:
      options.sample_ms = parse_integer(value, "--sample-ms", 1, 1000);
      break;
    case kTrials:
      options.trials_per_process = parse_integer(value, "--trials-per-process", 1, 1'000'000);
      break;
    case '?':
      usage_error("unknown option, or an option without its value: " + name);
    default:
      apply_train(options, code, value);
  }
}

void check_serve(const Options& options) {
  if (!options.patterns.empty()) usage_error("serve takes no pattern: requests name them");
  if (options.threads) usage_error("serve cannot use --threads", "each rank is a process that loads NCCL anew");
  if (options.wants_clock() || options.set_clocks || options.clock_socket >= 0) usage_error("serve sets no clocks");
  if (!options.json.empty() || !options.json_lines.empty()) usage_error("serve replies on stdout and writes no file");
  if (options.events || options.graph_launches > 0) usage_error("serve takes neither --events nor --graph");
}

void check_together(const Options& options) {
  if (options.mode != Mode::kSweep && options.mode != Mode::kServe && options.registration != 0)
    usage_error("-R is for patterns and serve");
  if (options.ways != std::vector<Way>{Way::kAsGiven}) {
    if (options.mode != Mode::kSweep) usage_error("--way is for patterns");
    if (options.registration != 0) usage_error("--way chooses the buffers: leave -R out");
    if (options.graph_launches > 0) usage_error("--way measures no graphs: leave -G out");
    for (const Way way : options.ways) {
      const bool any = std::ranges::any_of(options.patterns, [&](Pattern each) { return carries_out(way, each); });
      if (!any)
        usage_error(std::string("--way ") + info(way).name + ": NCCL carries out none of these patterns that way");
    }
  }
  if (options.besides.size() > 1) {
    if (options.mode != Mode::kSweep) usage_error("--beside is for patterns");
    if (options.graph_launches > 0 || options.blocking || options.in_place)
      usage_error("--beside measures operations back to back, out of place: leave -G, -z and --in-place out");
  }
  if (options.mode != Mode::kScenario && options.seconds) usage_error("--seconds is for scenario");
  if (options.mode != Mode::kScenario && options.compute != Beside::kNothing) usage_error("--compute is for scenario");
  if (options.seconds && options.scenario_iterations) usage_error("--seconds and --iterations exclude each other");
  if (options.seconds && options.train.warmup == 0) {
    usage_error("--seconds needs a warm-up, which tells how long an iteration takes", "-w 1 or more");
  }
  if (options.mode == Mode::kServe) return check_serve(options);
  if (options.mode != Mode::kSweep) {
    const std::string mode = options.mode == Mode::kTrain ? "train" : "scenario";
    if (!options.patterns.empty()) usage_error(mode + " takes no pattern");
    if (options.clocks_mhz.size() > 1) usage_error(mode + " takes one --clock");
    return;
  }
  if (options.patterns.empty())
    usage_error("which pattern?", "powerccl-bench all_reduce, powerccl-bench all, or --help");
  if (options.max_bytes < options.min_bytes) usage_error("-e is less than -b");
  if (options.blocking && options.graph_launches > 0) usage_error("--blocking and --graph exclude each other");
  if (options.events && options.graph_launches > 0) usage_error("--events and --graph exclude each other");
  if (options.resume && options.json_lines.empty()) usage_error("--resume needs --json-lines FILE");
}

}  // namespace

std::vector<int> parse_clocks(const std::string& text) {
  std::vector<int> clocks;
  for (const std::string& part : split(text, ',')) {
    if (part == "default") {
      clocks.push_back(kClockAsFound);
      continue;
    }
    const std::vector<std::string> range = split(part, ':');
    if (range.size() != 1 && range.size() != 3)
      usage_error("--clocks: '" + part + "' is no clock", "1590,900 or 1590:300:15");
    const int first = parse_integer(range[0], "--clocks", 1, 10000);
    if (range.size() == 1) {
      clocks.push_back(first);
      continue;
    }
    const int last = parse_integer(range[1], "--clocks", 1, 10000);
    const int step = parse_integer(range[2], "--clocks", 1, 10000);
    for (int clock = first; last < first ? clock >= last : clock <= last; clock += last < first ? -step : step) {
      clocks.push_back(clock);
    }
  }
  return clocks;
}

Options parse_options(int argc, char** argv) {
  Options options;
  for (int i = 0; i < argc; ++i) options.command.emplace_back(argv[i]);
  opterr = 0;
  optind = 0;  // glibc: start afresh, permuting
  bool check_given = false;
  for (;;) {
    const int code = getopt_long(argc, argv, "b:e:i:f:n:w:c:d:o:r:g:z:R:G:T:I:J:h", kLongOptions, nullptr);
    if (code == -1) break;
    // getopt leaves the letter in optopt, or nothing of an unknown long option but the word it has just passed.
    const bool letter = optopt > 0 && optopt < 256;
    const std::string word = letter ? std::string("-") + static_cast<char>(optopt) : argv[std::max(optind - 1, 0)];
    apply(options, code, optarg != nullptr ? optarg : "", word);
    check_given = check_given || code == 'c';
  }
  for (int i = optind; i < argc; ++i) {
    const std::string word = argv[i];
    if (word == "train") {
      options.mode = options.mode == Mode::kSweep ? Mode::kTrain : options.mode;
    } else if (word == "scenario" && options.mode == Mode::kSweep) {
      if (++i == argc) usage_error("scenario of which file?", "powerccl-bench scenario bench/scenarios/ddp.scn");
      options.mode = Mode::kScenario;
      options.scenario = argv[i];
    } else if (word == "serve" && options.mode == Mode::kSweep) {
      options.mode = Mode::kServe;
    } else if (word != "sweep") {
      add_patterns(options, word);
    }
  }
  if (options.mode == Mode::kServe && !check_given) options.check = 0;  // emulated data are moved by few cores
  if (options.mode != Mode::kHelp && options.mode != Mode::kVersion) check_together(options);
  return options;
}

}  // namespace powerccl::bench
