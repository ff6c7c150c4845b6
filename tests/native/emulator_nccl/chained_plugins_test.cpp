// SPDX-License-Identifier: Apache-2.0
// A profiler or tuner of the user's behind PowerCCL's: it is told what it is told alone.
#include <dlfcn.h>
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <filesystem>
#include <functional>
#include <regex>
#include <sstream>

#include "abi/nccl_profiler.h"
#include "emulation.h"

namespace powerccl::test {
namespace {

// Numbers of events as they first appear, without times: what two runs of one job have in common. Events of NCCL's
// other threads come whenever they come, so they follow in an order of their own.
Lines comparable(const Lines& lines) {
  std::map<std::string, std::string> names = {{"0", "0"}};
  const auto renamed = [&names](const std::string& number) {
    return names.try_emplace(number, std::to_string(names.size())).first->second;
  };
  const std::regex event(R"((\w+) (start|stop|state) (\w+) (\d+)(?: parent=(\d+))?(.*))");
  const std::regex time(R"( time=\d+)");
  Lines mine, others;
  for (const bool of_main : {true, false}) {
    for (const std::string& line : lines) {
      if ((line.rfind("main", 0) == 0) != of_main) continue;
      std::smatch part;
      if (!std::regex_match(line, part, event)) {
        mine.push_back(line);
        continue;
      }
      std::string text = part[1].str() + " " + part[2].str() + " " + part[3].str();
      if (of_main) text += " " + renamed(part[4]);
      const bool known = of_main || names.contains(part[5]);  // else it is one of those without order
      if (part[5].matched) text += " parent=" + (known ? renamed(part[5]) : "another's");
      text += std::regex_replace(part[6].str(), time, "");
      (of_main ? mine : others).push_back(text);
    }
  }
  std::sort(others.begin(), others.end());
  mine.insert(mine.end(), others.begin(), others.end());
  return mine;
}

class Chained : public ::testing::Test {
 protected:
  explicit Chained(const std::string& platform = POWERCCL_TEST_PLATFORM) : emulation(platform) {}
  std::vector<Finished> run(const std::string& scenario, Emulation::Environment environment) {
    environment.try_emplace("RECORD", record);
    std::filesystem::remove(record + ".0");
    const auto finished = emulation.run(scenario, 2, environment);
    EXPECT_EQ(statuses(finished), (std::vector<int>{0, 0})) << errors(finished);
    return finished;
  }
  Lines alone(const std::string& scenario, Emulation::Environment environment, const std::string& plugin) {
    environment["NCCL_PROFILER_PLUGIN"] = plugin;
    run(scenario, environment);
    return comparable(read_lines(record + ".0"));
  }
  Emulation::Environment with_ours(Emulation::Environment environment) {
    const std::string folder = emulation.folder() + "/run" + std::to_string(++runs);
    std::filesystem::create_directory(folder);
    environment["NCCL_PROFILER_PLUGIN"] = POWERCCL_TEST_ADAPTER;
    environment["POWERCCL_RUN_FOLDER"] = folder;
    traces = folder;
    return environment;
  }
  Lines chained(const std::string& scenario, Emulation::Environment environment, const std::string& plugin) {
    environment = with_ours(environment);
    environment["POWERCCL_CHAINED_PROFILER"] = plugin;
    said = errors(run(scenario, environment));
    return comparable(read_lines(record + ".0"));
  }
  // By PowerCCL, on both ranks.
  bool recorded() const {
    const auto files = std::filesystem::directory_iterator(traces);
    return std::count_if(begin(files), end(files), [](const auto& file) {
             return file.path().extension() == ".trace" && file.file_size() > 0;
           }) == 2;
  }

