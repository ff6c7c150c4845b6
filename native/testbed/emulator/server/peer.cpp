// SPDX-License-Identifier: Apache-2.0
#include "emulator/server/peer.h"

#include <sys/epoll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

namespace powerccl::emulator {
namespace {

// The first descriptor that a message brought; any others are closed.
int take_descriptor(msghdr& header) {
  int first = -1;
  for (cmsghdr* item = CMSG_FIRSTHDR(&header); item != nullptr; item = CMSG_NXTHDR(&header, item)) {
    if (item->cmsg_level != SOL_SOCKET || item->cmsg_type != SCM_RIGHTS) continue;
    const size_t count = (item->cmsg_len - CMSG_LEN(0)) / sizeof(int);
    for (size_t i = 0; i < count; ++i) {
      int descriptor;
      memcpy(&descriptor, CMSG_DATA(item) + i * sizeof(int), sizeof descriptor);
      if (first < 0)
        first = descriptor;
      else
        close(descriptor);
    }
  }
  return first;
}

}  // namespace

Peer::~Peer() {
  for (auto& [message, descriptors] : unsent_)
    for (const int descriptor : descriptors) close(descriptor);
  epoll_ctl(epoll_, EPOLL_CTL_DEL, fd_, nullptr);
  close(fd_);
}

Peer::Got Peer::receive(std::span<std::byte> buffer, std::vector<std::byte>* message, int* attached) {
  iovec part{buffer.data(), buffer.size()};
  alignas(cmsghdr) char control[CMSG_SPACE(sizeof(int) * 4)];
  msghdr header{};
  header.msg_iov = &part;
  header.msg_iovlen = 1;
  header.msg_control = control;
  header.msg_controllen = sizeof control;
  const ssize_t got = recvmsg(fd_, &header, MSG_CMSG_CLOEXEC);
  if (got < 0 && (errno == EAGAIN || errno == EINTR)) return Got::kNothing;
  if (got <= 0) return Got::kEnd;
  *attached = take_descriptor(header);
  message->assign(buffer.begin(), buffer.begin() + got);
  const Header* head = read_as<Header>(*message);
  if (head != nullptr && head->bytes == message->size()) return Got::kMessage;
  if (*attached >= 0) close(*attached);
  return Got::kEnd;
}

void Peer::send(std::vector<std::byte> message, std::vector<int> descriptors) {
  unsent_.emplace_back(std::move(message), std::move(descriptors));
  flush();
}

void Peer::flush() {
  while (!unsent_.empty()) {
    auto& [message, descriptors] = unsent_.front();
    iovec part{message.data(), message.size()};
    alignas(cmsghdr) char control[CMSG_SPACE(sizeof(int) * 2)] = {};
    msghdr header{};
    header.msg_iov = &part;
    header.msg_iovlen = 1;
    if (!descriptors.empty()) {
      const size_t bytes = sizeof(int) * descriptors.size();
      header.msg_control = control;
      header.msg_controllen = CMSG_SPACE(bytes);
      cmsghdr* item = CMSG_FIRSTHDR(&header);
      item->cmsg_level = SOL_SOCKET;
      item->cmsg_type = SCM_RIGHTS;
      item->cmsg_len = CMSG_LEN(bytes);
      memcpy(CMSG_DATA(item), descriptors.data(), bytes);
    }
    if (sendmsg(fd_, &header, MSG_NOSIGNAL | MSG_DONTWAIT) < 0 && (errno == EAGAIN || errno == EINTR)) break;
    // Any other failure is the peer's end, and is seen when its end of file is read.
    for (const int descriptor : descriptors) close(descriptor);
    unsent_.pop_front();
  }
  epoll_event event{.events = EPOLLIN | (unsent_.empty() ? 0u : static_cast<uint32_t>(EPOLLOUT)), .data = {.fd = fd_}};
  epoll_ctl(epoll_, EPOLL_CTL_MOD, fd_, &event);
}

}  // namespace powerccl::emulator
