// SPDX-License-Identifier: Apache-2.0
#include "base/environment.h"

#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/basics.h"
#include "base/log.h"
#include "libc/calls.h"

namespace powerccl {
namespace {

enum class Variable {
#define POWERCCL_ENV(name, type, fallback, reader, text) name,
#include "abi/environment.def"
#undef POWERCCL_ENV
};

struct Declared {
  const char* name;
  const char* fallback;
};
constexpr Declared kDeclared[] = {
#define POWERCCL_ENV(name, type, fallback, reader, text) {#name, fallback},
#include "abi/environment.def"
#undef POWERCCL_ENV
};

const Declared& declared(Variable variable) {
  return kDeclared[static_cast<int>(variable)];
}

const char* text_of_variable(Variable variable) {
  const char* value = getenv(declared(variable).name);
  return value != nullptr && *value != '\0' ? value : declared(variable).fallback;
}

bool parse_integer(const char* text, long* value) {
  char* end = nullptr;
  *value = strtol(text, &end, 10);
  return end != text && *end == '\0';
}

// Launchers' own variables, most specific first.
int from_launcher(const char* const* names, int count) {
  for (int i = 0; i < count; ++i) {
    const char* text = getenv(names[i]);
    long value = 0;
    if (text != nullptr && parse_integer(text, &value) && value >= 0 && value <= INT_MAX) {
      return static_cast<int>(value);
    }
  }
  return -1;
}

int local_rank() {
  constexpr const char* kNames[] = {"LOCAL_RANK", "OMPI_COMM_WORLD_LOCAL_RANK", "MPI_LOCALRANKID", "SLURM_LOCALID"};
  return from_launcher(kNames, 4);
}

long integer(Variable variable, long least, long most) {
  const char* text = text_of_variable(variable);
  long value = 0;
  if (parse_integer(text, &value) && value >= least && value <= most) return value;
  if (local_rank() <= 0) {
    say("unset it, or give a whole number in that range", "%s=%s is not a number from %ld to %ld; using %s",
        declared(variable).name, text, least, most, declared(variable).fallback);
  }
  parse_integer(declared(variable).fallback, &value);
  return value;
}

double number(Variable variable, double least, double most) {
  const char* text = text_of_variable(variable);
  char* end = nullptr;
  double value = strtod(text, &end);
  if (end != text && *end == '\0' && value >= least && value <= most) return value;
  if (local_rank() <= 0) {
    say("unset it, or give a number in that range", "%s=%s is not a number from %g to %g; using %s",
        declared(variable).name, text, least, most, declared(variable).fallback);
  }
  return strtod(declared(variable).fallback, nullptr);
}

// The index of the variable's value among `names`; the default's where it is none of them.
int choice(Variable variable, const char* const* names, int count, const char* hint) {
  const char* text = text_of_variable(variable);
  for (int i = 0; i < count; ++i) {
    if (strcmp(text, names[i]) == 0) return i;
  }
  if (local_rank() <= 0) {
    say(hint, "%s=%s is not known; using %s", declared(variable).name, text, declared(variable).fallback);
  }
  for (int i = 0; i < count; ++i) {
    if (strcmp(declared(variable).fallback, names[i]) == 0) return i;
  }
  return 0;
}

void path(Variable variable, char* to) {
  const char* text = text_of_variable(variable);
  if (strlen(text) >= PATH_MAX) {
    say("use a shorter path", "%s is longer than %d characters; ignored", declared(variable).name, PATH_MAX - 1);
    text = "";
  }
  copy_text(to, PATH_MAX, text);
}

// Ranks of a host without `powerccl run` get the variable as well. There is no such folder there, or, as anyone may
// write to /tmp, another user's.
void choose_record_folder(Environment* environment) {
  path(Variable::POWERCCL_LOCAL_FOLDER, environment->record_folder);
  struct stat folder;
  if (environment->record_folder[0] != '\0' && status_of_link(environment->record_folder, &folder) == 0 &&
      S_ISDIR(folder.st_mode) && folder.st_uid == geteuid()) {
    return;
  }
  copy_text(environment->record_folder, PATH_MAX, environment->run_folder);
}

int hex_digit(char letter) {
  if (letter >= '0' && letter <= '9') return letter - '0';
  if (letter >= 'a' && letter <= 'f') return letter - 'a' + 10;
  return -1;
}

// Reads 32 hexadecimal digits, with dashes between some; leaves `id` alone if `text` is anything else.
void parse_id(const char* text, uint8_t id[16]) {
  uint8_t bytes[16] = {};
  int digits = 0;
  for (; *text != '\0' && *text != '\n'; ++text) {
    if (*text == '-') continue;
    const int digit = hex_digit(*text);
    if (digit < 0 || digits == 32) return;
    bytes[digits / 2] = static_cast<uint8_t>(bytes[digits / 2] << 4 | digit);
    ++digits;
  }
  if (digits == 32) memcpy(id, bytes, sizeof(bytes));
}

constexpr const char* kClocks[] = {"none", "dry", "lease"};
constexpr const char* kKernelEvents[] = {"auto", "all", "none"};
constexpr const char* kMpiModes[] = {"auto", "published", "observe", "off"};
constexpr const char* kMpiMethods[] = {"auto", "umwait", "mwaitx", "wfe", "sleep", "spin"};
constexpr const char* kMpiCollectives[] = {"node", "all", "none"};

}  // namespace

const char* text_of(PolicyName name) {
  return kPolicyNames[static_cast<int>(name)];
}
const char* text_of(ClockClientName name) {
  return kClocks[static_cast<int>(name)];
}
const char* text_of(MpiMode mode) {
  return kMpiModes[static_cast<int>(mode)];
}

void read_mpi_environment(MpiEnvironment* environment) {
  *environment = MpiEnvironment();
  environment->mode = static_cast<MpiMode>(
      choice(Variable::POWERCCL_MPI, kMpiModes, 4, "it is one of auto, published, observe and off"));
  environment->budget_percent = number(Variable::POWERCCL_MPI_MAX_DELAY, 0.01, 50.0);
  environment->method = static_cast<WaitWish>(
      choice(Variable::POWERCCL_MPI_METHOD, kMpiMethods, 6, "it is one of auto, umwait, mwaitx, wfe, sleep and spin"));
  environment->collectives = static_cast<MpiCollectives>(
      choice(Variable::POWERCCL_MPI_COLLECTIVES, kMpiCollectives, 3, "it is one of node, all and none"));
}

void read_chain_environment(ChainEnvironment* environment) {
  environment->profiler = text_of_variable(Variable::POWERCCL_CHAINED_PROFILER);
  environment->tuner = text_of_variable(Variable::POWERCCL_CHAINED_TUNER);
  environment->debug = static_cast<int>(integer(Variable::POWERCCL_DEBUG, 0, 2));
  environment->speaks = local_rank() <= 0;
}

void read_tuner_environment(TunerEnvironment* environment) {
  *environment = TunerEnvironment();
  environment->table = text_of_variable(Variable::POWERCCL_TUNER_TABLE);
  if (environment->table[0] == '\0') return;
  environment->disabled = integer(Variable::POWERCCL_DISABLE, 0, 1) != 0;
  environment->debug = static_cast<int>(integer(Variable::POWERCCL_DEBUG, 0, 2));
  environment->speaks = local_rank() <= 0;
}

void read_environment(Environment* environment) {
  *environment = Environment();
  environment->disabled = integer(Variable::POWERCCL_DISABLE, 0, 1) != 0;
  path(Variable::POWERCCL_RUN_FOLDER, environment->run_folder);
  // A disabled library is silent: not even a wrong value is worth a line.
  if (environment->disabled || environment->run_folder[0] == '\0') return;
  choose_record_folder(environment);
  path(Variable::POWERCCL_POLICY_TABLE, environment->policy_table);
  environment->policy = static_cast<PolicyName>(
      choice(Variable::POWERCCL_POLICY, kPolicyNames, 3, "policies are observe, per-call and auto"));
  environment->budget_percent = number(Variable::POWERCCL_MAX_SLOWDOWN, 0, 100);
  environment->clocks =
      static_cast<ClockClientName>(choice(Variable::POWERCCL_CLOCKS, kClocks, 3, "it is one of none, dry and lease"));
  path(Variable::POWERCCL_LEASE_SOCKET, environment->lease_socket);
  path(Variable::POWERCCL_SHM, environment->shm);
  environment->kernel_events = static_cast<KernelEvents>(
      choice(Variable::POWERCCL_KERNEL_EVENTS, kKernelEvents, 3, "it is one of auto, all and none"));
  environment->trace_limit_bytes = static_cast<uint64_t>(integer(Variable::POWERCCL_TRACE_LIMIT_MB, 1, 1 << 20)) << 20;
  environment->debug = static_cast<int>(integer(Variable::POWERCCL_DEBUG, 0, 2));
  environment->emulated = text_of_variable(Variable::POWERCCL_EMULATOR_SOCKET)[0] != '\0';

  constexpr const char* kRank[] = {"RANK", "OMPI_COMM_WORLD_RANK", "PMIX_RANK", "PMI_RANK", "SLURM_PROCID"};
  constexpr const char* kSize[] = {"WORLD_SIZE", "OMPI_COMM_WORLD_SIZE", "PMI_SIZE", "SLURM_NTASKS"};
  environment->rank = from_launcher(kRank, 5);
  environment->nranks = from_launcher(kSize, 4);
  environment->local_rank = local_rank();
  constexpr const char* kRestarts[] = {"TORCHELASTIC_RESTART_COUNT"};
  environment->starts = static_cast<uint32_t>(from_launcher(kRestarts, 1)) + 1u;
  parse_id(text_of_variable(Variable::POWERCCL_RUN_ID), environment->run_id);
}

void read_boot_id(uint8_t id[16]) {
  const int file = open("/proc/sys/kernel/random/boot_id", O_RDONLY | O_CLOEXEC);
  if (file < 0) return;
  char text[64];
  const ssize_t length = read(file, text, sizeof(text) - 1);
  close(file);
  if (length <= 0) return;
  text[length] = '\0';
  parse_id(text, id);
}

void identify(const Environment& environment, powerccl_trace_header* header) {
  memcpy(header->run_id, environment.run_id, sizeof(header->run_id));
  header->starts = environment.starts;
  read_boot_id(header->boot_id);
}

}  // namespace powerccl
