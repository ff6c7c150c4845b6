// SPDX-License-Identifier: Apache-2.0
#include "bench/clock_guard.h"

#include <fcntl.h>
#include <signal.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <memory>
#include <vector>

#include "bench/nvml_api.h"

namespace powerccl::bench {
namespace {

constexpr int32_t kCheck = -1;

struct Reply {
  char text[240];  // empty: done
};

std::string set_all(const NvmlApi& nvml, const std::vector<nvmlDevice_t>& devices, int mhz) {
  std::string problem;
  for (const nvmlDevice_t device : devices) {
    if (device == nullptr) {
      problem = "NVML does not know one of the GPUs";
      continue;
    }
    const auto clock = static_cast<unsigned int>(mhz);
    const nvmlReturn_t result =
        mhz == 0 ? nvml.reset_locked_clocks(device) : nvml.set_locked_clocks(device, clock, clock);
    if (result != NVML_SUCCESS) problem = nvml.text(result);
  }
  return problem;
}

[[noreturn]] void serve(int socket, const Board& board, bool consent) {
  // The parent decides when it is over; a terminal's Ctrl-C reaches it as well, and it closes the socket.
  for (const int number : {SIGINT, SIGTERM, SIGHUP, SIGPIPE}) signal(number, SIG_IGN);
  std::unique_ptr<NvmlApi> nvml;
  std::vector<nvmlDevice_t> devices;
  std::string problem;
  bool locked = false;
  int32_t mhz = 0;
  while (recv(socket, &mhz, sizeof mhz, 0) == sizeof mhz) {
    if (mhz == kCheck) {  // nothing undoes a clock while this process lives
      const Reply holds{};
      if (send(socket, &holds, sizeof holds, MSG_NOSIGNAL) < 0) break;
      continue;
    }
    if (nvml == nullptr && problem.empty()) {
      nvml = NvmlApi::load(problem);
      for (int rank = 0; nvml != nullptr && rank < board.ranks(); ++rank) {
        devices.push_back(nvml->find(board.about[rank].uuid, board.about[rank].pci));
      }
      if (nvml != nullptr && (nvml->set_locked_clocks == nullptr || nvml->reset_locked_clocks == nullptr)) {
        problem = "this NVML cannot lock clocks";
      } else if (nvml != nullptr && !nvml->emulated && !consent) {
        problem = "changing a real GPU's clock takes --set-clocks";
      }
    }
    std::string said = problem;
    if (said.empty()) {
      locked = locked || mhz != 0;  // before the driver is asked: half of the GPUs may have been set
      said = set_all(*nvml, devices, mhz);
      if (mhz == 0 && said.empty()) locked = false;
    }
    Reply reply{};
    std::strncpy(reply.text, said.c_str(), sizeof reply.text - 1);
    if (send(socket, &reply, sizeof reply, MSG_NOSIGNAL) < 0) break;
  }
  if (locked) set_all(*nvml, devices, 0);
  _exit(0);
}

}  // namespace

ClockGuard::ClockGuard(const Board& board, bool consent) {
  int ends[2];
  if (socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, ends) != 0) return;
  child_ = fork();
  if (child_ == 0) {
    close(ends[0]);
    setsid();
    serve(ends[1], board, consent);
  }
  close(ends[1]);
  socket_ = ends[0];
}

ClockGuard::ClockGuard(int socket) : socket_(socket) {
  fcntl(socket_, F_SETFD, FD_CLOEXEC);
}

ClockGuard::~ClockGuard() {
  if (socket_ >= 0) close(socket_);
  while (child_ > 0 && waitpid(child_, nullptr, 0) < 0 && errno == EINTR) {
  }
}

std::string ClockGuard::set(int mhz) {
  return ask(mhz);
}

std::string ClockGuard::check() {
  return ask(kCheck);
}

std::string ClockGuard::ask(int32_t request) {
  Reply reply{};
  if (socket_ < 0 || send(socket_, &request, sizeof request, MSG_NOSIGNAL) != sizeof request ||
      recv(socket_, &reply, sizeof reply, 0) != sizeof reply) {
    return "the process that sets clocks has died";
  }
  return reply.text;
}

}  // namespace powerccl::bench
