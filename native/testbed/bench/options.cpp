// SPDX-License-Identifier: Apache-2.0
#include "bench/options.h"

#include <algorithm>
#include <utility>

#include "bench/option_table.h"
#include "bench/values.h"

namespace powerccl::bench {
namespace {

constexpr const char* kHint = "powerccl-bench --help";

[[noreturn]] void usage_error(const std::string& what, const std::string& hint = kHint) {
  throw Failure(kExitUsage, what, hint);
}

// "all", or names with commas, each once, behind those already `chosen`. `what` is the option and the kind of thing
// that it names; `find` looks a name up.
template <typename Infos, typename T = decltype(Infos::value_type::value)>
std::vector<T> parse_names(const std::string& text, const Infos& infos, const char* what, const char* known, auto find,
                           std::vector<T> chosen = {}) {
  const auto add = [&](T one) {
    if (std::ranges::find(chosen, one) == chosen.end()) chosen.push_back(one);
  };
  for (const std::string& name : split(text, ',')) {
    if (name == "all") {
      for (const auto& each : infos) add(each.value);
    } else if (const std::optional<T> one = find(name)) {
      add(*one);
    } else {
      usage_error(std::string(what) + " is called '" + name + "'", known);
    }
  }
  return chosen;
}

// Names of a table, as it has them.
template <typename Infos, typename T = decltype(Infos::value_type::value)>
std::vector<T> parse_names(const std::string& text, const Infos& infos, const char* what, std::vector<T> chosen = {}) {
  const std::string known = names_of(infos) + ", all";
  return parse_names(
      text, infos, what, known.c_str(), [&](const std::string& name) { return named(infos, name); }, std::move(chosen));
}

Beside parse_compute(const std::string& text) {
  for (const BesideInfo& each : kBesides) {
    if (text == compute_name_of(each.value)) return each.value;
  }
  usage_error("--compute: no computation is called '" + text + "'", "fma, matmul, memory, both");
}

Products parse_products(const std::string& text) {
  const std::vector<std::string> sides = split(text, 'x');
  if (sides.size() != 3) usage_error("--products: TOKENSxWIDTHxHIDDEN, not '" + text + "'", "4096x4096x14336");
  const auto side = [&](size_t index) { return parse_integer(sides[index], "--products", 16, 1 << 20); };
  return {side(0), side(1), side(2)};
}

constexpr const char* kAbout = R"(powerccl-bench: measure time, bandwidth, clock and energy of collectives

usage: powerccl-bench PATTERN... [options]     sweep sizes, as NCCL tests do
       powerccl-bench scenario FILE [options]  replay the job in FILE
       powerccl-bench serve [options]          measure what stdin requests

PATTERN: all, or any of all_reduce broadcast reduce all_gather reduce_scatter
         send_receive scatter gather all_to_all
Defaults are in parentheses. docs/reference/bench.md has files, scenarios and
requests.
)";
constexpr const char* kExits = R"(exit codes: 0 success; 1 wrong elements; 2 wrong usage; 3 something is missing,
            or results are invalid; 4 a rank failed; 5 timeout; 128+N signal N)";

void add_sizes(OptionTable& table, Options& options) {
  table.group("sweep");
  table.size("-b,--minbytes", "first size (128K)", &options.min_bytes);
  table.size("-e,--maxbytes", "last size (64M)", &options.max_bytes);
  table.number("-f,--stepfactor", "N", "factor from one size to the next (2)", &options.factor, 1.0001, 1e6);
  table.size("-i,--stepbytes", "difference from one size to the next, instead of -f", &options.step_bytes);
  table.integer("-n,--iters", "least number of operations timed together (20); also of\nserve's requests",
                &options.iterations, 1);
  table.value(
      "-w,--warmup_iters", "N", "operations before them (1); iterations of a scenario\nbefore those measured (2)",
      [&](const std::string& text) { options.warmup = options.scenario_warmup = parse_integer(text, "-w", 0); });
  table.integer("-c,--check", "operations whose results are checked (1, serve 0); 0: none", &options.check, 0);
  table.value("-d,--datatype,--dtype", "TYPE",
              "float32 (or float), float16 (or half), bfloat16, float64\n(or double), int32, int64, or all",
              [&](const std::string& text) {
                options.types = parse_names(text, kTypes, "-d: no type",
                                            "float32 (float), float16 (half), bfloat16, float64 (double), int32, "
                                            "int64, all",
                                            type_named);
              });
  table.value("-o,--op", "OP", "sum, prod, max, min, avg, or all",
              [&](const std::string& text) { options.ops = parse_names(text, kOperators, "-o: no operator"); });
  table.value("-r,--root", "RANK", "root of rooted collectives (0), or all",
              [&](const std::string& text) { options.root = text == "all" ? -1 : parse_integer(text, "-r", 0); });
}

