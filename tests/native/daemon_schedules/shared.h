// SPDX-License-Identifier: Apache-2.0
// What a schedule and its clients share: a client that is killed leaves its log readable here.
#pragma once
#include <atomic>
#include <cstdint>

namespace powerccl::leases {

inline constexpr uint32_t kMostGpus = 8;
inline constexpr uint32_t kMostClients = 24;  // of one schedule, those that replace killed ones included
inline constexpr uint32_t kMostEvents = 4096;
inline constexpr uint16_t kAllGpus = 0xffff;

enum class Phase : uint32_t { kActing, kSettling, kOver };

enum class What : uint16_t {
  kAsking,    // an ACQUIRE is about to be sent
  kGranted,   // its answer has been read: the client believes that it holds the GPU; `detail`: 1 if shared
  kLeaving,   // the client is about to do what ends its lease
  kEnded,     // the daemon said that the lease has ended; `detail` is its status
  kSpoke,     // something that counts as a heartbeat is about to be sent
  kRevoking,  // a REVOKE or RESTORE is about to be sent; `detail` is its serial
  kRevoked,   // its answer has been read: in between it may have been carried out at any time
};

struct Event {
  int64_t at_ns;
  uint32_t life;  // the daemon's process: a lease is of one daemon's life
  What what;
  uint16_t gpu;
  int32_t detail;
};

// A lease as its client knows it. Read by others only once the client has settled.
struct Held {
  std::atomic<uint64_t> lease;  // 0: none
  std::atomic<uint32_t> min_mhz, max_mhz;
  std::atomic<bool> shared;
};

struct ClientSlot {
  std::atomic<int> pid, heir_pid;    // of the child that was left with the socket
  std::atomic<bool> settled, ended;  // ended: of its own will
  std::atomic<int64_t> killed_ns;    // written before it is killed; 0: it is not
  std::atomic<uint64_t> requests, answers;
  std::atomic<int64_t> longest_wait_ns;
  std::atomic<bool> faulty;  // `fault` is written
  char fault[200];
  Held held[kMostGpus];
  std::atomic<uint32_t> events;
  Event event[kMostEvents];
};

struct Shared {
  std::atomic<Phase> phase;
  std::atomic<bool> ailing;  // the daemon's driver can reset no clock, so that answers may never come
  // Fixed before the clients start.
  uint32_t gpus;
  char uuid[kMostGpus][48];
  char socket[108];
  uint32_t heartbeat_ms;
  uint32_t lowest_mhz, highest_mhz;  // the administrator's range
  ClientSlot client[kMostClients];
};

}  // namespace powerccl::leases
