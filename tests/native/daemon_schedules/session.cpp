// SPDX-License-Identifier: Apache-2.0
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "schedule.h"

namespace powerccl::leases {

bool Session::connect() {
  socket_ = connect_to(machine_->socket());
  if (socket_ < 0) return false;
  doomed_ = false;
  last_.clear();
  auto hello = make_message<powerccl_lease_hello>(POWERCCL_LEASE_HELLO, 0);
  send(&hello, sizeof hello, {});
  return connected();
}

void Session::disconnect() {
  if (socket_ >= 0) close(socket_);
  socket_ = -1;
  for (Held& held : held_) held = {};
  asked_.clear();
}

int Session::holding() const {
  return static_cast<int>(std::count_if(held_.begin(), held_.end(), [](const Held& held) { return held.lease != 0; }));
}

void Session::send(void* message, size_t length, Asked asked) {
  if (socket_ < 0) return;
  powerccl_lease_header header;
  std::memcpy(&header, message, sizeof header);
  header.serial = ++serial_;
  std::memcpy(message, &header, sizeof header);
  asked.type = header.type;
  const auto* bytes = static_cast<const char*>(message);
  last_.assign(bytes, bytes + length);
  spoke_ns = now_ns();
  // A daemon that reads late for the sender's rate leaves the socket full: then nothing was asked.
  if (::send(socket_, message, length, MSG_NOSIGNAL | MSG_DONTWAIT) == static_cast<ssize_t>(length))
    asked_[serial_] = asked;
  else if (errno != EAGAIN)
    disconnect();
}

void Session::ask(uint16_t type) {
  auto message = make_message<powerccl_lease_header>(type, 0);
  send(&message, sizeof message, {});
}

void Session::ask_for(uint16_t type, uint32_t gpu, bool shares) {
  auto message = make_message<powerccl_lease_acquire>(type, 0);
  if (gpu < machine_->gpus()) std::strncpy(message.device, machine_->uuid(gpu).c_str(), sizeof message.device - 1);
  message.flags = shares ? POWERCCL_LEASE_SHARED : 0;
  send(&message, sizeof message, {0, gpu, 0, false, shares});
}

void Session::ask_about(uint16_t type, uint32_t gpu, uint64_t lease, const Range& wish) {
  auto message = make_message<powerccl_lease_set>(type, 0);
  message.lease = lease;
  message.min_mhz = wish.min_mhz;
  message.max_mhz = wish.max_mhz;
  const bool of_others = lease == 0 || held_[gpu].lease != lease;
  if (type == POWERCCL_LEASE_RELEASE && !of_others) {
    held_[gpu] = {};
    given_up_[gpu] = lease;
  }
  send(&message, sizeof message, {0, gpu, lease, of_others});
}

void Session::repeat() {
  if (connected() && !last_.empty() && asked_.empty())
    ::send(socket_, last_.data(), last_.size(), MSG_NOSIGNAL | MSG_DONTWAIT);
}

void Session::talk_nonsense(const void* bytes, size_t length) {
  if (socket_ < 0) return;
  if (::send(socket_, bytes, length, MSG_NOSIGNAL | MSG_DONTWAIT) != static_cast<ssize_t>(length)) return disconnect();
  doomed_ = true;
  for (Held& held : held_) held = {};
}

bool Session::take() {
  bool any = false;
  while (socket_ >= 0) {
    alignas(8) char bytes[8192];
    const ssize_t length = recv(socket_, bytes, sizeof bytes, MSG_DONTWAIT);
    if (length < 0 && errno == EINTR) continue;
    if (length < 0 && errno == EAGAIN) break;
    any = true;
    if (length <= 0)
      disconnect();
    else
      understand(bytes, static_cast<size_t>(length));
  }
  return any;
}

void Session::understand(const char* bytes, size_t length) {
  powerccl_lease_header header{};
  std::memcpy(&header, bytes, std::min(length, sizeof header));
  if (length < sizeof header || header.size != length || header.magic != POWERCCL_LEASE_MAGIC)
    return faulty("the daemon sent " + std::to_string(length) + " bytes that are no message");
  if (header.type == POWERCCL_LEASE_DEVICE || header.type == POWERCCL_LEASE_TOTALS) return;
  if (header.type == POWERCCL_LEASE_WELCOME) {
    asked_.erase(header.serial);
    return;
  }
  powerccl_lease_reply reply;
  if (length != sizeof reply) return faulty("a message of type " + std::to_string(header.type) + " is too long");
  std::memcpy(&reply, bytes, sizeof reply);
  if (header.type == POWERCCL_LEASE_ENDED) {
    for (Held& held : held_)
      if (reply.lease != 0 && held.lease == reply.lease) held = {};
    return;
  }
  if (header.type != POWERCCL_LEASE_REPLY || header.serial == 0) return;
  const auto found = asked_.find(header.serial);
  if (found == asked_.end())
    return faulty("request " + std::to_string(header.serial) + " was not asked, or is answered twice");
  const Asked asked = found->second;
  asked_.erase(found);
  if (!doomed_) understand_reply(reply, asked);
}

void Session::understand_reply(const powerccl_lease_reply& reply, const Asked& asked) {
  if (asked.of_others && reply.status != POWERCCL_LEASE_NONE)
    return faulty("a request of type " + std::to_string(asked.type) + " for another's lease was answered with " +
                  std::to_string(reply.status));
  if (asked.type == POWERCCL_LEASE_ACQUIRE && reply.status == POWERCCL_LEASE_OK) {
    Held& held = held_[asked.gpu];
    if (reply.lease == 0) return faulty("a lease without a number");
    // Asked for again, and the answer may come when the lease has been given up behind the question.
    if (held.lease == reply.lease || given_up_[asked.gpu] == reply.lease) return;
    held = {reply.lease, asked.shares, {}};
    return;
  }
  if (asked.type != POWERCCL_LEASE_SET || asked.of_others || held_[asked.gpu].lease != asked.lease) return;
  const Range told{reply.min_mhz, reply.max_mhz};
  if (reply.status == POWERCCL_LEASE_OK) {
    const bool within =
        allowed_.min_mhz <= told.min_mhz && told.min_mhz <= told.max_mhz && told.max_mhz <= allowed_.max_mhz;
    if (!told.usual() && !within) return faulty("set to " + text_of(told) + ", outside " + text_of(allowed_));
    held_[asked.gpu].told = told;
  } else if (reply.status > 0 && reply.status != 2 && reply.status != 3 && reply.status != 4) {
    // The driver failed and nobody knows what it did: the daemon has to go back to usual. (2 to 4, invalid argument,
    // not supported and no permission: nothing was done.)
    held_[asked.gpu].told = {};
  }
}

void Session::faulty(const std::string& text) {
  if (fault_.empty()) fault_ = text;
}

}  // namespace powerccl::leases
