// SPDX-License-Identifier: Apache-2.0
// How NCCL carries a collective out: its rings and trees on ordinary buffers, or, on buffers in symmetric windows,
// kernels of their own, copy engines (the zero-CTA policy), or as few thread blocks as will do (the efficiency policy).
// And what the GPU computes meanwhile.
#ifndef POWERCCL_BENCH_WAY_H
#define POWERCCL_BENCH_WAY_H
#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>

#include "bench/pattern.h"

namespace powerccl::bench {

enum class Way : uint8_t {
  kAsGiven,  // by -R and NCCL's own variables
  kPlain,
  kSymmetric,
  kCopyEngine,
  kEfficiency,
};
inline constexpr size_t kWays = 4;  // without the first

struct WayInfo {
  Way way;
  const char* name;
  bool windows;    // buffers lie in symmetric windows
  int cta_policy;  // of the communicator: ncclConfig_t's CTAPolicy; negative: NCCL's default
};

const std::array<WayInfo, kWays>& ways();
// Only of one of those.
const WayInfo& info(Way way);
std::optional<Way> way_named(const std::string& name);

enum class Beside : uint8_t { kNothing, kMatmul, kMemory, kBoth };
inline constexpr size_t kBesides = 4;
const std::array<const char*, kBesides>& beside_names();  // "nothing" first
std::optional<Beside> beside_named(const std::string& name);
// What a scenario computes with --compute: "fma" where nothing else was said.
const char* compute_name_of(Beside kind);
const char* name_of(Beside beside);

// What `matmul` multiplies: a perceptron's two products in turn, of so many tokens from a width to a hidden width and
// back. How much a collective costs beside them depends on their shapes, since they share the multiprocessors.
struct Products {
  int tokens = 4096, width = 4096, hidden = 4096;
};

// Whether NCCL can carry the pattern out that way; else it takes another.
bool carries_out(Way way, Pattern pattern);

}  // namespace powerccl::bench
#endif
