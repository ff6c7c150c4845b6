// SPDX-License-Identifier: Apache-2.0
#include "clock/node_memory.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <sys/file.h>
#include <sys/shm.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/basics.h"
#include "base/environment.h"
#include "base/own_thread.h"
#include "libc/calls.h"

namespace powerccl {
namespace {

// The memory is a System V segment: a file could be truncated, and a store past its end ends the process. The segment
// is marked for destruction when it is made, so that the kernel frees it with the last process that has it. Until then
// Linux lets others attach it by its number, which the file in the run folder holds.
struct Shared {
  uint64_t secret[2];  // the same as in the file: numbers are used again
  alignas(64) NodeState node;
};

struct SegmentName {
  uint64_t secret[2];
  int64_t segment;
};

constexpr size_t kStackBytes = 192 << 10;
constexpr int kLockTries = 100;
constexpr uint64_t kLockPauseNs = 10000000;  // the lock's holder may have been stopped: a second is enough

struct Opening {
  char path[PATH_MAX + 80];
  Shared* shared;
};

Shared* attach(int segment) {
  void* memory = shmat(segment, nullptr, 0);
  return reinterpret_cast<intptr_t>(memory) == -1 ? nullptr : static_cast<Shared*>(memory);
}

Shared* attach_named(const SegmentName& name) {
  const int segment = static_cast<int>(name.segment);
  shmid_ds about;
  if (shmctl(segment, IPC_STAT, &about) != 0 || about.shm_perm.cuid != geteuid() || about.shm_segsz != sizeof(Shared)) {
    return nullptr;
  }
  Shared* shared = attach(segment);
  if (shared == nullptr || memcmp(shared->secret, name.secret, sizeof(name.secret)) == 0) return shared;
  shmdt(shared);
  return nullptr;
}

Shared* make(SegmentName* name) {
  if (!fill_randomly(name->secret, sizeof(name->secret))) return nullptr;
  const int segment = shmget(IPC_PRIVATE, sizeof(Shared), 0600);
  if (segment < 0) return nullptr;
  Shared* shared = attach(segment);
  shmctl(segment, IPC_RMID, nullptr);
  name->segment = segment;
  if (shared != nullptr) memcpy(shared->secret, name->secret, sizeof(name->secret));
  return shared;
}

// With descriptors of its own: what the job closes meanwhile is not what is opened here.
void find_or_make(void* data) {
  auto* opening = static_cast<Opening*>(data);
  const int file = open(opening->path, O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK, 0600);
  if (file < 0) return;
  for (int tried = 0; tried < kLockTries && flock(file, LOCK_EX | LOCK_NB) != 0 && errno == EWOULDBLOCK; ++tried) {
    sleep_ns(kLockPauseNs);
  }
  SegmentName name;
  if (pread(file, &name, sizeof(name), 0) == sizeof(name)) opening->shared = attach_named(name);
  if (opening->shared == nullptr) {  // the first, or the processes that had it are gone
    opening->shared = make(&name);
    if (opening->shared != nullptr && pwrite(file, &name, sizeof(name), 0) != sizeof(name)) {
      shmdt(opening->shared);
      opening->shared = nullptr;
    }
  }
  close(file);
}

void* work(void* data) {
  run_with_own_descriptors(find_or_make, data);
  return nullptr;
}

}  // namespace

NodeState* open_node_state(const char* run_folder) {
  // By the kernel, not by the host's name: containers have names of their own, and nodes may share one. Each IPC
  // namespace numbers its own segments.
  uint8_t boot[16] = {};
  read_boot_id(boot);
  struct stat space = {};
  status_of_path("/proc/self/ns/ipc", &space);
  Opening opening;
  opening.shared = nullptr;
  snprintf(opening.path, sizeof(opening.path), "%s/.node-%02x%02x%02x%02x%02x%02x-%lx", run_folder, boot[0], boot[1],
           boot[2], boot[3], boot[4], boot[5], static_cast<unsigned long>(space.st_ino));
  pthread_t thread;
  if (start_thread(&thread, "powerccl-node", work, &opening, kStackBytes) != 0) return nullptr;
  pthread_join(thread, nullptr);
  return opening.shared != nullptr ? &opening.shared->node : nullptr;
}

}  // namespace powerccl
