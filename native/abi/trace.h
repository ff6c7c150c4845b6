// SPDX-License-Identifier: Apache-2.0
// The trace: what a rank saw, as fixed-size records appended to a file `rank-<n>.trace`.
//
// Readers: python/powerccl/traces/ and docs/reference/trace-format.md. Little endian. A file is one header of
// POWERCCL_TRACE_HEADER_BYTES and then `committed` records of POWERCCL_TRACE_RECORD_BYTES. A writer writes records
// first and `committed` after them, so a file cut off by SIGKILL reads up to its last whole record. Readers skip kinds
// they do not know. All `*_ns` are CLOCK_MONOTONIC of the host, except `gpu_*_ns`, which are the GPU's globaltimer.
#pragma once
#include <stddef.h>
#include <stdint.h>

#define POWERCCL_TRACE_MAGIC "PWRCCLTR"
#define POWERCCL_TRACE_VERSION 1u
#define POWERCCL_TRACE_HEADER_BYTES 4096u
#define POWERCCL_TRACE_RECORD_BYTES 64u

// Communication patterns. The order is part of the format.
enum powerccl_pattern {
  POWERCCL_ALL_REDUCE = 0,
  POWERCCL_BROADCAST = 1,
  POWERCCL_REDUCE = 2,
  POWERCCL_ALL_GATHER = 3,
  POWERCCL_REDUCE_SCATTER = 4,
  POWERCCL_SEND_RECEIVE = 5,
  POWERCCL_SCATTER = 6,
  POWERCCL_GATHER = 7,
  POWERCCL_ALL_TO_ALL = 8,
  POWERCCL_PATTERNS = 9,
  POWERCCL_PATTERN_UNKNOWN = 255,
};

enum powerccl_algorithm {
  POWERCCL_ALGO_UNKNOWN = 0,
  POWERCCL_ALGO_TREE,
  POWERCCL_ALGO_RING,
  POWERCCL_ALGO_COLLNET_DIRECT,
  POWERCCL_ALGO_COLLNET_CHAIN,
  POWERCCL_ALGO_NVLS,
  POWERCCL_ALGO_NVLS_TREE,
  POWERCCL_ALGO_PAT,
  POWERCCL_ALGO_COPY_ENGINE,
  POWERCCL_ALGO_SYMMETRIC,  // a kernel on buffers in symmetric windows
};
enum powerccl_protocol { POWERCCL_PROTO_UNKNOWN = 0, POWERCCL_PROTO_LL, POWERCCL_PROTO_LL128, POWERCCL_PROTO_SIMPLE };

enum powerccl_record_kind {
  POWERCCL_REC_NONE = 0,
  POWERCCL_REC_COMM = 1,       // a communicator came up (or went: flag ENDED)
  POWERCCL_REC_CALL = 2,       // a call was made: what was enqueued
  POWERCCL_REC_KERNEL = 3,     // a communication kernel ran, with GPU timestamps
  POWERCCL_REC_CLOCK = 4,      // a clock was asked for (or would have been: flag DRY)
  POWERCCL_REC_CALLBACK = 5,   // the host callback behind a call fired
  POWERCCL_REC_NOTE = 6,       // one line of text: why the runtime disarmed, what it could not do
  POWERCCL_REC_MPI_CALL = 7,   // one blocking MPI call that took long (mpi-<n>.trace)
  POWERCCL_REC_MPI_TOTAL = 8,  // all blocking MPI calls so far of one function, communicator and size class
  POWERCCL_REC_PROCESS = 9,    // what the process has used so far
  POWERCCL_REC_WAIT = 10,      // a stream that computes waited for a call's communication
  POWERCCL_REC_BUDGET = 11,    // what a policy that learns has come to, and what it costs in time
  POWERCCL_REC_PAUSE = 12,     // waits are not recorded for a while, lest that slow the job
  POWERCCL_REC_TAG = 13,       // the job has given a call a tag of its own
};

// record.flags
#define POWERCCL_FLAG_CAPTURED 0x0001u  // CALL: recorded into a CUDA graph; runs at each replay. KERNEL: a replay
#define POWERCCL_FLAG_GROUPED 0x0002u   // CALL: one of several fused by ncclGroupStart/End; KERNEL: the fused kernel
#define POWERCCL_FLAG_MANAGED 0x0004u   // CALL: the policy asked for a clock because of it
#define POWERCCL_FLAG_DRY 0x0008u       // CLOCK: decided and recorded, nothing called
#define POWERCCL_FLAG_ENDED 0x0010u     // COMM: finalized or destroyed
#define POWERCCL_FLAG_COLL_EVENT \
  0x0020u  // CALL: seen as the launch-time event only (NCCL < 2.28: no stream, no API time)
