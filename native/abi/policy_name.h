// SPDX-License-Identifier: Apache-2.0
// Clock policies, as POWERCCL_POLICY and powerccl-sim's --policy name them.
#pragma once

namespace powerccl {

enum class PolicyName { kObserve, kPerCall, kAuto };

// In that order.
constexpr const char* kPolicyNames[] = {"observe", "per-call", "auto"};

}  // namespace powerccl
