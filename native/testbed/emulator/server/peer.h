// SPDX-License-Identifier: Apache-2.0
// One connection of a client: messages and descriptors both ways, never waiting.
#pragma once
#include <deque>
#include <span>
#include <utility>
#include <vector>

#include "emulator/messages.h"
#include "physics/engine.h"

namespace powerccl::emulator {

template <typename T>
std::vector<std::byte> bytes_of(const T& value) {
  const auto* data = reinterpret_cast<const std::byte*>(&value);
  return {data, data + sizeof(T)};
}

// Null: it is too short for that.
template <typename T>
const T* read_as(const std::vector<std::byte>& message) {
  return message.size() >= sizeof(T) ? reinterpret_cast<const T*>(message.data()) : nullptr;
}

class Peer {
 public:
  // Owns the socket, which `epoll` watches.
  Peer(int fd, int epoll) : fd_(fd), epoll_(epoll) {}
  ~Peer();
  Peer(const Peer&) = delete;
  Peer& operator=(const Peer&) = delete;

  enum class Got { kMessage, kNothing, kEnd };
  // The next message, read through `buffer` of kMaxMessageBytes, and the first descriptor that came with it, the
  // caller's own; -1: none. Whatever is no message of ours counts as the peer's end.
  Got receive(std::span<std::byte> buffer, std::vector<std::byte>* message, int* attached);
  // Sends immediately, or when the socket has room again. The descriptors are closed once they are sent.
  void send(std::vector<std::byte> message, std::vector<int> descriptors = {});
  void flush();

  int fd() const { return fd_; }
  Role role = Role::kCuda;
  ClientId client = 0;  // 0: has not said hello

 private:
  int fd_;
  int epoll_;
  std::deque<std::pair<std::vector<std::byte>, std::vector<int>>> unsent_;
};

}  // namespace powerccl::emulator
