// SPDX-License-Identifier: Apache-2.0
// The lease protocol: how a job asks powerccld for clocks, and an administrator asks it about them.
//
// A connection is a Unix SOCK_SEQPACKET socket and a session: who the peer is comes from SO_PEERCRED, and each message
// must have been sent by that very process (SCM_CREDENTIALS). A message is one of the structs below, whole, in host
// byte order. Requests carry a serial number greater than that of any before on the connection, and are each answered
// by exactly one powerccl_lease_reply with that number; what the daemon says unasked has serial 0. A message of another
// process, or with a serial number that has been, has no effect and no answer; a malformed one has no effect either,
// and ends the session, as its peer does not speak this protocol. A session that goes on saying what has no effect is
// ended too, and one that does not read its answers is not read.
//
// A lease belongs to the session that acquired it; its number means nothing on another. It ends on release, on the end
// of the connection or of the peer's process, when nothing was heard for the heartbeat time, on revoke, and with the
// daemon. Whatever the way, the clock goes back to usual. A device has one lease, or several that share it.
#ifndef POWERCCL_WIRE_LEASE_H
#define POWERCCL_WIRE_LEASE_H
#include <stdint.h>

#define POWERCCL_LEASE_MAGIC 0x534c4350u  // "PCLS"
#define POWERCCL_LEASE_VERSION 1u
#define POWERCCL_LEASE_SOCKET "/run/powerccl/powerccld.sock"
#define POWERCCL_LEASE_TEXT 120u

enum powerccl_lease_type {
  // requests
  POWERCCL_LEASE_HELLO = 1,      // first of all: powerccl_lease_hello; answered by a powerccl_lease_welcome
  POWERCCL_LEASE_ACQUIRE = 2,    // powerccl_lease_acquire, with the open device file as SCM_RIGHTS
  POWERCCL_LEASE_SET = 3,        // powerccl_lease_set; 0 to 0 MHz: back to usual, and the lease is kept
  POWERCCL_LEASE_READ = 4,       // powerccl_lease_set, clocks unused: the clock now
  POWERCCL_LEASE_RELEASE = 5,    // powerccl_lease_set, clocks unused
  POWERCCL_LEASE_HEARTBEAT = 6,  // a header alone; any other request counts as one too
  POWERCCL_LEASE_STATUS = 7,     // a header alone: a powerccl_lease_device for each device, then the reply
  POWERCCL_LEASE_METRICS = 8,    // a header alone: powerccl_lease_chunk until all is said, then the reply
  // requests of administrators, and of users about what their own processes hold
  POWERCCL_LEASE_REVOKE = 9,  // powerccl_lease_acquire: the device, or "" for all; its holder may not have it again
  // requests of administrators
  POWERCCL_LEASE_RESTORE = 10,  // powerccl_lease_acquire: the same, and devices that nobody holds go back to usual too
  POWERCCL_LEASE_DRAIN = 11,    // powerccl_lease_drain: no new lease until undone; those there are stay
  // answers
  POWERCCL_LEASE_WELCOME = 32,
  POWERCCL_LEASE_REPLY = 33,
  POWERCCL_LEASE_DEVICE = 34,
  POWERCCL_LEASE_CHUNK = 35,
  // unasked
  POWERCCL_LEASE_ENDED = 48,    // powerccl_lease_reply: a lease of this session has ended; `status` says why
  POWERCCL_LEASE_SETTLED = 49,  // powerccl_lease_reply: what came of the newest clock asked for, once that is known
};

