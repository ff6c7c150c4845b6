// SPDX-License-Identifier: Apache-2.0
#include "emulation.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <regex>
#include <sstream>
#include <stdexcept>
#include <thread>

namespace powerccl::test {
namespace {

std::string read_file(const std::string& path) {
  std::ifstream file(path);
  std::stringstream text;
  text << file.rdbuf();
  return text.str();
}

std::string log_of(const std::string& folder, int job, size_t rank, const char* what) {
  return folder + "/" + std::to_string(job) + "-" + std::to_string(rank) + "." + what;
}

void point(int descriptor, const std::string& path) {
  const int file = open(path.c_str(), O_WRONLY | O_CREAT | O_TRUNC, 0600);
  dup2(file, descriptor);
  close(file);
}

}  // namespace

Emulation::Emulation(const std::string& platform) {
  char name[] = "/tmp/powerccl-nccl-XXXXXX";
  folder_ = mkdtemp(name);
  socket_ = folder_ + "/socket";
  int input[2], ready[2];
  if (pipe2(input, O_CLOEXEC) != 0 || pipe2(ready, O_CLOEXEC) != 0) throw std::runtime_error("no pipe");
  server_ = fork();
  if (server_ == 0) {
    dup2(input[0], STDIN_FILENO);
    dup2(ready[1], STDOUT_FILENO);
    point(STDERR_FILENO, folder_ + "/server.err");
    execl(POWERCCL_TEST_SERVER, "powerccl-emulator", "--platform", platform.c_str(), "--socket", socket_.c_str(),
          nullptr);
    _exit(127);
  }
  close(input[0]);
  close(ready[1]);
  server_input_ = input[1];
  char byte;
  if (read(ready[0], &byte, 1) != 1) throw std::runtime_error("the emulated server did not start");
  close(ready[0]);
}

Emulation::~Emulation() {
  for (const pid_t pid : running_) kill(pid, SIGKILL);
  for (const pid_t pid : running_) waitpid(pid, nullptr, 0);
  close(server_input_);
  if (server_ > 0) {
    int status = 0;
    kill(server_, SIGTERM);
    waitpid(server_, &status, 0);
    EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0) << "the emulated server ended with status " << status;
  }
  if (::testing::Test::HasFailure()) fputs(server_log().c_str(), stderr);
  std::filesystem::remove_all(folder_);
}

std::string Emulation::server_log() const {
  return read_file(folder_ + "/server.err");
}

void Emulation::kill_server() {
  kill(server_, SIGKILL);
  waitpid(server_, nullptr, 0);
  server_ = -1;
}

void Emulation::start(const std::string& scenario, int ranks, const Environment& environment) {
  const std::string key = folder_ + std::to_string(++jobs_);
  const std::string count = std::to_string(ranks);
  for (int rank = 0; rank < ranks; ++rank) {
    const std::string number = std::to_string(rank);
    const pid_t pid = fork();
    if (pid == 0) {
      setenv("POWERCCL_EMULATOR_SOCKET", socket_.c_str(), 1);
      setenv("LD_LIBRARY_PATH", POWERCCL_TEST_LIBRARIES, 1);
      setenv("TSAN_OPTIONS", "suppressions=" POWERCCL_TEST_FOLDER "/tsan.supp", 1);
      unsetenv("NCCL_PROFILER_PLUGIN");
      unsetenv("NCCL_TUNER_PLUGIN");
      for (const auto& [variable, value] : environment) setenv(variable.c_str(), value.c_str(), 1);
      point(STDOUT_FILENO, log_of(folder_, jobs_, static_cast<size_t>(rank), "out"));
      point(STDERR_FILENO, log_of(folder_, jobs_, static_cast<size_t>(rank), "err"));
      execl(POWERCCL_TEST_RANK, "rank", scenario.c_str(), number.c_str(), count.c_str(), key.c_str(), nullptr);
      _exit(127);
    }
    running_.push_back(pid);
  }
}

std::vector<Finished> Emulation::finish() {
  const auto deadline = std::chrono::steady_clock::now() + std::chrono::seconds(60);
  std::vector<Finished> finished;
  for (size_t rank = 0; rank < running_.size(); ++rank) {
    int status = 0;
    pid_t ended = 0;
    while ((ended = waitpid(running_[rank], &status, WNOHANG)) == 0 && std::chrono::steady_clock::now() < deadline)
      std::this_thread::sleep_for(std::chrono::milliseconds(2));
    int code = WIFSIGNALED(status) ? 128 + WTERMSIG(status) : WEXITSTATUS(status);
    if (ended == 0) {
      kill(running_[rank], SIGKILL);
      waitpid(running_[rank], &status, 0);
      code = -1;
    }
    finished.push_back(
        {code, read_file(log_of(folder_, jobs_, rank, "out")), read_file(log_of(folder_, jobs_, rank, "err"))});
  }
  running_.clear();
  return finished;
}

std::string Emulation::output_of(int rank) const {
  return read_file(log_of(folder_, jobs_, static_cast<size_t>(rank), "out"));
}

std::vector<int> statuses(const std::vector<Finished>& ranks) {
  std::vector<int> codes;
  for (const Finished& rank : ranks) codes.push_back(rank.status);
  return codes;
}

std::string errors(const std::vector<Finished>& ranks) {
  std::string all;
  for (const Finished& rank : ranks) all += rank.errors;
  return all;
}

Lines read_lines(const std::string& path) {
  std::ifstream file(path);
  Lines lines;
  for (std::string line; std::getline(file, line);) lines.push_back(line);
  return lines;
}

Lines only(const Lines& lines, const std::string& pattern) {
  const std::regex wanted(pattern);
  Lines kept;
  std::copy_if(lines.begin(), lines.end(), std::back_inserter(kept),
               [&](const auto& line) { return std::regex_search(line, wanted); });
  return kept;
}

std::string joined(const Lines& lines) {
  std::string text;
  for (const std::string& line : lines) text += line + "\n";
  return text;
}

}  // namespace powerccl::test
