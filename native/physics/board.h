// SPDX-License-Identifier: Apache-2.0
// The unchanging part of the board page: who the GPUs are.
#ifndef POWERCCL_PHYSICS_BOARD_H
#define POWERCCL_PHYSICS_BOARD_H
#include "physics/messages.h"
#include "physics/platform.h"

namespace powerccl::physics {

void fill_board(const Platform& platform, int64_t start, BoardPage& page);

}  // namespace powerccl::physics
#endif
