// SPDX-License-Identifier: Apache-2.0
#include "policy/arrival.h"

namespace powerccl {

void Arrival::watch(uint64_t end_ns) {
  since_ns_ = missed_ns_ = end_ns;
  const uint64_t before_ns = static_cast<uint64_t>(kBefore * static_cast<double>(expected_ns_));
  look_ns_ = end_ns + (before_ns > kFirstNs ? before_ns : kFirstNs);
}

Arrival::Seen Arrival::looked(uint64_t begin_ns, uint64_t end_ns, bool there) {
  Seen seen;
  if (!there) {
    missed_ns_ = begin_ns;
    const uint64_t part = (end_ns - since_ns_) / (expected_ns_ != 0 ? kFinely : kRoughly);
    look_ns_ = end_ns + (part > kFirstNs ? part : kFirstNs);
    if (end_ns - since_ns_ > kMostNs) stop();
    return seen;
  }
  seen.least_ns = missed_ns_ - since_ns_;
  seen.most_ns = end_ns - since_ns_;
  expected_ns_ = (seen.least_ns + seen.most_ns) / 2;
  const uint64_t between_ns = seen.most_ns - seen.least_ns;
  seen.precise = between_ns <= kPreciseNs || between_ns <= expected_ns_ / kPrecise;
  stop();
  return seen;
}

}  // namespace powerccl
