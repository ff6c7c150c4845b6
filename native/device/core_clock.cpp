// SPDX-License-Identifier: Apache-2.0
#include "device/core_clock.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

namespace powerccl::device {
namespace {

int open_setting(const char* sysfs_cores, int cpu, const char* name, int flags) {
  char path[PATH_MAX];
  const int length = snprintf(path, sizeof path, "%s/cpu%d/cpufreq/%s", sysfs_cores, cpu, name);
  if (length < 0 || static_cast<size_t>(length) >= sizeof path) {
    errno = ENAMETOOLONG;
    return -1;
  }
  return open(path, flags | O_CLOEXEC);
}

bool read_setting(const char* sysfs_cores, int cpu, const char* name, char* text, size_t size) {
  const int file = open_setting(sysfs_cores, cpu, name, O_RDONLY);
  if (file < 0) return false;
  const ssize_t length = read(file, text, size - 1);
  close(file);
  if (length <= 0) return false;
  text[length] = '\0';
  return true;
}

uint32_t read_khz(const char* sysfs_cores, int cpu, const char* name) {
  char text[32];
  if (!read_setting(sysfs_cores, cpu, name, text, sizeof text)) return 0;
  return static_cast<uint32_t>(strtoul(text, nullptr, 10));
}

// affected_cpus lists the cores online that share the policy: "3" or "2 3".
bool shared_with_others(const char* sysfs_cores, int cpu) {
  char text[4096];
  if (!read_setting(sysfs_cores, cpu, "affected_cpus", text, sizeof text)) return true;
  char* end = nullptr;
  const long first = strtol(text, &end, 10);
  if (end == text || first != cpu) return true;
  while (*end == ' ' || *end == '\n') ++end;
  return *end != '\0';
}

int write_khz(const char* sysfs_cores, int cpu, uint32_t khz, Error* error) {
  const int file = open_setting(sysfs_cores, cpu, "scaling_max_freq", O_WRONLY);
  if (file < 0) return fail(error, kSystem, "cannot write cpufreq of cpu%d: %s", cpu, strerror(errno));
  char text[16];
  const int length = snprintf(text, sizeof text, "%u\n", khz);
  const bool written = pwrite(file, text, static_cast<size_t>(length), 0) == length;
  const int number = errno;
  close(file);
  if (written) return kOk;
  return fail(error, kSystem, "cannot set the maximum clock of cpu%d: %s", cpu, strerror(number));
}

bool parse_name(const char* name, int* cpu, uint32_t* khz) {
  if (strncmp(name, "cpu", 3) != 0 || name[3] < '0' || name[3] > '9') return false;
  char* end = nullptr;
  *cpu = static_cast<int>(strtol(name + 3, &end, 10));
  if (*end != '@' || end[1] < '1' || end[1] > '9') return false;
  *khz = static_cast<uint32_t>(strtoul(end + 1, &end, 10));
  return *end == '\0';
}

}  // namespace

int core_clock_find(CoreClock* clock, const char* sysfs_cores, int cpu, Error* error) {
  *clock = CoreClock{};
  if (strlen(sysfs_cores) >= sizeof clock->sysfs_cores) return fail(error, kBadArgument, "a path too long");
  memcpy(clock->sysfs_cores, sysfs_cores, strlen(sysfs_cores));
  const uint32_t lowest = read_khz(sysfs_cores, cpu, "cpuinfo_min_freq");
  if (lowest == 0) return fail(error, kSystem, "cpufreq of cpu%d reports no clocks", cpu);
  if (shared_with_others(sysfs_cores, cpu)) {
    return fail(error, kBadArgument, "cpu%d shares its clock with other cores", cpu);
  }
  clock->cpu = cpu;
  clock->lowest_khz = lowest;
  return kOk;
}

int core_clock_open(CoreClock* clock, const char* sysfs_cores, int cpu, Error* error) {
  const int code = core_clock_find(clock, sysfs_cores, cpu, error);
  if (code != kOk) return code;
  const uint32_t usual = read_khz(sysfs_cores, cpu, "scaling_max_freq");
  if (usual == 0) return fail(error, kSystem, "cpufreq of cpu%d reports no clocks", cpu);
  const int file = open_setting(sysfs_cores, cpu, "scaling_max_freq", O_WRONLY);
  if (file < 0) return fail(error, kSystem, "cannot write cpufreq of cpu%d: %s", cpu, strerror(errno));
  close(file);
  clock->usual_khz = usual;
  snprintf(clock->name, sizeof clock->name, "cpu%d@%u", cpu, usual);
  return kOk;
}

int core_clock_lower(CoreClock* clock, Error* error) {
  return write_khz(clock->sysfs_cores, clock->cpu, clock->lowest_khz, error);
}

int core_clock_set(CoreClock* clock, uint32_t highest_khz, Error* error) {
  return write_khz(clock->sysfs_cores, clock->cpu, highest_khz, error);
}

int core_clock_read(const char* sysfs_cores, int cpu, uint32_t* khz, Error* error) {
  *khz = read_khz(sysfs_cores, cpu, "scaling_cur_freq");
  return *khz != 0 ? kOk : fail(error, kSystem, "cpufreq of cpu%d reports no clock", cpu);
}

int core_clock_restore(CoreClock* clock, Error* error) {
  return write_khz(clock->sysfs_cores, clock->cpu, clock->usual_khz, error);
}

bool is_core_clock(const char* name) {
  int cpu = 0;
  uint32_t khz = 0;
  return parse_name(name, &cpu, &khz);
}

int core_clock_restore_named(const char* sysfs_cores, const char* name, Error* error) {
  int cpu = 0;
  uint32_t khz = 0;
  if (!parse_name(name, &cpu, &khz)) return fail(error, kBadArgument, "%s is not the name of a core", name);
  return write_khz(sysfs_cores, cpu, khz, error);
}

}  // namespace powerccl::device
