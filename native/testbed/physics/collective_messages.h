// SPDX-License-Identifier: Apache-2.0
// What emulated NCCL and the collective engine of the server say to each other, inside messages.h's.
#pragma once
#include <cstddef>
#include <cstdint>

#include "physics/messages.h"

namespace powerccl::physics {

enum class CollectiveMessage : uint32_t {
  kJoin = 0x1000,   // request: Join; answered when all ranks have joined: Joined
  kSplit = 0x1001,  // request: Split; answered when all ranks of the parent have asked: Joined (comm 0: no colour)
  kLeave = 0x1002,  // one-way: Member; the communicator is destroyed on this rank
  kAbort = 0x1003,  // request: Member; its operations are cancelled, those still queued as soon as their turn comes
  kPoll = 0x1004,   // request: Member; answered with CommEvents as soon as there are any
  kCancelJoin = 0x1005,  // one-way: Join; the pending join is answered with an error
};

// The engine's answer codes are ncclResult_t values.
enum CollectiveResult : int32_t {
  kCollectiveOk = 0,
  kCollectiveInvalidArgument = 4,
  kCollectiveInvalidUsage = 5,
  kCollectiveRemoteError = 6,
};

// What NCCL's variables say, as far as the model of time depends on it; 0 in a field: NCCL's default.
struct NcclSettings {
  enum Flag : uint32_t {
    kTuned = 1,        // a variable of the model is set
    kHangs = 2,        // POWERCCL_EMULATOR_HANGS matches: collectives never end
    kP2pDisabled = 4,  // NCCL_P2P_DISABLE
    kShmDisabled = 8,  // NCCL_SHM_DISABLE
  };
  uint32_t flags, threads, socket_threads, sockets_per_thread;
  uint64_t buffer_bytes;
  uint64_t seed;  // of run-to-run noise; 0: the communicator's own
};

// Values of NCCL's algorithms and protocols, as tuner plugins index the cost table.
enum Algorithm : uint8_t { kTree = 0, kRing = 1, kNvls = 4 };
enum Protocol : uint8_t { kLl = 0, kLl128 = 1, kSimple = 2 };
inline constexpr int kAlgorithms = 7, kProtocols = 3;

struct Join {
  uint8_t key[128];  // of NCCL's unique id
  uint32_t ranks, rank, gpu;
  uint32_t move_data;  // 0: this rank asks that operations move nothing
  NcclSettings settings;
};

struct Joined {
  uint64_t comm;
  uint64_t hash;  // the same on all ranks, different from other communicators'
  uint32_t ranks, rank;
  uint32_t channels;  // NCCL's default
  uint32_t warps, multiprocessors;
  uint8_t has_nvls;
  uint8_t has_ll128;  // without being asked for
  uint8_t reserved[2];
  char text[160];  // why not, when the answer code is not 0
};

struct Member {
  uint64_t comm;
  uint32_t rank, reserved;
};

struct Split {
  uint64_t comm;
  uint32_t rank;
  int32_t color, key;
  uint32_t reserved;
};

enum class CommEventKind : uint32_t {
  kTaskStarted = 1,  // the kernel has come to this task, peers present or not
  kTaskStopped = 2,
  kError = 3,   // `result` and `text` say what happened to the communicator
  kClosed = 4,  // the rank has left or was aborted: nothing more comes
};

struct CommEvent {
  uint32_t kind;
  int32_t result;
  uint64_t plan;     // the client's number, repeated at each replay of a graph
  uint64_t time_ns;  // CLOCK_MONOTONIC in model time
  uint32_t task;     // index in the plan; all its point-to-point tasks share the first one's
  uint32_t reserved;
  char text[160];
};

enum class TaskKind : uint8_t {
  kAllReduce = 0,
  kBroadcast = 1,
  kReduce = 2,
  kAllGather = 3,
  kReduceScatter = 4,
  kSend = 5,
  kReceive = 6,
};

inline constexpr uint32_t kNoPattern = 255;
inline constexpr uint64_t kNoAllocation = ~uint64_t{0};

struct BufferRef {
  uint64_t allocation;  // kNoAllocation: not used by this rank
  uint64_t offset;
};

struct CollectiveTask {
  uint8_t kind;       // TaskKind
  uint8_t type;       // DataType
  uint8_t reduction;  // Reduction
  uint8_t pattern;    // Pattern that the caller named (a scatter's sends), or kNoPattern
  int16_t peer;       // root or peer
  uint8_t method;     // method_byte(), or 0: the server's default
  uint8_t channels;   // 0: the server's default
  uint64_t count;     // per NCCL's argument
  BufferRef input, output;
  BufferRef scalar;  // kPreMulSum with a scalar in device memory; else kNoAllocation and `scalar.offset` is its bits
};

// Payload of a submitted kernel: this, then `tasks` CollectiveTasks, collectives before point-to-point tasks.
struct CollectivePlan {
  uint64_t comm;
  uint32_t rank, tasks;
  uint64_t plan;
  uint32_t want_events;
  uint32_t moves_data;  // 0: the result is not read; where all ranks say so, only time passes
};

// What carries a collective out. All but the first on buffers in symmetric windows.
enum class Carrier : uint8_t { kChannels = 0, kSymmetricKernel = 1, kCopyEngines = 2, kFewestBlocks = 3 };
inline constexpr size_t kCarriers = 4;

constexpr uint8_t method_byte(uint8_t algorithm, uint8_t protocol, Carrier carrier = Carrier::kChannels) {
  return static_cast<uint8_t>(0x80u | (static_cast<unsigned>(algorithm) << 4) | static_cast<unsigned>(carrier) << 2 |
                              protocol);
}

// Where nothing is tuned: a ring of simple copies for large sizes, the low-latency protocol below. It has a channel for
// each so many bytes, up to those of the communicator.
constexpr Protocol default_protocol(double traffic_bytes) {
  return traffic_bytes <= 32 * 1024 ? kLl : kSimple;
}
constexpr uint32_t default_channels(double traffic_bytes, uint32_t most) {
  const double channels = traffic_bytes / (64 * 1024);
  if (channels <= 1) return 1;
  return channels >= most ? most : static_cast<uint32_t>(channels);
}

inline constexpr size_t kMaxTasks = (kMaxPayloadBytes - sizeof(CollectivePlan)) / sizeof(CollectiveTask);
inline constexpr size_t kMaxEventsPerReply = kMaxPayloadBytes / sizeof(CommEvent);

}  // namespace powerccl::physics
