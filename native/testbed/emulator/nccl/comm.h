// SPDX-License-Identifier: Apache-2.0
// The communicator behind ncclComm_t, and what is queued on it until its group ends.
#pragma once
#include <cuda.h>

#include <array>
#include <atomic>
#include <cstdint>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "emulator/client/emulator_client.h"
#include "emulator/messages.h"
#include "emulator/nccl/nccl_abi.h"

namespace powerccl::emulated_nccl {

// The emulated libcuda of this process, found at run time as NCCL finds its driver.
#define POWERCCL_DRIVER_FUNCTIONS(ROW) \
  ROW(pwe_abi)                         \
  ROW(cuInit)                          \
  ROW(cuDeviceGet)                     \
  ROW(cuDeviceGetCount)                \
  ROW(cuDevicePrimaryCtxRetain)        \
  ROW(cuCtxGetCurrent)                 \
  ROW(cuCtxSetCurrent)                 \
  ROW(cuCtxSynchronize)                \
  ROW(cuEventCreate)                   \
  ROW(cuEventRecord)                   \
  ROW(cuEventDestroy)                  \
  ROW(cuStreamWaitEvent)               \
  ROW(cuMemAlloc)                      \
  ROW(cuMemFree)                       \
  ROW(pwe_current_gpu)                 \
  ROW(pwe_current_device)              \
  ROW(pwe_request)                     \
  ROW(pwe_post)                        \
  ROW(pwe_submit)                      \
  ROW(pwe_call_beside)                 \
  ROW(pwe_is_capturing)                \
  ROW(pwe_moves_data)                  \
  ROW(pwe_op_wait)                     \
  ROW(pwe_op_release)                  \
  ROW(pwe_resolve)

struct Driver {
#define POWERCCL_MEMBER(name) decltype(&::name) name;  // NOLINT(bugprone-macro-parentheses): it declares the name
  POWERCCL_DRIVER_FUNCTIONS(POWERCCL_MEMBER)
#undef POWERCCL_MEMBER
};

// Null when libcuda.so.1 is not the emulator's; ncclGetLastError then says so.
const Driver* driver();

// Makes a context current for a scope.
class CurrentContext {
 public:
  CurrentContext(const Driver& loaded, CUcontext context) : driver_(loaded) {
    driver_.cuCtxGetCurrent(&before_);
    if (before_ != context) driver_.cuCtxSetCurrent(context);
  }
  ~CurrentContext() { driver_.cuCtxSetCurrent(before_); }
  CurrentContext(const CurrentContext&) = delete;
  CurrentContext& operator=(const CurrentContext&) = delete;

 private:
  const Driver& driver_;
  CUcontext before_ = nullptr;
};

class Progress;
struct GroupJob;

// Values of NCCL's ncclFunc_t; sequence numbers are counted by them.
enum class Func : int {
  kBroadcast = 0,
  kReduce = 1,
  kAllGather = 2,
  kReduceScatter = 3,
  kAllReduce = 4,
  kSendRecv = 5,
  kSend = 6,
  kRecv = 7,
  kAlltoAll = 8,
  kScatter = 9,
  kGather = 10,
};
const char* func_name(Func func);

// What carries a collective out: NCCL's kernels with rings and trees, a symmetric kernel, or copy engines.
enum class Way : uint8_t { kPlain, kSymmetric, kCopyEngine };

// One queued call, as NCCL's task structures keep it: with the profiler's handles and the mask of its moment.
struct Task {
  Func func;  // kSend and kRecv for point-to-point
  const void* send_buffer;
  void* recv_buffer;  // the buffer of a send or receive
  size_t count;       // of the call, bytes for AllGather and Broadcast
  ncclDataType_t type;
  int root;  // root or peer
  size_t traffic_bytes;
  emulator::CollectiveTask wire;
  int channels = 1;
  uint8_t algorithm = emulator::kRing, protocol = emulator::kSimple;
  Way way = Way::kPlain;
  bool efficient = false;     // by the efficiency policy: a symmetric kernel of fewer blocks
  CUstream stream = nullptr;  // of a collective
  uint64_t mask = 0;          // of event types
  void* group_api_handle = nullptr;
  void* api_handle = nullptr;
  void* handle = nullptr;  // its Coll or P2p event
};

// Tasks launched as one kernel. A captured plan lives as long as its graph may replay it.
struct Plan {
  ncclComm* comm = nullptr;
  uint64_t id = 0;
  bool persistent = false;
  Way way = Way::kPlain;  // of all its collectives
  std::vector<Task> colls, transfers;
  void* group_handle = nullptr;
  void* launch_handle = nullptr;
};

// A captured plan's host node may outlive the communicator: it goes through this, which the communicator empties.
struct PersistentPlan {
  std::mutex mutex;
  std::unique_ptr<Plan> plan;
};

struct UserReduction {
  bool live = false;
  ncclDataType_t type = ncclInt8;
  bool on_device = false;
  uint64_t bits = 0;  // the scalar, or its device address
};

inline constexpr uint64_t kCommMagic = 0x6c6c63637277700aull;

}  // namespace powerccl::emulated_nccl

