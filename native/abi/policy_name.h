// SPDX-License-Identifier: Apache-2.0
// Clock policies, as POWERCCL_POLICY and powerccl-sim's --policy name them.
#ifndef POWERCCL_ABI_POLICY_NAME_H
#define POWERCCL_ABI_POLICY_NAME_H

namespace powerccl {

enum class PolicyName { kObserve, kPerCall, kAuto };

// In that order.
constexpr const char* kPolicyNames[] = {"observe", "per-call", "auto"};

}  // namespace powerccl
#endif
