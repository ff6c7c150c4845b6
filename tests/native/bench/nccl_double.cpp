// SPDX-License-Identifier: Apache-2.0
// Stands in for libnccl in tests of `serve`: it moves nothing, reads its variables once as NCCL does, fails where a
// variable says so, and leaves the process when it is closed.
#include <pthread.h>
#include <unistd.h>

#include <cstdlib>
#include <cstring>

namespace {

enum : int { kSuccess = 0, kInvalidUsage = 5 };

bool does(const char* what) {
  static const char* const mode = std::getenv("NCCL_DOUBLE");
  return mode != nullptr && std::strcmp(mode, what) == 0;
}

void* stay(void*) {
  for (;;) pause();
}

int called() {
  return does("refuse calls") ? kInvalidUsage : kSuccess;
}

struct Id {
  char bytes[128];
};

}  // namespace

#define EXPORTED extern "C" __attribute__((visibility("default")))

EXPORTED int ncclGetVersion(int* version) {
  static const char* const said = std::getenv("NCCL_DOUBLE_VERSION");
  *version = said != nullptr ? std::atoi(said) : 22800;
  return kSuccess;
}
EXPORTED int ncclGetUniqueId(Id*) {
  return does("refuse ids") ? kInvalidUsage : kSuccess;
}
EXPORTED int ncclCommInitRank(void** comm, int, Id, int rank) {
  if (does("refuse all") || (does("refuse rank 1") && rank == 1)) return kInvalidUsage;
  if (does("refuse rank 1")) stay(nullptr);
  if (does("leave a thread")) {
    pthread_t thread;
    pthread_create(&thread, nullptr, stay, nullptr);
    pthread_setname_np(thread, "NCCL Double");
    pthread_detach(thread);
  }
  *comm = std::malloc(1);
  return kSuccess;
}
EXPORTED int ncclCommDestroy(void* comm) {
  std::free(comm);
  return kSuccess;
}
EXPORTED int ncclCommAbort(void* comm) {
  std::free(comm);
  return kSuccess;
}
EXPORTED int ncclCommGetAsyncError(void*, int* state) {
  *state = kSuccess;
  return kSuccess;
}
EXPORTED const char* ncclGetErrorString(int) {
  return "refused by the double";
}
#define CALL(name)      \
  EXPORTED int name() { \
    return called();    \
  }
CALL(ncclGroupStart)
CALL(ncclGroupEnd)
CALL(ncclAllReduce)
CALL(ncclBroadcast)
CALL(ncclReduce)
CALL(ncclAllGather)
CALL(ncclReduceScatter)
CALL(ncclSend)
CALL(ncclRecv)
