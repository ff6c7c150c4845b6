// SPDX-License-Identifier: Apache-2.0
#include "agent_process.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <sstream>
#include <thread>

namespace {

[[noreturn]] void become_agent(const std::vector<std::string>& arguments, const AgentOptions& options) {
  for (const std::string& pair : options.environment) putenv(const_cast<char*>(pair.c_str()));
  if (options.file_limit_bytes) {
    rlimit limit = {static_cast<rlim_t>(options.file_limit_bytes), static_cast<rlim_t>(options.file_limit_bytes)};
    setrlimit(RLIMIT_FSIZE, &limit);
  }
  std::vector<char*> words{const_cast<char*>(AGENT_PATH)};
  for (const std::string& word : arguments) words.push_back(const_cast<char*>(word.c_str()));
  words.push_back(nullptr);
  execv(AGENT_PATH, words.data());
  _exit(127);
}

}  // namespace

bool eventually(const std::function<bool()>& condition) {
  auto end = std::chrono::steady_clock::now() + kPatience;
  while (!condition()) {
    if (std::chrono::steady_clock::now() > end) return false;
    std::this_thread::sleep_for(std::chrono::milliseconds(2));
  }
  return true;
}

std::string text_of(const std::string& path) {
  std::ifstream file(path);
  std::stringstream text;
  text << file.rdbuf();
  return text.str();
}

std::vector<std::string> lines_of(const std::string& path) {
  std::ifstream file(path);
  std::vector<std::string> lines;
  for (std::string line; std::getline(file, line);) lines.push_back(line);
  return lines;
}

AgentProcess::AgentProcess(const std::string& folder, const AgentOptions& options) {
  static int count = 0;
  stderr_path_ = (std::filesystem::temp_directory_path() /
                  ("powerccl-agent-" + std::to_string(getpid()) + "-" + std::to_string(count++) + ".err"))
                     .string();
  int input[2];
  int output[2];
  EXPECT_EQ(pipe2(input, O_CLOEXEC), 0);
  EXPECT_EQ(pipe2(output, O_CLOEXEC), 0);
  pid_ = fork();
  if (pid_ == 0) {
    dup2(input[0], STDIN_FILENO);
    dup2(output[1], STDOUT_FILENO);
    dup2(open(stderr_path_.c_str(), O_WRONLY | O_CREAT | O_TRUNC, 0644), STDERR_FILENO);
    std::vector<std::string> arguments{"--run-folder", folder};
    arguments.insert(arguments.end(), options.arguments.begin(), options.arguments.end());
    become_agent(arguments, options);
  }
  close(input[0]);
  close(output[1]);
  input_ = input[1];
  output_ = output[0];
}

AgentProcess::~AgentProcess() {
  close_input();
  if (!reap(WNOHANG)) {
    kill(pid_, SIGKILL);
    reap(0);
  }
  close(output_);
  std::error_code ignored;
  std::filesystem::remove(stderr_path_, ignored);
}

bool AgentProcess::wait_ready() {
  pollfd entry{output_, POLLIN, 0};
  auto patience = std::chrono::duration_cast<std::chrono::milliseconds>(kPatience).count();
  if (poll(&entry, 1, static_cast<int>(patience)) <= 0) return false;
  char line[16] = "";
  ssize_t length = read(output_, line, sizeof line - 1);
  return length > 0 && std::string(line, static_cast<size_t>(length)) == "ready\n";
}

void AgentProcess::close_input() {
  if (input_ >= 0) close(input_);
  input_ = -1;
}

void AgentProcess::signal(int number) {
  kill(pid_, number);
}

bool AgentProcess::reap(int flags) {
  if (!ended_ && waitpid(pid_, &status_, flags) == pid_) ended_ = true;
  return ended_;
}

bool AgentProcess::running() {
  return !reap(WNOHANG);
}

int AgentProcess::wait_exit() {
  if (!eventually([this] { return reap(WNOHANG); })) return -1;
  return WIFEXITED(status_) ? WEXITSTATUS(status_) : 128 + WTERMSIG(status_);
}

std::string AgentProcess::messages() const {
  return text_of(stderr_path_);
}

std::string run_agent(const std::vector<std::string>& arguments, int* exit_code, std::string* errors) {
  std::string base =
      (std::filesystem::temp_directory_path() / ("powerccl-agent-run-" + std::to_string(getpid()))).string();
  pid_t child = fork();
  if (child == 0) {
    dup2(open("/dev/null", O_RDONLY), STDIN_FILENO);
    dup2(open((base + ".out").c_str(), O_WRONLY | O_CREAT | O_TRUNC, 0644), STDOUT_FILENO);
    dup2(open((base + ".err").c_str(), O_WRONLY | O_CREAT | O_TRUNC, 0644), STDERR_FILENO);
    become_agent(arguments, {});
  }
  int status = 0;
  waitpid(child, &status, 0);
  *exit_code = WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
  std::string output = text_of(base + ".out");
  if (errors) *errors = text_of(base + ".err");
  std::filesystem::remove(base + ".out");
  std::filesystem::remove(base + ".err");
  return output;
}

namespace {

std::vector<std::string> split(const std::string& line) {
  std::vector<std::string> words;
  std::stringstream stream(line);
  for (std::string word; std::getline(stream, word, ',');) words.push_back(word);
  return words;
}

}  // namespace

PowerSamples read_power_file(const std::string& path) {
  PowerSamples samples;
  std::string text = text_of(path);
  samples.whole = !text.empty() && text.back() == '\n';
  std::vector<std::string> columns;
  for (const std::string& line : lines_of(path)) {
    if (line.starts_with("# ")) {
      size_t colon = line.find(": ");
      const bool last = line.starts_with("# ended_ns");  // the only one behind the rows
      samples.whole = samples.whole && (columns.empty() || last) && colon != std::string::npos;
      samples.about[line.substr(2, colon - 2)] = line.substr(colon + 2);
    } else if (columns.empty()) {
      columns = split(line);
    } else {
      std::vector<std::string> words = split(line);
      samples.whole = samples.whole && words.size() == columns.size();
      auto& row = samples.rows.emplace_back();
      for (size_t i = 0; i < std::min(words.size(), columns.size()); ++i) row[columns[i]] = words[i];
    }
  }
  return samples;
}
