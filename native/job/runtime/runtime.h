// SPDX-License-Identifier: Apache-2.0
// The runtime in the job: what an adapter calls with what it sees. Knows phases and policy, and nothing of the library
// seen.
//
// Any thread may call anything. Nothing here throws, exits or reports an error to the caller. On any doubt it disarms,
// says so once on stderr and in the trace, and lets everything pass. Everything is a fixed pool; what finds no room is
// counted and left out.
//
// The order of a call: group_begins, then collective or point_to_point once or more, group_ending, launched, kernel
// events, group_ends. The library may leave any of them out. One process may hold several ranks, each with its own GPU:
// one Runtime, and per GPU a trace, a policy and a clock thread.
#pragma once
#include <pthread.h>
#include <stdint.h>

#include <atomic>

#include "abi/trace.h"
#include "base/basics.h"
#include "base/environment.h"
#include "base/seccomp_filter.h"
#include "clock/clock_actuator.h"
#include "clock/clock_client.h"
#include "clock/lease_client.h"
#include "clock/policy_table.h"
#include "policy/clock_policy.h"
#include "record/gpu_clock.h"
#include "record/kernel_selection.h"
#include "record/patterns.h"
#include "record/records.h"
#include "record/streams.h"
#include "record/trace_writer.h"

namespace powerccl {

// The runtime's fixed pools: what is under way, from its beginning to its record.
struct Communicator;
class Runtime;

// One outermost group of calls on one thread; only that thread touches it. Serial 0: free.
struct CallGroup {
  static constexpr uint32_t kCalls = 16;  // more are recorded immediately, without their end

  struct Call {
    Communicator* communicator;
    powerccl_trace_record record;
  };
  // Everything that one communicator sends and receives in the group: one call to us.
  struct Exchange {
    Communicator* communicator;
    powerccl_trace_record record;
    PointToPoint parts;
    bool closed;
  };

  std::atomic<uint64_t> serial{0}, opened_ns{0};
  uint32_t number = 0;  // in the trace; 0 until there are two calls
  uint32_t call_count = 0, exchange_count = 0;
  bool recorded_some = false;
  Call calls[kCalls];
  Exchange exchanges[kCalls];
};

// A kernel on its way to a stream; used by one thread, from just before to just after the launch.
struct Launch {
  std::atomic<uint64_t> serial{0};
  Communicator* communicator = nullptr;
  Handle group = 0;
  void* stream = nullptr;
};

// A kernel that was launched, until its last channel has stopped.
struct LaunchedKernel {
  SpinLock lock;  // over everything but the serial, which changes under it and is looked at before
  std::atomic<uint64_t> serial{0};
  Communicator* communicator = nullptr;
  Handle group = 0;                 // of an adapter that sees launches only
  uint64_t opened_ns = UINT64_MAX;  // no time: not begun, or over
  uint64_t call = 0;                // id of the first call in it
  uint64_t bytes = 0;
  uint64_t gpu_start_ns = 0, gpu_stop_ns = 0, seen_start_ns = 0, seen_stop_ns = 0;
  PointToPoint parts;
  uint32_t tasks = 0, expected = 0, started = 0, stopped = 0;
  uint32_t holds = 0;  // of the clock, until the kernel has stopped
  uint16_t flags = 0;
  Peer to, from;  // of its sends and receives
  uint8_t pattern = POWERCCL_PATTERN_UNKNOWN, algorithm = 0, protocol = 0, channels = 0, warps = 0;
  bool enqueued = false;
};

// A host callback behind a managed call. A slot is free again only when its callback has fired, because the driver
// holds its address until then.
struct Callback {
  enum State : uint32_t { kFree, kWaiting, kCancelled };
  std::atomic<uint32_t> state{kFree};
  // Atomics, because a communicator that goes looks through slots that others are taking.
  std::atomic<uint32_t> gpu{0}, communicator{0}, holds{0};
  std::atomic<uint64_t> call{0};
  Runtime* runtime = nullptr;
};

// What a send-receive call was taken for, for kernels that come long after its group is gone.
struct RecentCall {
  std::atomic<uint64_t> key{0}, bytes{0};
  std::atomic<uint32_t> pattern{0};
};

// Takes a free slot of a pool whose slots carry a serial (0: free). Null: all are taken.
template <typename Slot, uint32_t kCount>
Slot* take_slot(Slot (&pool)[kCount], std::atomic<uint64_t>* serials, uint32_t* slot, uint64_t* serial) {
  *serial = serials->fetch_add(1, std::memory_order_relaxed) + 1;
  for (uint32_t tried = 0; tried < kCount; ++tried) {
    *slot = static_cast<uint32_t>((*serial + tried) % kCount);
    uint64_t free = 0;
    if (pool[*slot].serial.load(std::memory_order_relaxed) == 0 &&
        pool[*slot].serial.compare_exchange_strong(free, *serial, std::memory_order_acquire)) {
      return &pool[*slot];
    }
  }
  return nullptr;
}

struct GpuIdentity {
  int device = -1;     // as the library numbers it
  char uuid[48] = "";  // "GPU-...", of a MIG slice "MIG-..."; empty: unknown
  char pci[20] = "";   // "00000000:65:00.0"
  char name[64] = "";  // "Tesla T4"; empty: unknown

