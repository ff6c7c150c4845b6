// SPDX-License-Identifier: Apache-2.0
// What each state of each emulated GPU really took: for checking analyses that have to infer it from samples.
//
// A GPU is in one state between two changes of what runs on it, and its power is constant in between. So the sums are
// those of the model's own integration and not of any reading.
#pragma once
#include <compare>
#include <cstdint>
#include <map>
#include <string>
#include <vector>

namespace powerccl::physics {

class Truth {
 public:
  struct Operation {
    uint8_t pattern = 255;          // of Pattern; others: not known
    uint64_t size_class_bytes = 0;  // the power of two at or below what a trace calls the operation's size
    auto operator<=>(const Operation&) const = default;
  };
  struct State {
    uint32_t gpu = 0;
    bool asleep = false;
    bool computing = false;
    std::vector<Operation> running;  // ascending
    auto operator<=>(const State&) const = default;
  };
  struct Sum {
    int64_t ns = 0;
    double microjoules = 0;
  };

  static Operation operation(uint8_t pattern, double bytes);
  void spent(const State& state, int64_t ns, double watts);
  void began(uint32_t gpu, const Operation& operation) { ++operations_[{gpu, operation}]; }
  // As JSON; `error` says why not.
  bool write(const std::string& path, const std::string& platform, std::string& error) const;

 private:
  std::map<State, Sum> states_;
  std::map<std::pair<uint32_t, Operation>, uint64_t> operations_;
};

}  // namespace powerccl::physics
