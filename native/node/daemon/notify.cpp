// SPDX-License-Identifier: Apache-2.0
#include "daemon/notify.h"

#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <cstddef>
#include <cstdlib>
#include <cstring>

namespace powerccl::daemon {

void notify(const char* state) {
  const char* path = std::getenv("NOTIFY_SOCKET");
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  if (path == nullptr || (path[0] != '/' && path[0] != '@') || std::strlen(path) >= sizeof address.sun_path) return;
  std::memcpy(address.sun_path, path, std::strlen(path));
  if (address.sun_path[0] == '@') address.sun_path[0] = '\0';  // an abstract name
  const int socket = ::socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0);
  if (socket < 0) return;
  const auto length = static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + std::strlen(path));
  sendto(socket, state, std::strlen(state), MSG_NOSIGNAL | MSG_DONTWAIT, reinterpret_cast<sockaddr*>(&address), length);
  close(socket);
}

int64_t watchdog_interval_ns() {
  const char* microseconds = std::getenv("WATCHDOG_USEC");
  const char* pid = std::getenv("WATCHDOG_PID");
  if (microseconds == nullptr || (pid != nullptr && std::strtol(pid, nullptr, 10) != getpid())) return 0;
  const long long interval = std::strtoll(microseconds, nullptr, 10);
  return interval > 0 ? interval * 1000 / 2 : 0;
}

}  // namespace powerccl::daemon
