// SPDX-License-Identifier: Apache-2.0
#pragma once

namespace powerccl::device {

// Whether CAP_SYS_ADMIN is in this process's effective set (/proc/self/status, CapEff): what the NVIDIA driver asks for
// before it changes clocks. Root without it, as in an unprivileged container, does not count.
bool process_has_sys_admin();

}  // namespace powerccl::device
