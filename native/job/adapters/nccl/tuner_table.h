// SPDX-License-Identifier: Apache-2.0
// The tuner table (docs/reference/tuner-table.md): which algorithm, protocol and channels a collective gets. Parsed
// without a library or an allocation, refused as a whole if a line is wrong.
#pragma once
#include <stddef.h>
#include <stdint.h>

#include <string_view>

namespace powerccl::nccl {

constexpr int kAnyValue = -1;

// One line; numbers as the ABI has them (abi/nccl_tuner.h).
struct TunerRule {
  uint64_t min_bytes, max_bytes;  // both within
  int32_t nodes, ranks, pipe_ops;
  uint8_t collective, algorithm, protocol;
  uint8_t channels;   // 0: NCCL's
  int8_t registered;  // whether the buffers are
};

// Of a communicator.
struct TunerShape {
  int nodes, ranks;
};

struct TunerDecision {
  int algorithm = -1, protocol = -1;  // -1: no rule, all stays as NCCL had it
  int channels = 0;                   // 0: NCCL's
};

class TunerTable {
 public:
  static constexpr uint32_t kMaxRules = 256;
  static constexpr size_t kMaxLineLength = 255;  // of a rule: what NVIDIA's example plugin reads of a line
  static constexpr size_t kMaxTextBytes = 128 * 1024;

  struct Refusal {
    int line = 0;  // from 1; 0: the text as a whole
    char reason[120] = "";
  };

  // Returns true and fills the table, or false and says what is wrong; then the table is empty.
  bool parse(std::string_view text, Refusal* refusal);

  uint32_t count() const { return count_; }
  const TunerRule& rule(uint32_t index) const { return rules_[index]; }

 private:
  class Parser;

  TunerRule rules_[kMaxRules];
  uint32_t count_ = 0;
};

// What the first rule that matches says. A function of its arguments and nothing else: ranks that decided otherwise
// than their peers would hang.
TunerDecision decide(const TunerTable& table, TunerShape shape, int collective, uint64_t bytes, int pipe_ops,
                     int registered);

// Puts a decision into NCCL's cost table and its channels, unless the table says that it cannot be.
void put(TunerDecision decision, float* costs, int algorithms, int protocols, int* channels);

}  // namespace powerccl::nccl
