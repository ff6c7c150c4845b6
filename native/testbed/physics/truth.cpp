// SPDX-License-Identifier: Apache-2.0
#include "physics/truth.h"

#include <bit>
#include <cerrno>
#include <cstdio>
#include <cstring>

#include "physics/platform.h"

namespace powerccl::physics {
namespace {

const char* name_of(const Truth::Operation& operation) {
  return operation.pattern < kPatterns ? pattern_name(static_cast<Pattern>(operation.pattern)) : "unknown";
}

}  // namespace

Truth::Operation Truth::operation(uint8_t pattern, double bytes) {
  return {pattern, bytes >= 1 ? std::bit_floor(static_cast<uint64_t>(bytes)) : 0};
}

void Truth::spent(const State& state, int64_t ns, double watts) {
  Sum& sum = states_[state];
  sum.ns += ns;
  sum.microjoules += watts * 1e-3 * static_cast<double>(ns);
}

bool Truth::write(const std::string& path, const std::string& platform, std::string& error) const {
  FILE* file = fopen(path.c_str(), "we");
  if (file == nullptr) {
    error = path + ": " + strerror(errno);
    return false;
  }
  fprintf(file, "{\"emulated\": \"%s\",\n \"states\": [", platform.c_str());
  const char* between = "\n";
  for (const auto& [state, sum] : states_) {
    fprintf(file, "%s  {\"gpu\": %u, \"asleep\": %s, \"computing\": %s, \"running\": [", between, state.gpu,
            state.asleep ? "true" : "false", state.computing ? "true" : "false");
    const char* comma = "";
    for (const Operation& operation : state.running) {
      fprintf(file, "%s{\"pattern\": \"%s\", \"size_class_bytes\": %llu}", comma, name_of(operation),
              static_cast<unsigned long long>(operation.size_class_bytes));
      comma = ", ";
    }
    fprintf(file, "], \"ns\": %lld, \"joules\": %.6f}", static_cast<long long>(sum.ns), sum.microjoules * 1e-6);
    between = ",\n";
  }
  fprintf(file, "],\n \"operations\": [");
  between = "\n";
  for (const auto& [key, count] : operations_) {
    fprintf(file, "%s  {\"gpu\": %u, \"pattern\": \"%s\", \"size_class_bytes\": %llu, \"count\": %llu}", between,
            key.first, name_of(key.second), static_cast<unsigned long long>(key.second.size_class_bytes),
            static_cast<unsigned long long>(count));
    between = ",\n";
  }
  fprintf(file, "]}\n");
  const bool failed = ferror(file) != 0;
  if (fclose(file) == 0 && !failed) return true;
  error = path + ": " + strerror(errno);
  return false;
}

}  // namespace powerccl::physics
