// SPDX-License-Identifier: Apache-2.0
#include "bench/emulated_time.h"

#include <cstdlib>
#include <string>

namespace powerccl::bench {
namespace {

// Of real time. Enqueueing a million operations takes a few seconds on a quiet core. A tenth of this would be too short
// with ten busy processes a core; much more would keep a user waiting for an invalid result.
constexpr uint64_t kPatienceMs = 20'000, kMostPatienceMs = 60'000;

uint64_t patience_ns() {
  const char* text = std::getenv("POWERCCL_EMULATOR_PATIENCE_MS");
  if (text == nullptr || *text == '\0') return kPatienceMs * 1'000'000;
  char* end = nullptr;
  const unsigned long long ms = std::strtoull(text, &end, 10);
  if (*end != '\0' || *text == '-' || ms > kMostPatienceMs) {
    throw Failure(kExitUsage, std::string("POWERCCL_EMULATOR_PATIENCE_MS=") + text + ": not a whole number up to " +
                                  std::to_string(kMostPatienceMs));
  }
  return ms * 1'000'000;
}

}  // namespace

WithoutData::WithoutData(const CudaApi& cuda) : cuda_(cuda) {
  if (cuda_.set_moves_data != nullptr) cuda_.set_moves_data(0);
}

WithoutData::~WithoutData() {
  if (cuda_.set_moves_data != nullptr) cuda_.set_moves_data(1);
}

EmulatedTime::EmulatedTime(Rank& rank)
    : rank_(rank), stops_(emulated() && std::getenv("POWERCCL_RUN_FOLDER") == nullptr) {}

EmulatedTime::~EmulatedTime() {
  go();
}

uint64_t EmulatedTime::stop() {
  if (!stops_) return monotonic_ns();
  const CudaApi& cuda = rank_.cuda();
  rank_.board().barrier();  // until all have come, a rank may still wait for time to go on
  cuda.check(cuda.stop_time(patience_ns(), &stop_), "pwe_stop_time");
  // Only while time is stopped for all ranks is there a moment that is past for none of them. A double is exact to the
  // nanosecond for 104 days of uptime, and the same for all ranks ever after.
  const auto moment = static_cast<uint64_t>(rank_.board().max(rank_.rank(), static_cast<double>(monotonic_ns())));
  cuda.submit_as_of(moment);
  return moment;
}

double EmulatedTime::joules_between(CUevent from, CUevent to) const {
  double from_uj = 0, to_uj = 0;
  rank_.cuda().check(rank_.cuda().event_energy(from, &from_uj), "pwe_event_energy");
  rank_.cuda().check(rank_.cuda().event_energy(to, &to_uj), "pwe_event_energy");
  return (to_uj - from_uj) * 1e-6;
}

void EmulatedTime::go() {
  if (stop_ == 0) return;
  const CudaApi& cuda = rank_.cuda();
  cuda.submit_as_of(0);
  kept_up_ = cuda.start_time(stop_) == CUDA_SUCCESS && kept_up_;
  stop_ = 0;
}

}  // namespace powerccl::bench
