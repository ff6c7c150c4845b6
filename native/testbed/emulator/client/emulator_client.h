// SPDX-License-Identifier: Apache-2.0
// What the emulated libcuda.so.1 exports for the emulated libnccl.so.2, beside the driver API. C, so that libnccl may
// find it with dlsym in the libcuda the process has loaded.
//
// Functions return a CUresult unless said otherwise. When the server is gone they return CUDA_ERROR_UNKNOWN; libcuda
// has then said so once on stderr. All times are CLOCK_MONOTONIC nanoseconds in model time (globaltimer is 10^12 more).
#pragma once
#include <stddef.h>
#include <stdint.h>

#include "cuda.h"

#ifdef __cplusplus
extern "C" {
#endif

#define PWE_ABI 2

typedef struct {
  uint32_t slot;
  uint64_t generation;  // 0: not tracked (captured into a graph, or no slot was free)
} pwe_op;

typedef struct {
  uint64_t allocation;  // the number under which the server knows it, with this process's client number
  uint64_t offset;      // of the pointer in it
  uint64_t bytes_left;  // from the pointer to its end
  int gpu;
} pwe_memory;

enum pwe_op_state { PWE_PENDING = 0, PWE_STARTED = 1, PWE_STOPPED = 2 };

int pwe_abi(void);  // PWE_ABI

// The server's GPU of the calling thread's current context (CUDA_VISIBLE_DEVICES applied), or -1 without one.
int pwe_current_gpu(void);
// The CUDA device ordinal of the calling thread's current context, or -1.
int pwe_current_device(void);

// A request to the collective engine; `type` in [0x1000, 0x1fff]. Blocks until the engine answers, which may be when
// other ranks have made theirs; other threads' requests go on. *error: the engine's answer code. At most 56 KiB either
// way.
CUresult pwe_request(uint32_t type, const void* request, size_t request_bytes, void* reply, size_t reply_capacity,
                     size_t* reply_bytes, int32_t* error);
// The same one-way: nothing comes back.
CUresult pwe_post(uint32_t type, const void* message, size_t bytes);

// Puts an opaque collective behind what is in the stream; NULL is the legacy default stream. While the stream is
// capturing it becomes a node of the graph, submitted again at each launch, untracked (op->generation 0). At most 56
// KiB.
CUresult pwe_submit(CUstream stream, const void* payload, size_t bytes, pwe_op* op);
// As cuLaunchHostFunc, but takes no model time: for what a graph would do beside its kernels. The emulator runs a
// graph's nodes one after another.
CUresult pwe_call_beside(CUstream stream, CUhostFn function, void* data);
// 1: capturing, 0: not, negative: invalid handle. *graph_id (may be NULL): the capture's number.
int pwe_is_capturing(CUstream stream, uint64_t* graph_id);

// Sleeps until the operation is at least in `state`, or the time is over. A pwe_op_state, or -1 when the server is
// gone.
int pwe_op_wait(const pwe_op* op, int state, uint64_t timeout_ns);
// Gives the slot back once the operation has stopped. Every tracked operation needs it.
void pwe_op_release(const pwe_op* op);

// The allocation that a device pointer is in. CUDA_ERROR_INVALID_VALUE: in none of cuMemAlloc's (or fewer than `bytes`
// left).
CUresult pwe_resolve(CUdeviceptr pointer, size_t bytes, pwe_memory* memory);

// For what is timed: emulated time must not depend on how busy the host is.
// Model time stands still for all clients until pwe_start_time, or for `patience_ns` of real time, at most a minute.
CUresult pwe_stop_time(uint64_t patience_ns, uint64_t* stop);
// CUDA_ERROR_NOT_READY: it went on before.
CUresult pwe_start_time(uint64_t stop);
// What this thread submits counts as submitted at that moment (CLOCK_MONOTONIC); 0: when it is submitted.
void pwe_submit_as_of(uint64_t stamp_ns);
// Whether collectives that this thread submits move their data (1, the default) or only take their time (0). Where one
// rank's do, all do.
void pwe_set_moves_data(int moves);
int pwe_moves_data(void);

// What the event's GPU had used when it was recorded, in uJ since the server started. CUDA_ERROR_NOT_READY: it has not
// been yet.
CUresult pwe_event_energy(CUevent event, double* energy_uj);

#ifdef __cplusplus
}
#endif
