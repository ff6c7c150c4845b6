// SPDX-License-Identifier: Apache-2.0
// NCCL's variables. The first communicator of this instance of the library reads them, and no later one, as NCCL caches
// them. A process that loads a copy of the file reads them again.
#pragma once
#include <string>

#include "emulator/messages.h"
#include "emulator/nccl/nccl_abi.h"

namespace powerccl::emulated_nccl {

// NCCL_DEBUG logging as NCCL prints it, and the text behind ncclGetLastError.
// Values of NCCL's debug levels and subsystems, as plugins pass them to the logger.
enum LogLevel : int { kLogNone = 0, kLogVersion = 1, kLogWarn = 2, kLogInfo = 3, kLogTrace = 5 };

// The logger that plugins get. Levels above NCCL_DEBUG are dropped.
void log(int level, unsigned long flags, const char* file, int line, const char* format, ...)
    __attribute__((format(printf, 5, 6)));

// Printed from NCCL_DEBUG=WARN on, and kept for ncclGetLastError.
void warn(const char* format, ...) __attribute__((format(printf, 1, 2)));
// Warns, and returns the result that refuses the call.
ncclResult_t refuse(ncclResult_t result, const char* format, ...) __attribute__((format(printf, 2, 3)));
void info(const char* format, ...) __attribute__((format(printf, 1, 2)));

// Printed whatever NCCL_DEBUG says, and kept for ncclGetLastError: faults that real NCCL would answer with a hang.
void error(const char* format, ...) __attribute__((format(printf, 1, 2)));

const char* last_error();

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