  // What the driver and powerccld find it by.
  const char* id() const { return uuid[0] != '\0' ? uuid : pci; }
};

// What the adapter offers to the runtime. All may be called from any thread.
struct Adapter {
  char library[32] = "";  // "nccl 2.28.9 profiler v5"
  // Calls are seen when they are made (else only when they have been launched). Kernel events, with the tasks that they
  // belong to, can be asked for per operation.
  bool sees_calls = true;
  // Says whether kernel events are wanted from now on.
  void (*ask_kernel_events)(void* context, bool on) = nullptr;
  // Has `callback(data)` called once what `stream` holds now has run. 0 or an error code. Null: there is no such thing.
  int (*call_behind)(void* context, void* stream, void (*callback)(void* data), void* data) = nullptr;
  // A dry client that reads the clock of a GPU, which takes no right; null where that cannot be.
  ClockClient* (*open_reader)(void* context, const GpuIdentity& gpu) = nullptr;
  void* context = nullptr;
};

struct CommunicatorSeen {
  uint64_t id = 0;
  const char* name = "";  // may be null
  int nranks = 0, rank = 0, nnodes = 0;
};

struct CallSeen {
  uint8_t pattern = POWERCCL_PATTERN_UNKNOWN;
  uint8_t datatype = 255;      // the library's own number
  uint64_t message_bytes = 0;  // count x size of the type, as passed to the call
  int root = -1;
  uint64_t stream = 0;
  bool captured = false;
  bool stream_known = true;  // else 0 is no stream
  uint64_t tag = 0;          // the job's own; 0: none
};

// A kernel, timed from outside: `calls` of the same kind and `bytes` together, from `start_ns` to `stop_ns`.
struct KernelRan {
  uint64_t start_ns = 0, stop_ns = 0;
  uint64_t bytes = 0;                          // NCCL tests' `size`
  uint8_t pattern = POWERCCL_PATTERN_UNKNOWN;  // unknown: a send-receive, as what the call was taken for
  uint8_t algorithm = POWERCCL_ALGO_UNKNOWN;
  uint32_t calls = 0;
};

struct TaskSeen {
  Handle call = 0;  // 0: unknown
  CallSeen operation;
  bool point_to_point = false, send = false;
  int peer = -1;
  uint8_t algorithm = POWERCCL_ALGO_UNKNOWN, protocol = POWERCCL_PROTO_UNKNOWN;
  uint8_t channels = 0, warps = 0;
};

struct Gpu {
  uint32_t index = 0;
  GpuIdentity identity;
  TraceWriter trace;
  ClockActuator actuator;
  DryClockClient dry_client;
  LeaseClient lease;  // used with POWERCCL_CLOCKS=lease
  GpuClock clock;
  PolicyTable table;
  Observe observe;
  PerCallClock per_call{&actuator};
  ClockPolicy* clock_policy = &observe;  // what the actuator follows, if it runs; one that learns is never freed
  std::atomic<bool> withdrawn{false};    // no further call is managed
  std::atomic<uint64_t> calls{0};
  std::atomic<Communicator*> captured{nullptr};  // made a captured call last
  int communicators = 0;                         // under the runtime's mutex
  bool usable = false;                           // there is a trace to write
  bool dry = true;

