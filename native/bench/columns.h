// SPDX-License-Identifier: Apache-2.0
// Figures as columns of the tables on stdout.
#ifndef POWERCCL_BENCH_COLUMNS_H
#define POWERCCL_BENCH_COLUMNS_H
#include <optional>
#include <string>

namespace powerccl::bench {

// Right-aligned; N/A where nothing is known.
std::string cell(std::optional<double> value, int decimals, int width);
// Four significant digits at most, as far as they fit: small times need decimals, large ones room.
std::string short_cell(std::optional<double> value, int width);

}  // namespace powerccl::bench
#endif
