// SPDX-License-Identifier: Apache-2.0
#pragma once

namespace powerccl {

// libm is not among what the job's process is given.
inline double square_root(double value) {
  if (value <= 0) return 0;
  double root = value > 1 ? value : 1;
  for (int i = 0; i < 64; ++i) {
    const double next = 0.5 * (root + value / root);
    if (next >= root) break;
    root = next;
  }
  return root;
}

}  // namespace powerccl