#define POWERCCL_FLAG_KERNEL_ASKED 0x0040u  // CALL: kernel events were asked for
#define POWERCCL_FLAG_COPY_ENGINE 0x0080u   // CALL: carried out by copy engines, which have no kernel events
#define POWERCCL_FLAG_SYMMETRIC 0x0100u     // CALL: carried out on symmetric windows, without kernel events
#define POWERCCL_FLAG_HOST_TIMES 0x0200u    // KERNEL: gpu_*_ns are CLOCK_MONOTONIC's already (timed with CUDA events)

// header.flags
#define POWERCCL_HEADER_FLAG_DRY 0x1u        // the clock client is dry
#define POWERCCL_HEADER_FLAG_EMULATED 0x2u   // emulated GPUs
#define POWERCCL_HEADER_FLAG_SIMULATED 0x4u  // beside the one before: by powerccl-sim

struct powerccl_trace_header {
  char magic[8];     // POWERCCL_TRACE_MAGIC, no terminator
  uint32_t version;  // POWERCCL_TRACE_VERSION
  uint32_t header_bytes;
  uint32_t record_bytes;
  uint32_t flags;  // POWERCCL_HEADER_FLAG_*
  int32_t rank;    // of the job (RANK, OMPI_COMM_WORLD_RANK, PMI_RANK, SLURM_PROCID), else of the first communicator
  int32_t nranks;
  int32_t local_rank;  // -1 if unknown
  uint32_t pid;
  uint64_t start_ns;           // CLOCK_MONOTONIC when the file was opened
  uint64_t start_realtime_ns;  // CLOCK_REALTIME at the same moment
  uint64_t committed;          // records readable
  uint64_t dropped;            // records not written: no room, or they came too fast
  uint64_t limit_records;      // the writer's hard limit
  char host[64];
  char gpu_uuid[48];  // as nvmlDeviceGetUUID prints it: "GPU-..."; empty if unknown
  char gpu_pci[20];   // "00000000:65:00.0", NVML's long form
  char policy[16];
  char clock_client[16];  // "none", "dry", "lease", "simulated"
  char library[32];       // "nccl 2.28.9 profiler v5"
  uint8_t run_id[16];     // POWERCCL_RUN_ID: the run this belongs to; all zero if the environment named none
  uint8_t boot_id[16];    // of the host's boot, /proc/sys/kernel/random/boot_id: distinguishes hosts of one name
  uint32_t starts;        // 1 + TORCHELASTIC_RESTART_COUNT: which start of this rank it is; 0: not known
  uint32_t reserved[2];
  // CPU time that PowerCCL's own code took of the process's threads. The three places: in the job's calls of NCCL,
  // around waits of its streams (marks), and around kernel launches (estimated from a sample). All 0: not known.
  uint64_t own_ns[3];
};

