// SPDX-License-Identifier: Apache-2.0
#include "clock/lease_client.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>

#include "base/basics.h"
#include "base/log.h"
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

namespace {

constexpr uint64_t kMs = 1000000u;
constexpr uint64_t kNeverNs = 3600ull * 1000000000u;

// Of a daemon that is neither root nor this user, only a GPU is opened on its word.
bool may_open(const char* file, bool trusted) {
  constexpr char kGpuFiles[] = "/dev/nvidia";
  return trusted || (strncmp(file, kGpuFiles, sizeof(kGpuFiles) - 1) == 0 && strstr(file, "..") == nullptr);
}

}  // namespace

int LeaseClient::open(const LeaseTerms& terms, char* text, uint32_t text_size, const char** hint) {
  copy_text(run_, sizeof(run_), terms.run);
  // The daemon takes nothing else, and a run may have any name. python/powerccl/leases/protocol.py does the same.
  for (char* each = run_; *each != '\0'; ++each) {
    if (*each < ' ' || *each > '~') *each = '?';
  }
  copy_text(device_, sizeof(device_), terms.device);
  refused_ = 0;
  attempt_at_ns_ = 0;
  back_off_ns_ = kFirstBackOffNs;
  speaks_ = terms.speaks;
  debug_ = terms.debug;
  if (strlen(terms.socket_path) >= sizeof(socket_path_)) {
    copy_text(text, text_size, "the path of powerccld's socket is longer than 107 characters");
    *hint = "POWERCCL_LEASE_SOCKET: use a shorter path";
    return kNotReachable;
  }
  copy_text(socket_path_, sizeof(socket_path_), terms.socket_path);
  attempt(monotonic_ns() + kAttemptNs);
  if (refused_ != 0) {
    copy_text(text, text_size, text_);
    *hint = hint_;
    return refused_;
  }
  return 0;
}

int LeaseClient::set(uint32_t mhz) {
  LeaseMessage answer = {};
  limit_.asked(mhz, monotonic_ns());
  return request(POWERCCL_LEASE_SET, mhz, &answer);
}

uint64_t LeaseClient::delay_ns(uint32_t mhz) const {
  return lease_ != 0 ? limit_.delay_ns(mhz, monotonic_ns(), interval_ns_) : 0;
}

int LeaseClient::reset() {
  if (lease_ != 0) return set(0);
  limit_.asked(0, 0);
  return 0;  // undone with the lease
}

int LeaseClient::read(ClockPolicy::Reading* reading) {
  LeaseMessage answer = {};
  const int code = request(POWERCCL_LEASE_READ, 0, &answer);
  const powerccl_lease_reply& reply = answer.reply;
  if (code == 0) *reading = {reply.now_mhz, reply.limit_mw, reply.reasons};
  return code;
}

uint64_t LeaseClient::until_attempt_ns() const {
  if (refused_ != 0) return kNeverNs;
  const uint64_t now = monotonic_ns();
  return attempt_at_ns_ > now ? attempt_at_ns_ - now : 0;
}

uint64_t LeaseClient::tick() {
  uint64_t now = monotonic_ns();
  if (lease_ == 0) {
    if (until_attempt_ns() != 0) return until_attempt_ns();
    attempt(now + kAttemptNs);
    if (lease_ == 0) return until_attempt_ns();
    now = monotonic_ns();
  }
  // As many as a socket holds; one who says more has his turn again.
  LeaseMessage message = {};
  for (int heard = 0; heard < 64; ++heard) {
    const Heard what = hear(0, 0, &message);
    if (what == Heard::kLost) return until_attempt_ns();
    if (what == Heard::kNothing) break;
  }
  if (heartbeat_ns_ == 0) return kLookNs;
  if (unanswered_ns_ != 0 && now - unanswered_ns_ >= heartbeat_ns_) {
    lose(kSilent);
    return until_attempt_ns();
  }
  const uint64_t every_ns = heartbeat_ns_ / 3;
  if (now - sent_ns_ >= every_ns) {
    powerccl_lease_header heartbeat = {};
    const int error = connection_.send(&heartbeat, POWERCCL_LEASE_HEARTBEAT, sizeof(heartbeat));
    if (error != 0) {
      lose(error == EAGAIN ? kSilent : kGone);
      return until_attempt_ns();
    }
    sent_ns_ = now;
    if (unanswered_ns_ == 0) unanswered_ns_ = now;
  }
  const uint64_t left_ns = sent_ns_ + every_ns > now ? sent_ns_ + every_ns - now : 0;
  return left_ns < kLookNs ? left_ns : kLookNs;
}

