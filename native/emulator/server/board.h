// SPDX-License-Identifier: Apache-2.0
// The unchanging part of the board page: who the GPUs are.
#ifndef POWERCCL_EMULATOR_BOARD_H
#define POWERCCL_EMULATOR_BOARD_H
#include "emulator/protocol.h"
#include "emulator/server/platform.h"

namespace powerccl::emulator {

void fill_board(const Platform& platform, int64_t start, BoardPage& page);

}  // namespace powerccl::emulator
#endif
