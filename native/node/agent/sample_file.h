// SPDX-License-Identifier: Apache-2.0
// A file of samples in the run folder: `# key: value` lines, a header line, rows. Buffered, and written in whole lines,
// so that a killed agent leaves a readable file.
#pragma once
#include <array>
#include <cstdint>
#include <string>

#include "device/nvml_sample.h"

namespace powerccl::agent {

// One "# key: value" line.
std::string comment(const std::string& key, const std::string& value);
// Where this node's samples of a kind go: <prefix><host>.csv, or, where that is another node's of the same host name,
// <prefix><host>-<boot>.csv.
std::string sample_path(const std::string& folder, const std::string& prefix);
// Those that every file begins with: host, the kernel's boot, start on both clocks, interval.
std::string common_comments(int64_t interval_ns);

class SampleFile {
 public:
  SampleFile() = default;
  ~SampleFile();
  SampleFile(const SampleFile&) = delete;
  SampleFile& operator=(const SampleFile&) = delete;

  // Creates the file with `head` (comments and header line). If an earlier agent of this run left a file, goes on
  // behind its last whole row. Rows may be appended before; they wait for it. All functions return 0 or an errno;
  // after one they write nothing more.
  int open(const std::string& path, const std::string& head);
  // One row, with its newline.
  int append(int64_t time_ns, const char* line, size_t length);
  int flush();
  // Whether rows will have waited too long by then.
  bool due(int64_t at_ns) const;

  // Says on stderr that the file cannot be written, and that `loss`.
  void say_failed(int number, const char* loss) const;

 private:
  int resume();

  std::string path_;
  int fd_ = -1, error_ = 0;
  int64_t oldest_ns_ = 0;  // of the buffered rows; 0: none
  std::string buffer_;
};

// The rows of <run folder>/power-<host>.csv.
// What a node's GPUs said at one moment. A metric that could not be read is -1.
struct PowerRow {
  int64_t time_ns = 0;  // CLOCK_MONOTONIC, the middle of the power reading
  uint32_t gpu = 0;
  const char* uuid = "";
  std::array<int64_t, device::kMetrics> value{};
};

extern const char* const kPowerColumns;  // the header line

int append_power_row(SampleFile* file, const PowerRow& row);

}  // namespace powerccl::agent
