// SPDX-License-Identifier: Apache-2.0
#include "bench/columns.h"

#include <cstdio>

namespace powerccl::bench {

std::string cell(std::optional<double> value, int decimals, int width) {
  char text[48];
  if (value) {
    std::snprintf(text, sizeof text, "  %*.*f", width, decimals, *value);
  } else {
    std::snprintf(text, sizeof text, "  %*s", width, "N/A");
  }
  return text;
}

std::string short_cell(std::optional<double> value, int width) {
  const int decimals = !value || *value >= 1000 ? 1 : *value >= 10 ? 2 : 3;
  return cell(value, decimals, width);
}

}  // namespace powerccl::bench
