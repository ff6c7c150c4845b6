// SPDX-License-Identifier: Apache-2.0
// The lease protocol: a job asks powerccld for clocks, and an administrator asks it about leases.
//
// A connection is a Unix SOCK_SEQPACKET socket and one session. SO_PEERCRED identifies the peer, and each message must
// come from that process (SCM_CREDENTIALS). A message is one of the structs below, whole, in host byte order. Each
// request has a serial number above all earlier ones of the connection, and gets exactly one powerccl_lease_reply with
// that number. Messages that the daemon sends without a request have serial 0. A message of another process, or with an
// old serial number, has no effect and no answer. A malformed message ends the session, because its peer does not use
// this protocol. The daemon also ends a session with many messages without effect, and stops reading one that does not
// read its answers.
//
// A lease belongs to the session that acquired it, and its number means nothing in another session. docs/reference/
// lease-protocol.md lists how a lease ends. The daemon then restores the clock. A device has one lease, or several that
// share it.
#pragma once
#include <stdint.h>

#define POWERCCL_LEASE_MAGIC 0x534c4350u  // "PCLS"
#define POWERCCL_LEASE_VERSION 1u
#define POWERCCL_LEASE_SOCKET "/run/powerccl/powerccld.sock"
#define POWERCCL_LEASE_TEXT 120u

enum powerccl_lease_type {
  // request
  POWERCCL_LEASE_HELLO = 1,      // first request: powerccl_lease_hello; answered by a powerccl_lease_welcome
  POWERCCL_LEASE_ACQUIRE = 2,    // powerccl_lease_acquire, with the open device file as SCM_RIGHTS
  POWERCCL_LEASE_SET = 3,        // powerccl_lease_set; 0 to 0 MHz restores the default clock and keeps the lease
  POWERCCL_LEASE_READ = 4,       // powerccl_lease_set without clocks: read the present clock
  POWERCCL_LEASE_RELEASE = 5,    // powerccl_lease_set without clocks: end the lease
  POWERCCL_LEASE_HEARTBEAT = 6,  // header only; any other request counts as a heartbeat too
  POWERCCL_LEASE_STATUS = 7,     // header only; a powerccl_lease_device per device, a powerccl_lease_totals, the reply
  // request of administrators; of users for their own processes
  POWERCCL_LEASE_REVOKE = 9,  // powerccl_lease_acquire: the device, or "" for all; its holder gets no lease on it again
  // request of administrators
  POWERCCL_LEASE_RESTORE = 10,  // powerccl_lease_acquire: as REVOKE, and restores devices without a lease too
  POWERCCL_LEASE_DRAIN = 11,    // powerccl_lease_drain: grant no new lease until it is undone; present leases go on
  // answer
  POWERCCL_LEASE_WELCOME = 32,
  POWERCCL_LEASE_REPLY = 33,
  POWERCCL_LEASE_DEVICE = 34,
  POWERCCL_LEASE_TOTALS = 35,
  // sent without a request
  POWERCCL_LEASE_ENDED = 48,    // powerccl_lease_reply: a lease of this session has ended; `status` gives the reason
  POWERCCL_LEASE_SETTLED = 49,  // powerccl_lease_reply: the result of the newest SET, once it is known
};

// `status` of a reply. Positive values are the driver's own (nvmlReturn_t).
enum powerccl_lease_status {
  POWERCCL_LEASE_OK = 0,            // success
  POWERCCL_LEASE_BAD_MESSAGE = -1,  // malformed, of another version, or in the wrong order
  POWERCCL_LEASE_NOT_ALLOWED = -2,  // not on the administrator's list, or for administrators only
  POWERCCL_LEASE_NO_DEVICE = -3,    // no such device, or a device without its own clock (a MIG slice)
  POWERCCL_LEASE_SHOW_FILE = -4,    // send again with the device file in `text`, opened for reading and writing
  POWERCCL_LEASE_HELD = -5,         // another process has the lease and does not share it: `holder_pid`, `holder_uid`
  POWERCCL_LEASE_NONE = -6,         // this session has no such lease
  POWERCCL_LEASE_DRAINING = -7,     // the daemon grants no new leases at present
  POWERCCL_LEASE_SUPERSEDED = -8,   // a newer request arrived before the rate limit allowed this one
  POWERCCL_LEASE_RESTORING = -9,    // the daemon has not yet restored the clock after the last lease
  POWERCCL_LEASE_TOO_MANY = -10,    // too many connections, in all or of one user: `text` says which; try again
  POWERCCL_LEASE_SYSTEM = -11,      // a fault of the daemon, such as a state file that it cannot write
  POWERCCL_LEASE_REVOKED = -12,     // revoked by an administrator or the user; this process gets no lease again
  POWERCCL_LEASE_MISSED = -13,      // the daemon received no message for the heartbeat time
  POWERCCL_LEASE_STOPPING = -14,    // the daemon is stopping
};

