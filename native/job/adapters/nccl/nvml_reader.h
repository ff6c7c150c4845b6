// SPDX-License-Identifier: Apache-2.0
// Reads a GPU's clock through NVML. Nothing in a job's process sets one: powerccld does.
#pragma once
#include "runtime/runtime.h"

namespace powerccl::nccl {

// Adapter::open_reader.
ClockClient* open_nvml_reader(void* context, const GpuIdentity& gpu);

}  // namespace powerccl::nccl
