// SPDX-License-Identifier: Apache-2.0
// Values as users write them, in options and files; whole files.
#pragma once
#include <cstddef>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

namespace powerccl::bench {

// How powerccl-bench fails: an exception with the exit code of docs/reference/bench.md and what to do about it.
enum ExitCode : int {
  kExitOk = 0,
  kExitWrongElements = 1,
  kExitUsage = 2,
  kExitMissing = 3,  // or what there is could not measure validly
  kExitRankFailed = 4,
  kExitTimeout = 5,
};

class Failure : public std::runtime_error {
 public:
  Failure(int code, const std::string& what, std::string hint = {})
      : std::runtime_error(what), code_(code), hint_(std::move(hint)) {}
  int code() const { return code_; }
  const std::string& hint() const { return hint_; }

 private:
  int code_;
  std::string hint_;
};

// What NCCL answered to a call. Where it answered so to all ranks, none of them waits inside NCCL for another.
class NcclFailure : public Failure {
 public:
  explicit NcclFailure(const std::string& what)
      : Failure(kExitRankFailed, what, "NCCL_DEBUG=WARN shows NCCL's own messages") {}
};

// Thrown in a rank whose work was aborted because of another one; there is nothing of its own to say.
class Aborted : public std::runtime_error {
 public:
  Aborted() : std::runtime_error("aborted because another rank failed") {}
};

inline constexpr const char* kVersion = POWERCCL_BENCH_VERSION;

// Parsers throw Failure(kExitUsage); `what` names the option.
size_t parse_size(const std::string& text, const std::string& what);  // "62.5M" -> 65536000
double parse_number(const std::string& text, const std::string& what, double low, double high);
int parse_integer(const std::string& text, const std::string& what, int low, int high = 1'000'000'000);
std::vector<std::string> split(const std::string& text, char separator);

std::string host_name();
// Writes the file under a temporary name and renames it. Returns "", or what is wrong.
std::string write_whole(const std::string& path, const std::string& text);

// The variable's value; empty where it is not set.
std::string environment(const char* name);

// From `first` to `last` by `step_bytes`, or by `factor` where that is 0.
std::vector<size_t> sizes_between(size_t first, size_t last, size_t step_bytes, double factor);

}  // namespace powerccl::bench
