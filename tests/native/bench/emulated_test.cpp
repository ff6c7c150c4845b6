// SPDX-License-Identifier: Apache-2.0
// powerccl-bench itself on an emulated server of eight T4: what it prints, writes and leaves behind, also when it is
// hurt.
#include "emulated.h"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <tuple>

namespace powerccl::bench::tests {
namespace {

const std::string kLongRun = "all_reduce -b 64M -e 64M -c 0 -n 2000 --no-energy";

TEST_F(Emulated, NinePatternsAreCorrect) {
  const Ended ended = measured("all -b 64K -e 256K -f 4 -n 2 --min-time 0 --in-place -r 3");
  EXPECT_EQ(json("d.summary.wrong, d.summary.points, d.finished, d.moves_data"), "0 32 True True");
  EXPECT_EQ(json("sorted(set(r.pattern for r in rs)).__len__(), d.emulated, d.ranks"), "9 True 8");
  EXPECT_NE(ended.out.find("\"avg_busbw_gbs\": "), std::string::npos);
  EXPECT_NE(ended.out.find("\"emulated\": true"), std::string::npos);
}

TEST_F(Emulated, TypesAndOperatorsAreCorrectInThreads) {
  measured("all_reduce,reduce_scatter -b 24K -e 24K -n 1 --min-time 0 -d all -o all -g 3 --threads");
  EXPECT_EQ(json("d.summary.wrong, d.summary.points, d.launch"), "0 60 threads");
}

TEST_F(Emulated, GroupedGraphBlockingAndEventsMeasure) {
  for (const std::string more : {"--grouped", "-G 3", "--blocking", "--events"}) {
    measured("all_to_all,gather,all_reduce -b 64K -e 64K -n 3 -g 4 --no-energy " + more);
    EXPECT_EQ(json("d.summary.wrong, min(r.time_us for r in rs) > 0"), "0 True");
    EXPECT_EQ(json("rs[0].event_us is None"), more == "--events" ? "False" : "True");
  }
}

// 16 MiB take some 10 ms on eight T4s, and this machine several times as long to add them up.
TEST_F(Emulated, TimesAreThePlatformsHoweverBusyTheMachineIs) {
  const std::string sweep = "all_reduce,all_gather -b 64K -e 16M -f 16 -n 5 --min-time 0";
  ASSERT_EQ(bench(sweep + " -c 0 --json " + file("still.json")).code, 0);
  std::vector<pid_t> busy;
  for (int i = 0; i < 8; ++i) {
    busy.push_back(fork());
    if (busy.back() == 0) {
      alarm(60);
      for (std::atomic<unsigned> spin = 0;; ++spin) continue;
    }
  }
  const Ended ended = bench(sweep + " -c 1 --json " + file("moved.json"));
  for (const pid_t pid : busy) {
    kill(pid, SIGKILL);
    waitpid(pid, nullptr, 0);
  }
  ASSERT_EQ(ended.code, 0) << ended.err << ended.out;
  const char* times = "[round(r.time_us) for r in rs], {r.valid for r in rs}";
  EXPECT_EQ(json(times, "moved.json"), json(times, "still.json"));
}

TEST_F(Emulated, AResultThatTheMachineWasTooSlowForIsInvalid) {
  environment_["POWERCCL_EMULATOR_PATIENCE_MS"] = "0";
  const Ended ended = bench("all_reduce -b 1M -e 1M -n 2 -g 2 --min-time 0 --json " + file("a.json") +
                            " --json-lines " + file("a.jsonl"));
  EXPECT_EQ(ended.code, 3) << ended.err;
  EXPECT_NE(ended.out.find("\"valid\": false"), std::string::npos) << ended.out;
  EXPECT_NE(ended.out.find("\"points\": 1, \"invalid\": 1"), std::string::npos) << ended.out;
  EXPECT_EQ(json("rs[0].valid"), "False");
  environment_.erase("POWERCCL_EMULATOR_PATIENCE_MS");
  const Ended again =
      bench("all_reduce -b 1M -e 1M -n 2 -g 2 --min-time 0 --json-lines " + file("a.jsonl") + " --resume");
  EXPECT_EQ(again.code, 0) << again.err;
  EXPECT_NE(again.out.find("\"pattern\": \"all_reduce\""), std::string::npos) << "an invalid point counts as done";
}

TEST_F(Emulated, CollectivesAreMeasuredBesideComputation) {
  const Ended ended =
      measured("all_reduce --beside matmul,memory -b 4M -e 4M -n 3 -g 2 --min-time 0.02 --products 2048x4096x14336");
  EXPECT_EQ(json("d.products"), "2048x4096x14336");
  EXPECT_EQ(json("[r.beside for r in rs], d.summary.wrong"), "[None, 'matmul', 'memory'] 0");
  // The computation is slowed, the power of both is not given as the collective's, and what it adds is less than all.
  EXPECT_EQ(json("all(r.slowed_pct > 1 for r in rs[1:])"), "True");
  EXPECT_EQ(json("[r.joules_per_gpu for r in rs[1:]]"), "[None, None]");
  EXPECT_EQ(json("all(0 < r.added_us < r.time_us and abs(r.added_us - r.time_us * (1 - "
                 "r.unit_alone_us / r.unit_us)) < 1e-6 * r.time_us and r.added_joules_per_gpu "
                 "< r.watts_per_gpu * r.time_us * 1e-6 for r in rs[1:])"),
            "True");
  EXPECT_NE(ended.out.find("\"type\": \"load\", \"beside\": \"memory\""), std::string::npos) << ended.out;
}

TEST_F(Emulated, AWayThatThisNcclLacksIsLeftOut) {
  const std::string sweep =
      "all_gather --way all -b 1M -e 1M -n 3 -g 2 --min-time 0 --no-energy --json " + file("a.json");
  const std::string measured = "[r.way for r in rs]";
  const Ended older = bench(sweep, {{"POWERCCL_EMULATOR_NCCL_VERSION", "2.28.9"}});
  expect_failure(older, 0, "copy-engine is left out: it needs NCCL 2.29");
  EXPECT_EQ(json(measured), "['plain', 'symmetric', 'efficiency']");
  const Ended newer = bench(sweep, {{"POWERCCL_EMULATOR_NCCL_VERSION", "2.30.7"}});
  EXPECT_EQ(newer.code, 0) << newer.err;
  EXPECT_EQ(newer.err, "");
  EXPECT_EQ(json(measured), "['plain', 'symmetric', 'copy-engine', 'efficiency']");
}

TEST_F(Emulated, EmptyCollectivesAreMeasured) {
  measured("all -b 0 -e 0 -n 2 -g 4 --no-energy");
  EXPECT_EQ(json("[r.size_bytes for r in rs]"), "[0, 0, 0, 0, 0, 0, 0, 0, 0]");
}

TEST_F(Emulated, EnergyIsTold) {
  measured("all_reduce -b 16M -e 16M -c 0");
  EXPECT_EQ(json("rs[0].energy_source, d.moves_data"), "emulator False");
  const double watts = std::stod(json("rs[0].watts_per_gpu"));
  EXPECT_GT(watts, 35);
  EXPECT_LT(watts, 55);
}

TEST_F(Emulated, NoClockIsSetWithoutLeases) {
  const Ended ended = measured("all_reduce -b 32M -e 32M -c 0 -n 2 --min-time 0.1 --clocks 900,600");
  EXPECT_EQ(json("d.clock_control, [round(r.sm_clock_mhz) > 1500 for r in rs]"), "refused [True]");
  EXPECT_NE(ended.err.find("clocks are left as found: no process holds leases"), std::string::npos) << ended.err;
}

TEST_F(Emulated, ALostClockIsNotMeasured) {
  int ends[2];
  ASSERT_EQ(socketpair(AF_UNIX, SOCK_SEQPACKET, 0, ends), 0);
  fcntl(ends[0], F_SETFD, FD_CLOEXEC);
  Process process = start("all_reduce -b 1M -e 4M -c 0 -n 2 --no-energy --clocks 600 --json-lines " + file("a.jsonl") +
                          " --clock-socket " + std::to_string(ends[1]));
  close(ends[1]);
  std::vector<int32_t> asked;
  for (int32_t request = 0; recv(ends[0], &request, sizeof request, 0) == sizeof request;) {
    asked.push_back(request);
    char answer[240] = "";
    if (asked.size() == 3) std::strcpy(answer, "revoked");
    ASSERT_EQ(send(ends[0], answer, sizeof answer, MSG_NOSIGNAL), static_cast<ssize_t>(sizeof answer));
  }
  const Ended ended = process.wait();
  EXPECT_EQ(asked, (std::vector<int32_t>{600, -1, -1}));
  expect_failure(ended, 3, "the clock did not hold: revoked");
  const std::string lines = contents(file("a.jsonl"));
  EXPECT_EQ(std::count(lines.begin(), lines.end(), '\n'), 2) << lines;  // the header and the first point
  close(ends[0]);
}

TEST_F(Emulated, WhoSetsClocksMayDie) {
  int ends[2];
  ASSERT_EQ(socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, ends), 0);
  close(ends[0]);
  const int inherited = dup(ends[1]);
  close(ends[1]);
  const Ended ended = bench("all_reduce -b 1M -e 1M -c 0 -n 2 --no-energy --clocks 600 --json-lines " +
                            file("a.jsonl") + " --clock-socket " + std::to_string(inherited));
  close(inherited);
  expect_failure(ended, 3, "the process that sets clocks has died");
}

TEST_F(Emulated, DryWinsOverClocks) {
  const Ended ended = bench("all_reduce -b 1M -e 1M -c 0 -n 2 --clocks 900,600 --no-energy --json " + file("a.json"),
                            {{"POWERCCL_CLOCKS", "dry"}});
  EXPECT_EQ(ended.code, 0) << ended.err;
  EXPECT_EQ(json("d.clock_control, [r.clock_requested_mhz for r in rs]"), "dry [None]");
}

// A run, what it prints once all ranks are at work, and what a rank's death leaves in its file.
class KilledRank : public Emulated,
                   public testing::WithParamInterface<std::tuple<std::string, std::string, std::string>> {};

TEST_P(KilledRank, EndsTheRun) {
  const auto& [line, works, left] = GetParam();
  Process process = start(line + " --json " + file("a.json"));
  ASSERT_TRUE(process.wait_for_output(works));
  const std::vector<pid_t> ranks = process.ranks();
  ASSERT_EQ(ranks.size(), 8U);
  kill(ranks[3], SIGKILL);
  const auto begin = std::chrono::steady_clock::now();
  const Ended ended = process.wait();
  EXPECT_LT(std::chrono::steady_clock::now() - begin, std::chrono::seconds(20));
  expect_failure(ended, 4, "signal 9");
  EXPECT_NE(ended.err.find("hint:"), std::string::npos);
  EXPECT_EQ(json("d.finished, \"signal 9\" in d.error, " + left), "False True True");
}

INSTANTIATE_TEST_SUITE_P(Modes, KilledRank,
                         testing::Values(std::tuple{kLongRun, "\"type\": \"header\"", "len(rs) == 0"},
                                         std::tuple{"scenario " + kScenarios + "/pp.scn --no-energy",
                                                    "\"iteration\": 1, \"warmup\": false", "len(rs) > 2"}));

TEST_F(Emulated, AnInterruptIsPassedOn) {
  Process process = start(kLongRun);
  ASSERT_TRUE(process.wait_for_output("\"type\": \"header\""));
  kill(process.pid(), SIGINT);
  EXPECT_EQ(process.wait().code, 128 + SIGINT);
}

TEST_F(Emulated, TimeoutEndsTheRun) {
  const Ended ended = bench(kLongRun + " --timeout 2");
  expect_failure(ended, 5, "--timeout");
}

TEST_F(Emulated, MoreRanksThanGpus) {
  const Ended ended = bench("all_reduce -g 9");
  expect_failure(ended, 3, "more ranks than GPUs: 9 ranks, 8 GPUs");
  EXPECT_NE(ended.err.find("hint:"), std::string::npos);
}

TEST_F(Emulated, ResumeMeasuresTheRest) {
  const std::string words =
      "all_reduce -e 1M -f 2 -c 0 -n 2 -g 2 --no-energy --json-lines " + file("l.jsonl") + " --json " + file("a.json");
  EXPECT_EQ(bench(words + " -b 512K").code, 0);
  std::ofstream(file("l.jsonl"), std::ios::app) << "{\"type\": \"point\", \"patt";
  const Ended ended = bench(words + " -b 256K --resume");
  EXPECT_EQ(ended.code, 0) << ended.err;
  EXPECT_EQ(json("d.summary.skipped, [r.size_bytes for r in rs]"), "2 [262144]");
  std::ifstream lines(file("l.jsonl"));
  int count = 0;
  for (std::string line; std::getline(lines, line); ++count)
    EXPECT_TRUE(line.starts_with("{") && line.ends_with("}")) << line;
  EXPECT_EQ(count, 4);  // one header, three points
}

TEST_F(Emulated, AnotherMachinesPointsAreNotContinued) {
  const std::string path = file("l.jsonl");
  const std::string words = "all_reduce -e 512K -f 2 -c 0 -n 2 -g 2 --no-energy --json-lines " + path;
  ASSERT_EQ(bench(words + " -b 512K").code, 0);
  const std::string kept = contents(path);
  const std::pair<const char*, const char*> changes[] = {
      {"\"gpu_models\": \"2 x Tesla T4\"", "\"gpu_models\": \"4 x Tesla T4\""},
      {"\"driver\": \"", "\"driver\": \"9"},
      {"\"nccl_version\": \"", "\"nccl_version\": \"9"},
      {"\"nccl_variables\": \"\"", "\"nccl_variables\": \"NCCL_ALGO=\\\"Tree\\\"\""},
      {"\"nvlinks\": null", "\"nvlinks\": \"18\""},
      {"\"host\": \"", "\"host\": \"not-"},
      {"\"emulated_platform\": \"t4x8 ", "\"emulated_platform\": \"t4x8 9"},
      {"\"gpu_models\": ", "\"gpus_of_old\": "},
      {"\"type\": \"header\"", "\"type\": \"head\""},
  };
  for (const auto& [from, to] : changes) {
    std::string text = kept;
    ASSERT_NE(text.find(from), std::string::npos) << from;
    text.replace(text.find(from), std::strlen(from), to);
    text += "{\"type\": \"po";  // nothing is cut away from a file that is not ours
    std::ofstream(path) << text;
    const Ended ended = bench(words + " -b 256K --resume");
    EXPECT_EQ(ended.code, 2) << to << ended.err;
    const bool says = ended.err.find("is from another machine (") != std::string::npos ||
                      ended.err.find("does not say of which machine it is") != std::string::npos;
    EXPECT_TRUE(says) << to << ended.err;
    EXPECT_NE(ended.err.find("hint: measure into a new file"), std::string::npos) << ended.err;
    EXPECT_EQ(contents(path), text) << to;
  }
  std::ofstream(path) << kept;
  const Ended ended = bench(words + " -b 512K --resume");
  EXPECT_EQ(ended.code, 0) << ended.err;
  EXPECT_NE(ended.out.find("\"points\": 0, "), std::string::npos) << ended.out;
  EXPECT_EQ(contents(path), kept);
}

TEST_F(Emulated, UnwritableJsonIsSaidBeforeMeasuring) {
  const Ended ended = bench("all_reduce --json /nowhere/a.json");
  expect_failure(ended, 2, "/nowhere/a.json");
  EXPECT_EQ(ended.out, "");
}

TEST_F(Emulated, RanksOfALauncherMeet) {
  std::vector<Process> processes;
  for (const char* rank : {"0", "1"}) {
    processes.push_back(start(
        "all_reduce -b 64K -e 64K -n 2 --no-energy --rendezvous " + folder_ + " --json " + file("a.json") + " -T 30",
        {{"RANK", rank}, {"LOCAL_RANK", rank}, {"WORLD_SIZE", "2"}, {"LOCAL_WORLD_SIZE", "2"}}));
  }
  for (Process& process : processes) {
    const Ended ended = process.wait();
    EXPECT_EQ(ended.code, 0) << ended.err;
  }
  EXPECT_EQ(json("d.launch, d.ranks, d.summary.wrong"), "launcher 2 0");
}

TEST_F(Emulated, AModelsStepHasItsTimes) {
  measured("scenario " POWERCCL_MODELS "/microllama.scn --iterations 2 -w 1");
  EXPECT_EQ(json("d.mode, len(rs), d.summary.iterations, d.scenario.name"), "scenario 3 2 microllama");
  const double exposed_ms = std::stod(json("d.summary.exposed_ms"));
  EXPECT_GT(exposed_ms, 400);
  EXPECT_LT(exposed_ms, 600);
  EXPECT_EQ(json("all(r.joules_per_gpu > 0 for r in rs[1:])"), "True");
}

TEST_F(Emulated, EnergyOfShortStepsComesFromAllOfThem) {
  std::ofstream(file("a.scn")) << "compute 15\nsync compute\nall_reduce 1M\n";
  measured("scenario " + file("a.scn") + " --seconds 1.5 -g 2");
  EXPECT_EQ(json("rs[-1].joules_per_gpu"), "None");
  EXPECT_GT(std::stod(json("d.summary.watts_per_gpu")), 30);
  EXPECT_GT(std::stod(json("d.summary.joules_per_iteration")), 0);
}

TEST_F(Emulated, OverlapHidesCommunication) {
  const std::string end = " --iterations 2 -w 1 -g 4 --no-energy --json ";
  std::ofstream(file("none.scn")) << "streams comm\ncompute 140\nsync compute\nrepeat 3\nall_reduce 16M on comm\nend\n";
  std::ofstream(file("beside.scn")) << "streams comm\ncompute 20\nrepeat 3\ncompute 40\nwait compute on comm\n"
                                       "all_reduce 16M on comm\nend\n";
  EXPECT_EQ(bench("scenario " + file("none.scn") + end + file("none.json")).code, 0);
  EXPECT_EQ(bench("scenario " + file("beside.scn") + end + file("beside.json")).code, 0);
  const double exposed = std::stod(json("d.summary.exposed_ms", "none.json"));
  const double hidden = std::stod(json("d.summary.exposed_ms", "beside.json"));
  EXPECT_LT(hidden, exposed * 0.8);
}

TEST_F(Emulated, AScenarioHasItsTimes) {
  std::ofstream(file("a.scn")) << "rank 1 x1.5\nstreams comm\ngroup pair 2\n"
                                  "compute 10\nwait compute on comm\nall_reduce 4M on comm\ncompute 10\n"
                                  "wait comm on compute\nall_reduce 1M in pair\n"
                                  "from 50%\nreceive 1M from previous\ncompute 5\nsend 1M to next\n";
  measured("scenario " + file("a.scn") + " -g 4 --iterations 6");
  EXPECT_EQ(json("d.mode, d.finished, d.scenario.name, len(rs), "
                 "d.summary.iterations"),
            "scenario True a 8 6");
  EXPECT_EQ(json("[r.iteration for r in rs]"), "[0, 1, 0, 1, 2, 3, 4, 5]");
  EXPECT_EQ(json("all(0 < r.exposed_ms < r.step_ms and r.compute_ms < r.step_ms "
                 "for r in rs)"),
            "True");
  // The slow rank computes longer; in the second half ranks follow one another.
  EXPECT_EQ(json("rs[3].compute_ms_of_ranks[1] > "
                 "1.3 * rs[3].compute_ms_of_ranks[0]"),
            "True");
  EXPECT_EQ(json("rs[-1].step_ms > 2.5 * rs[-1].compute_ms"), "True");
}

TEST_F(Emulated, VaryingAndCapturedScenariosRun) {
  std::ofstream(file("a.scn")) << "streams comm\nrepeat 2\ncompute 2 vary 50%\nall_to_all 1M vary 50%\nend\n"
                                  "from 50%\nrepeat 2\ncapture\ncompute 3\nwait compute on comm\n"
                                  "all_gather 256K on comm\nwait comm on compute\nend\nend\nsync compute\ncompute 1\n";
  measured("scenario " + file("a.scn") + " --iterations 4 --no-energy");
  EXPECT_EQ(json("[r.compute_ms is None for r in rs]"), "[False, False, False, False, True, True]");
  EXPECT_GT(std::stod(json("rs[-1].step_ms")), 5);  // 7 at the reference clock
}

TEST_F(Emulated, AScenarioThatCannotEndIsRefused) {
  std::ofstream(file("a.scn")) << "compute 1\nsend 1M to next\n";
  const Ended ended = bench("scenario " + file("a.scn"));
  expect_failure(ended, 2, "a.scn:2: rank 6 sends to rank 7");
  EXPECT_NE(ended.err.find("hint:"), std::string::npos);
  EXPECT_EQ(bench("scenario").code, 2);
  EXPECT_EQ(bench("scenario " + file("none.scn")).code, 2);
}

}  // namespace
}  // namespace powerccl::bench::tests
