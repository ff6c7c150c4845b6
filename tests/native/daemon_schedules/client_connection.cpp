// SPDX-License-Identifier: Apache-2.0
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cerrno>
#include <cstdarg>
#include <cstdio>
#include <cstring>

#include "client_send.h"

namespace powerccl::leases {

bool Client::connect() {
  socket_ = connect_to(shared_->socket);
  if (socket_ < 0) return false;
  ucred daemon{};
  socklen_t length = sizeof daemon;
  getsockopt(socket_, SOL_SOCKET, SO_PEERCRED, &daemon, &length);
  life_ = static_cast<uint32_t>(daemon.pid);
  doomed_ = false;
  last_.clear();
  send(make_message<powerccl_lease_hello>(POWERCCL_LEASE_HELLO, 0), 0);
  take_answers();
  return socket_ >= 0;
}

void Client::disconnect() {
  if (socket_ < 0) return;
  for (uint16_t gpu = 0; gpu < shared_->gpus; ++gpu)
    if (slot_->held[gpu].lease.load() != 0) log(What::kLeaving, gpu);
  close(socket_);
  socket_ = -1;
  forget_all();
}

void Client::forget_all() {
  for (Held& held : slot_->held) held.lease.store(0);
  asked_.clear();
}

void Client::send_bytes(const void* bytes, size_t length) {
  if (socket_ < 0) return;
  ssize_t sent;
  do {
    sent = ::send(socket_, bytes, length, MSG_NOSIGNAL);
  } while (sent < 0 && errno == EINTR);
  // What the daemon had said before it went may still be read.
  if (sent < 0) take(0);
}

void Client::take(int wait_ms) {
  if (socket_ < 0) return;
  if (wait_ms > 0) {
    pollfd entry{socket_, POLLIN, 0};
    const int64_t begin_ns = now_ns();
    if (poll(&entry, 1, wait_ms) <= 0) return wait_longer(wait_ms * 1000, (now_ns() - begin_ns) / 1000);
  }
  while (socket_ >= 0) {
    alignas(8) char bytes[8192];
    const ssize_t length = recv(socket_, bytes, sizeof bytes, MSG_DONTWAIT);
    if (length < 0 && errno == EINTR) continue;
    if (length < 0 && errno == EAGAIN) return;
    if (length <= 0) return disconnect();
    understand(bytes, static_cast<size_t>(length));
  }
}

void Client::take_answers() {
  while (socket_ >= 0 && !asked_.empty() && !slot_->faulty.load()) take(20);
}

void Client::wait_longer(int64_t asked_us, int64_t took_us) {
  if (asked_.empty() || shared_->ailing.load()) return;
  const auto& [serial, asked] = *asked_.begin();
  if (serial != awaited_) patience_ = Patience(kAnswerPatienceMs);
  awaited_ = serial;
  patience_.spend(asked_us, took_us);
  if (patience_.over())
    fault("request %llu of type %u has had no answer for %lld ms", static_cast<unsigned long long>(serial), asked.type,
          static_cast<long long>((now_ns() - asked.sent_ns) / 1'000'000));
}

void Client::understand(const char* bytes, size_t length) {
  powerccl_lease_header header;
  std::memcpy(&header, bytes, sizeof header);
  if (length < sizeof header || header.size != length || header.magic != POWERCCL_LEASE_MAGIC)
    return fault("the daemon sent %zu bytes that are no message", length);
  if (header.type == POWERCCL_LEASE_DEVICE || header.type == POWERCCL_LEASE_CHUNK) return;
  if (header.type == POWERCCL_LEASE_WELCOME) {
    asked_.erase(header.serial);
    return;
  }
  powerccl_lease_reply reply;
  if (length != sizeof reply) return fault("a message of type %u has %zu bytes", header.type, length);
  std::memcpy(&reply, bytes, sizeof reply);
  if (header.type == POWERCCL_LEASE_ENDED) {
    for (uint16_t gpu = 0; gpu < shared_->gpus; ++gpu) {
      if (reply.lease == 0 || slot_->held[gpu].lease.load() != reply.lease) continue;
      log(What::kEnded, gpu, reply.status);
      slot_->held[gpu].lease.store(0);
    }
    return;
  }
  if (header.type != POWERCCL_LEASE_REPLY || header.serial == 0) return;
  const auto found = asked_.find(header.serial);
  if (found == asked_.end())
    return fault("an answer to request %llu, which was not asked or has been answered",
                 static_cast<unsigned long long>(header.serial));
  const Asked asked = found->second;
  asked_.erase(found);
  slot_->answers.fetch_add(1);
  const int64_t waited_ns = now_ns() - asked.sent_ns;
  if (waited_ns > slot_->longest_wait_ns.load()) slot_->longest_wait_ns.store(waited_ns);
  understand_reply(reply, asked);
}

void Client::understand_reply(const powerccl_lease_reply& reply, const Asked& asked) {
  if (asked.of_others && reply.status != POWERCCL_LEASE_NONE)
    return fault("a request of type %u for another session's lease was answered with %d", asked.type, reply.status);
  if (asked.type == POWERCCL_LEASE_REVOKE || asked.type == POWERCCL_LEASE_RESTORE)
    return log(What::kRevoked, asked.gpu, static_cast<int32_t>(reply.header.serial));
  Held& held = slot_->held[asked.gpu];
  if (asked.type == POWERCCL_LEASE_ACQUIRE && reply.status == POWERCCL_LEASE_OK) {
    if (reply.lease == 0) return fault("a lease without a number");
    if (doomed_) return;
    // Asked for again, and the answer may come when the lease has been given up behind the question.
    if (held.lease.load() == reply.lease || given_up_[asked.gpu] == reply.lease) return;
    log(What::kGranted, asked.gpu, asked.shares ? 1 : 0);
    held.shared.store(asked.shares);
    held.min_mhz.store(0);
    held.max_mhz.store(0);
    held.lease.store(reply.lease);
    return;
  }
  if (asked.type != POWERCCL_LEASE_SET || asked.of_others || held.lease.load() != asked.lease || asked.lease == 0)
    return;
  if (reply.status == POWERCCL_LEASE_OK) {
    const bool usual = reply.min_mhz == 0 && reply.max_mhz == 0;
    if (!usual &&
        (reply.min_mhz < shared_->lowest_mhz || reply.max_mhz > shared_->highest_mhz || reply.min_mhz > reply.max_mhz))
      return fault("set to %u to %u MHz, outside %u to %u MHz", reply.min_mhz, reply.max_mhz, shared_->lowest_mhz,
                   shared_->highest_mhz);
    held.min_mhz.store(reply.min_mhz);
    held.max_mhz.store(reply.max_mhz);
  } else if (reply.status > 0 && reply.status != 2 && reply.status != 3 && reply.status != 4) {
    // The driver failed and nobody knows what it did: the daemon has to go back to usual. (2 to 4, invalid argument,
    // not supported and no permission: nothing was done.)
    held.min_mhz.store(0);
    held.max_mhz.store(0);
  }
}

void Client::log(What what, uint16_t gpu, int32_t detail) {
  const uint32_t at = slot_->events.load();
  if (at >= kMostEvents) return;
  slot_->event[at] = {now_ns(), life_, what, gpu, detail};
  slot_->events.store(at + 1);
}

void Client::fault(const char* format, ...) {
  if (slot_->faulty.load()) return;
  va_list arguments;
  va_start(arguments, format);
  vsnprintf(slot_->fault, sizeof slot_->fault, format, arguments);
  va_end(arguments);
  slot_->faulty.store(true);
}

}  // namespace powerccl::leases
