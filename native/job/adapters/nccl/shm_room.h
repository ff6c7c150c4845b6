// SPDX-License-Identifier: Apache-2.0
// Whether /dev/shm has room for what NCCL puts there when it is asked for kernel events.
//
// NCCL then starts a proxy for each communicator, whose pool of operations is in /dev/shm. Where that does not fit,
// NCCL 2.27 to 2.30 at least end in a segmentation fault (NVIDIA/nccl#2326); containers have 64 MiB by default.
#pragma once
#include <stdint.h>

namespace powerccl::nccl {

// Of one rank in one communicator: 64 channels x 32 operations x 72 local ranks of 248 bytes each (NCCL 2.30.7,
// <src/include/proxy.h>), rounded up.
constexpr uint64_t kPoolBytes = uint64_t{36} << 20;

struct ShmRoom {
  uint64_t free_bytes = 0, needed_bytes = 0;
  bool enough = true;  // also if that is not known
};

// `ranks`: on this host, each of which makes pools for so many communicators.
ShmRoom shm_room(const char* folder, uint32_t ranks, uint32_t communicators);

}  // namespace powerccl::nccl
