// SPDX-License-Identifier: Apache-2.0
// What a thread is in the middle of, as interposed functions see it.
#pragma once
#include <errno.h>

#include "adapters/nccl/adapter.h"
#include "base/own_time.h"

// Thread-local variables of a library that may be dlopened are found through this function. A weak reference to it
// keeps glibc's loader out of the list of needed libraries. Another libc has no file of that name, so the job's program
// would not start.
#if defined(__x86_64__)
asm(".weak __tls_get_addr");
#endif

namespace powerccl::nccl {

struct Thread {
  // In an interposed function, or in this library's work: calls from there are not the job's.
  bool inside = false;
  uint32_t group_depth = 0;  // of NCCL's groups
  StreamOfCall stream;
  // The communicator of the NCCL call in progress outside a group, as the job names it. Then how many calls NCCL has
  // reported to the plugin so far.
  void* comm = nullptr;
  uint32_t reported = 0;
  // Kernels launched into `launches_in` and not reported to `streams` yet: see tell_launches.
  void* launches_in = nullptr;
  uint32_t launches = 0, until_timed = 0;
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

// The streams and events of the job; null if nothing has to be reported to them now. Costs one load then.
inline Streams* watched() {
  Runtime* active = g_runtime.load(std::memory_order_acquire);
  if (active == nullptr || t_thread.inside) return nullptr;
  return active->streams();
}

// The number that the runtime knows a stream by.
inline uint64_t key_of(void* stream) {
  const uint64_t handle = reinterpret_cast<uint64_t>(stream);
  if (handle > 2) return handle;
  const Runtime* active = g_runtime.load(std::memory_order_acquire);
  int device = active != nullptr ? active->only_device() : -1;
  if (device < 0 && (g_cuda.ctx_get_device == nullptr || g_cuda.ctx_get_device(&device) != 0)) device = 0;
  return Streams::key(handle, device, static_cast<uint64_t>(pthread_self()));
}

// Reports this thread's launches to `streams`, before any other report or question to it. Reporting each launch alone
// would cost a job that waits for its host 0.3 % of its time, because of cache misses.
inline void tell_launches(Streams* streams) {
  Thread& thread = t_thread;
  if (thread.launches == 0) return;
  streams->launched(key_of(thread.launches_in), thread.launches, thread.kinds);
  thread.launches = 0;
  thread.kinds = 0;
}

}  // namespace powerccl::nccl
