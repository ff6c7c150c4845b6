// SPDX-License-Identifier: Apache-2.0
// What to do about the clock, and when. A policy decides; it neither records nor carries anything out.
#ifndef POWERCCL_RUNTIME_POLICY_H
#define POWERCCL_RUNTIME_POLICY_H
#include "runtime/policy_table.h"

namespace powerccl {

// The base is `observe`: whatever is seen, nothing is managed.
class Policy {
 public:
  // A call was made (not yet run): the clock, in MHz, to ask for until it has run; 0: leave it alone. Called on the
  // caller's thread; must not block. Captured calls run when their graph is replayed and are never put here.
  virtual uint32_t when_called([[maybe_unused]] uint8_t pattern, [[maybe_unused]] uint64_t bytes) const { return 0; }

 protected:
  ~Policy() = default;
};

class Observe final : public Policy {};

// PCCL as published (docs/concepts/pccl.md): every call above its pattern's overhead point gets its minimum clock, set
// when the call is made and reset by a callback behind it.
class PerCall final : public Policy {
 public:
  explicit PerCall(const PolicyTable* table) : table_(table) {}
  uint32_t when_called(uint8_t pattern, uint64_t bytes) const override { return table_->lookup(pattern, bytes); }

 private:
  const PolicyTable* table_;
};

}  // namespace powerccl
#endif
