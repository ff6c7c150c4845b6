// SPDX-License-Identifier: Apache-2.0
#ifndef POWERCCL_BENCH_VERSION_H
#define POWERCCL_BENCH_VERSION_H

namespace powerccl::bench {
inline constexpr const char* kVersion = POWERCCL_BENCH_VERSION;
}  // namespace powerccl::bench
#endif
