// SPDX-License-Identifier: Apache-2.0
#include "bench/options.h"

#include <algorithm>

#include "bench/failure.h"
#include "bench/option_table.h"
#include "bench/values.h"

namespace powerccl::bench {
namespace {

constexpr const char* kHint = "powerccl-bench --help";

[[noreturn]] void usage_error(const std::string& what, const std::string& hint = kHint) {
  throw Failure(kExitUsage, what, hint);
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

// "all", or names with commas. `what` is the option and the kind of thing that it names.
template <typename T, typename Infos>
std::vector<T> parse_names(const std::string& text, const Infos& infos, T Infos::value_type::* member,
                           std::optional<T> (*named)(const std::string&), const char* what, const char* known) {
  std::vector<T> chosen;
  for (const std::string& name : split(text, ',')) {
    if (name == "all") {
      for (const auto& each : infos) chosen.push_back(each.*member);
    } else if (const auto one = named(name)) {
      chosen.push_back(*one);
    } else {
      usage_error(std::string(what) + " is called '" + name + "'", known);
    }
  }
  return chosen;
}

std::vector<Type> parse_types(const std::string& text) {
  return parse_names(text, types(), &TypeInfo::type, type_named, "-d: no type",
                     "float32 (float), float16 (half), bfloat16, float64 (double), int32, int64, all");
}

std::vector<Op> parse_ops(const std::string& text) {
  return parse_names(text, operators(), &OpInfo::op, op_named, "-o: no operator", "sum, prod, max, min, avg, all");
}

std::vector<Way> parse_ways(const std::string& text) {
  return parse_names(text, ways(), &WayInfo::way, way_named, "--way: no way",
                     "plain, symmetric, copy-engine, efficiency, all");
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

std::vector<size_t> parse_buckets(const std::string& text) {
  std::vector<size_t> buckets_bytes;
  for (const std::string& each : split(text, ',')) buckets_bytes.push_back(parse_size(each, "--buckets"));
  if (buckets_bytes.size() > 32) usage_error("--buckets: at most 32");
  return buckets_bytes;
}

Overlap parse_overlap(const std::string& text) {
  if (text != "none" && text != "backward") usage_error("--overlap: none or backward, not '" + text + "'");
  return text == "none" ? Overlap::kNone : Overlap::kBackward;
}

void add_sweep(OptionTable& table, Options& options) {
  table.size("-b,--minbytes", &options.min_bytes);
  table.size("-e,--maxbytes", &options.max_bytes);
  table.size("-i,--stepbytes", &options.step_bytes);
  table.number("-f,--stepfactor", &options.factor, 1.0001, 1e6);
  table.integer("-n,--iters", &options.iterations, 1);
  table.value("-w,--warmup_iters",
              [&](const std::string& text) { options.warmup = options.train.warmup = parse_integer(text, "-w", 0); });
  table.integer("-c,--check", &options.check, 0);
  table.value("-d,--datatype,--dtype", [&](const std::string& text) {
    options.types = parse_types(text);
    options.train.type = options.types.front();
  });
  table.value("-o,--op", [&](const std::string& text) { options.ops = parse_ops(text); });
  table.value("-r,--root",
              [&](const std::string& text) { options.root = text == "all" ? -1 : parse_integer(text, "-r", 0); });
  table.value("-z", [&](const std::string& text) { options.blocking = parse_integer(text, "-z", 0, 3) != 0; });
  table.flag("--blocking", &options.blocking);
  table.value("-R,--local_register", [&](const std::string& text) {
    options.registration = parse_integer(text, "-R", 0, 2);
    if (options.registration == 1) usage_error("-R 1 is not offered: use 0 (not registered) or 2 (symmetric windows)");
  });
  table.value("--way", [&](const std::string& text) { options.ways = parse_ways(text); });
  table.value("--beside", [&](const std::string& text) { options.besides = parse_besides(text); });
  table.value("--products", [&](const std::string& text) { options.products = parse_products(text); });
  table.integer("-G,--cudagraph,--graph", &options.graph_launches, 0);
  table.value("-I,--per_iter_timing",
              [&](const std::string& text) { options.events = parse_integer(text, "-I", 0, 1) != 0; });
  table.flag("--events", &options.events);
  table.flag("--in-place", &options.in_place);
  table.flag("--grouped", &options.grouped);
  table.value("--clock,--clocks", [&](const std::string& text) { options.clocks_mhz = parse_clocks(text); });
  table.integer("--clock-socket", &options.clock_socket, 3, 1 << 20);
  table.number("--settle", &options.settle_s, 0, 60);
  table.text("--json-lines", &options.json_lines);
  table.flag("--resume", &options.resume);
  table.value("--skip", [&](const std::string& text) { options.skip.push_back(text); });
}

void add_replay(OptionTable& table, Options& options) {
  TrainOptions& train = options.train;
  table.text("--model", &train.model);
  table.value("--iterations", [&](const std::string& text) {
    options.scenario_iterations = train.iterations = parse_integer(text, "--iterations", 1);
  });
  table.number("--seconds", &options.seconds, 0.001, 86400);
  table.value("--compute", [&](const std::string& text) { options.compute = parse_compute(text); });
  table.number("--forward-ms", &train.forward_ms, 0, 1e6);
  table.number("--backward-ms", &train.backward_ms, 0, 1e6);
  table.value("--buckets", [&](const std::string& text) { train.buckets_bytes = parse_buckets(text); });
  table.value("--overlap", [&](const std::string& text) { train.overlap = parse_overlap(text); });
}

void add_all(OptionTable& table, Options& options) {
  table.integer("--trials-per-process", &options.trials_per_process, 1, 1'000'000);
  table.integer("-g,--ngpus,--gpus", &options.gpus, 1, 64);
  table.flag("--threads", &options.threads);
  table.text("--rendezvous", &options.rendezvous);
  table.text("-J,--output_file,--json", &options.json);
  table.number("--min-time", &options.min_time_s, 0, 3600);
  table.flag("--no-energy", &options.energy, false);
  table.integer("--sample-ms", &options.sample_ms, 1, 1000);
  table.flag("--set-clocks", &options.set_clocks);
  table.integer("-T,--timeout", &options.timeout_s, 0);
  table.text("--nccl", &options.nccl);
  table.flag("-h,--help", [&] { options.mode = Mode::kHelp; });
  table.flag("--version", [&] { options.mode = Mode::kVersion; });
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
  options.check = -1;  // until it is given
  OptionTable table(kHint);
  add_sweep(table, options);
  add_replay(table, options);
  add_all(table, options);
  const std::vector<std::string> words = table.parse(argc, argv);
  for (size_t i = 0; i < words.size(); ++i) {
    const std::string& word = words[i];
    if (word == "train") {
      options.mode = options.mode == Mode::kSweep ? Mode::kTrain : options.mode;
    } else if (word == "scenario" && options.mode == Mode::kSweep) {
      if (++i == words.size())
        usage_error("scenario of which file?", "powerccl-bench scenario bench/scenarios/ddp.scn");
      options.mode = Mode::kScenario;
      options.scenario = words[i];
    } else if (word == "serve" && options.mode == Mode::kSweep) {
      options.mode = Mode::kServe;
    } else if (word != "sweep") {
      add_patterns(options, word);
    }
  }
  // A server checks nothing unless told: emulated data are moved by few cores.
  if (options.check < 0) options.check = options.mode == Mode::kServe ? 0 : 1;
  if (options.mode != Mode::kHelp && options.mode != Mode::kVersion) check_together(options);
  return options;
}

}  // namespace powerccl::bench
