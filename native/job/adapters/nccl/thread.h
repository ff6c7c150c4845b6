// SPDX-License-Identifier: Apache-2.0
// What a thread is in the middle of, as functions that stand before others see it.
#ifndef POWERCCL_ADAPTERS_NCCL_THREAD_H
#define POWERCCL_ADAPTERS_NCCL_THREAD_H
#include <errno.h>

#include "adapters/nccl/adapter.h"
#include "base/own_time.h"

// Thread-local variables of a library that may be dlopened are found through this function. A weak reference to it
// keeps glibc's loader out of the list of needed libraries: with another libc there is no file of that name, and the
// job's program would not start.
#if defined(__x86_64__)
asm(".weak __tls_get_addr");
#endif

namespace powerccl::nccl {

struct Thread {
  // In a library's function that we stand before, or in our own work: what is called from there is not the job's.
  bool inside = false;
  uint32_t group_depth = 0;  // of NCCL's groups
  StreamOfCall stream;
  // The communicator of the call that NCCL is in the midst of, as the job names it, where there is no group; and how
  // many calls NCCL has reported to the plugin so far.
  void* comm = nullptr;
  uint32_t reported = 0;
  // Kernels that it has launched into `launches_in`, and that `streams` has not been told of: see tell_launches.
  void* launches_in = nullptr;
  uint32_t launches = 0;
  uint32_t until_timed = 0;
  uint64_t kinds = 0;
};
extern constinit thread_local Thread t_thread;

class Inside {
 public:
  Inside() : before_(t_thread.inside) { t_thread.inside = true; }
  ~Inside() { t_thread.inside = before_; }
  Inside(const Inside&) = delete;
  Inside& operator=(const Inside&) = delete;

 private:
  bool before_;
};

// The caller's errno, whatever happens in between.
class KeepErrno {
 public:
  KeepErrno() : error_(errno) {}
  ~KeepErrno() { errno = error_; }
  KeepErrno(const KeepErrno&) = delete;
  KeepErrno& operator=(const KeepErrno&) = delete;

 private:
  int error_;
};

// Our own work in the midst of the job's: unseen, without a trace in errno, and its time is counted.
class AtOwnWork {
 public:
  explicit AtOwnWork(OwnWork work) : time_(work) {}

 private:
  KeepErrno errno_;
  Inside inside_;
  OwnTime time_;
};

// The streams and events of the job, where there is anything to be told of them here and now. Costs a load where not.
inline Streams* watched() {
  Runtime* its = g_runtime.load(std::memory_order_acquire);
  if (its == nullptr || t_thread.inside) return nullptr;
  return its->streams();
}

// The number that the runtime knows a stream by.
inline uint64_t key_of(void* stream) {
  const uint64_t handle = reinterpret_cast<uint64_t>(stream);
  if (handle > 2) return handle;
  const Runtime* its = g_runtime.load(std::memory_order_acquire);
  int device = its != nullptr ? its->only_device() : -1;
  if (device < 0 && (g_cuda.ctx_get_device == nullptr || g_cuda.ctx_get_device(&device) != 0)) device = 0;
  return Streams::key(handle, device, static_cast<uint64_t>(pthread_self()));
}

// Tells of this thread's launches: before anything else is said or asked of streams. Telling of each one by itself
// would cost a job that waits for its host 0.3 % of its time, because what it takes is not in the core's cache by then.
inline void tell_launches(Streams* streams) {
  Thread& mine = t_thread;
  if (mine.launches == 0) return;
  streams->launched(key_of(mine.launches_in), mine.launches, mine.kinds);
  mine.launches = 0;
  mine.kinds = 0;
}

}  // namespace powerccl::nccl
#endif
