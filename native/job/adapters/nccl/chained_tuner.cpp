// SPDX-License-Identifier: Apache-2.0
#include "adapters/nccl/chained_tuner.h"

#include <dlfcn.h>
#include <pthread.h>
#include <stdio.h>

#include "adapters/nccl/chained_plugin.h"
#include "adapters/nccl/thread.h"
#include "base/environment.h"
#include "base/log.h"

namespace powerccl::nccl {
namespace {

constexpr int kOldest = 3;

// While communicators have it. Under the mutex but for what calls read, which is set before and stays.
struct Chain {
  const void* table = nullptr;
  int version = 0;
  void* library = nullptr;
  uint32_t communicators = 0;
  bool failed = false;  // final, as in NCCL
};
constinit Chain g_chain;
constinit pthread_mutex_t g_chain_mutex = PTHREAD_MUTEX_INITIALIZER;

template <class Table>
const Table* table() {
  return static_cast<const Table*>(g_chain.table);
}

void say_left_out(const char* reason) {
  ChainEnvironment environment;
  read_chain_environment(&environment);
  if (environment.tuner[0] == '\0' || reason[0] == '\0' || !environment.speaks) return;
  say("POWERCCL_CHAINED_TUNER=none says that it is not wanted", "cannot use your tuner plugin %s: %s; it is left out",
      environment.tuner, reason);
}

bool load(int nccl_speaks) {
  if (g_chain.library != nullptr) return true;
  if (g_chain.failed) return false;
  ChainEnvironment environment;
  read_chain_environment(&environment);
  char reason[256], symbol[32];
  void* library = open_chained_plugin("tuner", environment.tuner, reason, sizeof(reason));
  if (library != nullptr) {
    for (int version = nccl_speaks; version >= kOldest && g_chain.table == nullptr; --version) {
      snprintf(symbol, sizeof(symbol), "ncclTunerPlugin_v%d", version);
      g_chain.table = chained_table(library, symbol);
      g_chain.version = version;
    }
  }
  if (g_chain.table != nullptr) {
    g_chain.library = library;
    return true;
  }
  g_chain.failed = true;
  if (library != nullptr && reason[0] == '\0') {
    snprintf(reason, sizeof(reason), "it has no tuner of NCCL's interface %d to %d", kOldest, nccl_speaks);
  }
  say_left_out(reason);
  if (library != nullptr) dlclose(library);
  return false;
}

void let_go() {
  if (g_chain.communicators > 0 || g_chain.library == nullptr) return;
  dlclose(g_chain.library);
  g_chain.library = nullptr;
  g_chain.table = nullptr;
}

int begin(const TunerStart& start, void** context) {
  if (g_chain.version <= 4) return table<TunerV4>()->init(start.ranks, start.nodes, start.log, context);
  return table<TunerV5>()->init(context, start.communicator_id, start.ranks, start.nodes, start.log, start.domains,
                                start.constants);
}

}  // namespace

ChainedTuner chain_tuner(const TunerStart& start) {
  const Inside inside;
  ChainedTuner tuner;
  pthread_mutex_lock(&g_chain_mutex);
  if (load(start.version)) {
    const int error = begin(start, &tuner.context);
    if (error == 0) {
      tuner.there = true;
      ++g_chain.communicators;
    } else {
      char reason[64];
      snprintf(reason, sizeof(reason), "its start failed with error %d", error);
      if (!g_chain.failed) say_left_out(reason);
      g_chain.failed = true;
    }
  }
  let_go();
  pthread_mutex_unlock(&g_chain_mutex);
  return tuner;
}

void unchain_tuner(const ChainedTuner& tuner) {
  if (!tuner.there) return;
  const Inside inside;
  pthread_mutex_lock(&g_chain_mutex);
  // The same place in each version.
  table<TunerV5>()->finalize(tuner.context);
  --g_chain.communicators;
  let_go();
  pthread_mutex_unlock(&g_chain_mutex);
}

void ask_chained(const ChainedTuner& tuner, int collective, size_t bytes, int pipe_ops, float** costs, int algorithms,
                 int protocols, int registered, int* channels) {
  if (!tuner.there) return;
  const Inside inside;
  if (g_chain.version == 3) {
    table<TunerV3>()->get_collective_info(tuner.context, collective, bytes, pipe_ops, costs, algorithms, protocols,
                                          channels);
  } else {
    table<TunerV5>()->get_collective_info(tuner.context, collective, bytes, pipe_ops, costs, algorithms, protocols,
                                          registered, channels);
  }
}

GetChunkSize chained_chunk_size() {
  return g_chain.table != nullptr && g_chain.version >= 6 ? table<TunerV6>()->get_chunk_size : nullptr;
}

}  // namespace powerccl::nccl
