// SPDX-License-Identifier: Apache-2.0
// powerccl-emulator as a program: how it starts, idles and ends.
#include <fcntl.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <filesystem>
#include <fstream>
#include <thread>
#include <vector>

#include "../emulator_nccl/emulation.h"
#include "emulator/messages.h"

namespace powerccl::emulator {
namespace {

class ServerProgram : public testing::Test {
 protected:
  void SetUp() override {
    char name[] = "/tmp/powerccl-server-XXXXXX";
    folder = mkdtemp(name);
    socket_path = folder + "/socket";
  }
  void TearDown() override {
    if (pid > 0) {
      kill(pid, SIGKILL);
      waitpid(pid, nullptr, 0);
    }
    if (input >= 0) close(input);
    std::filesystem::remove_all(folder);
  }

  void start(std::vector<std::string> arguments) {
    int in[2], out[2];
    ASSERT_EQ(pipe2(in, O_CLOEXEC), 0);
    ASSERT_EQ(pipe2(out, O_CLOEXEC), 0);
    const std::string errors = folder + "/errors";
    pid = fork();
    if (pid == 0) {
      dup2(in[0], STDIN_FILENO);
      dup2(out[1], STDOUT_FILENO);
      dup2(open(errors.c_str(), O_WRONLY | O_CREAT | O_APPEND, 0600), STDERR_FILENO);
      std::vector<char*> argv{const_cast<char*>("powerccl-emulator")};
      for (std::string& argument : arguments) argv.push_back(argument.data());
      argv.push_back(nullptr);
      execv(POWERCCL_TEST_SERVER, argv.data());
      _exit(127);
    }
    close(in[0]);
    close(out[1]);
    input = in[1];
    char text[64] = {};
    const ssize_t got = read(out[0], text, sizeof text - 1);
    close(out[0]);
    ready = got > 0 && std::string(text) == "ready\n";
  }
  void start_ready() {
    start({"--platform", POWERCCL_TEST_PLATFORM, "--socket", socket_path});
    ASSERT_TRUE(ready) << errors();
  }
  // Its exit code; -1: it was still running after half a minute.
  int ended() {
    int status = 0;
    for (int i = 0; i < 15'000; ++i) {
      if (waitpid(pid, &status, WNOHANG) == pid) {
        pid = -1;
        return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
      }
      std::this_thread::sleep_for(std::chrono::milliseconds(2));
    }
    return -1;
  }
  std::string errors() const {
    std::ifstream file(folder + "/errors");
    return {std::istreambuf_iterator<char>(file), {}};
  }
  int connect_to() const {
    sockaddr_un address{};
    address.sun_family = AF_UNIX;
    std::copy(socket_path.begin(), socket_path.end(), address.sun_path);
    const int fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
    EXPECT_EQ(connect(fd, reinterpret_cast<sockaddr*>(&address), sizeof address), 0);
    return fd;
  }
  // Clock ticks of CPU time so far.
  long cpu_ticks() const {
    std::ifstream file("/proc/" + std::to_string(pid) + "/stat");
    std::string text((std::istreambuf_iterator<char>(file)), {});
    std::istringstream fields(text.substr(text.rfind(')') + 2));
    std::string word;
    long user = 0, system = 0;
    for (int i = 3; i <= 13; ++i) fields >> word;
    fields >> user >> system;
    return user + system;
  }

