// SPDX-License-Identifier: Apache-2.0
#include "runtime/joint.h"

#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <unistd.h>

#include "runtime/environment.h"

namespace powerccl {
namespace {

// A store to a page without a block would end the job where the disk is full.
bool allocated(int file, size_t bytes) {
  rlimit limit;
  if (getrlimit(RLIMIT_FSIZE, &limit) == 0 && limit.rlim_cur < bytes) return false;  // the kernel would send SIGXFSZ
  return posix_fallocate(file, 0, static_cast<off_t>(bytes)) == 0;
}

}  // namespace

Joint* open_joint(const char* run_folder) {
  constexpr size_t kPage = 4096, kBytes = (sizeof(Joint) + kPage - 1) / kPage * kPage;
  // By the kernel, not by the host's name: containers have names of their own, and nodes may share one.
  uint8_t boot[16] = {};
  read_boot_id(boot);
  char path[PATH_MAX + 80];
  snprintf(path, sizeof(path), "%s/.joint-%02x%02x%02x%02x%02x%02x", run_folder, boot[0], boot[1], boot[2], boot[3],
           boot[4], boot[5]);
  const int file = open(path, O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0600);
  if (file < 0) return nullptr;
  void* page =
      allocated(file, kBytes) ? mmap(nullptr, kBytes, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0) : MAP_FAILED;
  close(file);
  return page == MAP_FAILED ? nullptr : static_cast<Joint*>(page);
}

}  // namespace powerccl
