// SPDX-License-Identifier: Apache-2.0
// The unchanging part of the board page: who the GPUs are.
#pragma once
#include <string>

#include "physics/messages.h"
#include "physics/platform.h"

namespace powerccl::physics {

// The GPUs of a platform on that host have the same UUIDs and PCI addresses in every run, as a server's would. `host`:
// what tells it from others; empty: none, then each machine gives the same.
void fill_board(const Platform& platform, const std::string& host, int64_t start, BoardPage& page);

}  // namespace powerccl::physics