  // A policy that changes clocks was accepted, and the actuator runs.
  bool managed() const { return clock_policy != &observe; }
  bool holds_calls() const { return clock_policy == per_call.policy(); }
};

struct Communicator {
  std::atomic<bool> alive{false};
  Gpu* gpu = nullptr;
  void* adapter = nullptr;  // the adapter's own
  uint32_t index = 0;       // in the traces; never used twice
  uint64_t id = 0;
  int nranks = 0, rank = 0;
  // Holds of managed calls that have not been launched yet, and the group they belong to.
  std::atomic<uint32_t> held{0};
  std::atomic<uint64_t> held_group{0}, held_call{0};
  std::atomic<uint64_t> kernel_stop_ns{0};      // of the last kernel that kernel_ran received
  std::atomic<bool> launches_elsewhere{false};  // the adapter's: from another thread than the one that calls
  std::atomic<bool> events_distrusted{false};   // the adapter's: kernel events have the times of other kernels
};

class Runtime {
 public:
  static constexpr uint32_t kGpus = 16, kCommunicators = 1024, kGroups = 128, kLaunches = 256, kKernels = 4096;
  static constexpr uint32_t kCallbacks = 1024, kRecentCalls = 1024;

  Runtime() = default;
  Runtime(const Runtime&) = delete;
  Runtime& operator=(const Runtime&) = delete;

  // The first one arms the runtime. Null: this communicator is not recorded.
  Communicator* communicator_up(const CommunicatorSeen& seen, const GpuIdentity& gpu, const Adapter& adapter);
  void communicator_down(Communicator* communicator);
  // What it has been given may never run: holds for it are given back.
  void calls_given_up(Communicator* communicator);
  // The one communicator of that size in which this GPU has that rank; null: none, or several.
  Communicator* only_communicator(int nranks, int rank, const GpuIdentity& gpu);

  Handle group_begins(Communicator* communicator);
  Handle collective(Communicator* communicator, Handle group, const CallSeen& call);
  Handle point_to_point(Communicator* communicator, Handle group, bool send, const CallSeen& call);
  // Everything has been put in; the launch comes next.
  void group_ending(Handle group);
  void group_ends(Handle group);

  // A kernel (or copies) of `group` is about to go to `stream`, and has gone.
  Handle launch_begins(Communicator* communicator, Handle group, void* stream);
  void launch_ends(Handle launch);
  // The same for `call` where copy engines carry it out: there are no kernel events. Only on the calling thread, before
  // its group ends.
  Handle copy_begins(Communicator* communicator, Handle call, void* stream);
  // How a call of a group that has not ended is carried out: flags of its record. On the calling thread.
  void carried_out(Communicator* communicator, Handle call, uint16_t flags);

  // A kernel was launched; its tasks follow, then kernel_enqueued. Its channels start and stop at any time after.
  Handle kernel_begins(Communicator* communicator);
  Handle kernel_task(Communicator* communicator, Handle kernel, const TaskSeen& task);
  void kernel_enqueued(Handle kernel);
  Handle channel_starts(Handle task, uint64_t gpu_ns);
  void channel_stops(Handle channel, uint64_t gpu_ns);

  // Computation on `stream` had nothing left to do but wait for `call` (of `communicator`). The wait is from `stall_ns`
  // to `resume_ns`, CLOCK_MONOTONIC; both are equal if the call had already run. Called some time after, from any
  // thread. `burst`: identifies the waits that are reported between two pauses.
  void computation_waited(Communicator* communicator, Handle call, uint64_t stream, uint64_t stall_ns,
                          uint64_t resume_ns, uint32_t burst);
  // From here on waits are not reported, until the next burst. `marked`, `unmarked`: waits reported and not, so far.
  void waits_paused(uint32_t burst, uint64_t marked, uint64_t unmarked);

  // `ran` was launched for `call` (of `communicator`), and the GPU's times of it are host times already. For adapters
  // without kernel events; called some time after, from any thread.
  void kernel_ran(Communicator* communicator, Handle call, const KernelRan& ran);
  // The same, as it is seen to start or to stop.
  void kernel_seen(Communicator* communicator, Handle call, uint64_t now_ns, bool stops);
  // Which stream computes and which call an event stands for; null: not armed. Adapters tell it of streams and events,
  // collective and point_to_point of calls.
  Streams* streams() { return armed() ? &streams_ : nullptr; }
  // The number that `streams` knows a stream of the communicator's GPU by.
  static uint64_t stream_key(const Communicator* communicator, uint64_t handle);

  // A graph is launched, with the captured calls of some communicator in it. Call 0: they are of no interest.
  CallOfStream graph_launches(uint64_t graph);
  void graph_ran(Communicator* communicator, Handle call, uint64_t start_ns, uint64_t stop_ns);

  // Calls are not reported any more: no clock may stay changed for calls that are not seen.
  void calls_withdrawn();

