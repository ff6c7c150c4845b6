// SPDX-License-Identifier: Apache-2.0
// The user's own tuner plugin, behind ours: it is asked first, and rules of ours that apply override it.
#pragma once
#include "abi/nccl_tuner.h"

namespace powerccl::nccl {

// What NCCL gives when a communicator starts.
struct TunerStart {
  int version = 0;  // of the interface that NCCL speaks
  uint64_t communicator_id = 0;
  size_t ranks = 0, nodes = 0;
  TunerLogger log = nullptr;
  NvlDomains* domains = nullptr;        // v5
  TunerConstants* constants = nullptr;  // v5
};

struct ChainedTuner {
  bool there = false;
  void* context = nullptr;
};

// Not there: there is no other tuner, or it is left out, which is said once with the reason.
ChainedTuner chain_tuner(const TunerStart& start);
void unchain_tuner(const ChainedTuner& tuner);

// Its errors, which NCCL would end the job for, count as no answer.
void ask_chained(const ChainedTuner& tuner, int collective, size_t bytes, int pipe_ops, float** costs, int algorithms,
                 int protocols, int registered, int* channels);

// Its function for chunks (v6), null where it has none. Since a communicator has started.
using GetChunkSize = int (*)(void* context, int collective, size_t bytes, int algorithm, int protocol, int channels,
                             size_t* chunk_bytes);
GetChunkSize chained_chunk_size();

}  // namespace powerccl::nccl
