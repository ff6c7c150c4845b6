// SPDX-License-Identifier: Apache-2.0
// What the plugin and the preloaded functions share: one runtime a process, however the library came into it.
//
// Calls come to the runtime in four ways:
// - profiler.cpp: NCCL tells the plugin of the call and of its kernel.
// - eventless_calls.h: of the call alone. Symmetric kernels and copy engines have no kernel events. Or of neither: the
//   preloaded functions see the call.
// - api_calls.h: NCCL has no plugin of ours. The preloaded functions see everything.
#pragma once
#include <pthread.h>

#include "adapters/nccl/cuda.h"
#include "runtime/runtime.h"

namespace powerccl::nccl {

// Null until the first communicator comes.
extern constinit std::atomic<Runtime*> g_runtime;
extern constinit Cuda g_cuda;  // complete before g_runtime is set
// Over communicators that come and go.
extern constinit pthread_mutex_t g_mutex;

inline Runtime* runtime() {
  return g_runtime.load(std::memory_order_acquire);
}

// The runtime, made if need be. Under g_mutex.
Runtime* open_runtime();

// NCCL has loaded our plugin: the plugin then reports all calls and kernels.
bool plugin_came();
void set_plugin_came(int version);
int plugin_version();  // of NCCL's interface; 0: it has not come
// The interposed functions have reported an NCCL's calls.
bool api_came();
void set_api_came();

// Streams of this thread's present NCCL call, for plugin interfaces without them (v4).
struct StreamOfCall {
  uint64_t handle = 0;
  bool known = false;
};
StreamOfCall stream_of_present_call();

// Adapter::call_behind.
int call_behind(void* context, void* stream, void (*callback)(void*), void* data);

}  // namespace powerccl::nccl