  // Resets what is set and stops the clock threads: the end of the process.
  void shut_down();
  // A filter is about to refuse a system call that is made here: clocks are reset, threads end, and nothing is recorded
  // from now on.
  void withdraw(const Refusal& refusal);
  // Such a filter came before this runtime: it will not arm.
  void refuse(const Refusal& refusal) { refusal_ = refusal; }
  // A forked child: the traces and clocks are its parent's.
  void forked_child();

  const Environment& environment() const { return environment_; }
  // Whether a policy was asked for that does.
  bool changes_clocks() const { return environment_.policy != PolicyName::kObserve; }
  // The GPU's state, for tests and benchmarks; null if there is none.
  Gpu* gpu(uint32_t index) { return index < gpu_count_.load(std::memory_order_acquire) ? &gpus_[index] : nullptr; }
  // The device of the process's only GPU; -1: there are several, or none yet.
  int only_device() const { return gpu_count_.load(std::memory_order_acquire) == 1 ? gpus_[0].identity.device : -1; }
  KernelSelection& selection() { return selection_; }
  uint64_t left_out() const { return left_out_.load(std::memory_order_relaxed); }

 private:
  enum class State { kCold, kArmed, kPassive };
  // arming.cpp
  bool armed() const { return state_.load(std::memory_order_acquire) == State::kArmed; }
  void arm(const Adapter& adapter);
  Gpu* gpu_of(const GpuIdentity& identity, const CommunicatorSeen& seen);
  bool open_trace(Gpu* gpu, const CommunicatorSeen& seen);
  void choose_policy(Gpu* gpu, char* note, size_t note_size);
  ClockPolicy* make_policy(Gpu* gpu, bool dry);
  // Null: refused.
  ClockClient* open_clock(Gpu* gpu, char* reason, size_t reason_size, const char** hint);

  // calls.cpp
  CallGroup* find_group(Handle handle);
  powerccl_trace_record* find_call(const Communicator* communicator, Handle call);
  // With the policy `per-call`: holds the call's clock until the call has run. The flags of its record that say so.
  uint16_t hold_clock(Communicator* communicator, Handle group, uint8_t pattern, uint64_t bytes, uint16_t flags,
                      uint64_t call_id);
  void drop_holds(Communicator* communicator);
  // All sends and receives of a communicator in a group are there: which pattern they make, and its clock.
  void close_exchange(CallGroup::Exchange* exchange, Handle group, bool may_manage);
  void flush_calls(CallGroup* group, uint64_t stop_ns, bool more_follow);
  void record_tag(const powerccl_trace_record& call, Communicator* communicator, uint64_t tag);
  void record_call(Communicator* communicator, powerccl_trace_record* record, uint64_t stop_ns, uint32_t group_number);
  void evict_groups();
  void note_stream(Communicator* communicator, Handle call, const CallSeen& seen);
  void remember(Handle call, uint8_t pattern, uint64_t bytes);
  bool recall(Handle call, uint8_t* pattern, uint64_t* bytes);

  // launches.cpp
  void launched(Communicator* communicator, Handle group, void* stream);
  void launch_the_rest(CallGroup* group, Handle handle);
  static void callback_fired(void* data);
  void cancel_callbacks(Communicator* communicator);

  // kernels.cpp
  LaunchedKernel* lock_kernel(Handle handle);
  void finish_kernel(LaunchedKernel* kernel);
  void flush_kernels(Communicator* communicator, uint64_t opened_before_ns);

  std::atomic<State> state_{State::kCold};
  Refusal refusal_;
  pthread_mutex_t mutex_ = PTHREAD_MUTEX_INITIALIZER;  // over arming, communicators and GPUs; never in a call's path
  Environment environment_;
  Adapter adapter_;
  KernelSelection selection_;
  Streams streams_;
  Gpu gpus_[kGpus];
  std::atomic<uint32_t> gpu_count_{0};
  Communicator communicators_[kCommunicators];
  std::atomic<uint64_t> group_serial_{0}, kernel_serial_{0}, launch_serial_{0};
  std::atomic<uint32_t> group_number_{0}, next_callback_{0};
  uint32_t next_communicator_ = 0;
  std::atomic<uint64_t> left_out_{0};
  CallGroup groups_[kGroups];
  Launch launches_[kLaunches];
  LaunchedKernel kernels_[kKernels];
  Callback callbacks_[kCallbacks];
  RecentCall recent_[kRecentCalls];
};

}  // namespace powerccl
