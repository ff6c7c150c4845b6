// SPDX-License-Identifier: Apache-2.0
#include "agent/sample_file.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cinttypes>
#include <cstdio>
#include <cstring>
#include <string>
#include <string_view>

#include "abi/host_clock.h"
#include "agent/log.h"
#include "device/process.h"

namespace powerccl::agent {
namespace {

constexpr int64_t kFlushNs = 500'000'000;  // half of the second that rows may wait: a tick may be late
constexpr size_t kFlushBytes = 48 * 1024;

}  // namespace

std::string comment(const std::string& key, const std::string& value) {
  std::string line = "# " + key + ": " + value;
  std::replace(line.begin(), line.end(), '\n', ' ');
  return line + "\n";
}

std::string common_comments(int64_t interval_ns) {
  char host[64];
  device::host_name(host, sizeof host);
  char boot[33];
  device::boot_id(boot, sizeof boot);
  return comment("host", host) + comment("boot_id", boot) + comment("start_ns", std::to_string(host_now_ns())) +
         comment("start_realtime_ns", std::to_string(read_clock_ns(CLOCK_REALTIME))) +
         comment("interval_ns", std::to_string(interval_ns));
}

std::string sample_path(const std::string& folder, const std::string& prefix) {
  char host[64], boot[33], node[64];
  device::host_name(host, sizeof host);
  device::boot_id(boot, sizeof boot);
  device::host_identity(node, sizeof node);
  const std::string plain = folder + "/" + prefix + host;
  int fd = ::open((plain + ".csv").c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0644);
  if (fd >= 0) close(fd);
  if (fd >= 0 || errno != EEXIST) return plain + ".csv";
  char head[1024];
  fd = ::open((plain + ".csv").c_str(), O_RDONLY | O_NONBLOCK | O_CLOEXEC);
  const ssize_t length = fd < 0 ? -1 : read(fd, head, sizeof head);
  if (fd >= 0) close(fd);
  const bool same_boot =
      length > 0 &&
      std::string_view(head, static_cast<size_t>(length)).find(comment("boot_id", boot)) != std::string::npos;
  return same_boot ? plain + ".csv" : plain + "-" + node + ".csv";
}

SampleFile::~SampleFile() {
  if (fd_ < 0) return;
  flush();
  close(fd_);
}

int SampleFile::open(const std::string& path, const std::string& head) {
  path_ = path;
  fd_ = ::open(path.c_str(), O_RDWR | O_CREAT | O_APPEND | O_CLOEXEC, 0644);
  if (fd_ < 0) return error_ = errno;
  struct stat status{};
  if (fstat(fd_, &status) != 0) return error_ = errno;
  if (status.st_size > 0) return resume();
  buffer_.insert(0, head);
  return flush();
}

// An agent that was killed inside write() may have left half a row.
int SampleFile::resume() {
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

int SampleFile::append(int64_t time_ns, const char* line, size_t length) {
  if (error_) return error_;
  if (oldest_ns_ == 0) oldest_ns_ = time_ns;
  buffer_.append(line, length);
  return buffer_.size() >= kFlushBytes ? flush() : 0;
}

bool SampleFile::due(int64_t at_ns) const {
  return oldest_ns_ != 0 && at_ns - oldest_ns_ >= kFlushNs;
}

int SampleFile::flush() {
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

void SampleFile::say_failed(int number, const char* loss) const {
  const bool full = number == ENOSPC || number == EDQUOT || number == EFBIG;
  say("cannot write %s: %s. %s.\nhint: %s", path_.c_str(), std::strerror(number), loss,
      full ? "free some space, or choose another run folder" : "check the run folder's permissions");
}

const char* const kPowerColumns =
    "time_ns,gpu,uuid,power_mw,energy_uj,sm_clock_mhz,mem_clock_mhz,temperature_c,throttle_reasons,utilization_pct\n";

int append_power_row(SampleFile* file, const PowerRow& row) {
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
  return file->append(row.time_ns, line, static_cast<size_t>(length));
}

}  // namespace powerccl::agent