void add_sweep(OptionTable& table, Options& options) {
  table.value("-z", "N", "1 to 3: as --blocking",
              [&](const std::string& text) { options.blocking = parse_integer(text, "-z", 0, 3) != 0; });
  table.flag("--blocking", "after each operation, wait for it and for all ranks", &options.blocking);
  table.value("-R,--local_register", "N",
              "0: ordinary buffers (0); 2: buffers in symmetric windows,\nfor symmetric kernels and copy engines",
              [&](const std::string& text) {
                options.registration = parse_integer(text, "-R", 0, 2);
                if (options.registration == 1)
                  usage_error("-R 1 is not offered: use 0 (not registered) or 2 (symmetric windows)");
              });
  table.value("--way", "LIST",
              "how NCCL carries collectives out: plain, symmetric,\ncopy-engine, efficiency, or all. Buffers and "
              "communicator\nare made for each",
              [&](const std::string& text) { options.ways = parse_names(text, kWays, "--way: no way"); });
  table.value("--beside", "LIST",
              "also measure beside computation in another stream:\nmatmul, memory, both, or all. Tells how much either "
              "slows\nthe other (matmul on real GPUs needs cuBLAS)",
              [&](const std::string& text) {
                options.besides =
                    parse_names(text, kBesides, "--beside: no computation", std::vector{Beside::kNothing});
              });
  table.integer("-G,--cudagraph,--graph", "capture operations in a CUDA graph, launch it N times",
                &options.graph_launches, 0);
  table.value("-I,--per_iter_timing", "N", "1: as --events",
              [&](const std::string& text) { options.events = parse_integer(text, "-I", 0, 1) != 0; });
  table.flag("--events", "also time each operation between two CUDA events", &options.events);
  table.flag("--in-place", "also measure the in-place form", &options.in_place);
  table.flag("--grouped", "build all_to_all, gather and scatter from sends and\nreceives, even if NCCL has the call",
             &options.grouped);
  table.value("--clock,--clocks", "LIST",
              "repeat at these SM clocks in MHz: 1590,900 or 1590:300:15\nor default; scenario: one. Real "
              "GPUs need\n--set-clocks of `powerccl bench`; POWERCCL_CLOCKS=dry\nforbids it",
              [&](const std::string& text) { options.clocks_mhz = parse_clocks(text); });
  table.integer("--clock-socket", "let the process behind this file descriptor set the clocks", &options.clock_socket,
                3, 1 << 20);
  table.number("--settle", "S", "unmeasured seconds after each clock change (0.1)", &options.settle_s, 0, 60);
  table.text("--json-lines", "FILE", "write each point to FILE when it is measured", &options.json_lines);
  table.flag("--resume", "continue the FILE of --json-lines", &options.resume);
}

