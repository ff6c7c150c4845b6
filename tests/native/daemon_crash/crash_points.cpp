// SPDX-License-Identifier: Apache-2.0
// Loaded into an unchanged powerccld (LD_PRELOAD): kills it at the n-th of the calls whose order keeps clocks safe.
// Those are what changes the state file or its folder, syncs it, or sets an emulated GPU's clock.
//   POWERCCL_CRASH_STATE  the state file's path; only files whose names begin with it count
//   POWERCCL_CRASH_AT     n, from 1
//   POWERCCL_CRASH_MODE   before, after, or torn: with half of the bytes written (only writes count then)
#include <dlfcn.h>
#include <fcntl.h>
#include <sys/socket.h>
#include <sys/types.h>
#include <unistd.h>

#include <atomic>
#include <csignal>
#include <cstdarg>
#include <cstdlib>
#include <cstring>

#include "physics/messages.h"

#define EXPORT extern "C" __attribute__((visibility("default")))

namespace {

enum class Mode { kNone, kBefore, kAfter, kTorn };

struct Plan {
  const char* state = std::getenv("POWERCCL_CRASH_STATE");
  long at = 0;
  Mode mode = Mode::kNone;

  Plan() {
    const char* number = std::getenv("POWERCCL_CRASH_AT");
    const char* text = std::getenv("POWERCCL_CRASH_MODE");
    if (state == nullptr || number == nullptr || text == nullptr) return;
    at = std::strtol(number, nullptr, 10);
    mode = std::strcmp(text, "before") == 0  ? Mode::kBefore
           : std::strcmp(text, "after") == 0 ? Mode::kAfter
                                             : Mode::kTorn;
  }
};

const Plan& plan() {
  static const Plan instance;
  return instance;
}

std::atomic<long> calls{0};
std::atomic<bool> ours[1024];  // descriptors of the state file

[[noreturn]] void die() {
  kill(getpid(), SIGKILL);
  for (;;) pause();
}

template <typename F>
F* real(const char* name) {
  return reinterpret_cast<F*>(dlsym(RTLD_NEXT, name));
}

bool is_ours(int fd) {
  return fd >= 0 && fd < 1024 && ours[fd].load();
}

bool is_state(const char* path) {
  return plan().state != nullptr && std::strncmp(path, plan().state, std::strlen(plan().state)) == 0;
}

// Whether this is the call to die at.
bool is_due(bool counts, bool writes) {
  if (!counts || plan().mode == Mode::kNone || (plan().mode == Mode::kTorn && !writes)) return false;
  return calls.fetch_add(1) + 1 == plan().at;
}

template <typename Call>
auto at_crash_point(bool counts, Call call) {
  const bool due = is_due(counts, false);
  if (due && plan().mode == Mode::kBefore) die();
  const auto result = call();
  if (due) die();
  return result;
}

template <typename Call>
ssize_t write_at_crash_point(bool counts, size_t length, Call call) {
  const bool due = is_due(counts, true);
  if (due && plan().mode == Mode::kBefore) die();
  const ssize_t result = call(due && plan().mode == Mode::kTorn ? length / 2 : length);
  if (due) die();
  return result;
}

int open_any(const char* name, const char* path, int flags, mode_t mode) {
  const bool state = is_state(path);
  const int fd = at_crash_point(state && (flags & O_CREAT) != 0,
                                [&] { return real<int(const char*, int, ...)>(name)(path, flags, mode); });
  if (fd >= 0 && fd < 1024) ours[fd].store(state);
  return fd;
}

}  // namespace

EXPORT int open(const char* path, int flags, ...) {
  va_list arguments;
  va_start(arguments, flags);
  const mode_t mode = (flags & O_CREAT) != 0 ? va_arg(arguments, mode_t) : 0;
  va_end(arguments);
  return open_any("open", path, flags, mode);
}

EXPORT int open64(const char* path, int flags, ...) {
  va_list arguments;
  va_start(arguments, flags);
  const mode_t mode = (flags & O_CREAT) != 0 ? va_arg(arguments, mode_t) : 0;
  va_end(arguments);
  return open_any("open64", path, flags, mode);
}

EXPORT int close(int fd) {
  if (fd >= 0 && fd < 1024) ours[fd].store(false);
  return real<int(int)>("close")(fd);
}

EXPORT ssize_t write(int fd, const void* bytes, size_t length) {
  return write_at_crash_point(is_ours(fd), length, [&](size_t some) {
    return real<ssize_t(int, const void*, size_t)>("write")(fd, bytes, some);
  });
}

EXPORT ssize_t pwrite(int fd, const void* bytes, size_t length, off_t offset) {
  return write_at_crash_point(is_ours(fd), length, [&](size_t some) {
    return real<ssize_t(int, const void*, size_t, off_t)>("pwrite")(fd, bytes, some, offset);
  });
}

EXPORT ssize_t pwrite64(int fd, const void* bytes, size_t length, off64_t offset) {
  return write_at_crash_point(is_ours(fd), length, [&](size_t some) {
    return real<ssize_t(int, const void*, size_t, off64_t)>("pwrite64")(fd, bytes, some, offset);
  });
}

EXPORT int fdatasync(int fd) {
  return at_crash_point(is_ours(fd), [&] { return real<int(int)>("fdatasync")(fd); });
}

EXPORT int fsync(int fd) {
  // The state file's, or its folder's: nothing else of the daemon's is ever synced.
  return at_crash_point(true, [&] { return real<int(int)>("fsync")(fd); });
}

EXPORT int rename(const char* from, const char* to) {
  return at_crash_point(is_state(from), [&] { return real<int(const char*, const char*)>("rename")(from, to); });
}

EXPORT int unlink(const char* path) {
  return at_crash_point(is_state(path), [&] { return real<int(const char*)>("unlink")(path); });
}

// The emulated NVML sets a clock by a message to the emulator. It returns when the call would.
EXPORT ssize_t sendmsg(int fd, const msghdr* message, int flags) {
  bool sets = false;
  if (message->msg_iovlen > 0 && message->msg_iov[0].iov_len == sizeof(powerccl::physics::SetLockedClocks)) {
    powerccl::physics::Header header;
    std::memcpy(&header, message->msg_iov[0].iov_base, sizeof header);
    sets = header.type == static_cast<uint32_t>(powerccl::physics::Message::kSetLockedClocks);
  }
  return at_crash_point(sets, [&] { return real<ssize_t(int, const msghdr*, int)>("sendmsg")(fd, message, flags); });
}
