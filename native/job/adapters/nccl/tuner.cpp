// SPDX-License-Identifier: Apache-2.0
// The tuner plugin's function tables. Nothing but success is ever returned, because NCCL passes an error on to the job.
// A communicator reads its table at its start and nothing after that. The table comes from the environment, which a
// launch gives to all its ranks alike. A rank that decided otherwise than its peers would hang with them.
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

#include <atomic>
#include <new>

#include "abi/nccl_tuner.h"
#include "adapters/nccl/chained_tuner.h"
#include "adapters/nccl/tuner_table.h"
#include "base/basics.h"
#include "base/environment.h"
#include "base/log.h"
#include "libc/calls.h"

#define POWERCCL_EXPORT extern "C" __attribute__((visibility("default")))
POWERCCL_EXPORT powerccl::nccl::TunerV4 ncclTunerPlugin_v4;
POWERCCL_EXPORT powerccl::nccl::TunerV5 ncclTunerPlugin_v5;
POWERCCL_EXPORT powerccl::nccl::TunerV6 ncclTunerPlugin_v6;

namespace powerccl::nccl {
namespace {

struct Tuner {
  TunerShape shape;
  TunerTable table;  // without rules where there is none
  ChainedTuner chained;
};

// Whether this is another complaint than the last: communicators come by the dozen, and say it once.
bool is_news(const TunerTable::Refusal& refusal) {
  static std::atomic<uint64_t> last{0};
  uint64_t hash = 1469598103934665603u + static_cast<uint64_t>(refusal.line);
  for (const char* c = refusal.reason; *c != '\0'; ++c) hash = (hash ^ static_cast<uint8_t>(*c)) * 1099511628211u;
  return last.exchange(hash, std::memory_order_relaxed) != hash;
}

void say_refused(const TunerEnvironment& environment, const TunerTable::Refusal& refusal) {
  if (!environment.speaks || !is_news(refusal)) return;
  constexpr char kHint[] = "docs/reference/tuner-table.md has the format; a path to a table begins with /";
  if (refusal.line > 0) {
    say(kHint, "cannot use the tuner table (POWERCCL_TUNER_TABLE), line %d: %s; NCCL uses its defaults", refusal.line,
        refusal.reason);
  } else {
    say(kHint, "cannot use the tuner table (POWERCCL_TUNER_TABLE): %s; NCCL uses its defaults", refusal.reason);
  }
}

// Reads up to `size` bytes of a plain file, anything else of which may block. -1, with errno, where it cannot.
ssize_t read_file(const char* path, char* to, size_t size) {
  const int descriptor = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
  if (descriptor < 0) return -1;
  struct stat file;
  size_t length = 0;
  ssize_t got = status_of_file(descriptor, &file) == 0 ? 1 : -1;
  if (got > 0 && !S_ISREG(file.st_mode)) {
    errno = EINVAL;
    got = -1;
  }
  while (got > 0 && length < size) {
    got = read(descriptor, to + length, size - length);
    if (got < 0 && errno == EINTR)
      got = 1;
    else if (got > 0)
      length += static_cast<size_t>(got);
  }
  const int error = errno;
  close(descriptor);
  errno = error;
  return got < 0 ? -1 : static_cast<ssize_t>(length);
}

bool load(const char* path, TunerTable* table, TunerTable::Refusal* refusal) {
  constexpr size_t kSize = TunerTable::kMaxTextBytes + 1;
  char* text = static_cast<char*>(malloc(kSize));
  const ssize_t length = text == nullptr ? -1 : read_file(path, text, kSize);
  bool good = false;
  if (length >= 0) {
    good = table->parse({text, static_cast<size_t>(length)}, refusal);
  } else {
    char reason[64];
    snprintf(refusal->reason, sizeof(refusal->reason), "%.50s cannot be read: %s", path,
             error_text(errno, reason, sizeof(reason)));
  }
  free(text);
  return good;
}

int narrowed(size_t number) {
  return number < INT_MAX ? static_cast<int>(number) : INT_MAX;
}

// Leaves the table empty where there is none, or one that was refused.
void read_table(Tuner* tuner, const TunerStart& start) {
  TunerEnvironment environment;
  read_tuner_environment(&environment);
  if (environment.disabled || environment.table[0] == '\0') return;
  TunerTable::Refusal refusal;
  const bool good = environment.table[0] == '/' ? load(environment.table, &tuner->table, &refusal)
                                                : tuner->table.parse(environment.table, &refusal);
  if (!good) {
    say_refused(environment, refusal);
  } else if (environment.debug >= 1 && environment.speaks) {
    say(nullptr, "tuner v%d: %u rules; communicator of %zu ranks, nodes: %zu", start.version, tuner->table.count(),
        start.ranks, start.nodes);
  }
}

// Null where there is nothing to say: neither rules nor another tuner.
Tuner* make_tuner(const TunerStart& start) {
  void* memory = malloc(sizeof(Tuner));
  if (memory == nullptr) return nullptr;
  Tuner* tuner = new (memory) Tuner;
  tuner->shape = {narrowed(start.nodes), narrowed(start.ranks)};
  read_table(tuner, start);
  tuner->chained = chain_tuner(start);
  if (tuner->table.count() > 0 || tuner->chained.there) return tuner;
  free(memory);
  return nullptr;
}

int init_v4(size_t ranks, size_t nodes, TunerLogger log, void** context) {
  if (context != nullptr) *context = make_tuner({4, 0, ranks, nodes, log, nullptr, nullptr});
  return 0;
}

int get_chunk_size(void* context, int collective, size_t bytes, int algorithm, int protocol, int channels,
                   size_t* chunk_bytes) {
  const Tuner* tuner = static_cast<const Tuner*>(context);
  const GetChunkSize chained = tuner != nullptr && tuner->chained.there ? chained_chunk_size() : nullptr;
  if (chained != nullptr)
    chained(tuner->chained.context, collective, bytes, algorithm, protocol, channels, chunk_bytes);
  return 0;
}

template <int kVersion>
int init_v5(void** context, uint64_t id, size_t ranks, size_t nodes, TunerLogger log, NvlDomains* domains,
            TunerConstants* constants) {
  if (context == nullptr) return 0;
  *context = make_tuner({kVersion, id, ranks, nodes, log, domains, constants});
  // NCCL tests whether the function exists, so it is set only if the chained plugin has one.
  if (kVersion == 6 && chained_chunk_size() != nullptr) ncclTunerPlugin_v6.get_chunk_size = get_chunk_size;
  return 0;
}

int get_collective_info(void* context, int collective, size_t bytes, int pipe_ops, float** costs, int algorithms,
                        int protocols, int registered, int* channels) {
  const Tuner* tuner = static_cast<const Tuner*>(context);
  if (tuner == nullptr) return 0;
  ask_chained(tuner->chained, collective, bytes, pipe_ops, costs, algorithms, protocols, registered, channels);
  put(decide(tuner->table, tuner->shape, collective, bytes, pipe_ops, registered), reinterpret_cast<float*>(costs),
      algorithms, protocols, channels);
  return 0;
}

int finalize(void* context) {
  Tuner* tuner = static_cast<Tuner*>(context);
  if (tuner == nullptr) return 0;
  unchain_tuner(tuner->chained);
  free(tuner);
  return 0;
}

}  // namespace

}  // namespace powerccl::nccl

using namespace powerccl::nccl;

TunerV4 ncclTunerPlugin_v4 = {"PowerCCL", init_v4, get_collective_info, finalize};
TunerV5 ncclTunerPlugin_v5 = {"PowerCCL", init_v5<5>, get_collective_info, finalize};
TunerV6 ncclTunerPlugin_v6 = {"PowerCCL", init_v5<6>, get_collective_info, finalize, nullptr};
