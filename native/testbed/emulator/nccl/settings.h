// SPDX-License-Identifier: Apache-2.0
// NCCL's variables. The first communicator of this instance of the library reads them, and no later one, as NCCL caches
// them. A process that loads a copy of the file reads them again.
#pragma once
#include <string>

#include "emulator/messages.h"
#include "emulator/nccl/nccl_abi.h"

namespace powerccl::emulated_nccl {

inline constexpr int kFunctions = 5;  // broadcast, reduce, all-gather, reduce-scatter, all-reduce: values of Func
inline constexpr int kMostChannels = 64;

struct Settings {
  ncclResult_t valid = ncclSuccess;  // else every communicator fails with it: a list was not understood
  std::string complaint;
  std::string algorithms_text, protocols_text;
  bool algorithms_given = false, protocols_given = false;
  bool algorithm[kFunctions][emulator::kAlgorithms];
  bool protocol[kFunctions][emulator::kProtocols];  // LL128 only if asked for, or the platform has it
  bool ll128_asked[kFunctions] = {};
  int min_channels = 0, max_channels = kMostChannels;
  int min_ctas = kConfigUndefined, max_ctas = kConfigUndefined;  // before a communicator's own
  int cta_policy = kConfigUndefined;
  bool windows = true;  // NCCL_WIN_ENABLE
  emulator::NcclSettings wire{};
};
const Settings& settings();

// What a communicator gets where NCCL would take `usual` channels and its configuration asks for these CTAs.
int channels_of(int usual, int config_min, int config_max);

}  // namespace powerccl::emulated_nccl
