// SPDX-License-Identifier: Apache-2.0
// The runtime's settings, read once from the environment (abi/environment.def has names, defaults and texts).
#pragma once
#include <limits.h>
#include <stdint.h>

#include "abi/policy_name.h"
#include "abi/trace.h"

namespace powerccl {

enum class ClockClientName { kNone, kDry, kLease };
enum class KernelEvents { kAuto, kAll, kNone };

struct Environment {
  char run_folder[PATH_MAX] = "";  // empty: fully passive
  // Where records go: the node's own folder where `powerccl run --local-dir` made one, else the run folder.
  char record_folder[PATH_MAX] = "";
  char policy_table[PATH_MAX] = "";  // empty: none
  char lease_socket[PATH_MAX] = "";
  char shm[PATH_MAX] = "";
  PolicyName policy = PolicyName::kObserve;
  ClockClientName clocks = ClockClientName::kDry;
  KernelEvents kernel_events = KernelEvents::kAuto;
  double budget_percent = 1.0;  // slowdown that a policy may cost
  uint64_t trace_limit_bytes = 0;
  int debug = 0;
  bool disabled = false;
  bool emulated = false;  // the emulator's libraries are in use
  // What the launcher says about this process; -1 where it does not.
  int rank = -1, nranks = -1, local_rank = -1;
  uint32_t starts = 0;      // how many times an elastic launcher has started this rank; 0: it does not say
  uint8_t run_id[16] = {};  // of the run that the folder was made for

  // Whether this process says what all of a host's ranks would say alike.
  bool speaks() const { return local_rank <= 0; }
};

// How ranks wait in MPI.
enum class WaitWish : uint8_t { kAuto, kUmwait, kMwaitx, kWfe, kSleep, kSpin };
enum class MpiMode { kAuto, kPublished, kObserve, kOff };
enum class MpiCollectives { kNode, kAll, kNone };

struct MpiEnvironment {
  MpiMode mode = MpiMode::kAuto;
  double budget_percent = 1.0;
  WaitWish method = WaitWish::kAuto;
  MpiCollectives collectives = MpiCollectives::kNode;
};

// What NCCL's tuner goes by; `table` is the environment's own text.
struct TunerEnvironment {
  const char* table = "";  // empty: none
  int debug = 0;
  bool disabled = false;
  bool speaks = true;  // as Environment::speaks
};

// The user's own plugins for the places in NCCL that PowerCCL takes, as NCCL_PROFILER_PLUGIN and NCCL_TUNER_PLUGIN
// would name them: the environment's own text. Empty: NCCL's default.
struct ChainEnvironment {
  const char* profiler = "";
  const char* tuner = "";
  int debug = 0;
  bool speaks = true;  // as Environment::speaks
};
void read_chain_environment(ChainEnvironment* environment);

// Says nothing and reads nothing more where no table is named.
void read_tuner_environment(TunerEnvironment* environment);

// As read_environment, for the MPI adapter: needs no run folder.
void read_mpi_environment(MpiEnvironment* environment);

const char* text_of(MpiMode mode);

// Reads the environment of the process. What cannot be understood is said on stderr with a hint and replaced by the
// default, so that a typing error never changes the job.
void read_environment(Environment* environment);

// Identifies the running kernel, and so the host. Unchanged if it is not known.
void read_boot_id(uint8_t id[16]);
// Says in a trace's header which run and which start of its rank it belongs to.
void identify(const Environment& environment, powerccl_trace_header* header);

const char* text_of(PolicyName name);
const char* text_of(ClockClientName name);

}  // namespace powerccl
