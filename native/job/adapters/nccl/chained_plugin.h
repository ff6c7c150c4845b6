// SPDX-License-Identifier: Apache-2.0
// A plugin of the user's for a place in NCCL that PowerCCL takes. NCCL loads one profiler and one tuner, so PowerCCL
// loads the other one in turn and passes on what it receives.
#pragma once
#include <stddef.h>

namespace powerccl::nccl {

// Opens the plugin that NCCL would have loaded: `kind` is "profiler" or "tuner", `value` what its environment variable
// held, empty for none. Null where there is none; then `reason` says why if one was named, else it is empty.
// dlclose it.
void* open_chained_plugin(const char* kind, const char* value, char* reason, size_t reason_size);

// The table `symbol` of a plugin; null: it has none, or it is PowerCCL's own.
const void* chained_table(void* plugin, const char* symbol);

}  // namespace powerccl::nccl
