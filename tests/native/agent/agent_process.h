// SPDX-License-Identifier: Apache-2.0
// powerccl-agent as a child process.
#pragma once
#include <sys/types.h>

#include <chrono>
#include <functional>
#include <map>
#include <string>
#include <vector>

// Everything here happens within milliseconds on an idle machine; tests wait this long for it.
constexpr std::chrono::seconds kPatience{20};

// Polls until `condition` holds; false when patience ran out.
bool eventually(const std::function<bool()>& condition);

std::string text_of(const std::string& path);
std::vector<std::string> lines_of(const std::string& path);

struct AgentOptions {
  std::vector<std::string> arguments;
  std::vector<std::string> environment;  // "NAME=value", beside this process's
  long file_limit_bytes = 0;             // RLIMIT_FSIZE; 0: none
};

class AgentProcess {
 public:
  // Starts `powerccl-agent --run-folder <folder>` with a pipe as its input.
  AgentProcess(const std::string& folder, const AgentOptions& options);
  ~AgentProcess();  // kills what still runs
  AgentProcess(const AgentProcess&) = delete;
  AgentProcess& operator=(const AgentProcess&) = delete;

  bool wait_ready();  // false: its output ended without `ready`
  void close_input();
  void signal(int number);
  bool running();
  int wait_exit();               // exit code; 128 + signal; -1: it did not end
  std::string messages() const;  // its stderr so far
  pid_t pid() const { return pid_; }

 private:
  bool reap(int flags);

  std::string stderr_path_;
  pid_t pid_ = -1;
  int input_ = -1, output_ = -1, status_ = -1;
  bool ended_ = false;
};

// Runs the agent to its end without a pipe and returns its output; `exit_code` is filled in.
std::string run_agent(const std::vector<std::string>& arguments, int* exit_code, std::string* errors = nullptr);

struct PowerSamples {
  std::map<std::string, std::string> about;  // the "# key: value" lines
  std::vector<std::map<std::string, std::string>> rows;
  bool whole = false;  // ends in a newline, and every row has every column
};
PowerSamples read_power_file(const std::string& path);
