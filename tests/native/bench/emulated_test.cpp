// SPDX-License-Identifier: Apache-2.0
// powerccl-bench itself on an emulated server of eight T4: what it prints, writes and leaves behind, also when it is
// hurt.
#include <dirent.h>
#include <fcntl.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <map>
#include <sstream>
#include <string>
#include <thread>
#include <vector>

namespace {

using Environment = std::map<std::string, std::string>;
const std::string kStage = POWERCCL_STAGE;
const std::string kScenarios = POWERCCL_SCENARIOS;

std::string contents(const std::string& path) {
  std::ostringstream text;
  text << std::ifstream(path).rdbuf();
  return text.str();
}

struct Ended {
  int code;  // exit code, or 128 + signal
  std::string out, err;
};

class Process {
 public:
  Process(std::vector<std::string> words, const Environment& environment, const std::string& prefix)
      : out_(prefix + ".out"), err_(prefix + ".err") {
    pid_ = fork();
    if (pid_ != 0) return;
    for (const auto& [name, value] : environment) setenv(name.c_str(), value.c_str(), 1);
    dup2(open(out_.c_str(), O_CREAT | O_TRUNC | O_WRONLY, 0600), 1);
    dup2(open(err_.c_str(), O_CREAT | O_TRUNC | O_WRONLY, 0600), 2);
    std::vector<char*> argv;
    for (std::string& word : words) argv.push_back(word.data());
    argv.push_back(nullptr);
    execv(argv[0], argv.data());
    _exit(127);
  }
  pid_t pid() const { return pid_; }
  Ended wait() {
    int status = 0;
    // A bench that hangs is the worst fault of all: the test's own time limit would say less.
    for (int i = 0; waitpid(pid_, &status, WNOHANG) == 0; ++i) {
      if (i > 6000) kill(pid_, SIGKILL);
      usleep(10'000);
    }
    return {WIFSIGNALED(status) ? 128 + WTERMSIG(status) : WEXITSTATUS(status), contents(out_), contents(err_)};
  }
  // The table begins once all ranks are up.
  bool wait_for_output(const std::string& text) const {
    for (int i = 0; i < 2000; ++i) {
      if (contents(out_).find(text) != std::string::npos) return true;
      usleep(10'000);
    }
    return false;
  }
  // Children that are ranks: the process that guards the clocks leads a session of its own.
  std::vector<pid_t> ranks() const {
    std::vector<pid_t> found;
    std::ifstream list("/proc/" + std::to_string(pid_) + "/task/" + std::to_string(pid_) + "/children");
    for (pid_t child = 0; list >> child;) {
      if (getsid(child) == getsid(pid_)) found.push_back(child);
    }
    return found;
  }

 private:
  std::string out_, err_;
  pid_t pid_;
};

class Emulated : public testing::Test {
 protected:
  void SetUp() override {
    for (const char* file : {"/bin/powerccl-emulator", "/emulator/libcuda.so.1", "/emulator/libnccl.so.2"}) {
      if (access((kStage + file).c_str(), R_OK) != 0) GTEST_SKIP() << "no emulator in this build: " << kStage << file;
    }
    char folder[] = "/tmp/powerccl-bench-test-XXXXXX";
    folder_ = mkdtemp(folder);
    int input[2], output[2];
    ASSERT_EQ(pipe2(input, O_CLOEXEC), 0);
    ASSERT_EQ(pipe2(output, O_CLOEXEC), 0);
    server_ = fork();
    if (server_ == 0) {
      dup2(input[0], 0);
      dup2(output[1], 1);
      const std::string platform = kStage + "/share/platforms/t4x8.conf";
      execl((kStage + "/bin/powerccl-emulator").c_str(), "powerccl-emulator", "--platform", platform.c_str(),
            "--socket", socket().c_str(), nullptr);
      _exit(127);
    }
    close(input[0]);
    close(output[1]);
    stop_ = input[1];
    char ready[8] = "";
    ASSERT_GT(read(output[0], ready, sizeof ready - 1), 0) << "powerccl-emulator does not start";
    close(output[0]);
    environment_ = {{"POWERCCL_EMULATOR_SOCKET", socket()}, {"LD_LIBRARY_PATH", kStage + "/emulator"}};
  }
  void TearDown() override {
    if (server_ <= 0) return;
    close(stop_);
    waitpid(server_, nullptr, 0);
    const std::string command = "rm -r " + folder_;
    EXPECT_EQ(std::system(command.c_str()), 0);
  }

  std::string socket() const { return folder_ + "/socket"; }
  std::string file(const std::string& name) const { return folder_ + "/" + name; }
  Process start(std::vector<std::string> words, const Environment& more = {}) {
    words.insert(words.begin(), kStage + "/bin/powerccl-bench");
    Environment all = environment_;
    for (const auto& [name, value] : more) all[name] = value;
    return Process(words, all, file("process" + std::to_string(started_++)));
  }
  Ended bench(const std::vector<std::string>& words, const Environment& more = {}) { return start(words, more).wait(); }

  // Evaluates a Python expression over a JSON file `d`, which also proves that it is one.
  std::string json(const std::string& name, const std::string& expression) const {
    const std::string command = "python3 -c 'import json,sys; d=json.load(open(sys.argv[1])); print(" + expression +
                                ", end=\"\")' " + file(name);
    FILE* pipe = popen(command.c_str(), "r");
    char text[4096] = "";
    const size_t length = fread(text, 1, sizeof text - 1, pipe);
    EXPECT_EQ(pclose(pipe), 0) << contents(file(name));
    return std::string(text, length);
  }
  // The SM clock that a GPU runs at when nobody has locked it lower.
  double clock_in_use() {
    const Ended ended = bench({"all_reduce", "-b", "32M", "-e", "32M", "-c", "0", "-n", "2", "--min-time", "0.15",
                               "--json", file("clock.json")});
    EXPECT_EQ(ended.code, 0) << ended.err;
    return std::stod(json("clock.json", "d[\"results\"][0][\"sm_clock_mhz\"]"));
  }

  std::string folder_;
  Environment environment_;
  pid_t server_ = -1;
  int stop_ = -1, started_ = 0;
};

const std::vector<std::string> kLongRun = {"all_reduce", "-b", "64M", "-e",   "64M",
                                           "-c",         "0",  "-n",  "2000", "--no-energy"};

std::vector<std::string> with(std::vector<std::string> words, const std::vector<std::string>& more) {
  words.insert(words.end(), more.begin(), more.end());
  return words;
}

TEST_F(Emulated, NinePatternsAreCorrect) {
  const Ended ended = bench({"all", "-b", "64K", "-e", "256K", "-f", "4", "-n", "2", "--min-time", "0", "--in-place",
                             "-r", "3", "--json", file("a.json")});
  EXPECT_EQ(ended.code, 0) << ended.err;
  EXPECT_EQ(json("a.json", "d[\"summary\"][\"wrong\"], d[\"summary\"][\"points\"], d[\"finished\"], d[\"moves_data\"]"),
            "0 32 True True");
  EXPECT_EQ(
      json("a.json", "sorted(set(r[\"pattern\"] for r in d[\"results\"])).__len__(), d[\"emulated\"], d[\"ranks\"]"),
      "9 True 8");
  EXPECT_NE(ended.out.find("# Avg bus bandwidth"), std::string::npos);
  EXPECT_NE(ended.out.find("Emulated"), std::string::npos);
}

TEST_F(Emulated, TypesAndOperatorsAreCorrectInThreads) {
  const Ended ended = bench({"all_reduce,reduce_scatter", "-b", "24K", "-e", "24K", "-n", "1", "--min-time", "0", "-d",
                             "all", "-o", "all", "-g", "3", "--threads", "--json", file("a.json")});
  EXPECT_EQ(ended.code, 0) << ended.err << ended.out;
  EXPECT_EQ(json("a.json", "d[\"summary\"][\"wrong\"], d[\"summary\"][\"points\"], d[\"launch\"]"), "0 60 threads");
}

TEST_F(Emulated, GroupedGraphBlockingAndEventsMeasure) {
  for (const std::vector<std::string>& more :
       {std::vector<std::string>{"--grouped"}, {"-G", "3"}, {"--blocking"}, {"--events"}}) {
    const Ended ended = bench(with({"all_to_all,gather,all_reduce", "-b", "64K", "-e", "64K", "-n", "3", "-g", "4",
                                    "--no-energy", "--json", file("a.json")},
                                   more));
    EXPECT_EQ(ended.code, 0) << more[0] << ended.err;
    EXPECT_EQ(json("a.json", "d[\"summary\"][\"wrong\"], min(r[\"time_us\"] for r in d[\"results\"]) > 0"), "0 True");
    EXPECT_EQ(json("a.json", "d[\"results\"][0][\"event_us\"] is None"), more[0] == "--events" ? "False" : "True");
  }
}

TEST_F(Emulated, EmptyCollectivesAreMeasured) {
  const Ended ended =
      bench({"all", "-b", "0", "-e", "0", "-n", "2", "-g", "4", "--no-energy", "--json", file("a.json")});
  EXPECT_EQ(ended.code, 0) << ended.err;
  EXPECT_EQ(json("a.json", "[r[\"size_bytes\"] for r in d[\"results\"]]"), "[0, 0, 0, 0, 0, 0, 0, 0, 0]");
}

TEST_F(Emulated, EnergyIsTold) {
  const Ended ended = bench({"all_reduce", "-b", "16M", "-e", "16M", "-c", "0", "--json", file("a.json")});
  EXPECT_EQ(ended.code, 0) << ended.err;
  EXPECT_EQ(json("a.json", "d[\"results\"][0][\"energy_source\"], d[\"moves_data\"]"), "counter False");
  const double watts = std::stod(json("a.json", "d[\"results\"][0][\"watts_per_gpu\"]"));
  EXPECT_GT(watts, 35);
  EXPECT_LT(watts, 55);
}

TEST_F(Emulated, ClocksAreSetAndRestored) {
  const Ended ended = bench({"all_reduce", "-b", "32M", "-e", "32M", "-c", "0", "-n", "2", "--min-time", "0.1",
                             "--clocks", "1500,600", "--json", file("a.json")});
  EXPECT_EQ(ended.code, 0) << ended.err;
  EXPECT_EQ(json("a.json", "d[\"clock_control\"], [round(r[\"sm_clock_mhz\"]) for r in d[\"results\"]]"),
            "set [1500, 600]");
  EXPECT_GT(clock_in_use(), 1500);
}

TEST_F(Emulated, ClocksAreRestoredAfterSigkill) {
  Process process = start(with(kLongRun, {"--clock", "600"}));
  ASSERT_TRUE(process.wait_for_output("# Using devices"));
  usleep(500'000);
  kill(process.pid(), SIGKILL);
  EXPECT_EQ(process.wait().code, 128 + SIGKILL);
  usleep(500'000);
  EXPECT_GT(clock_in_use(), 1500);
}

TEST_F(Emulated, ALostClockIsNotMeasured) {
  int ends[2];
  ASSERT_EQ(socketpair(AF_UNIX, SOCK_SEQPACKET, 0, ends), 0);
  fcntl(ends[0], F_SETFD, FD_CLOEXEC);
  Process process = start({"all_reduce", "-b", "1M", "-e", "4M", "-c", "0", "-n", "2", "--no-energy", "--clocks", "600",
                           "--json-lines", file("a.jsonl"), "--clock-socket", std::to_string(ends[1])});
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
  EXPECT_EQ(ended.code, 3);
  EXPECT_NE(ended.err.find("the clock did not hold: revoked"), std::string::npos) << ended.err;
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
  const Ended ended = bench({"all_reduce", "-b", "1M", "-e", "1M", "-c", "0", "-n", "2", "--no-energy", "--clocks",
                             "600", "--json-lines", file("a.jsonl"), "--clock-socket", std::to_string(inherited)});
  close(inherited);
  EXPECT_EQ(ended.code, 3);
  EXPECT_NE(ended.err.find("the process that sets clocks has died"), std::string::npos) << ended.err;
}

TEST_F(Emulated, DryWinsOverClocks) {
  const Ended ended = bench({"all_reduce", "-b", "1M", "-e", "1M", "-c", "0", "-n", "2", "--clocks", "900,600",
                             "--set-clocks", "--no-energy", "--json", file("a.json")},
                            {{"POWERCCL_CLOCKS", "dry"}});
  EXPECT_EQ(ended.code, 0) << ended.err;
  EXPECT_EQ(json("a.json", "d[\"clock_control\"], [r[\"clock_requested_mhz\"] for r in d[\"results\"]]"), "dry [None]");
}

TEST_F(Emulated, AKilledRankEndsTheRun) {
  Process process = start(with(kLongRun, {"--json", file("a.json")}));
  ASSERT_TRUE(process.wait_for_output("# time:"));
  const std::vector<pid_t> ranks = process.ranks();
  ASSERT_EQ(ranks.size(), 8U);
  kill(ranks[3], SIGKILL);
  const auto begin = std::chrono::steady_clock::now();
  const Ended ended = process.wait();
  EXPECT_LT(std::chrono::steady_clock::now() - begin, std::chrono::seconds(20));
  EXPECT_EQ(ended.code, 4);
  EXPECT_NE(ended.err.find("signal 9"), std::string::npos) << ended.err;
  EXPECT_NE(ended.err.find("hint:"), std::string::npos);
  EXPECT_EQ(json("a.json", "d[\"finished\"], \"signal 9\" in d[\"error\"]"), "False True");
}

TEST_F(Emulated, AnInterruptIsPassedOn) {
  Process process = start(kLongRun);
  ASSERT_TRUE(process.wait_for_output("# time:"));
  kill(process.pid(), SIGINT);
  EXPECT_EQ(process.wait().code, 128 + SIGINT);
}

TEST_F(Emulated, TimeoutEndsTheRun) {
  const Ended ended = bench(with(kLongRun, {"--timeout", "2"}));
  EXPECT_EQ(ended.code, 5);
  EXPECT_NE(ended.err.find("--timeout"), std::string::npos) << ended.err;
}

TEST_F(Emulated, MoreRanksThanGpus) {
  const Ended ended = bench({"all_reduce", "-g", "9"});
  EXPECT_EQ(ended.code, 3);
  EXPECT_NE(ended.err.find("more ranks than GPUs: 9 ranks, 8 GPUs"), std::string::npos) << ended.err;
  EXPECT_NE(ended.err.find("hint:"), std::string::npos);
}

TEST_F(Emulated, ResumeMeasuresTheRest) {
  const std::vector<std::string> words = {
      "all_reduce", "-e",          "1M", "-f", "2",           "-c",           "0",
      "-n",         "2",           "-g", "2",  "--no-energy", "--json-lines", file("l.jsonl"),
      "--json",     file("a.json")};
  EXPECT_EQ(bench(with(words, {"-b", "512K"})).code, 0);
  std::ofstream(file("l.jsonl"), std::ios::app) << "{\"type\": \"point\", \"patt";
  const Ended ended = bench(with(words, {"-b", "256K", "--resume"}));
  EXPECT_EQ(ended.code, 0) << ended.err;
  EXPECT_EQ(json("a.json", "d[\"summary\"][\"skipped\"], [r[\"size_bytes\"] for r in d[\"results\"]]"), "2 [262144]");
  std::ifstream lines(file("l.jsonl"));
  int count = 0;
  for (std::string line; std::getline(lines, line); ++count)
    EXPECT_TRUE(line.starts_with("{") && line.ends_with("}")) << line;
  EXPECT_EQ(count, 4);  // one header, three points
}

TEST_F(Emulated, UnwritableJsonIsSaidBeforeMeasuring) {
  const Ended ended = bench({"all_reduce", "--json", "/nowhere/a.json"});
  EXPECT_EQ(ended.code, 2);
  EXPECT_NE(ended.err.find("/nowhere/a.json"), std::string::npos);
  EXPECT_EQ(ended.out, "");
}

TEST_F(Emulated, RanksOfALauncherMeet) {
  std::vector<Process> processes;
  for (const char* rank : {"0", "1"}) {
    processes.push_back(start({"all_reduce", "-b", "64K", "-e", "64K", "-n", "2", "--no-energy", "--rendezvous",
                               folder_, "--json", file("a.json"), "-T", "30"},
                              {{"RANK", rank}, {"LOCAL_RANK", rank}, {"WORLD_SIZE", "2"}, {"LOCAL_WORLD_SIZE", "2"}}));
  }
  for (Process& process : processes) {
    const Ended ended = process.wait();
    EXPECT_EQ(ended.code, 0) << ended.err;
  }
  EXPECT_EQ(json("a.json", "d[\"launch\"], d[\"ranks\"], d[\"summary\"][\"wrong\"]"), "launcher 2 0");
}

TEST_F(Emulated, TrainingStepHasItsPhases) {
  const Ended ended =
      bench({"train", "--model", "microllama", "--iterations", "2", "-w", "1", "--json", file("t.json")});
  EXPECT_EQ(ended.code, 0) << ended.err;
  EXPECT_EQ(json("t.json", "d[\"mode\"], len(d[\"results\"]), d[\"summary\"][\"iterations\"], d[\"model\"][\"name\"]"),
            "train 3 2 microllama");
  const double sync_ms = std::stod(json("t.json", "d[\"summary\"][\"sync_ms\"]"));
  EXPECT_GT(sync_ms, 400);
  EXPECT_LT(sync_ms, 600);
  EXPECT_EQ(json("t.json",
                 "all(r[\"start_ns\"] < r[\"forward_end_ns\"] < r[\"backward_end_ns\"] <= "
                 "r[\"buckets\"][0][\"start_ns\"] < r[\"end_ns\"] for r in d[\"results\"])"),
            "True");
  EXPECT_EQ(json("t.json",
                 "all(0 < r[\"communication_joules_per_gpu\"] < r[\"joules_per_gpu\"] for r in d[\"results\"][1:])"),
            "True");
}

TEST_F(Emulated, EnergyOfShortStepsComesFromAllOfThem) {
  const Ended ended = bench({"train", "--forward-ms", "6", "--backward-ms", "9", "--buckets", "1M", "--iterations",
                             "12", "-g", "2", "--json", file("t.json")});
  EXPECT_EQ(ended.code, 0) << ended.err;
  EXPECT_EQ(json("t.json", "d[\"summary\"][\"joules_from\"], d[\"results\"][-1][\"joules_per_gpu\"]"), "stretch None");
  EXPECT_GT(std::stod(json("t.json", "d[\"summary\"][\"watts_per_gpu\"]")), 30);
}

TEST_F(Emulated, OverlapHidesCommunication) {
  const std::vector<std::string> words = {
      "train", "--forward-ms", "20", "--backward-ms", "120", "--buckets", "16M,16M,16M", "--iterations", "2", "-w",
      "1",     "-g",           "4",  "--no-energy"};
  EXPECT_EQ(bench(with(words, {"--overlap", "none", "--json", file("none.json")})).code, 0);
  EXPECT_EQ(bench(with(words, {"--overlap", "backward", "--json", file("beside.json")})).code, 0);
  const double exposed = std::stod(json("none.json", "d[\"summary\"][\"sync_ms\"]"));
  const double hidden = std::stod(json("beside.json", "d[\"summary\"][\"sync_ms\"]"));
  EXPECT_LT(hidden, exposed * 0.8);
}

TEST_F(Emulated, AScenarioHasItsTimes) {
  std::ofstream(file("a.scn")) << "rank 1 x1.5\nstreams comm\ngroup pair 2\n"
                                  "compute 10\nwait compute on comm\nall_reduce 4M on comm\ncompute 10\n"
                                  "wait comm on compute\nall_reduce 1M in pair\n"
                                  "from 50%\nreceive 1M from previous\ncompute 5\nsend 1M to next\n";
  const Ended ended = bench({"scenario", file("a.scn"), "-g", "4", "--iterations", "6", "--json", file("s.json")});
  EXPECT_EQ(ended.code, 0) << ended.err;
  EXPECT_EQ(json("s.json",
                 "d[\"mode\"], d[\"finished\"], d[\"scenario\"][\"name\"], len(d[\"results\"]), "
                 "d[\"summary\"][\"iterations\"]"),
            "scenario True a 8 6");
  EXPECT_EQ(json("s.json", "[r[\"iteration\"] for r in d[\"results\"]]"), "[0, 1, 0, 1, 2, 3, 4, 5]");
  EXPECT_EQ(json("s.json",
                 "all(0 < r[\"exposed_ms\"] < r[\"step_ms\"] and r[\"compute_ms\"] < r[\"step_ms\"] "
                 "for r in d[\"results\"])"),
            "True");
  // The slow rank computes longer; in the second half ranks follow one another.
  EXPECT_EQ(json("s.json",
                 "d[\"results\"][3][\"compute_ms_of_ranks\"][1] > "
                 "1.3 * d[\"results\"][3][\"compute_ms_of_ranks\"][0]"),
            "True");
  EXPECT_EQ(json("s.json", "d[\"results\"][-1][\"step_ms\"] > 2.5 * d[\"results\"][-1][\"compute_ms\"]"), "True");
}

TEST_F(Emulated, VaryingAndCapturedScenariosRun) {
  std::ofstream(file("a.scn")) << "streams comm\nrepeat 2\ncompute 2 vary 50%\nall_to_all 1M vary 50%\nend\n"
                                  "from 50%\nrepeat 2\ncapture\ncompute 3\nwait compute on comm\n"
                                  "all_gather 256K on comm\nwait comm on compute\nend\nend\nsync compute\ncompute 1\n";
  const Ended ended = bench({"scenario", file("a.scn"), "--iterations", "4", "--no-energy", "--json", file("s.json")});
  EXPECT_EQ(ended.code, 0) << ended.err;
  EXPECT_EQ(json("s.json", "[r[\"compute_ms\"] is None for r in d[\"results\"]]"),
            "[False, False, False, False, True, True]");
  EXPECT_GT(std::stod(json("s.json", "d[\"results\"][-1][\"step_ms\"]")), 5);  // 7 at the reference clock
}

TEST_F(Emulated, AKilledRankEndsAScenarioWithGroups) {
  Process process = start({"scenario", kScenarios + "/pp.scn", "--no-energy", "--json", file("s.json")});
  ASSERT_TRUE(process.wait_for_output("      1 "));
  const std::vector<pid_t> ranks = process.ranks();
  ASSERT_EQ(ranks.size(), 8U);
  kill(ranks[5], SIGKILL);
  const auto begin = std::chrono::steady_clock::now();
  const Ended ended = process.wait();
  EXPECT_LT(std::chrono::steady_clock::now() - begin, std::chrono::seconds(20));
  EXPECT_EQ(ended.code, 4);
  EXPECT_NE(ended.err.find("signal 9"), std::string::npos) << ended.err;
  EXPECT_EQ(json("s.json", "d[\"finished\"], len(d[\"results\"]) > 2"), "False True");
}

TEST_F(Emulated, AScenarioThatCannotEndIsRefused) {
  std::ofstream(file("a.scn")) << "compute 1\nsend 1M to next\n";
  const Ended ended = bench({"scenario", file("a.scn")});
  EXPECT_EQ(ended.code, 2);
  EXPECT_NE(ended.err.find("a.scn:2: rank 6 sends to rank 7"), std::string::npos) << ended.err;
  EXPECT_NE(ended.err.find("hint:"), std::string::npos);
  EXPECT_EQ(bench({"scenario"}).code, 2);
  EXPECT_EQ(bench({"scenario", file("none.scn")}).code, 2);
}

}  // namespace
