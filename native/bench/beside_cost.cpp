// SPDX-License-Identifier: Apache-2.0
#include "bench/beside_cost.h"

namespace powerccl::bench {

BesideCost beside_cost(const TimeAndPower& operation, double unit_us, const TimeAndPower& alone) {
  const double alone_us = operation.us / unit_us * alone.us;  // the computation done meanwhile, by itself
  BesideCost cost{alone, (unit_us / alone.us - 1) * 100, operation.us - alone_us, std::nullopt};
  if (operation.watts_per_gpu && alone.watts_per_gpu) {
    cost.added_joules = (*operation.watts_per_gpu * operation.us - *alone.watts_per_gpu * alone_us) * 1e-6;
  }
  return cost;
}

}  // namespace powerccl::bench
