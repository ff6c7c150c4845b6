// SPDX-License-Identifier: Apache-2.0
#include "agent/power_file.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cinttypes>
#include <cstdio>
#include <cstring>

namespace powerccl::agent {
namespace {

constexpr int64_t kFlushNs = 500'000'000;  // half of the second that rows may wait: a tick may be late
constexpr size_t kFlushBytes = 48 * 1024;

}  // namespace

const char* const kPowerColumns =
    "time_ns,gpu,uuid,power_mw,energy_uj,sm_clock_mhz,mem_clock_mhz,temperature_c,throttle_reasons,utilization_pct\n";

PowerFile::~PowerFile() {
  if (fd_ < 0) return;
  flush();
  close(fd_);
}

int PowerFile::open(const std::string& path, const std::string& comments) {
  fd_ = ::open(path.c_str(), O_RDWR | O_CREAT | O_APPEND | O_CLOEXEC, 0644);
  if (fd_ < 0) return error_ = errno;
  struct stat status{};
  if (fstat(fd_, &status) != 0) return error_ = errno;
  if (status.st_size > 0) return resume();
  buffer_ = comments + kPowerColumns;
  return flush();
}

// An agent that was killed inside write() may have left half a row.
int PowerFile::resume() {
  off_t size = lseek(fd_, 0, SEEK_END);
  char tail[512];
  off_t from = size > static_cast<off_t>(sizeof tail) ? size - static_cast<off_t>(sizeof tail) : 0;
  ssize_t length = pread(fd_, tail, sizeof tail, from);
  if (length < 0) return error_ = errno;
  const void* last = memrchr(tail, '\n', static_cast<size_t>(length));
  off_t keep = last ? from + (static_cast<const char*>(last) - tail) + 1 : size;
  if (keep != size && ftruncate(fd_, keep) != 0) return error_ = errno;
  return 0;
}

int PowerFile::append(const PowerRow& row) {
  if (error_) return error_;
  if (oldest_ns_ == 0) oldest_ns_ = row.time_ns;
  char line[320];
  const auto& v = row.value;
  std::string throttle = "-1";
  if (v[device::kThrottleReasons] >= 0) {
    char hex[24];
    std::snprintf(hex, sizeof hex, "0x%" PRIx64, static_cast<uint64_t>(v[device::kThrottleReasons]));
    throttle = hex;
  }
  int length =
      std::snprintf(line, sizeof line,
                    "%" PRId64 ",%u,%s,%" PRId64 ",%" PRId64 ",%" PRId64 ",%" PRId64 ",%" PRId64 ",%s,%" PRId64 "\n",
                    row.time_ns, row.gpu, row.uuid, v[device::kPowerMw], v[device::kEnergyUj], v[device::kSmClockMhz],
                    v[device::kMemClockMhz], v[device::kTemperatureC], throttle.c_str(), v[device::kUtilizationPct]);
  buffer_.append(line, static_cast<size_t>(length));
  return buffer_.size() >= kFlushBytes ? flush() : 0;
}

bool PowerFile::due(int64_t at_ns) const {
  return oldest_ns_ != 0 && at_ns - oldest_ns_ >= kFlushNs;
}

int PowerFile::flush() {
  if (error_ || fd_ < 0) return error_;
  off_t before = lseek(fd_, 0, SEEK_END);
  size_t written = 0;
  while (written < buffer_.size()) {
    ssize_t step = write(fd_, buffer_.data() + written, buffer_.size() - written);
    if (step < 0 && errno == EINTR) continue;
    if (step <= 0) {
      error_ = step < 0 ? errno : ENOSPC;
      break;
    }
    written += static_cast<size_t>(step);
  }
  if (error_) {  // keep what fitted, up to its last whole line
    size_t whole = buffer_.rfind('\n', written ? written - 1 : 0);
    off_t keep = written && whole != std::string::npos ? static_cast<off_t>(whole + 1) : 0;
    if (ftruncate(fd_, before + keep) != 0) return error_;
  }
  buffer_.clear();
  oldest_ns_ = 0;
  return error_;
}

}  // namespace powerccl::agent
