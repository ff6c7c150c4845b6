// SPDX-License-Identifier: Apache-2.0
#ifndef POWERCCL_RUNTIME_JOINT_MEMORY_H
#define POWERCCL_RUNTIME_JOINT_MEMORY_H
#include "policy/joint.h"

namespace powerccl {

// The memory that this host's ranks of a run share, made if it is not there. Null: it cannot be had, and each rank goes
// by what it sees itself.
Joint* open_joint(const char* run_folder);

}  // namespace powerccl
#endif
