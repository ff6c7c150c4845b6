// SPDX-License-Identifier: Apache-2.0
// powerccl-bench on an emulated server of eight T4 that each test starts for itself.
#pragma once
#include <fcntl.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdlib>
#include <cstring>
#include <fstream>
#include <map>
#include <sstream>
#include <string>
#include <vector>

namespace powerccl::bench::tests {

using Environment = std::map<std::string, std::string>;
inline const std::string kStage = POWERCCL_STAGE;
inline const std::string kScenarios = POWERCCL_SCENARIOS;

inline std::string contents(const std::string& path) {
  std::ostringstream text;
  text << std::ifstream(path).rdbuf();
  return text.str();
}

struct Ended {
  int code;  // exit code, or 128 + signal
  std::string out, err;
};

inline void expect_failure(const Ended& ended, int code, const char* says) {
  EXPECT_EQ(ended.code, code) << ended.err;
  EXPECT_NE(ended.err.find(says), std::string::npos) << ended.err;
}

class Process {
 public:
  // `input`: a file, or nothing to leave stdin as it is.
  Process(std::vector<std::string> words, const Environment& environment, const std::string& prefix,
          const std::string& input = {})
      : out_(prefix + ".out"), err_(prefix + ".err") {
    pid_ = fork();
    if (pid_ != 0) return;
    for (const auto& [name, value] : environment) setenv(name.c_str(), value.c_str(), 1);
    if (!input.empty()) dup2(open(input.c_str(), O_RDONLY), 0);
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
  // The header is written once all ranks are up.
  bool wait_for_output(const std::string& text) const {
    for (int i = 0; i < 2000; ++i) {
      if (contents(out_).find(text) != std::string::npos) return true;
      usleep(10'000);
    }
    return false;
  }
  std::vector<pid_t> ranks() const {
    std::vector<pid_t> found;
    std::ifstream list("/proc/" + std::to_string(pid_) + "/task/" + std::to_string(pid_) + "/children");
    for (pid_t child = 0; list >> child;) found.push_back(child);
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
  // Of this command line, of which blanks part the words.
  Process start(const std::string& line, const Environment& more = {}, const std::string& input = {}) {
    std::istringstream parts(kStage + "/bin/powerccl-bench " + line);
    std::vector<std::string> words;
    for (std::string word; parts >> word;) words.push_back(word);
    Environment all = environment_;
    for (const auto& [name, value] : more) all[name] = value;
    return Process(words, all, file("process" + std::to_string(started_++)), input);
  }
  Ended bench(const std::string& line, const Environment& more = {}) { return start(line, more).wait(); }
  // What must go well, with its results in a.json.
  Ended measured(const std::string& line, const Environment& more = {}) {
    const Ended ended = bench(line + " --json " + file("a.json"), more);
    EXPECT_EQ(ended.code, 0) << line << ended.err << ended.out;
    return ended;
  }

  // Evaluates a Python expression over the JSON file, `d`, whose results are `rs`; that also proves that it is one.
  std::string json(const std::string& expression, const std::string& name = "a.json") const {
    const std::string command =
        "python3 -c 'import json,sys,types; d=json.load(open(sys.argv[1]), object_hook=lambda o: "
        "types.SimpleNamespace(**o)); rs=d.results; print(" +
        expression + ", end=\"\")' " + file(name);
    FILE* pipe = popen(command.c_str(), "r");
    char text[4096] = "";
    const size_t length = fread(text, 1, sizeof text - 1, pipe);
    EXPECT_EQ(pclose(pipe), 0) << contents(file(name));
    return std::string(text, length);
  }

  std::string folder_;
  Environment environment_;
  pid_t server_ = -1;
  int stop_ = -1, started_ = 0;
};

}  // namespace powerccl::bench::tests
