// SPDX-License-Identifier: Apache-2.0
#include "adapters/nccl/shm_room.h"

#include <sys/statvfs.h>

namespace powerccl::nccl {

ShmRoom shm_room(const char* folder, uint32_t ranks, uint32_t communicators) {
  ShmRoom room;
  struct statvfs file_system;
  room.needed_bytes = kPoolBytes * ranks * communicators;
  // A tmpfs without a limit reports no blocks.
  if (statvfs(folder, &file_system) != 0 || file_system.f_blocks == 0) return room;
  room.free_bytes = uint64_t{file_system.f_bavail} * file_system.f_frsize;
  room.enough = room.free_bytes >= room.needed_bytes;
  return room;
}

}  // namespace powerccl::nccl