struct powerccl_trace_record {
  uint16_t kind;  // powerccl_record_kind
  uint16_t flags;
  uint32_t comm;  // index of the communicator in this trace; COMM records define it
  union {
    struct {
      uint64_t time_ns;
      uint64_t comm_id;  // NCCL's hash: the same on all ranks
      int32_t nranks, rank, nnodes, device;
      char name[24];
    } comm_up;
    struct {
      uint64_t call_id;            // counts up in this trace; other records refer to it
      uint64_t start_ns, stop_ns;  // the call on the host
      uint64_t bytes;              // NCCL tests' `size` (docs/concepts/patterns.md)
      uint64_t stream;
      uint32_t group;        // 0: not grouped, else counts up
      int32_t root_or_peer;  // root of a rooted collective, peer of a send-receive, -1
      uint8_t pattern, datatype, sends,
          receives;           // sends/receives: how many a point-to-point group held (255: or more)
      uint32_t received_kib;  // of an all-to-all made of these, by this rank; else 0
    } call;
    struct {
      uint64_t call_id;                      // of the first call in the kernel
      uint64_t gpu_start_ns, gpu_stop_ns;    // least start, greatest stop over the channels
      uint64_t seen_start_ns, seen_stop_ns;  // when the host learnt of them
      uint64_t bytes;
      uint8_t pattern, algorithm, protocol, channels;
      uint8_t warps;
      // Of a send-receive: 12 bits for the rank in the communicator to which it sends, plus 1. Then 12 bits for the
      // rank from which it receives. 0: none, several, or a rank that needs more bits. Zero in traces of before.
      uint8_t peers[3];
    } kernel;
    struct {
      uint64_t call_id;                     // that caused it, 0 if none
      uint64_t asked_ns, begin_ns, end_ns;  // asked for; the device call's begin and end
      uint32_t min_mhz, max_mhz;            // 0, 0: reset to default
      int32_t result;                       // 0, or the driver's error code
      uint32_t read_back_mhz;  // SM clock 10 ms after the call, or just before the next change; 0 if not read, as are
                               // all but ten a second
      uint32_t coalesced;      // requests that this one replaced before they were carried out
      uint32_t reserved;
    } clock;
    struct {
      uint64_t call_id;
      uint64_t time_ns;
    } callback;
    struct {
      uint64_t call_id;              // that was waited for
      uint64_t stall_ns, resume_ns;  // the stream had nothing left to do but wait; it could go on. Host times, reported
                                     // by CUDA events; equal where the communication was over first (nothing exposed)
      uint64_t stream;               // that waited
      uint32_t burst;                // counts up from 1: between two bursts is a pause; 0: not known
      uint32_t reserved;
    } wait;
    struct {  // so far; the latest counts
      uint64_t time_ns;
      uint32_t calls;                // of an iteration; 0: no iteration was found
      uint32_t iterations, managed;  // seen; with a lowered clock
      // Reserved fields had figures of policies that no longer exist. They are written as 0.
      uint32_t reserved1;
      uint32_t length_us;  // of an iteration
      uint32_t reserved2, reserved3;
      int32_t slowdown_ppm, low_ppm, high_ppm;  // of managed iterations against others, with its 99 % interval
      uint32_t clock_mhz;                       // of managed iterations; 0: the default
      uint8_t judged;                           // 0: no slowdown to tell yet
      uint8_t reserved4[3];
    } budget;
    struct {
      uint64_t time_ns;           // of the first call whose wait was not recorded, on the host
      uint64_t marked, unmarked;  // waits that were to be recorded and were not, of the process so far
      uint32_t burst;             // the pause comes behind this one
      uint32_t reserved;
    } pause;
    struct {
      uint64_t call_id;
      uint64_t tag;  // not 0. NCCL 2.31 and later: ncclCollConfig_t.userProfilerTag
    } tag;
    struct {
      uint64_t time_ns;
      char text[48];  // zero-padded, not necessarily terminated
    } note;
    struct {
      uint64_t start_ns, stop_ns;
      uint64_t wait_ns;   // of it, the library polled and nothing moved
      uint64_t sleep_ns;  // of that, the thread was not on its core
      uint64_t bytes;     // as in mpi_total
      uint16_t function;  // place in abi/mpi_functions.def
      uint16_t thread;
      int32_t peer;       // root or peer, -1
      uint64_t sequence;  // place among its communicator's calls that synchronise all ranks, from 1; 0: it is none
    } mpi_call;
    struct {  // sums since the process began; the latest of a (thread, function, comm, size_class) counts
      uint64_t time_ns;
      uint64_t calls;
      uint64_t bytes;  // count x size of the type, as passed (this rank's contribution); 0 where the call has none
      uint64_t call_ns, wait_ns, sleep_ns;
      uint16_t function, thread;
      uint8_t size_class;  // 0: no bytes, else 1 + floor(log2(bytes))
      uint8_t reserved[3];
    } mpi_total;
    struct {
      uint64_t time_ns;
      uint64_t user_ns, system_ns;  // CPU time of the process (getrusage)
      uint64_t sleeps;              // how often a wait slept
      uint64_t sleep_ns;
      uint64_t asked_ns;      // how long those sleeps were meant to be
      uint32_t threads;       // that made blocking MPI calls
      uint32_t thread_level;  // MPI_THREAD_SINGLE..MULTIPLE: 0..3
    } process;
    uint8_t bytes56[56];
  };
};

#ifdef __cplusplus
static_assert(sizeof(struct powerccl_trace_record) == POWERCCL_TRACE_RECORD_BYTES, "the record is the format");
static_assert(offsetof(struct powerccl_trace_header, own_ns) == 320, "as docs/reference/trace-format.md says");
static_assert(sizeof(struct powerccl_trace_header) <= POWERCCL_TRACE_HEADER_BYTES, "the header is one page");
#endif
