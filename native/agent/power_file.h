// SPDX-License-Identifier: Apache-2.0
// <run folder>/power-<host>.csv: buffered, written in whole lines, so that a killed agent leaves a readable file.
#pragma once
#include <array>
#include <cstdint>
#include <string>

#include "device/nvml_sample.h"

namespace powerccl::agent {

// What a node's GPUs said at one moment. A metric that could not be read is -1.
struct PowerRow {
  int64_t time_ns = 0;  // CLOCK_MONOTONIC, just before the power reading
  uint32_t gpu = 0;
  const char* uuid = "";
  std::array<int64_t, device::kMetrics> value{};
};

class PowerFile {
 public:
  PowerFile() = default;
  ~PowerFile();
  PowerFile(const PowerFile&) = delete;
  PowerFile& operator=(const PowerFile&) = delete;

  // Creates the file with `comments` ("# key: value" lines) and the header, or goes on behind the last whole row of one
  // that an earlier agent of this run left. All functions return 0 or an errno; after one they write nothing more.
  int open(const std::string& path, const std::string& comments);
  int append(const PowerRow& row);
  int flush();
  // Whether rows will have waited too long by then.
  bool due(int64_t at_ns) const;

 private:
  int resume();

  int fd_ = -1;
  int error_ = 0;
  int64_t oldest_ns_ = 0;  // of the buffered rows; 0: none
  std::string buffer_;
};

extern const char* const kPowerColumns;  // the header line

}  // namespace powerccl::agent