// Grouped by what belongs together.
struct ncclComm {  // NOLINT(clang-analyzer-optin.performance.Padding)
  uint64_t magic = powerccl::emulated_nccl::kCommMagic;
  const powerccl::emulated_nccl::Driver* driver = nullptr;
  CUcontext context = nullptr;
  int device = 0;  // CUDA ordinal
  int gpu = 0;     // the server's number
  uint64_t id = 0, hash = 0;
  int rank = 0, ranks = 1, channels = 1, warps = 1;
  int min_ctas = kConfigUndefined, max_ctas = kConfigUndefined;
  int cta_policy = kConfigUndefined;
  bool has_nvls = false, has_ll128 = false, blocking = true;
  std::string name;
  std::atomic<bool> ready{false};
  std::atomic<int> async_error{ncclSuccess};
  std::atomic<bool> aborted{false};
  bool revoked = false, finalized = false;
  int shrinks = 0;
  std::shared_ptr<powerccl::emulated_nccl::GroupJob> job;  // a non-blocking group not yet joined

  // Queued by the open group of one thread.
  std::vector<powerccl::emulated_nccl::Task> colls, transfers;
  std::vector<CUstream> streams;
  bool capturing = false;
  uint64_t graph = 0;

  // Launched.
  uint64_t next_plan = 1;
  pwe_op last_op{};
  bool launched = false;
  CUstream last_stream = nullptr;
  uint64_t last_graph = 0;  // 0: the last launch was not captured
  std::vector<powerccl::emulated_nccl::PersistentPlan*> persistent_plans;

  std::mutex windows_mutex;
  std::vector<std::unique_ptr<ncclWindow_vidmem>> windows;  // symmetric ones

  std::mutex reductions_mutex;
  std::vector<powerccl::emulated_nccl::UserReduction> reductions;

  void* tuner_context = nullptr;
  bool tuned = false;  // holds a reference on the tuner
  powerccl::emulated_nccl::TunerConstants tuner_constants{};
  void* profiler_context = nullptr;
  bool profiled = false;  // holds a reference on the plugin
  std::array<std::atomic<uint64_t>, 5> sequence{};
  std::unique_ptr<powerccl::emulated_nccl::Progress> progress;

  ncclComm();
  ~ncclComm();
};

namespace powerccl::emulated_nccl {

// CommCheck, as NCCL: null and garbage are ncclInvalidArgument.
ncclResult_t check_comm(const ncclComm* comm, const char* function);
// Usable for another operation: initialised, nothing in progress, no error.
ncclResult_t ensure_ready(ncclComm* comm);
// Takes part in creating a communicator of the server's; blocks until every rank does.
struct Origin {
  enum class Kind { kJoin, kSplit } kind = Kind::kJoin;
  emulator::Join join{};
  emulator::Split split{};
};
ncclResult_t bring_up(ncclComm* comm, const Origin& origin, bool* no_color);
// Waits until what was launched has ended; gives up when the communicator has failed.
void drain(ncclComm* comm);
// Cancels what runs and what is still queued in streams.
void cancel_operations(ncclComm* comm);
// Leaves the server's communicator, ends the progress thread, lets the profiler go, and frees.
void tear_down(ncclComm* comm);

}  // namespace powerccl::emulated_nccl
