// SPDX-License-Identifier: Apache-2.0
#include "clock/lease_connection.h"

#include <errno.h>
#include <poll.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>

#include "base/basics.h"
#include "libc/calls.h"

namespace powerccl {
namespace {

bool terminated(const char* text, size_t size) {
  return memchr(text, '\0', size) != nullptr;
}

LeaseConnection::Got check(const LeaseMessage& message, size_t length) {
  using Got = LeaseConnection::Got;
  if (length < sizeof(message.header) || message.header.magic != POWERCCL_LEASE_MAGIC) return Got::kNonsense;
  if (message.header.version != POWERCCL_LEASE_VERSION) return Got::kOtherVersion;
  if (message.header.size != length) return Got::kNonsense;
  switch (message.header.type) {
    case POWERCCL_LEASE_WELCOME:
      return length == sizeof(message.welcome) && terminated(message.welcome.server, sizeof(message.welcome.server))
                 ? Got::kMessage
                 : Got::kNonsense;
    case POWERCCL_LEASE_REPLY:
    case POWERCCL_LEASE_ENDED:
    case POWERCCL_LEASE_SETTLED:
      return length == sizeof(message.reply) && terminated(message.reply.text, sizeof(message.reply.text))
                 ? Got::kMessage
                 : Got::kNonsense;
    default:
      return Got::kNonsense;
  }
}

}  // namespace

int LeaseConnection::open(const char* path) {
  close();
  sockaddr_un address = {};
  address.sun_family = AF_UNIX;
  if (strlen(path) >= sizeof(address.sun_path)) return ENAMETOOLONG;
  if (path[0] == '\0') return ENOENT;  // to the kernel it would be a name in another space
  copy_text(address.sun_path, sizeof(address.sun_path), path);
  const int descriptor = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
  if (descriptor < 0) return errno;
  if (connect(descriptor, reinterpret_cast<const sockaddr*>(&address), sizeof(address)) != 0) {
    const int error = errno;
    ::close(descriptor);
    return error;
  }
  struct stat status;
  if (status_of_file(descriptor, &status) != 0) {
    const int error = errno;
    ::close(descriptor);
    return error;
  }
  inode_ = status.st_ino;
  serial_ = 0;
  descriptor_ = descriptor;
  return 0;
}

bool LeaseConnection::is_ours() const {
  struct stat status;
  return descriptor_ >= 0 && status_of_file(descriptor_, &status) == 0 && S_ISSOCK(status.st_mode) &&
         status.st_ino == inode_;
}

int LeaseConnection::send(powerccl_lease_header* message, powerccl_lease_type type, uint32_t size, int file) {
  message->magic = POWERCCL_LEASE_MAGIC;
  message->version = POWERCCL_LEASE_VERSION;
  message->type = static_cast<uint16_t>(type);
  message->size = size;
  message->serial = ++serial_;
  iovec part = {message, size};
  msghdr envelope = {};
  envelope.msg_iov = &part;
  envelope.msg_iovlen = 1;
  alignas(cmsghdr) char control[CMSG_SPACE(sizeof(int))] = {};
  if (file >= 0) {
    envelope.msg_control = control;
    envelope.msg_controllen = sizeof(control);
    cmsghdr* attached = CMSG_FIRSTHDR(&envelope);
    attached->cmsg_level = SOL_SOCKET;
    attached->cmsg_type = SCM_RIGHTS;
    attached->cmsg_len = CMSG_LEN(sizeof(int));
    memcpy(CMSG_DATA(attached), &file, sizeof(file));
  }
  if (!is_ours()) return EBADF;
  for (;;) {
    if (sendmsg(descriptor_, &envelope, MSG_NOSIGNAL | MSG_DONTWAIT) >= 0) return 0;
    if (errno != EINTR) return errno;
  }
}

LeaseConnection::Got LeaseConnection::receive(LeaseMessage* message, uint64_t deadline_ns) {
  for (;;) {
    if (!is_ours()) return Got::kGone;
    // MSG_TRUNC: the length that was sent, so that a message too long is not taken for its beginning. Files that came
    // along have nowhere to go and are closed by the kernel.
    const ssize_t length = recv(descriptor_, message, sizeof(*message), MSG_DONTWAIT | MSG_TRUNC);
    if (length == 0) return Got::kGone;
    if (length > 0) return check(*message, static_cast<size_t>(length));
    if (errno != EAGAIN && errno != EWOULDBLOCK && errno != EINTR) return Got::kGone;
    const uint64_t now = monotonic_ns();
    if (now >= deadline_ns) return Got::kNothing;
    const uint64_t left_ns = deadline_ns - now;
    timespec left{static_cast<time_t>(left_ns / 1000000000u), static_cast<long>(left_ns % 1000000000u)};
    pollfd waited = {descriptor_, POLLIN, 0};
    // By number: libfaketime changes how long libc's function waits.
    syscall(SYS_ppoll, &waited, 1, &left, nullptr, 0);
  }
}

bool LeaseConnection::trusted() const {
  ucred peer = {};
  socklen_t size = sizeof(peer);
  if (!is_ours()) return false;
  if (getsockopt(descriptor_, SOL_SOCKET, SO_PEERCRED, &peer, &size) != 0) return false;
  return peer.uid == 0 || peer.uid == geteuid();
}

void LeaseConnection::close() {
  if (is_ours()) shutdown(descriptor_, SHUT_RDWR);
  forget();
}

void LeaseConnection::forget() {
  if (is_ours()) ::close(descriptor_);
  descriptor_ = -1;
}

}  // namespace powerccl