// `status` of a reply. Positive ones are the driver's own (nvmlReturn_t).
enum powerccl_lease_status {
  POWERCCL_LEASE_OK = 0,
  POWERCCL_LEASE_BAD_MESSAGE = -1,  // malformed, of another version, or out of turn
  POWERCCL_LEASE_NOT_ALLOWED = -2,  // not on the administrator's list, or for administrators only
  POWERCCL_LEASE_NO_DEVICE = -3,    // no such device, or one without a clock of its own (a MIG slice)
  POWERCCL_LEASE_SHOW_FILE = -4,    // send again with the device file that `text` names, opened for reading and writing
  POWERCCL_LEASE_HELD = -5,         // another has it, and not to be shared with this one: `holder_pid`, `holder_uid`
  POWERCCL_LEASE_NONE = -6,         // no such lease in this session
  POWERCCL_LEASE_DRAINING = -7,     // no new leases for now
  POWERCCL_LEASE_SUPERSEDED = -8,   // a newer request came before the rate limit let this one pass
  POWERCCL_LEASE_RESTORING = -9,    // the clock could not be put back yet after its last lease
  POWERCCL_LEASE_TOO_MANY = -10,    // connections, of all or of one user: `text` says which; again later
  POWERCCL_LEASE_SYSTEM = -11,      // the daemon could not write its state, or the like
  POWERCCL_LEASE_REVOKED = -12,     // by an administrator or the user: not to be had again by this process
  POWERCCL_LEASE_MISSED = -13,      // nothing was heard for the heartbeat time
  POWERCCL_LEASE_STOPPING = -14,    // the daemon stops
};

enum powerccl_lease_flag {
  POWERCCL_LEASE_CLAMPED = 1,  // of a reply: other clocks than were asked for, the administrator's range being narrower
  POWERCCL_LEASE_DRY = 2,      // the daemon decides and answers, and sets nothing
  POWERCCL_LEASE_EMULATED = 4,  // the GPUs are the emulator's
  POWERCCL_LEASE_ADMIN = 8,     // of a welcome: this session may use the requests of administrators
  POWERCCL_LEASE_DRAINED = 16,  // of a welcome or a device: no new leases for now
  POWERCCL_LEASE_MINE = 32,     // of a device: held by this session's user
  POWERCCL_LEASE_PENDING = 64,  // of a device: its clock is still to be put back to usual
  // Of an acquire: sessions of the same user that say so too may have the device as well. Of a reply: others have it as
  // well, and the clock may be theirs. Of a device: several have it.
  POWERCCL_LEASE_SHARED = 128,
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
  char run[64];  // what to call the session when somebody asks who holds a device; NUL-terminated
};

struct powerccl_lease_welcome {
  struct powerccl_lease_header header;
  int32_t status;
  uint32_t flags;
  uint32_t heartbeat_ms;     // let not so long pass without a request
  uint32_t gpu_interval_ms;  // of one device, the least time between two clocks
  uint32_t core_interval_ms;
  uint32_t reserved;
  char server[32];  // "powerccld 0.1.0"
};

struct powerccl_lease_acquire {
  struct powerccl_lease_header header;
  char device[48];  // a GPU's UUID or PCI bus id, or "cpu3"
  uint32_t thread;  // of a core: the thread of the peer that is bound to it (gettid); else 0
  uint32_t flags;   // POWERCCL_LEASE_SHARED, or 0
};

struct powerccl_lease_set {
  struct powerccl_lease_header header;
  uint64_t lease;
  uint32_t min_mhz, max_mhz;  // of a core: only the highest counts
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
  uint32_t min_mhz, max_mhz;  // of SET: what was set; of ACQUIRE: the range to be had
  uint32_t now_mhz;           // read back behind the call; 0: not read
  uint32_t driver_us;         // how long the driver's call took
  uint64_t reasons;           // why the clock is not higher (NVML's clocks event reasons)
  uint32_t holder_pid, holder_uid;
  char text[POWERCCL_LEASE_TEXT];  // for people, or empty; NUL-terminated
  uint32_t interval_ms;  // of ACQUIRE and SET: what this lease should let pass between two clocks, sharers counted
  uint32_t reserved;
};

struct powerccl_lease_device {
  struct powerccl_lease_header header;
  char device[48];
  char name[64];  // "Tesla T4"
  uint32_t flags;
  uint32_t holder_pid;  // 0: nobody
  uint32_t holder_uid;
  uint32_t min_mhz, max_mhz;  // set; 0: usual
  uint32_t now_mhz;
  uint32_t sharers;  // leases on it
  uint32_t reserved;
  uint64_t held_ms;  // since when
  uint64_t changes;  // of the clock, in this lease
  char run[64];      // this, the clocks, held_ms and changes are told to administrators and to the holder's user
};

#define POWERCCL_LEASE_CHUNK_BYTES 4096u
struct powerccl_lease_chunk {
  struct powerccl_lease_header header;
  uint32_t length;
  uint32_t reserved;
  char text[POWERCCL_LEASE_CHUNK_BYTES];
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
#endif
#endif