enum powerccl_lease_flag {
  POWERCCL_LEASE_CLAMPED = 1,   // reply: the clocks were outside the administrator's range and moved into it
  POWERCCL_LEASE_DRY = 2,       // the daemon decides and answers, but sets no clock
  POWERCCL_LEASE_EMULATED = 4,  // the GPUs are emulated
  POWERCCL_LEASE_ADMIN = 8,     // welcome: this session may send requests of administrators
  POWERCCL_LEASE_DRAINED = 16,  // welcome, device: no new leases at present
  POWERCCL_LEASE_MINE = 32,     // device: leased to this session's user
  POWERCCL_LEASE_PENDING = 64,  // device: its default clock is not yet restored
  POWERCCL_LEASE_SHARED = 128,  // acquire: the user's other sessions may share it; reply, device: several leases
};

struct powerccl_lease_header {
  uint32_t magic;
  uint16_t version;
  uint16_t type;
  uint32_t size;  // of the whole message, in bytes
  uint32_t reserved;
  uint64_t serial;
};

struct powerccl_lease_hello {
  struct powerccl_lease_header header;
  char run[64];  // name of the session, shown with its leases; NUL-terminated
};

struct powerccl_lease_welcome {
  struct powerccl_lease_header header;
  int32_t status;
  uint32_t flags;
  uint32_t heartbeat_ms;     // send a request before this time has passed
  uint32_t gpu_interval_ms;  // least time between two clocks of one device
  uint64_t reserved;
  char server[32];  // "powerccld 0.1.0"
};

struct powerccl_lease_acquire {
  struct powerccl_lease_header header;
  char device[48];  // a GPU's UUID or PCI bus id
  uint32_t reserved;
  uint32_t flags;  // POWERCCL_LEASE_SHARED, or 0
};

struct powerccl_lease_set {
  struct powerccl_lease_header header;
  uint64_t lease;
  uint32_t min_mhz, max_mhz;
};

struct powerccl_lease_drain {
  struct powerccl_lease_header header;
  uint32_t on;
  uint32_t reserved;
};

struct powerccl_lease_reply {
  struct powerccl_lease_header header;
  int32_t status;
  uint32_t flags;
  uint64_t lease;
  uint32_t min_mhz, max_mhz;  // SET: the clocks that were set; ACQUIRE: the allowed range
  uint32_t now_mhz;           // clock read after the driver's call; 0: not read
  uint32_t driver_us;         // duration of the driver's call
  uint64_t reasons;           // why the clock is not higher (NVML's clocks event reasons)
  uint32_t holder_pid, holder_uid;
  char text[POWERCCL_LEASE_TEXT];  // message for people, or empty; NUL-terminated
  uint32_t interval_ms;  // ACQUIRE, SET: least time between two clocks of this lease, longer with more sharers
  uint32_t limit_mw;     // enforced power limit, read with the clock; 0: not read
};

struct powerccl_lease_device {
  struct powerccl_lease_header header;
  char device[48];
  char name[64];  // "Tesla T4"
  uint32_t flags;
  uint32_t holder_pid;  // 0: no lease
  uint32_t holder_uid;
  uint32_t min_mhz, max_mhz;  // clocks that are set; 0: the default clock
  uint32_t now_mhz;
  uint32_t sharers;  // number of leases
  uint32_t reserved;
  uint64_t held_ms;  // age of the lease
  uint64_t changes;  // clock changes in this lease
  // Only administrators and the holder's user get the name, the clocks, held_ms and changes.
  char run[64];
};

// What the daemon has counted since it started. `powerccl export` makes metrics of it.
struct powerccl_lease_totals {
  struct powerccl_lease_header header;
  uint64_t sessions;                                   // connections at this moment
  uint64_t requests, foreign, bad, replayed;           // messages: understood, of another process, malformed, repeated
  uint64_t turned_away, delays;                        // connections refused; times that one was too fast
  uint64_t granted, refused;                           // leases; requests of leases and clocks
  uint64_t released, gone, missed, revoked, stopping;  // leases, by how they ended
  uint64_t changes, superseded, clamped, restores;     // clocks
  uint64_t driver_failures, restore_failures;
  uint64_t driver_us;  // in the driver's calls
};

#ifdef __cplusplus
static_assert(sizeof(struct powerccl_lease_header) == 24, "the struct is the protocol");
static_assert(sizeof(struct powerccl_lease_hello) == 88, "the struct is the protocol");
static_assert(sizeof(struct powerccl_lease_welcome) == 80, "the struct is the protocol");
static_assert(sizeof(struct powerccl_lease_acquire) == 80, "the struct is the protocol");
static_assert(sizeof(struct powerccl_lease_set) == 40, "the struct is the protocol");
static_assert(sizeof(struct powerccl_lease_drain) == 32, "the struct is the protocol");
static_assert(sizeof(struct powerccl_lease_reply) == 200, "the struct is the protocol");
static_assert(sizeof(struct powerccl_lease_device) == 248, "the struct is the protocol");
static_assert(sizeof(struct powerccl_lease_totals) == 192, "the struct is the protocol");
#endif