void LeaseClient::close() {
  if (lease_ != 0) {
    powerccl_lease_set release = {};
    release.lease = lease_;
    // Closed with unread data, the socket would give the daemon an error before the release.
    const uint64_t deadline_ns = monotonic_ns() + kReleaseNs;
    LeaseMessage message = {};
    bool more = connection_.send(&release.header, POWERCCL_LEASE_RELEASE, sizeof(release)) == 0;
    while (more) {
      more = connection_.receive(&message, deadline_ns) == LeaseConnection::Got::kMessage &&
             message.header.serial != release.header.serial && monotonic_ns() < deadline_ns;
    }
  }
  lease_ = 0;
  connection_.close();
}

int LeaseClient::attempt(uint64_t deadline_ns) {
  const int error = connection_.open(socket_path_);
  if (error != 0) {
    char reason[64];
    // While a daemon starts, its socket may for a moment refuse all users; before the first lease it is a refusal.
    int status = kNotReachable;
    if ((error == EACCES || error == EPERM) && attempt_at_ns_ == 0) status = POWERCCL_LEASE_NOT_ALLOWED;
    return lose(status, nullptr, error_text(error, reason, sizeof(reason)));
  }
  powerccl_lease_hello hello = {};
  copy_text(hello.run, sizeof(hello.run), run_);
  LeaseMessage answer = {};
  int code = ask(&hello.header, POWERCCL_LEASE_HELLO, sizeof(hello), -1, deadline_ns, &answer);
  if (code != 0) return code;
  if (answer.header.type == POWERCCL_LEASE_REPLY) {
    if (answer.reply.status == 0) return lose(kNonsense);
    return lose(answer.reply.status, &answer.reply);
  }
  if (answer.welcome.status != 0) return lose(answer.welcome.status);
  heartbeat_ns_ = answer.welcome.heartbeat_ms * kMs;
  interval_ns_ = answer.welcome.gpu_interval_ms * kMs;
  dry_ = (answer.welcome.flags & POWERCCL_LEASE_DRY) != 0;
  code = acquire(deadline_ns, &answer);
  if (code != 0) return code;
  lease_ = answer.reply.lease;
  if (answer.reply.interval_ms != 0) interval_ns_ = answer.reply.interval_ms * kMs;
  ++grants_;
  return 0;
}

int LeaseClient::acquire(uint64_t deadline_ns, LeaseMessage* answer) {
  powerccl_lease_acquire wanted = {};
  copy_text(wanted.device, sizeof(wanted.device), device_);
  wanted.flags = POWERCCL_LEASE_SHARED;  // another job of the same user may be on it
  int code = ask(&wanted.header, POWERCCL_LEASE_ACQUIRE, sizeof(wanted), -1, deadline_ns, answer);
  if (code != 0) return code;
  if (answer->header.type == POWERCCL_LEASE_REPLY && answer->reply.status == POWERCCL_LEASE_SHOW_FILE) {
    const char* name = answer->reply.text;
    if (!may_open(name, connection_.trusted())) return lose(kNoFile, &answer->reply, "not a GPU's");
    const int file = ::open(name, O_RDWR | O_CLOEXEC | O_NOCTTY);
    if (file < 0) {
      char reason[64];
      return lose(kNoFile, &answer->reply, error_text(errno, reason, sizeof(reason)));
    }
    code = ask(&wanted.header, POWERCCL_LEASE_ACQUIRE, sizeof(wanted), file, deadline_ns, answer);
    ::close(file);
    if (code != 0) return code;
  }
  if (answer->header.type != POWERCCL_LEASE_REPLY || answer->reply.status == POWERCCL_LEASE_SHOW_FILE) {
    return lose(kNonsense);
  }
  if (answer->reply.status != 0) return lose(answer->reply.status, &answer->reply);
  return answer->reply.lease != 0 ? 0 : lose(kNonsense);
}

