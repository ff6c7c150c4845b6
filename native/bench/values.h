// SPDX-License-Identifier: Apache-2.0
// Values of options. All throw Failure(kExitUsage); `what` names the option.
#ifndef POWERCCL_BENCH_VALUES_H
#define POWERCCL_BENCH_VALUES_H
#include <cstddef>
#include <string>
#include <vector>

namespace powerccl::bench {

// "62.5M" -> 65536000.
size_t parse_size(const std::string& text, const std::string& what);
double parse_number(const std::string& text, const std::string& what, double low, double high);
int parse_integer(const std::string& text, const std::string& what, int low, int high = 1'000'000'000);
std::vector<std::string> split(const std::string& text, char separator);

}  // namespace powerccl::bench
#endif
