// SPDX-License-Identifier: Apache-2.0
// Where NCCL looks for a plugin's library.
#ifndef POWERCCL_EMULATOR_NCCL_PLUGIN_OPEN_H
#define POWERCCL_EMULATOR_NCCL_PLUGIN_OPEN_H

namespace powerccl::emulated_nccl {

// The value of NCCL_<KIND>_PLUGIN as it stands, then libnccl-<kind>-<value>.so where it is neither a path nor a
// library's name; unset: libnccl-<kind>.so. Null: not found.
void* open_plugin(const char* kind, const char* value);

}  // namespace powerccl::emulated_nccl
#endif
