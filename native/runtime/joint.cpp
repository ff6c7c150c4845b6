// SPDX-License-Identifier: Apache-2.0
#include "runtime/joint.h"

#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <sys/mman.h>
#include <unistd.h>

namespace powerccl {

Joint* open_joint(const char* run_folder) {
  constexpr size_t kPage = 4096, kBytes = (sizeof(Joint) + kPage - 1) / kPage * kPage;
  char host[65] = "";
  gethostname(host, sizeof(host) - 1);
  char path[PATH_MAX + 80];
  snprintf(path, sizeof(path), "%s/.joint-%s", run_folder, host);
  const int file = open(path, O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0600);
  if (file < 0) return nullptr;
  void* page =
      ftruncate(file, kBytes) == 0 ? mmap(nullptr, kBytes, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0) : MAP_FAILED;
  close(file);
  return page == MAP_FAILED ? nullptr : static_cast<Joint*>(page);
}

}  // namespace powerccl
