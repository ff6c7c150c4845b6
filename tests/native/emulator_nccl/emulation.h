// SPDX-License-Identifier: Apache-2.0
// An emulated server of its own for a test, and test jobs of several processes on it.
#pragma once
#include <sys/types.h>

#include <map>
#include <string>
#include <vector>

namespace powerccl::test {

struct Finished {
  int status;  // exit code, or 128 + signal; -1: it had to be killed because it did not end
  std::string output, errors;
};

class Emulation {
 public:
  explicit Emulation(const std::string& platform = POWERCCL_TEST_PLATFORM);
  ~Emulation();
  Emulation(const Emulation&) = delete;
  Emulation& operator=(const Emulation&) = delete;

  using Environment = std::map<std::string, std::string>;
  // Starts rank_main SCENARIO in `ranks` processes.
  void start(const std::string& scenario, int ranks, const Environment& environment = {});
  // Waits for all of them, a minute at most.
  std::vector<Finished> finish();
  std::vector<Finished> run(const std::string& scenario, int ranks, const Environment& environment = {}) {
    start(scenario, ranks, environment);
    return finish();
  }
  // What rank `rank` has written to its standard output so far.
  std::string output_of(int rank) const;
  std::string server_log() const;  // its standard error so far
  void kill_server();
  const std::string& folder() const { return folder_; }

 private:
  std::string folder_, socket_;
  pid_t server_ = -1;
  int server_input_ = -1, jobs_ = 0;
  std::vector<pid_t> running_;
};

// What plugins that write down what they are told have written.
using Lines = std::vector<std::string>;
Lines read_lines(const std::string& path);
// Those in which the pattern is found.
Lines only(const Lines& lines, const std::string& pattern);
std::string joined(const Lines& lines);

// Exit codes alone.
std::vector<int> statuses(const std::vector<Finished>& ranks);
std::string errors(const std::vector<Finished>& ranks);

}  // namespace powerccl::test