  Emulation emulation;
  std::string record = emulation.folder() + "/record";
  std::string traces, said;
  int runs = 0;
};

const std::string kFolder = POWERCCL_TEST_PLUGIN_FOLDER;
std::string only_version(int version) {
  return kFolder + "/libnccl-profiler-recording" + std::to_string(version) + ".so";
}

// By version of the interface that NCCL speaks and mask of the other profiler.
class ChainedProfiler : public Chained, public ::testing::WithParamInterface<std::tuple<const char*, const char*>> {};

TEST_P(ChainedProfiler, IsToldWhatItIsToldAlone) {
  const auto& [version, mask] = GetParam();
  Emulation::Environment environment = {{"POWERCCL_EMULATOR_PROFILER_ABI", version}, {"RECORD_MASK", mask}};
  // NCCL launches captured kernels in another way where kernel events are asked for, by whomever.
  if ((std::stoi(mask, nullptr, 0) & 0x40) == 0) environment["POWERCCL_KERNEL_EVENTS"] = "none";
  const Lines expected = alone("profiled", environment, POWERCCL_TEST_PLUGIN);
  ASSERT_GE(expected.size(), 2u);
  EXPECT_EQ(joined(chained("profiled", environment, POWERCCL_TEST_PLUGIN)), joined(expected));
  EXPECT_EQ(said, "");
  EXPECT_TRUE(recorded());
}

// All; what Inspector asks for; API events alone; tasks without kernels; groups alone; nothing.
INSTANTIATE_TEST_SUITE_P(Versions, ChainedProfiler,
                         ::testing::Combine(::testing::Values("4", "5", "6", "7"),
                                            ::testing::Values("0xfff", "0x46", "0x200", "0x6", "0x1", "0")));

TEST_F(Chained, AProfilerOfAnOlderInterfaceIsSpokenToInIt) {
  for (const int version : {4, 5}) {
    const std::string plugin = only_version(version);
    const Lines expected = alone("profiled", {{"POWERCCL_EMULATOR_PROFILER_ABI", std::to_string(version)}}, plugin);
    ASSERT_GT(expected.size(), 10u);
    EXPECT_EQ(joined(chained("profiled", {{"POWERCCL_EMULATOR_PROFILER_ABI", "7"}}, plugin)), joined(expected));
    EXPECT_EQ(said, "");
  }
}

TEST_F(Chained, WhatItWantsMayChangeAtAnyTime) {
  const Emulation::Environment environment = {{"RECORD_FROM", "1000"}, {"POWERCCL_KERNEL_EVENTS", "none"}};
  const Lines expected = alone("profiled", environment, POWERCCL_TEST_PLUGIN);
  ASSERT_FALSE(only(expected, "KernelCh").empty());
  EXPECT_EQ(joined(chained("profiled", environment, POWERCCL_TEST_PLUGIN)), joined(expected));
}

TEST_F(Chained, OneThatCannotBeUsedIsLeftOutWithAReason) {
  const Emulation::Environment old = {{"POWERCCL_EMULATOR_PROFILER_ABI", "4"}};
  chained("profiled", {}, only_version(3));
  EXPECT_NE(said.find("version 3 of NCCL's profiler interface, and PowerCCL passes on 4 and later"), std::string::npos)
      << said;
  chained("profiled", old, only_version(5));
  EXPECT_NE(said.find("version 5 of NCCL's profiler interface, and this NCCL only 4"), std::string::npos) << said;
  chained("profiled", {}, "/nowhere/libprofiler.so");
  EXPECT_NE(said.find("/nowhere/libprofiler.so: cannot open"), std::string::npos) << said;
  EXPECT_TRUE(recorded());
  chained("profiled", {{"RECORD_FAIL", "1"}}, POWERCCL_TEST_PLUGIN);
  EXPECT_NE(said.find("its start failed with error 1"), std::string::npos) << said;
  EXPECT_TRUE(recorded());
}

TEST_F(Chained, WhereNoneIsNamedTheDefaultIsFoundAsNcclFindsIt) {
  const std::string folder = emulation.folder() + "/lib";
  std::filesystem::create_directory(folder);
  std::filesystem::copy(POWERCCL_TEST_PLUGIN, folder + "/libnccl-profiler.so");
  const std::string path = std::string(POWERCCL_TEST_LIBRARIES) + ":" + folder;
  run("profiled", with_ours({{"LD_LIBRARY_PATH", path}}));
  EXPECT_GT(read_lines(record + ".0").size(), 10u);
  run("profiled", with_ours({{"LD_LIBRARY_PATH", path}, {"POWERCCL_CHAINED_PROFILER", "none"}}));
  EXPECT_TRUE(read_lines(record + ".0").empty());
}

TEST_F(Chained, OursIsNotChainedToItself) {
  chained("profiled", {}, POWERCCL_TEST_ADAPTER);
  EXPECT_EQ(said, "");
  EXPECT_TRUE(recorded());
}

TEST_F(Chained, ItIsToldOfEverythingWherePowercclIsDisabled) {
  const Lines expected = alone("profiled", {}, POWERCCL_TEST_PLUGIN);
  EXPECT_EQ(joined(chained("profiled", {{"POWERCCL_DISABLE", "1"}}, POWERCCL_TEST_PLUGIN)), joined(expected));
  EXPECT_FALSE(recorded());
}

// Told by hand what the emulated NCCL does not tell: a network's events, and more calls than handles are kept of.
class ByHand : public Chained {
 protected:
  Lines recorded_by(const std::string& library, const std::function<void(const nccl::ProfilerV5&, void*)>& tell) {
    std::filesystem::remove(record + ".0");
    const pid_t child = fork();
    if (child == 0) {
      setenv("RECORD", record.c_str(), 1);
      setenv("POWERCCL_CHAINED_PROFILER", POWERCCL_TEST_PLUGIN, 1);
      setenv("POWERCCL_RUN_FOLDER", emulation.folder().c_str(), 1);
      setenv("POWERCCL_SHM", "/", 1);
      const auto* plugin = static_cast<const nccl::ProfilerV5*>(
          dlsym(dlopen(library.c_str(), RTLD_NOW | RTLD_LOCAL), "ncclProfiler_v5"));
      void* context = nullptr;
      int mask = 0;
      plugin->init(&context, 1, &mask, nullptr, 1, 2, 0, nullptr);
      tell(*plugin, context);
      plugin->finalize(context);
      fflush(nullptr);
      _exit(0);
    }
    int status = 0;
    waitpid(child, &status, 0);
    EXPECT_EQ(status, 0);
    return read_lines(record + ".0");
  }
  static void* start(const nccl::ProfilerV5& plugin, void* context, uint64_t type, void* parent,
                     void* group = nullptr) {
    nccl::EventDescriptor event{};
    event.type = type;
    event.parent = parent;
    event.proxy_op.pid = type == nccl::kEventProxyOp ? getpid() : 0;
    if (type == nccl::kEventColl || type == nccl::kEventCollApi) {
      if (type == nccl::kEventColl) {
        event.coll.function = "AllReduce";
        event.coll.datatype = "ncclInt8";
        event.coll.algorithm = "RING";
        event.coll.protocol = "LL";
        event.coll.parent_group = group;
      } else {
        event.coll_api.function = "AllReduce";
        event.coll_api.datatype = "ncclInt8";
      }
    }
    void* handle = nullptr;
    plugin.start_event(context, &handle, &event);
    return handle;
  }
  // One collective; returns its task.
  static void* collective(const nccl::ProfilerV5& plugin, void* context) {
    void* group = start(plugin, context, nccl::kEventGroupApi, nullptr);
    void* call = start(plugin, context, nccl::kEventCollApi, group);
    plugin.stop_event(call);
    void* kernel = start(plugin, context, nccl::kEventGroup, nullptr);
    void* task = start(plugin, context, nccl::kEventColl, call, kernel);
    plugin.stop_event(task);
    plugin.stop_event(kernel);
    plugin.stop_event(group);
    return task;
  }
};

TEST_F(ByHand, TransfersKeepTheirParents) {
  const auto tell = [](const nccl::ProfilerV5& plugin, void* context) {
    void* task = collective(plugin, context);
    void* channel = start(plugin, context, nccl::kEventKernelCh, task);
    void* operation = start(plugin, context, nccl::kEventProxyOp, task);
    void* step = start(plugin, context, nccl::kEventProxyStep, operation);
    void* network = start(plugin, context, nccl::kEventNetPlugin, step);
    nccl::StateArguments arguments{};
    plugin.record_event_state(step, 9, &arguments);
    for (void* each : {network, step, operation, channel}) plugin.stop_event(each);
  };
  const Lines alone = recorded_by(POWERCCL_TEST_PLUGIN, tell);
  ASSERT_GE(alone.size(), 16u);
  EXPECT_EQ(joined(recorded_by(POWERCCL_TEST_ADAPTER, tell)), joined(alone));
}

TEST_F(ByHand, WhatIsForgottenIsToldToNobody) {
  const Lines lines = recorded_by(POWERCCL_TEST_ADAPTER, [](const nccl::ProfilerV5& plugin, void* context) {
    void* first = collective(plugin, context);
    for (int i = 0; i < 20000; ++i) collective(plugin, context);
    plugin.stop_event(first);  // its place is another's
    void* last = collective(plugin, context);
    plugin.stop_event(start(plugin, context, nccl::kEventKernelCh, last));
  });
  EXPECT_EQ(only(lines, "start Coll ").size(), 20002u);
  EXPECT_EQ(only(lines, "stop Coll ").size(), 20002u);
  EXPECT_EQ(only(lines, "stop KernelCh").size(), 1u);
}

// What the emulated NCCL chose, or the other tuner was asked, as `pattern` of the first rank's output.
class ChainedTuner : public Chained {
 protected:
  ChainedTuner() : Chained(POWERCCL_TEST_PLATFORMS "/h200x4-sockets.conf") {}  // where channels can be chosen
  Lines asked(Emulation::Environment environment, const std::string& pattern, const std::string& scenario) {
    const auto finished = emulation.run(scenario, 2, environment);
    EXPECT_EQ(statuses(finished), (std::vector<int>{0, 0})) << errors(finished);
    said = errors(finished);
    Lines lines;
    std::istringstream text(finished[0].output);
    for (std::string line; std::getline(text, line);) lines.push_back(line);
    return only(lines, pattern);
  }
  Lines alone(Emulation::Environment environment, const std::string& pattern,
              const std::string& scenario = "every_function") {
    environment["NCCL_TUNER_PLUGIN"] = POWERCCL_TEST_TUNER;
    return asked(environment, pattern, scenario);
  }
  Lines chained(Emulation::Environment environment, const std::string& pattern,
                const std::string& scenario = "every_function") {
    environment["NCCL_TUNER_PLUGIN"] = POWERCCL_TEST_ADAPTER;
    environment.try_emplace("POWERCCL_CHAINED_TUNER", POWERCCL_TEST_TUNER);
    return asked(environment, pattern, scenario);
  }
  std::string method(Emulation::Environment environment) {
    environment["BYTES"] = "67108864";
    environment["POWERCCL_EMULATOR_MOVE_DATA"] = "0";
    environment["POWERCCL_EMULATOR_TUNER_ABI"] = "6";  // is asked for chunks, of the method that was chosen
    const Lines lines = chained(environment, "bytes=67108864 method=", "tuned_timing");
    std::smatch found;
    EXPECT_FALSE(lines.empty());
    return !lines.empty() && std::regex_search(lines.back(), found, std::regex("method=([0-9,]+)")) ? found[1].str()
                                                                                                    : "";
  }
};

TEST_F(ChainedTuner, IsAskedWhatItIsAskedAlone) {
  for (const char* version : {"4", "5", "6"}) {
    const Emulation::Environment environment = {{"POWERCCL_EMULATOR_TUNER_ABI", version}};
    const Lines expected = alone(environment, "^(init|ask|chunk|finalize)");
    ASSERT_GT(expected.size(), 5u);
    EXPECT_EQ(joined(chained(environment, "^(init|ask|chunk|finalize)")), joined(expected)) << version;
    EXPECT_EQ(said, "");
  }
}

TEST_F(ChainedTuner, DecidesWhereNoRuleApplies) {
  const char* const small = "allreduce,0,1024,ring,ll,2,-1,-1";
  const char* const all = "allreduce,0,-1,ring,simple,2,-1,-1";
  const char* const leaves_channels = "allreduce,0,-1,ring,simple,-1,-1,-1";
  EXPECT_EQ(method({{"TUNER_CHOICE", "0,2,1"}}), "0,2,1");
  EXPECT_EQ(method({{"TUNER_CHOICE", "0,2,1"}, {"POWERCCL_TUNER_TABLE", small}}), "0,2,1");
  EXPECT_EQ(method({{"TUNER_CHOICE", "0,2,1"}, {"POWERCCL_TUNER_TABLE", all}}), "1,2,2");
  // Theirs go with what theirs chose.
  EXPECT_EQ(method({{"TUNER_CHOICE", "0,2,1"}, {"POWERCCL_TUNER_TABLE", leaves_channels}}),
            method({{"POWERCCL_TUNER_TABLE", leaves_channels}}));
}

TEST_F(ChainedTuner, ItsErrorsAreNotTheJobs) {
  EXPECT_FALSE(chained({{"TUNER_FAIL", "info"}}, "^ask").empty());
  chained({{"TUNER_FAIL", "init"}}, "^ask");
  EXPECT_NE(said.find("its start failed with error 2"), std::string::npos) << said;
  chained({{"POWERCCL_CHAINED_TUNER", "/nowhere/libtuner.so"}}, "^ask");
  EXPECT_NE(said.find("/nowhere/libtuner.so: cannot open"), std::string::npos) << said;
}

}  // namespace
}  // namespace powerccl::test