int LeaseClient::request(powerccl_lease_type type, uint32_t mhz, LeaseMessage* answer) {
  if (lease_ == 0) return refused_ != 0 ? refused_ : kClockNotNow;
  powerccl_lease_set wanted = {};
  wanted.lease = lease_;
  wanted.min_mhz = wanted.max_mhz = mhz;
  const int code = ask(&wanted.header, type, sizeof(wanted), -1, monotonic_ns() + kAnswerNs, answer);
  if (code != 0) return code;
  if (answer->header.type != POWERCCL_LEASE_REPLY) return lose(kNonsense);
  const int status = answer->reply.status;
  // It follows how many share the device.
  if (status == POWERCCL_LEASE_OK && answer->reply.interval_ms != 0) interval_ns_ = answer->reply.interval_ms * kMs;
  if (status == POWERCCL_LEASE_OK || status == POWERCCL_LEASE_SUPERSEDED) return 0;
  if (status < 0) return lose(status, &answer->reply);
  set_text(status, &answer->reply, nullptr);
  return status;
}

int LeaseClient::ask(powerccl_lease_header* message, powerccl_lease_type type, uint32_t size, int file,
                     uint64_t deadline_ns, LeaseMessage* answer) {
  const int error = connection_.send(message, type, size, file);
  if (error != 0) return lose(error == EAGAIN ? kSilent : kGone);
  sent_ns_ = monotonic_ns();
  if (unanswered_ns_ == 0) unanswered_ns_ = sent_ns_;
  for (;;) {
    switch (hear(message->serial, deadline_ns, answer)) {
      case Heard::kAnswer:
        return 0;
      case Heard::kLost:
        return refused_ != 0 ? refused_ : kClockNotNow;
      case Heard::kNothing:
        return lose(kSilent);
      case Heard::kOther:
        // One who talks without end does not answer either.
        if (monotonic_ns() >= deadline_ns) return lose(kSilent);
    }
  }
}

LeaseClient::Heard LeaseClient::hear(uint64_t serial, uint64_t deadline_ns, LeaseMessage* message) {
  switch (connection_.receive(message, deadline_ns)) {
    case LeaseConnection::Got::kNothing:
      return Heard::kNothing;
    case LeaseConnection::Got::kGone:
      lose(kGone);
      return Heard::kLost;
    case LeaseConnection::Got::kNonsense:
      lose(kNonsense);
      return Heard::kLost;
    case LeaseConnection::Got::kOtherVersion:
      lose(kOtherVersion);
      return Heard::kLost;
    case LeaseConnection::Got::kMessage:
      break;
  }
  unanswered_ns_ = 0;
  if (message->header.type == POWERCCL_LEASE_SETTLED) return Heard::kOther;
  if (message->header.type == POWERCCL_LEASE_ENDED) {
    if (lease_ == 0 || message->reply.lease != lease_) return Heard::kOther;
    int status = message->reply.status;
    if (status == 0) status = POWERCCL_LEASE_NONE;
    lose(status, &message->reply);
    return Heard::kLost;
  }
  // Of a daemon that has no place for this process, or could not read what it said.
  if (message->header.serial == 0 && message->header.type == POWERCCL_LEASE_REPLY && message->reply.status < 0) {
    lose(message->reply.status, &message->reply);
    return Heard::kLost;
  }
  // An answer to nothing that was asked.
  if (message->header.serial == 0 || message->header.serial > connection_.serial()) {
    lose(kNonsense);
    return Heard::kLost;
  }
  if (lease_ != 0 && message->header.type == POWERCCL_LEASE_REPLY && message->reply.status == 0) works();
  return message->header.serial == serial ? Heard::kAnswer : Heard::kOther;
}

}  // namespace powerccl
