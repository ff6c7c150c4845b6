// SPDX-License-Identifier: Apache-2.0
// What emulated GPUs receive, and what they publish in shared pages; also what crosses the socket to their server.
//
// One SOCK_SEQPACKET connection per process and library carries fixed structs, each led by `Header`. Submissions are
// one-way and stamped with CLOCK_MONOTONIC by the sender. So the server can place them in model time however late it
// reads them. A client that stops model time may stamp what it sends meanwhile with one moment: a busy host then costs
// no model time. Requests carry a nonzero `request`; the reply repeats it. Completion costs no message: the server
// publishes it in a page shared with each client (`ClientPage`). The state of all GPUs is in one page shared with all
// clients (`BoardPage`). Both ends come from the same build; `kAbi` refuses anything else.
#pragma once
#include <atomic>
#include <cstddef>
#include <cstdint>

namespace powerccl::physics {

inline constexpr uint32_t kAbi = 7;
inline constexpr uint64_t kGlobaltimerOffsetNs = 1'000'000'000'000;  // globaltimer = CLOCK_MONOTONIC + this
inline constexpr size_t kMaxMessageBytes = 60 * 1024;
inline constexpr size_t kMaxPayloadBytes = 56 * 1024;  // of a collective or of a request of the collective engine
inline constexpr uint32_t kMaxGpus = 64;
inline constexpr uint32_t kMaxStreams = 4096;
inline constexpr uint32_t kMaxEvents = 65536;
inline constexpr uint32_t kMaxOps = 8192;
inline constexpr uint64_t kLongestPatienceNs = 60'000'000'000;  // that model time may stand still

enum class Message : uint32_t {
  kHello = 1,     // request; reply Welcome with the page descriptors attached
  kAllocate = 2,  // request, one descriptor attached (a memfd); reply Status
  kFree = 3,      // request; reply Status
  kContext = 4,   // one-way: a context came up or went
  kStreamDestroy = 5,
  kSetLockedClocks = 6,  // request; reply Status when the call would return
  kStop = 7,             // request; the server replies and ends
  kStopTime = 8,         // request; reply Status once model time stands still
  kStartTime = 9,        // request; reply Status: 0, or ETIME if time went on before
  // Submissions to a stream, one-way, in order.
  kKernel = 16,
  kEventRecord = 17,
  kWait = 18,
  kCallback = 19,  // host function or copy: run by the client, awaited by the stream
  kWriteValue = 20,
  kCollective = 21,
  // From the server, on the callback connection, and its answer.
  kRunCallback = 32,
  kCallbackDone = 33,
  kReply = 40,
  // Requests and one-way messages of emulated NCCL: handed as they are to the collective engine.
  kCollectiveFirst = 0x1000,
  kCollectiveLast = 0x1fff,
};

enum class Role : uint32_t { kCuda = 1, kNvml = 2, kCallback = 3 };

struct Header {
  uint32_t type;
  uint32_t bytes;     // of the whole message
  uint64_t stamp_ns;  // CLOCK_MONOTONIC when it was sent
  uint64_t request;   // 0: no reply is expected
};

struct Hello {
  Header header;
  uint32_t abi, role, pid;
  uint32_t client;  // kCallback: the client it belongs to
};

struct Welcome {  // descriptors attached: board page, and for kCuda the client page
  Header header;
  uint32_t abi, client, gpus;
  int32_t error;  // 0, or an errno
};

struct Status {
  Header header;
  int32_t error;  // 0, CUresult or nvmlReturn_t, as the request's library speaks
  uint32_t payload_bytes;
  // payload of collective replies follows
};

struct Allocate {
  Header header;
  uint64_t allocation;  // chosen by the client, never reused
  uint64_t bytes;
  uint32_t gpu;
  uint32_t on_host;  // pinned host memory: mapped by the server, not counted as the GPU's
};

struct Free {
  Header header;
  uint64_t allocation;
};

struct Context {
  Header header;
  uint32_t gpu, alive;
};

struct SetLockedClocks {
  Header header;
  uint32_t gpu;
  uint32_t min_mhz;  // 0, 0: reset
  uint32_t max_mhz;
  int32_t inject;  // nonzero: take the call's time, change nothing, answer this code
};

struct StopTime {
  Header header;
  uint64_t stop;         // chosen by the client, never reused; StartTime repeats it
  uint64_t patience_ns;  // of real time, after which model time goes on anyway
};

struct StartTime {
  Header header;
  uint64_t stop;
};

struct StreamHeader {
  Header header;
  uint32_t gpu;
  uint32_t stream;    // slot in the client page
  uint64_t sequence;  // counts up per stream slot; published when complete
};

struct Kernel {
  StreamHeader to;
  // Nanoseconds at the platform's reference clock. From bit kMemoryShareBit on: one more than the thousandths of them
  // that no clock changes. 0: as many as the platform says.
  uint64_t declared_ns;
};
inline constexpr int kMemoryShareBit = 48;

struct EventRecord {
  StreamHeader to;
  uint32_t event;  // slot in the client page
  uint32_t reserved;
  uint64_t generation;
};

struct Wait {  // until another stream has come as far as `on_sequence`
  StreamHeader to;
  uint32_t on_stream, reserved;
  uint64_t on_sequence;
};

struct Callback {
  StreamHeader to;
  uint64_t callback;  // the client's number for it
  uint64_t bytes;     // a copy's size; 0 for a host function
  uint32_t is_copy;
  uint32_t to_host;  // copy crosses the host link
};

struct WriteValue {
  StreamHeader to;
  uint64_t allocation, offset;
  uint32_t value, reserved;
};

struct Collective {  // followed by `payload_bytes` of payload, opaque to the core
  StreamHeader to;
  uint32_t op;  // slot in the client page, or kMaxOps: not tracked
  uint32_t payload_bytes;
  uint64_t generation;
};

struct RunCallback {
  Header header;
  uint64_t callback;
  uint32_t stream, reserved;
  uint64_t sequence;
};

struct CallbackDone {
  Header header;
  uint32_t stream, reserved;
  uint64_t sequence;
};

// ---- Pages. Everything is written by the server alone, except `wake_at` and `waiters`.

struct StreamSlot {
  std::atomic<uint64_t> completed;  // highest sequence complete
  std::atomic<uint64_t> wake_at;    // lowest sequence that a waiter sleeps for; the waiter lowers it
  std::atomic<uint32_t> wake;       // futex
  std::atomic<int32_t> error;       // sticky CUresult of the stream's context
};

struct EventSlot {
  std::atomic<uint64_t> generation;  // last one recorded
  std::atomic<uint64_t> time_ns;     // CLOCK_MONOTONIC in model time
  std::atomic<double> energy_uj;     // what the stream's GPU had used by then
};

enum class OpState : uint32_t { kPending = 0, kStarted = 1, kStopped = 2 };

struct OpSlot {
  std::atomic<uint64_t> generation;  // the fields below are of this one
  std::atomic<uint32_t> state;       // OpState; futex
  std::atomic<uint32_t> waiters;
  std::atomic<int32_t> result;  // given by the collective engine
  uint32_t reserved;
  std::atomic<uint64_t> started_ns, stopped_ns;
};

struct ClientPage {
  StreamSlot streams[kMaxStreams];
  EventSlot events[kMaxEvents];
  OpSlot ops[kMaxOps];
};

// A quantity that is piecewise linear in time, with its values at the last two refreshes of the reading.
struct Integral {
  double value;           // at GpuState::since_ns
  double rate;            // per ns from there on
  double latched;         // at GpuState::refresh_ns
  double latched_before;  // one period earlier
};

struct GpuState {
  std::atomic<uint32_t> version;  // odd while being written (sequence lock)
  uint32_t clock_mhz, memory_clock_mhz, locked_min_mhz;
  uint32_t locked_max_mhz;    // 0: not locked
  uint32_t throttle_reasons;  // NVML's bits
  uint32_t p_state, power_limit_mw;
  uint64_t since_ns;
  uint64_t refresh_ns;  // last refresh of the readings at or before since_ns
  double temperature_c;
  Integral energy_uj;  // since the server started
  Integral busy_ns;    // time with a kernel on the GPU
};

struct BoardGpu {
  char uuid[48];
  char pci[20];
  uint8_t uuid_bytes[16];
  uint32_t bus;
  GpuState state;
};

struct BoardPage {
  char magic[8];  // "PWCCLEMU"
  uint32_t abi, gpus, server_pid;
  char platform[48];  // name and fingerprint: "t4x8 0b2e91c4"
  char gpu_name[64];
  char driver_version[80];
  uint64_t start_ns;
  // How far the states of the GPUs reach: until the next event, or where time was stopped. A reader with a later time,
  // from a server that is behind, gets the state of then. Extrapolation would have to be taken back.
  std::atomic<uint64_t> known_until_ns;
  std::atomic<uint64_t> advances;  // counts up where states begin to change, with known_until_ns set to that moment
  uint64_t memory_bytes, refresh_period_ns;
  uint64_t energy_read_ns;  // how long reading the energy counter takes
  uint32_t clock_min_mhz, clock_max_mhz, clock_step_mhz, memory_clock_mhz;
  uint32_t compute_major, compute_minor, multiprocessors;
  uint32_t may_set_clocks;  // 0: NVML answers NO_PERMISSION
  BoardGpu gpu[kMaxGpus];
};

}  // namespace powerccl::physics