  std::string folder, socket_path;
  pid_t pid = -1;
  int input = -1;
  bool ready = false;
};

TEST_F(ServerProgram, EndsWithItsStandardInput) {
  start_ready();
  EXPECT_TRUE(std::filesystem::exists(socket_path));
  close(input);
  input = -1;
  EXPECT_EQ(ended(), 0);
  EXPECT_FALSE(std::filesystem::exists(socket_path));
}

TEST_F(ServerProgram, EndsOnSigterm) {
  start_ready();
  kill(pid, SIGTERM);
  EXPECT_EQ(ended(), 0);
  EXPECT_FALSE(std::filesystem::exists(socket_path));
}

TEST_F(ServerProgram, EndsWhenToldTo) {
  start_ready();
  const int fd = connect_to();
  Hello hello{};
  hello.header = {static_cast<uint32_t>(Message::kHello), sizeof hello, 0, 1};
  hello.abi = kAbi;
  hello.role = static_cast<uint32_t>(Role::kNvml);
  ASSERT_EQ(send(fd, &hello, sizeof hello, 0), static_cast<ssize_t>(sizeof hello));
  Header stop{static_cast<uint32_t>(Message::kStop), sizeof stop, 0, 2};
  ASSERT_EQ(send(fd, &stop, sizeof stop, 0), static_cast<ssize_t>(sizeof stop));
  EXPECT_EQ(ended(), 0);
  close(fd);
}

TEST_F(ServerProgram, IdlesWithoutCpuTime) {
  start_ready();
  const long before = cpu_ticks();
  std::this_thread::sleep_for(std::chrono::milliseconds(700));
  EXPECT_LE(cpu_ticks() - before, 1);
}

TEST_F(ServerProgram, RefusesOtherBuildsAndNonsense) {
  start_ready();
  const int other = connect_to();
  Hello hello{};
  hello.header = {static_cast<uint32_t>(Message::kHello), sizeof hello, 0, 1};
  hello.abi = kAbi + 1;
  hello.role = static_cast<uint32_t>(Role::kCuda);
  ASSERT_EQ(send(other, &hello, sizeof hello, 0), static_cast<ssize_t>(sizeof hello));
  Welcome welcome{};
  ASSERT_EQ(recv(other, &welcome, sizeof welcome, 0), static_cast<ssize_t>(sizeof welcome));
  EXPECT_NE(welcome.error, 0);
  close(other);
  const int garbage = connect_to();
  ASSERT_EQ(send(garbage, "hello?", 6, 0), 6);
  char byte;
  EXPECT_EQ(recv(garbage, &byte, 1, 0), 0);  // shown the door
  close(garbage);
  const int early = connect_to();  // a submission before hello
  Kernel kernel{};
  kernel.to.header = {static_cast<uint32_t>(Message::kKernel), sizeof kernel, 0, 0};
  ASSERT_EQ(send(early, &kernel, sizeof kernel, 0), static_cast<ssize_t>(sizeof kernel));
  EXPECT_EQ(recv(early, &byte, 1, 0), 0);
  close(early);
  kill(pid, SIGTERM);
  EXPECT_EQ(ended(), 0);
}

TEST_F(ServerProgram, SaysWhatIsWrongWithItsArguments) {
  start({});
  EXPECT_EQ(ended(), 2);
  start({"--frobnicate"});
  EXPECT_EQ(ended(), 2);
  start({"--platform", "/nowhere.conf", "--socket", socket_path});
  EXPECT_EQ(ended(), 1);
  EXPECT_NE(errors().find("/nowhere.conf"), std::string::npos);
  EXPECT_NE(errors().find("hint:"), std::string::npos);
  start({"--platform", POWERCCL_TEST_PLATFORM, "--socket", std::string(200, 'x')});
  EXPECT_EQ(ended(), 1);
}

TEST_F(ServerProgram, DoesNotTakeAnothersSocket) {
  start_ready();
  const pid_t first = pid;
  const int first_input = input;
  start({"--platform", POWERCCL_TEST_PLATFORM, "--socket", socket_path});
  EXPECT_FALSE(ready);
  EXPECT_EQ(ended(), 1);
  EXPECT_TRUE(std::filesystem::exists(socket_path));  // the first one's
  close(input);
  pid = first;
  input = first_input;
}

}  // namespace

}  // namespace powerccl::emulator

