// SPDX-License-Identifier: Apache-2.0
#pragma once

namespace powerccl::daemon {

// Whose wish counts where one user's processes have a device together (gpu.sharing).
enum class Sharing { kNone, kNewest, kHighest };

}  // namespace powerccl::daemon
