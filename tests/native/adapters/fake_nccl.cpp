// SPDX-License-Identifier: Apache-2.0
// A libnccl.so.2 for the tests of preloaded functions: an old one, that loads no plugin and moves nothing.
#include <dlfcn.h>

#include <atomic>
#include <cstddef>
#include <deque>
#include <mutex>

#define EXPORT extern "C" __attribute__((visibility("default")))

namespace {
struct Comm {
  int ranks, rank, device, state;
};
struct Id {
  char bytes[128];
};
std::atomic<int> g_calls{0}, g_result{0};
thread_local int t_depth = 0;
// Kept: a test may leave without destroying one.
Comm* make(const Comm& comm) {
  static std::mutex mutex;
  static std::deque<Comm> made;
  std::lock_guard guard(mutex);
  return &made.emplace_back(comm);
}
int called() {
  ++g_calls;
  return g_result;
}
}  // namespace

EXPORT int ncclGetVersion(int* version) {
  *version = 22105;
  return 0;
}
EXPORT int ncclCommInitRank(void** comm, int ranks, Id, int rank) {
  *comm = make({ranks, rank, 0, 0});
  return 0;
}
// Non-blocking: ready once the test has said so.
EXPORT int ncclCommInitRankConfig(void** comm, int ranks, Id, int rank, void*) {
  *comm = make({ranks, rank, 0, 7});
  return 7;
}
EXPORT int ncclCommInitAll(void** comms, int count, const int* devices) {
  for (int i = 0; i < count; ++i) comms[i] = make({count, i, devices[i], 0});
  return 0;
}
EXPORT int ncclCommSplit(void* parent, int color, int, void** comm, void*) {
  *comm = color < 0 ? nullptr : make(*static_cast<Comm*>(parent));
  return 0;
}
EXPORT int ncclCommCount(void* comm, int* count) {
  *count = static_cast<Comm*>(comm)->ranks;
  return 0;
}
EXPORT int ncclCommUserRank(void* comm, int* rank) {
  *rank = static_cast<Comm*>(comm)->rank;
  return 0;
}
EXPORT int ncclCommCuDevice(void* comm, int* device) {
  *device = static_cast<Comm*>(comm)->device;
  return 0;
}
EXPORT int ncclCommGetAsyncError(void* comm, int* state) {
  *state = static_cast<Comm*>(comm)->state;
  return 0;
}
EXPORT int ncclCommDestroy(void*) {
  return 0;
}
EXPORT int ncclCommAbort(void*) {
  return 0;
}
EXPORT int ncclCommShrink(void* parent, int*, int count, void** comm, void*, int) {
  Comm smaller = *static_cast<Comm*>(parent);
  smaller.ranks -= count;
  *comm = make(smaller);
  return 0;
}
EXPORT int ncclCommGrow(void* parent, int ranks, const Id*, int rank, void** comm, void*) {
  *comm = make({ranks, parent != nullptr ? static_cast<Comm*>(parent)->rank : rank, 0, 0});
  return 0;
}
EXPORT int ncclGroupStart() {
  ++t_depth;
  return 0;
}
EXPORT int ncclGroupEnd() {
  return --t_depth == 0 ? g_result.load() : 0;
}
// As the real one, through the name that others may stand before.
EXPORT int ncclBcast(void* buffer, size_t count, int type, int root, void* comm, void* stream) {
  using Broadcast = int (*)(const void*, void*, size_t, int, int, void*, void*);
  return reinterpret_cast<Broadcast>(dlsym(RTLD_DEFAULT, "ncclBroadcast"))(buffer, buffer, count, type, root, comm,
                                                                           stream);
}
// What is counted, and moves nothing.
#define COUNTED(name, ...)       \
  EXPORT int name(__VA_ARGS__) { \
    return called();             \
  }
COUNTED(ncclCommSuspend, void*, int)
COUNTED(ncclCommRevoke, void*, int)
COUNTED(ncclPutSignal, const void*, size_t, int, int, void*, size_t, int, int, unsigned, void*, void*)
COUNTED(ncclSignal, int, int, int, unsigned, void*, void*)
COUNTED(ncclWaitSignal, int, void*, void*, void*)
COUNTED(ncclAllReduce, const void*, void*, size_t, int, int, void*, void*)
COUNTED(ncclAllGather, const void*, void*, size_t, int, void*, void*)
COUNTED(ncclBroadcast, const void*, void*, size_t, int, int, void*, void*)
COUNTED(ncclSend, const void*, size_t, int, int, void*, void*)
COUNTED(ncclRecv, void*, size_t, int, int, void*, void*)

// For the test.
EXPORT void fake_set_result(int result) {
  g_result = result;
}
EXPORT int fake_calls() {
  return g_calls;
}
EXPORT void fake_set_ready(void* comm) {
  static_cast<Comm*>(comm)->state = 0;
}
EXPORT int fake_depth() {
  return t_depth;
}
EXPORT void fake_broadcast_from_nccl(void* comm, void* stream) {
  ncclBcast(nullptr, 1, 0, 0, comm, stream);
}