// Processes on the emulated libcuda and libnvidia-ml with a server of their own (job_*.cpp has what they do).
namespace powerccl::test {
namespace {

void wait_for_output(const Emulation& emulation, const std::string& text) {
  const auto deadline = std::chrono::steady_clock::now() + std::chrono::seconds(30);
  while (emulation.output_of(0).find(text) == std::string::npos && std::chrono::steady_clock::now() < deadline)
    std::this_thread::sleep_for(std::chrono::milliseconds(2));
}

struct Job {
  const char* scenario;
  int processes = 1;
  Emulation::Environment environment = {};
};
void PrintTo(const Job& job, std::ostream* out) {
  *out << job.scenario;
}

class Scenario : public ::testing::TestWithParam<Job> {};

TEST_P(Scenario, FindsWhatItExpects) {
  Emulation emulation;
  const auto ended = emulation.run(GetParam().scenario, GetParam().processes, GetParam().environment);
  EXPECT_EQ(statuses(ended), std::vector<int>(ended.size(), 0)) << errors(ended);
}

const auto name_of_job = [](const auto& made) { return std::string(made.param.scenario); };
INSTANTIATE_TEST_SUITE_P(Cuda, Scenario,
                         ::testing::Values(Job{"events"}, Job{"ordering"}, Job{"memory"}, Job{"write_value"},
                                           Job{"host_functions"}, Job{"graphs"}, Job{"modules"}, Job{"entry_points"},
                                           Job{"contexts"}, Job{"threads"}, Job{"processes", 8}, Job{"fork_child"},
                                           Job{"visible", 1, {{"CUDA_VISIBLE_DEVICES", "2,1,nonsense,3"}}},
                                           Job{"unmoved", 1, {{"POWERCCL_EMULATOR_MOVE_DATA", "0"}}}),
                         name_of_job);
INSTANTIATE_TEST_SUITE_P(Nvml, Scenario,
                         ::testing::Values(Job{"nvml"}, Job{"energy"}, Job{"clock_calls"}, Job{"nvml_after_fork"},
                                           Job{"failing_calls",
                                               1,
                                               {{"POWERCCL_EMULATOR_NVML_FAIL",
                                                 "set_locked_clocks:after=3:code=15,power:after=0:code=3"}}},
                                           Job{"forbidden", 1, {{"POWERCCL_EMULATOR_MAY_SET_CLOCKS", "0"}}}),
                         name_of_job);

TEST(Nvml, LockedClocksOutliveTheirProcess) {
  for (const auto& [scenario, status] : {std::pair{"locks_and_leaves", 0}, {"locks_and_dies", 128 + 9}}) {
    Emulation emulation;
    EXPECT_EQ(statuses(emulation.run(scenario, 1)), std::vector<int>{status});
    const auto finder = emulation.run("finds_lock", 1);
    EXPECT_EQ(statuses(finder), std::vector<int>{0}) << scenario << errors(finder);
  }
}

TEST(Faults, AKilledProcessLeavesNothingBehind) {
  Emulation emulation;
  EXPECT_EQ(statuses(emulation.run("dies", 1)), std::vector<int>{128 + 9});
  const auto survivor = emulation.run("survives", 1);
  EXPECT_EQ(statuses(survivor), std::vector<int>{0}) << errors(survivor);
}

TEST(Faults, AKilledProcessDoesNotDisturbOthers) {
  Emulation emulation;
  emulation.start("dies", 1);
  wait_for_output(emulation, "running");
  emulation.start("survives", 1);
  const auto ended = emulation.finish();
  ASSERT_EQ(ended.size(), 2u);
  EXPECT_EQ(ended[0].status, 128 + 9);
  EXPECT_EQ(ended[1].status, 0) << errors(ended);
}

TEST(Faults, AKilledServerEndsEveryCallWithOneLine) {
  Emulation emulation;
  emulation.start("outlives_server", 1);
  wait_for_output(emulation, "running");
  emulation.kill_server();
  const auto ended = emulation.finish();
  EXPECT_EQ(statuses(ended), std::vector<int>{0}) << errors(ended);
  const std::string text = ended[0].errors;
  const std::string line = "libcuda: the emulated GPU server is gone";
  const size_t first = text.find(line);
  EXPECT_NE(first, std::string::npos) << text;
  EXPECT_EQ(text.find(line, first + 1), std::string::npos) << text;
}

TEST(Faults, WithoutAServerThereIsNoDeviceAndAHint) {
  for (const std::string socket : {"", "/nowhere/socket"}) {
    Emulation emulation;
    const auto ended = emulation.run("no_server", 1, {{"POWERCCL_EMULATOR_SOCKET", socket}});
    EXPECT_EQ(statuses(ended), std::vector<int>{0}) << errors(ended);
    EXPECT_NE(errors(ended).find("hint:"), std::string::npos);
  }
}

}  // namespace

}  // namespace powerccl::test
