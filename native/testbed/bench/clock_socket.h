// SPDX-License-Identifier: Apache-2.0
// The process that holds leases on the GPUs sets clocks (`powerccl bench` or `powerccl profile`). The daemon restores
// the clocks when that process ends. The messages of this socket are in docs/reference/bench.md.
#pragma once
#include <fcntl.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cstdint>
#include <string>

namespace powerccl::bench {

class ClockSocket {
 public:
  // Takes over the inherited descriptor.
  explicit ClockSocket(int socket) : socket_(socket) { fcntl(socket_, F_SETFD, FD_CLOEXEC); }
  ~ClockSocket() { close(socket_); }
  ClockSocket(const ClockSocket&) = delete;
  ClockSocket& operator=(const ClockSocket&) = delete;

  // Sets the SM clock of all GPUs; 0 MHz is the default clock. Returns "", or why it could not be set.
  std::string set(int mhz) { return ask(mhz); }
  // Asks whether the clock that was set last still holds: "", or why not.
  std::string check() { return ask(-1); }

 private:
  std::string ask(int32_t request) {
    char answer[240] = "";
    if (send(socket_, &request, sizeof request, MSG_NOSIGNAL) != sizeof request ||
        recv(socket_, answer, sizeof answer, 0) != sizeof answer) {
      return "the process that sets clocks has died";
    }
    answer[sizeof answer - 1] = '\0';
    return answer;
  }

  int socket_;
};

}  // namespace powerccl::bench
