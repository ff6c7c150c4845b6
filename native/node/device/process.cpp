// SPDX-License-Identifier: Apache-2.0
#include "device/process.h"

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "abi/host_clock.h"
#include "libc/calls.h"

namespace powerccl::device {

namespace {

// What follows a key in /proc/<process>/status, cut to `size`. False: there is no such line. Lines may be of any
// length: a process chooses how many groups it has.
bool read_status(const char* process, const char* key, char* value, size_t size) {
  char path[40], line[256];
  snprintf(path, sizeof path, "/proc/%s/status", process);
  FILE* status = fopen(path, "re");
  if (!status) return false;
  bool has_key = false, begins = true;
  while (!has_key && fgets(line, sizeof line, status)) {
    has_key = begins && strncmp(line, key, strlen(key)) == 0;
    begins = strchr(line, '\n') != nullptr;
  }
  fclose(status);
  if (has_key) snprintf(value, size, "%s", line + strlen(key));
  return has_key;
}

}  // namespace

bool process_has_sys_admin() {
  constexpr unsigned kSysAdmin = 21;  // CAP_SYS_ADMIN of <linux/capability.h>
  char effective[32];
  if (!read_status("self", "CapEff:", effective, sizeof effective)) return geteuid() == 0;
  return (strtoull(effective, nullptr, 16) >> kSysAdmin & 1u) != 0;
}

bool process_is_contained(pid_t pid) {
  char process[16], numbers[64];
  snprintf(process, sizeof process, "%d", static_cast<int>(pid));
  // Its number in each namespace, from the reader's down.
  if (!read_status(process, "NSpid:\t", numbers, sizeof numbers)) return false;
  return strchr(numbers, '\t') != nullptr;
}

namespace {

constexpr size_t kIdentityDigits = 12;

// The beginning of a file as a text; empty if it cannot be read.
void read_text(const char* path, char* text, size_t size) {
  text[0] = '\0';
  const int fd = open(path, O_RDONLY | O_CLOEXEC);
  if (fd < 0) return;
  const ssize_t length = read(fd, text, size - 1);
  close(fd);
  text[length > 0 ? length : 0] = '\0';
}

// The kernel states the start on the reader's own CLOCK_BOOTTIME. Two readers in different time namespaces compare it.
int64_t own_shift_ticks() {
  constexpr int64_t kNsOfSecond = 1000000000;
  static const int64_t shift_ticks = read_time_shift_ns("boottime") / (kNsOfSecond / sysconf(_SC_CLK_TCK));
  return shift_ticks;
}

}  // namespace

uint64_t process_start_ticks(pid_t pid) {
  char path[40];
  snprintf(path, sizeof path, "/proc/%d/stat", static_cast<int>(pid));
  char text[1024];
  read_text(path, text, sizeof text);
  // The name in parentheses may hold blanks and parentheses itself: fields count from the last one.
  char* at = strrchr(text, ')');
  if (!at || at[1] != ' ') return 0;
  at += 2;
  if (*at == 'Z' || *at == 'X') return 0;
  for (int field = 3; field < 22; ++field) {
    at = strchr(at, ' ');
    if (!at) return 0;
    ++at;
  }
  return strtoull(at, nullptr, 10) - static_cast<uint64_t>(own_shift_ticks());
}

void host_name(char* name, size_t size) {
  if (gethostname(name, size) != 0 || !*name) snprintf(name, size, "localhost");
  name[size - 1] = '\0';
  for (char* at = name; *at; ++at)
    if (*at == '/') *at = '_';
}

void boot_id(char* digits, size_t size) {
  char text[64];
  read_text("/proc/sys/kernel/random/boot_id", text, sizeof text);
  size_t length = 0;
  for (const char* at = text; *at && length + 1 < size; ++at)
    if (strchr("0123456789abcdef", *at)) digits[length++] = *at;
  digits[length] = '\0';
}

void host_identity(char* text, size_t size) {
  char digits[kIdentityDigits + 1];
  boot_id(digits, sizeof digits);
  if (strlen(digits) == kIdentityDigits) {
    snprintf(text, size, "%s", digits);
  } else {
    host_name(text, size);
  }
}

}  // namespace powerccl::device