void add_replay(OptionTable& table, Options& options) {
  table.group("scenario");
  table.value("--iterations", "N", "measured iterations (the file's), after -w others",
              [&](const std::string& text) { options.scenario_iterations = parse_integer(text, "--iterations", 1); });
  table.number("--seconds", "S", "as many iterations as take about S seconds, instead", &options.seconds, 0.001, 86400);
  table.value("--compute", "WHAT",
              "what its computation consists of: fma (multiply-adds),\nmatmul (on real GPUs needs cuBLAS), memory, "
              "both (fma)",
              [&](const std::string& text) { options.compute = parse_compute(text); });
  table.value("--products", "TxWxH",
              "matmul's shape, also of --beside: T tokens, from W wide to\nH and back in turn, as a layer's perceptron "
              "(4096x4096x4096)",
              [&](const std::string& text) { options.products = parse_products(text); });
  table.group("serve");
  table.integer("--trials-per-process", "trials after which the server ends (32)", &options.trials_per_process, 1,
                1'000'000);
}

void add_all(OptionTable& table, Options& options) {
  table.group("all");
  table.integer("-g,--ngpus,--gpus", "number of ranks, one per GPU (all GPUs)", &options.gpus, 1, 64);
  table.flag("--threads",
             "run ranks as threads of one process (a process each).\nUnder torchrun, mpirun or srun, each of their "
             "processes is\none rank",
             &options.threads);
  table.text("--rendezvous", "DIR", "where their processes find each other (/dev/shm)", &options.rendezvous);
  table.integer("--launched-by", "process that started all ranks, if it is not the parent", &options.launched_by, 1);
  table.text("-J,--output_file,--json", "FILE", "write all results as one object", &options.json);
  table.number("--min-time", "S", "least seconds of a measurement, for the energy counter\n(1; emulated 0.25)",
               &options.min_time_s, 0, 3600);
  table.flag("--no-energy", "do not use NVML, and measure no energy", &options.energy, false);
  table.integer("--sample-ms", "time between NVML samples (10; emulated 2)", &options.sample_ms, 1, 1000);
  table.integer("-T,--timeout", "longest time of a point in seconds (300); 0: no limit", &options.timeout_s, 0);
  table.text("--nccl", "FILE", "libnccl to load (NCCL_LIBRARY, libnccl.so.2 or\nPOWERCCL_NCCL_LIBRARY)", &options.nccl);
}

void check_serve(const Options& options) {
  if (!options.patterns.empty()) usage_error("serve takes no pattern: requests name them");
  if (options.threads) usage_error("serve cannot use --threads", "each rank is a process that loads NCCL again");
  if (options.wants_clock() || options.clock_socket >= 0) usage_error("serve sets no clocks");
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
  if (options.seconds && options.scenario_warmup == 0) {
    usage_error("--seconds needs a warm-up, which tells how long an iteration takes", "-w 1 or more");
  }
  if (options.mode == Mode::kServe) return check_serve(options);
  if (options.mode != Mode::kSweep) {
    if (!options.patterns.empty()) usage_error("scenario takes no pattern");
    if (options.clocks_mhz.size() > 1) usage_error("scenario takes one --clock");
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
  OptionTable table("powerccl-bench", kAbout, kExits);
  add_sizes(table, options);
  add_sweep(table, options);
  add_replay(table, options);
  add_all(table, options);
  const std::vector<std::string> words = table.parse(argc, argv, &options.says);
  if (!options.says.empty()) return options;
  for (size_t i = 0; i < words.size(); ++i) {
    const std::string& word = words[i];
    if (word == "scenario" && options.mode == Mode::kSweep) {
      if (++i == words.size())
        usage_error("scenario of which file?", "powerccl-bench scenario bench/scenarios/ddp.scn");
      options.mode = Mode::kScenario;
      options.scenario = words[i];
    } else if (word == "serve" && options.mode == Mode::kSweep) {
      options.mode = Mode::kServe;
    } else if (word != "sweep") {
      const std::string known = "all, " + names_of(kPatterns) + "; or a mode: scenario FILE, serve";
      options.patterns =
          parse_names(word, kPatterns, "no pattern", known.c_str(), pattern_named, std::move(options.patterns));
    }
  }
  // A server checks nothing unless asked: emulated data are moved by few cores.
  if (options.check < 0) options.check = options.mode == Mode::kServe ? 0 : 1;
  check_together(options);
  return options;
}

}  // namespace powerccl::bench
