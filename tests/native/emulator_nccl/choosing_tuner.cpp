// SPDX-License-Identifier: Apache-2.0
// A tuner plugin of every ABI version that says on standard output what NCCL asks it, and answers what it is told:
//   TUNER_CHOICE=algorithm,protocol,channels  numbers of NCCL's; -1: leaves it
//   TUNER_FAIL=init or info  that function returns an error
//   TUNER_LATENCIES=1  the constants' latencies are turned round, so that Simple is cheap and LL dear
#include <cstdio>
#include <cstdlib>
#include <cstring>

#include "abi/nccl_tuner.h"

namespace {

using namespace powerccl::nccl;

int instances = 0;

bool fails(const char* where) {
  const char* asked = getenv("TUNER_FAIL");
  return asked && strcmp(asked, where) == 0;
}

int begin(int version, void** context, uint64_t comm_id, size_t ranks, size_t nodes, TunerLogger log) {
  printf("init v%d comm=%d ranks=%zu nodes=%zu", version, comm_id != 0, ranks, nodes);
  if (log) log(3, 1, __FILE__, __LINE__, "choosing tuner v%d", version);
  if (fails("init")) return 2;
  *context = new int(++instances);
  return 0;
}

int init_v4(size_t ranks, size_t nodes, TunerLogger log, void** context) {
  const int result = begin(4, context, 0, ranks, nodes, log);
  printf("\n");
  return result;
}

template <int kVersion>
int init(void** context, uint64_t comm_id, size_t ranks, size_t nodes, TunerLogger log, NvlDomains* domains,
         TunerConstants* constants) {
  const int result = begin(kVersion, context, comm_id, ranks, nodes, log);
  printf(" domains=%d,%d,%d\n", domains->count, domains->least_ranks, domains->most_ranks);
  if (getenv("TUNER_LATENCIES")) {
    for (auto& latencies : constants->base_latencies) {
      latencies[0] = 1e6;
      latencies[2] = 0;
    }
  }
  return result;
}

int get_coll_info(void* context, int function, size_t bytes, int pipelined, float** table, int algorithms,
                  int protocols, int registered, int* channels) {
  auto* costs = reinterpret_cast<float*>(table);
  printf("ask %d function=%d bytes=%zu pipelined=%d registered=%d channels=%d costs=", *static_cast<int*>(context),
         function, bytes, pipelined, registered, *channels);
  for (int i = 0; i < algorithms * protocols; ++i) printf("%c", costs[i] < 0 ? '-' : '+');
  printf("\n");
  if (fails("info")) return 3;
  int algorithm = -1, protocol = -1, wanted = -1;
  if (const char* choice = getenv("TUNER_CHOICE")) sscanf(choice, "%d,%d,%d", &algorithm, &protocol, &wanted);
  if (algorithm >= 0 && costs[algorithm * protocols + protocol] >= 0) costs[algorithm * protocols + protocol] = 0;
  if (wanted > 0) *channels = wanted;
  return 0;
}

int get_chunk_size(void*, int function, size_t bytes, int algorithm, int protocol, int channels, size_t* chunk_bytes) {
  printf("chunk function=%d bytes=%zu method=%d,%d,%d chunk=%zu\n", function, bytes, algorithm, protocol, channels,
         *chunk_bytes);
  return 0;
}

int end(void* context) {
  printf("finalize %d\n", *static_cast<int*>(context));
  delete static_cast<int*>(context);
  return 0;
}

}  // namespace

#define EXPORT extern "C" __attribute__((visibility("default")))
EXPORT TunerV4 ncclTunerPlugin_v4;
EXPORT TunerV5 ncclTunerPlugin_v5;
EXPORT TunerV6 ncclTunerPlugin_v6;
TunerV4 ncclTunerPlugin_v4 = {"choosing", init_v4, get_coll_info, end};
TunerV5 ncclTunerPlugin_v5 = {"choosing", init<5>, get_coll_info, end};
TunerV6 ncclTunerPlugin_v6 = {"choosing", init<6>, get_coll_info, end, get_chunk_size};
