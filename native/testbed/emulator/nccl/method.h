// SPDX-License-Identifier: Apache-2.0
// Which algorithm, protocol and channels each queued collective gets: NCCL's variables, its idea of costs, a tuner.
#pragma once
#include "emulator/nccl/comm.h"

namespace powerccl::emulated_nccl {

// Before the communicator's constants are shown to a tuner.
TunerConstants default_constants();
// Of all collectives queued on the communicator. ncclInvalidUsage: nothing that the variables allow is available.
ncclResult_t choose_methods(ncclComm* comm);
// Names as profiler plugins receive them.
const char* algorithm_name(const Task& task);
const char* protocol_name(const Task& task);

}  // namespace powerccl::emulated_nccl
