// SPDX-License-Identifier: Apache-2.0
// How powerccl-bench fails: an exception with the exit code of docs/reference/bench.md and what to do about it.
#pragma once
#include <stdexcept>
#include <string>
#include <utility>

namespace powerccl::bench {

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

}  // namespace powerccl::bench
