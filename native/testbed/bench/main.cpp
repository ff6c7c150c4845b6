// SPDX-License-Identifier: Apache-2.0
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <exception>
#include <set>
#include <string>
#include <vector>

#include "bench/launch.h"
#include "bench/measurement.h"
#include "bench/options.h"
#include "bench/plan.h"
#include "bench/rank.h"
#include "bench/replay.h"
#include "bench/report.h"
#include "bench/scenario.h"
#include "bench/serve.h"
#include "bench/values.h"

namespace powerccl::bench {
namespace {

constexpr double kMinTimeEmulatedS = 0.25;
constexpr double kMinTimeRealS = 1.0;  // counters of real GPUs move every 100 ms
constexpr int kSampleEmulatedMs = 2;
constexpr int kSampleRealMs = 10;

// Whether clocks may be changed. Where they may not, one entry remains of the list: the clock as found.
void decide_clocks(Options& options, Setting& setting) {
  setting.clock_control = "none";
  if (!options.wants_clock()) return;
  if (environment("POWERCCL_CLOCKS") == "dry") {
    setting.clock_control = "dry";
    setting.clock_reason = "POWERCCL_CLOCKS=dry";
  } else if (options.clock_socket < 0) {
    setting.clock_control = "refused";
    setting.clock_reason = "no process holds leases on the clocks; `powerccl bench --set-clocks` does";
  } else {
    setting.clock_control = "set";
    return;
  }
  std::fprintf(stderr, "powerccl-bench: clocks are left as found: %s\n", setting.clock_reason.c_str());
  options.clocks_mhz = {kClockAsFound};
}

Setting decide(Options& options) {
  Setting setting{};
  setting.emulated = !environment("POWERCCL_EMULATOR_SOCKET").empty();
  const bool checks = options.check > 0 && (options.mode == Mode::kSweep || options.mode == Mode::kServe);
  if (setting.emulated && !checks) {
    setenv("POWERCCL_EMULATOR_MOVE_DATA", "0", 0);
  }
  setting.moves_data = !setting.emulated || environment("POWERCCL_EMULATOR_MOVE_DATA") != "0";
  if (!setting.moves_data && checks) {
    throw Failure(kExitUsage, "POWERCCL_EMULATOR_MOVE_DATA=0 leaves nothing to check",
                  "add -c 0, or unset the variable");
  }
  if (options.min_time_s < 0) {
    options.min_time_s = !options.energy ? 0 : setting.emulated ? kMinTimeEmulatedS : kMinTimeRealS;
  }
  if (options.sample_ms == 0) options.sample_ms = setting.emulated ? kSampleEmulatedMs : kSampleRealMs;
  decide_clocks(options, setting);
  return setting;
}

std::vector<Point> plan_of(const Options& options, Setting& setting, int ranks) {
  std::set<std::string> done;
  if (options.resume) done = done_points(options.json_lines, &setting.keep_json_lines_bytes);
  std::vector<Point> plan = make_plan(options, ranks, done);
  setting.skipped_points = make_plan(options, ranks, {}).size() - plan.size();
  if (options.root >= ranks) {
    throw Failure(kExitUsage, "-r " + std::to_string(options.root) + ": there are " + std::to_string(ranks) + " ranks");
  }
  return plan;
}

void rank_work(const Options& options, const std::vector<Point>& plan, const Scenario& scenario, Rank& rank) {
  Board& board = rank.board();
  const Way first = plan.empty() ? Way::kAsGiven : plan.front().way;
  rank.join(NcclApi::instance(options.nccl), options.mode == Mode::kSweep ? first : Way::kAsGiven);
  if (rank.rank() == 0) {
    board.start = {};
    rank.nccl().check(rank.nccl().get_version(&board.start.nccl_version), "ncclGetVersion");
    rank.cuda().check(rank.cuda().driver_get_version(&board.start.cuda_version), "cuDriverGetVersion");
    std::strncpy(board.start.nccl_path, rank.nccl().path.c_str(), sizeof board.start.nccl_path - 1);
    if (options.mode == Mode::kSweep) board.tell(Tell::kStart);
  }
  if (options.resume) board.barrier();  // so that no collective is under way where rank 0 is refused the file
  if (options.mode == Mode::kScenario) {
    run_scenario(options, scenario, rank);
  } else {
    run_sweep(options, plan, rank);
  }
  if (rank.rank() == 0) {
    board.deadline_ns = 0;
    board.tell(Tell::kFinish);
  }
  board.barrier();
  rank.leave();
}

int run(int argc, char** argv) {
  Options options = parse_options(argc, argv);
  if (!options.says.empty()) {
    std::fputs(options.says.c_str(), stdout);
    return kExitOk;
  }
  Setting setting = decide(options);
  if (options.mode == Mode::kServe) return serve(options, setting);
  const Scenario scenario = options.mode == Mode::kScenario ? read_scenario(options.scenario) : Scenario{};
  const Launch launch = prepare_launch(options);
  Board& board = *launch.board;
  std::vector<Point> plan;
  if (options.mode == Mode::kScenario) check_ranks(scenario, board.ranks());
  if (options.mode == Mode::kSweep) plan = plan_of(options, setting, board.ranks());
  std::unique_ptr<Report> report;
  if (launch.leads()) {
    report = options.mode == Mode::kSweep ? sweep_report(options, setting, launch, plan)
                                          : scenario_report(options, setting, launch, scenario);
    if (options.timeout_s > 0) {
      board.deadline_ns = monotonic_ns() + static_cast<uint64_t>(options.timeout_s) * 1'000'000'000;
    }
  }
  supervise(
      launch,
      [&](int first, int count, int device) {
        return run_ranks(options, board, first, count, device,
                         [&](Rank& rank) { rank_work(options, plan, scenario, rank); });
      },
      [&] { report->run(); });
  const int code = report != nullptr ? report->conclude() : kExitOk;
  if (board.failed()) {
    if (launch.leads()) throw Failure(board.exit_code(), board.reason(), board.hint());
    return board.exit_code();
  }
  return code;
}

}  // namespace
}  // namespace powerccl::bench

int main(int argc, char** argv) {
  using powerccl::bench::Failure;
  try {
    return powerccl::bench::run(argc, argv);
  } catch (const Failure& failure) {
    std::fprintf(stderr, "powerccl-bench: error: %s\n", failure.what());
    if (!failure.hint().empty()) std::fprintf(stderr, "hint: %s\n", failure.hint().c_str());
    return failure.code();
  } catch (const std::exception& error) {
    std::fprintf(stderr, "powerccl-bench: error: %s\n", error.what());
    return powerccl::bench::kExitRankFailed;
  }
}
