// SPDX-License-Identifier: Apache-2.0
// Values as users write them, in options and files; whole files.
#pragma once
#include <cstddef>
#include <optional>
#include <string>
#include <vector>

namespace powerccl::bench {

inline constexpr const char* kVersion = POWERCCL_BENCH_VERSION;

// Parsers throw Failure(kExitUsage); `what` names the option.
size_t parse_size(const std::string& text, const std::string& what);  // "62.5M" -> 65536000
double parse_number(const std::string& text, const std::string& what, double low, double high);
int parse_integer(const std::string& text, const std::string& what, int low, int high = 1'000'000'000);
std::vector<std::string> split(const std::string& text, char separator);

std::string host_name();
// Writes the file under a temporary name and renames it. Returns "", or what is wrong.
std::string write_whole(const std::string& path, const std::string& text);

// The variable's value; empty where it is not set.
std::string environment(const char* name);

// From `first` to `last` by `step_bytes`, or by `factor` where that is 0.
std::vector<size_t> sizes_between(size_t first, size_t last, size_t step_bytes, double factor);

}  // namespace powerccl::bench
