// SPDX-License-Identifier: Apache-2.0
// What the server does for each request, after it is known to be its peer's own and well formed.
#include <algorithm>
#include <utility>

#include "daemon/clock.h"
#include "daemon/log.h"
#include "daemon/server.h"
#include "daemon/tags.h"

namespace powerccl::daemon {
namespace {

constexpr size_t kMostBans = 4096;  // revoked processes that are remembered; the oldest is forgotten

constexpr char kVersion[] = "powerccld " POWERCCL_VERSION;

}  // namespace

void Server::refuse(SessionId id, uint64_t serial, int32_t status, const std::string& text) {
  Answer answer;
  answer.status = status;
  answer.text = text;
  reply(id, serial, answer);
}

void Server::serve_request(SessionId id, Session* session, const Received& received, int64_t now) {
  const Request& request = received.request;
  if (request.serial <= session->last_serial) {
    ++tally_.replayed;  // said before: no effect, no answer
    ++session->bad;
    return;
  }
  ++tally_.requests;
  session->last_serial = request.serial;
  session->heard_ns = now;
  if (session->greeted == (request.type == POWERCCL_LEASE_HELLO)) {
    ++session->bad;
    return refuse(id, request.serial, POWERCCL_LEASE_BAD_MESSAGE,
                  "hello must be the first message, and the only hello");
  }
  const bool only_for_admins = request.type == POWERCCL_LEASE_RESTORE || request.type == POWERCCL_LEASE_DRAIN;
  if (only_for_admins && !session->admin)
    return refuse(id, request.serial, POWERCCL_LEASE_NOT_ALLOWED, "that is for administrators");
  switch (request.type) {
    case POWERCCL_LEASE_HELLO:
      return greet(id, session, request);
    case POWERCCL_LEASE_ACQUIRE:
      return acquire(id, *session, request, received.file.get(), now);
    case POWERCCL_LEASE_SET:
      return table_.set(id, request.serial, request.lease, request.min_mhz, request.max_mhz, now);
    case POWERCCL_LEASE_READ:
      return table_.read(id, request.serial, request.lease);
    case POWERCCL_LEASE_RELEASE:
      table_.release(id, request.serial, request.lease, now);
      session->leases = table_.holds_any(id);
      return;
    case POWERCCL_LEASE_STATUS:
      return query_status(id, session, request.serial, now);
    case POWERCCL_LEASE_REVOKE:
      return revoke(id, *session, request, now);
    case POWERCCL_LEASE_RESTORE:
      return restore(id, *session, request, now);
    case POWERCCL_LEASE_DRAIN:
      table_.draining = request.on;
      log_for(session->connection->peer().uid, Topic::kLeases, kInfo, "user %u has leases %s",
              session->connection->peer().uid, request.on ? "drained" : "granted again");
      return reply(id, request.serial, Answer{});
    default:  // a heartbeat
      return reply(id, request.serial, Answer{});
  }
}

void Server::greet(SessionId id, Session* session, const Request& request) {
  session->greeted = true;
  session->run = request.run;
  session->admin = may_administer(session->connection->peer(), settings_.config);
  powerccl_lease_welcome welcome{};
  welcome.flags = flag_if(settings_.dry, POWERCCL_LEASE_DRY) | flag_if(settings_.emulated, POWERCCL_LEASE_EMULATED) |
                  flag_if(session->admin, POWERCCL_LEASE_ADMIN) | flag_if(table_.draining, POWERCCL_LEASE_DRAINED);
  welcome.heartbeat_ms = static_cast<uint32_t>(settings_.config.access_heartbeat_ms);
  welcome.gpu_interval_ms = static_cast<uint32_t>(settings_.config.gpu_interval_ms);
  put_text(welcome.server, sizeof welcome.server, kVersion);
  send(id, encode_welcome(request.serial, welcome));
}

void Server::acquire(SessionId id, const Session& session, const Request& request, int file, int64_t now) {
  const Peer& peer = session.connection->peer();
  if (stopping_) return refuse(id, request.serial, POWERCCL_LEASE_STOPPING, "powerccld is stopping");
  if (!may_lease(peer, settings_.config))
    return refuse(id, request.serial, POWERCCL_LEASE_NOT_ALLOWED,
                  "the administrator's list has neither user " + std::to_string(peer.uid) + " nor one of its groups");
  if (peer.pid <= 0)
    return refuse(id, request.serial, POWERCCL_LEASE_NOT_ALLOWED,
                  "powerccld cannot see this process: it must run in the host's pid namespace");
  const auto device = table_.find(request.device);
  if (!device) return refuse(id, request.serial, POWERCCL_LEASE_NO_DEVICE, "no device " + request.device + " to lease");
  const DeviceAbout& about = *table_.view(*device).about;
  if (!about.unfit.empty()) return refuse(id, request.serial, POWERCCL_LEASE_NO_DEVICE, about.unfit);
  if (banned(*device, peer))
    return refuse(id, request.serial, POWERCCL_LEASE_REVOKED, "its lease was revoked from this process");
  if (!about.file.empty()) {
    if (file < 0) return refuse(id, request.serial, POWERCCL_LEASE_SHOW_FILE, about.file);
    if (!shows_file(file, about.file))
      return refuse(id, request.serial, POWERCCL_LEASE_NOT_ALLOWED,
                    "the file that was passed is not " + about.file + " opened for reading and writing");
  }
  table_.acquire({id, peer.uid, static_cast<uint32_t>(peer.pid), session.run, request.shares}, request.serial, *device,
                 now);
  Session* holder = find(id);
  if (holder == nullptr || !table_.holds_any(id)) return;
  holder->leases = true;
  const int64_t due = now + settings_.config.access_heartbeat_ms * 1'000'000;
  heartbeats_due_ns_ = heartbeats_due_ns_ == 0 ? due : std::min(heartbeats_due_ns_, due);
}

std::vector<size_t> Server::named(const std::string& device) const {
  std::vector<size_t> devices;
  if (device.empty()) {
    for (size_t i = 0; i < table_.size(); ++i) devices.push_back(i);
  } else if (const auto number = table_.find(device)) {
    devices.push_back(*number);
  }
  return devices;
}

void Server::ban(size_t device, const Holder& holder) {
  const Session* session = find(holder.session);
  if (session == nullptr) return;
  const Peer& peer = session->connection->peer();
  if (bans_.size() >= kMostBans) bans_.pop_front();
  bans_.push_back({device, peer.pid, peer.start_ticks});
}

void Server::end_and_ban(size_t device, uid_t by, int64_t now) {
  for (const Holder& holder : table_.holders(device)) {
    log_for(by, Topic::kLeases, kInfo, "%s: revoked by user %u from process %u",
            table_.view(device).about->device.c_str(), by, holder.pid);
    ban(device, holder);
  }
  table_.end(device, Ending::kRevoked, now);
}

bool Server::banned(size_t device, const Peer& peer) const {
  return std::any_of(bans_.begin(), bans_.end(), [&](const Ban& ban) {
    return ban.device == device && ban.pid == peer.pid && ban.start_ticks == peer.start_ticks;
  });
}

void Server::revoke(SessionId id, const Session& session, const Request& request, int64_t now) {
  const uid_t uid = session.connection->peer().uid;
  const std::vector<size_t> devices = named(request.device);
  if (devices.empty()) return refuse(id, request.serial, POWERCCL_LEASE_NO_DEVICE, "no device " + request.device);
  bool any = false, foreign = false;
  for (const size_t device : devices) {
    const DeviceView view = table_.view(device);
    if (view.holder == nullptr) continue;
    // A user may revoke what is their own.
    if (!session.admin && view.holder->uid != uid) {
      foreign = true;
      continue;
    }
    any = true;
    end_and_ban(device, uid, now);
  }
  if (!any && foreign && !request.device.empty())
    return refuse(id, request.serial, POWERCCL_LEASE_NOT_ALLOWED,
                  "the lease is another user's, and only administrators may revoke it");
  reply(id, request.serial, Answer{});
}

void Server::restore(SessionId id, const Session& session, const Request& request, int64_t now) {
  const std::vector<size_t> devices = named(request.device);
  if (devices.empty()) return refuse(id, request.serial, POWERCCL_LEASE_NO_DEVICE, "no device " + request.device);
  for (const size_t device : devices) {
    end_and_ban(device, session.connection->peer().uid, now);
    table_.restore(device, false, now);
  }
  const uid_t uid = session.connection->peer().uid;
  log_for(uid, Topic::kLeases, kInfo, "user %u has %zu clock%s restored", uid, devices.size(),
          devices.size() == 1 ? "" : "s");
  reply(id, request.serial, Answer{});
}

}  // namespace powerccl::daemon
