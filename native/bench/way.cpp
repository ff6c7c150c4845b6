// SPDX-License-Identifier: Apache-2.0
#include "bench/way.h"

#include <algorithm>

namespace powerccl::bench {
namespace {

constexpr int kNone = -1, kDefault = 0, kEfficient = 1, kZero = 2;  // NCCL_CTA_POLICY_*

constexpr std::array<WayInfo, kWays> kAll = {{
    {Way::kPlain, "plain", false, kNone},
    {Way::kSymmetric, "symmetric", true, kDefault},
    {Way::kCopyEngine, "copy-engine", true, kZero},
    {Way::kEfficiency, "efficiency", true, kEfficient},
}};

constexpr std::array<const char*, kBesides> kBesideNames = {"nothing", "matmul", "memory", "both"};

}  // namespace

const std::array<WayInfo, kWays>& ways() {
  return kAll;
}

const WayInfo& info(Way way) {
  return kAll[static_cast<size_t>(way) - 1];
}

std::optional<Way> way_named(const std::string& name) {
  const auto* found = std::find_if(kAll.begin(), kAll.end(), [&](const WayInfo& each) { return name == each.name; });
  return found == kAll.end() ? std::nullopt : std::optional(found->way);
}

const std::array<const char*, kBesides>& beside_names() {
  return kBesideNames;
}

std::optional<Beside> beside_named(const std::string& name) {
  const auto* found =
      std::find_if(kBesideNames.begin(), kBesideNames.end(), [&](const char* each) { return name == each; });
  if (found == kBesideNames.end()) return std::nullopt;
  return static_cast<Beside>(found - kBesideNames.begin());
}

const char* compute_name_of(Beside kind) {
  return kind == Beside::kNothing ? "fma" : name_of(kind);
}

const char* name_of(Beside beside) {
  return kBesideNames[static_cast<size_t>(beside)];
}

bool carries_out(Way way, Pattern pattern) {
  const bool symmetric =
      pattern == Pattern::kAllReduce || pattern == Pattern::kAllGather || pattern == Pattern::kReduceScatter;
  switch (way) {
    case Way::kSymmetric:
    case Way::kEfficiency:
      return symmetric;
    case Way::kCopyEngine:  // which move and add nothing
      return pattern == Pattern::kAllGather || pattern == Pattern::kAllToAll || pattern == Pattern::kGather ||
             pattern == Pattern::kScatter;
    default:
      return true;
  }
}

}  // namespace powerccl::bench
