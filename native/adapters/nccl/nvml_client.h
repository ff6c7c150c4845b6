// SPDX-License-Identifier: Apache-2.0
// The clock client that really sets clocks: native/device behind the runtime's interface.
#ifndef POWERCCL_ADAPTERS_NCCL_NVML_CLIENT_H
#define POWERCCL_ADAPTERS_NCCL_NVML_CLIENT_H
#include "runtime/runtime.h"

namespace powerccl::nccl {

// Adapter::open_clock: opens NVML, and claims the GPU in the run folder's clock journal, without which no clock is set.
// Consent is the caller's business.
int open_nvml_clock(void* context, const GpuIdentity& gpu, const char* run_folder, ClockClient* client, char* text,
                    uint32_t text_size, const char** hint);
// Adapter::open_reader.
void open_nvml_reader(void* context, const GpuIdentity& gpu, ClockClient* client);
// A forked child: clocks and journal are its parent's, and its copy of the journal must not outlive the parent.
void forget_nvml_clocks();

}  // namespace powerccl::nccl
#endif
