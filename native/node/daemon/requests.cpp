// SPDX-License-Identifier: Apache-2.0
// What the server does for each request, after it is known to be its peer's own and well formed.
#include <algorithm>
#include <utility>

#include "daemon/clock.h"
#include "daemon/log.h"
#include "daemon/server.h"

namespace powerccl::daemon {

// The status, an answer of many messages. Each message is made when the one before it has left. A client that asks and
// does not read costs the daemon a few bytes.
namespace {

// For clocks that status asks the driver for: a GPU that hangs is shown without one.
constexpr int64_t kStatusPatienceNs = 500'000'000;
constexpr int kPartsATurn = 64;  // then other sessions have their turn

}  // namespace

void Server::query_status(SessionId id, Session* session, uint64_t serial, int64_t now) {
  session->awaits_status = true;
  charge(session, 1 + static_cast<double>(table_.size()) / 16, now);
  round_.next_askers.emplace_back(id, serial);
  begin_round(now);
}

void Server::begin_round(int64_t now) {
  if (round_.under_way || round_.next_askers.empty() || now < round_.begun_ns + kRoundIntervalNs) return;
  round_.under_way = true;
  ++round_.number;
  round_.askers = std::exchange(round_.next_askers, {});
  round_.begun_ns = now;
  round_.deadline_ns = now + kStatusPatienceNs;
  round_.missing = 0;
  round_.clocks.assign(table_.size(), 0);
  for (size_t device = 0; device < table_.size(); ++device) {
    if (round_.reading[device]) continue;
    round_.reading[device] = true;
    ++round_.missing;
    Job job;
    job.kind = Job::kRead;
    job.device = device;
    job.session = kQuerySession;
    job.serial = round_.number;
    enqueue(job);
  }
  if (round_.missing == 0) end_round();
}

void Server::take_reading(const Done& done) {
  round_.reading[done.job.device] = false;
  if (!round_.under_way || done.job.serial != round_.number) return;
  round_.clocks[done.job.device] = done.outcome.now_mhz;
  if (--round_.missing == 0) end_round();
}

void Server::end_round() {
  round_.under_way = false;
  const auto clocks = std::make_shared<const std::vector<uint32_t>>(std::exchange(round_.clocks, {}));
  for (const auto& [id, serial] : std::exchange(round_.askers, {})) {
    Session* session = find(id);
    if (session == nullptr) continue;
    session->awaits_status = false;
    session->answer = StatusAnswer{serial, 0, clocks};
    go_on(id, session);
    if (!session->paused) watch_session(id, *session);
  }
}

Bytes Server::device_part(const Session& session, const StatusAnswer& answer, size_t number) const {
  const uid_t uid = session.connection->peer().uid;
  const DeviceView view = table_.view(number);
  powerccl_lease_device device{};
  put_text(device.device, sizeof device.device, view.about->device);
  put_text(device.name, sizeof device.name, view.about->name);
  device.now_mhz = (*answer.clocks)[number];
  device.flags = flag_if(table_.draining, POWERCCL_LEASE_DRAINED) | flag_if(view.pending, POWERCCL_LEASE_PENDING);
  if (view.holder != nullptr) {
    const bool same_user = view.holder->uid == uid;
    device.flags |= flag_if(same_user, POWERCCL_LEASE_MINE) | flag_if(view.leases > 1, POWERCCL_LEASE_SHARED);
    // A session that wants a taken device learns the holder, but not the holder's clocks.
    device.holder_pid = view.holder->pid;
    device.holder_uid = view.holder->uid;
    if (same_user || session.admin) {
      device.min_mhz = view.min_mhz;
      device.max_mhz = view.max_mhz;
      device.held_ms = static_cast<uint64_t>((now_ns() - view.held_since_ns) / 1'000'000);
      device.changes = view.changes;
      device.sharers = static_cast<uint32_t>(view.leases);
      put_text(device.run, sizeof device.run, view.holder->run);
    }
  }
  return encode_device(answer.serial, device);
}

Bytes Server::totals_part(uint64_t serial) const {
  const Counters& counters = table_.counters();
  const auto ended = [&](Ending ending) { return counters.ended[static_cast<int>(ending)]; };
  powerccl_lease_totals totals{};
  totals.sessions = sessions_.size();
  totals.requests = tally_.requests;
  totals.foreign = tally_.foreign;
  totals.bad = tally_.nonsense;
  totals.replayed = tally_.replayed;
  totals.turned_away = tally_.turned_away;
  totals.delays = tally_.delayed;
  totals.granted = counters.granted;
  totals.refused = counters.refused;
  totals.released = ended(Ending::kReleased);
  totals.gone = ended(Ending::kGone);
  totals.missed = ended(Ending::kMissed);
  totals.revoked = ended(Ending::kRevoked);
  totals.stopping = ended(Ending::kStopping);
  totals.changes = counters.changes;
  totals.superseded = counters.superseded;
  totals.clamped = counters.clamped;
  totals.restores = counters.restores;
  totals.driver_failures = counters.driver_failures;
  totals.restore_failures = counters.restore_failures;
  totals.driver_us = counters.driver_us;
  return encode_totals(serial, totals);
}

// All sessions of a user together have as much work done as one may have requests: past it each is read later.
void Server::charge(Session* session, double messages, int64_t now) const {
  const auto rate = static_cast<double>(settings_.config.access_requests_per_s);
  User& user = *session->user;
  user.work = std::min(rate, user.work + static_cast<double>(now - user.work_ns) / 1e9 * rate) - messages;
  user.work_ns = now;
  if (user.work < 0) session->not_before_ns = now + static_cast<int64_t>(-user.work / rate * 1e9);
}

void Server::go_on(SessionId id, Session* session) {
  Connection& connection = *session->connection;
  for (int part = 0; part < kPartsATurn && session->answer && !connection.has_unsent(); ++part) {
    if (!connection.send(next_part(session))) {
      closing_.emplace_back(id, Ending::kGone);
      return;
    }
  }
}

Bytes Server::next_part(Session* session) {
  if (!session->answer) return {};
  StatusAnswer& answer = *session->answer;
  const size_t part = answer.next++;
  if (part < table_.size()) return device_part(*session, answer, part);
  if (part == table_.size()) return totals_part(answer.serial);
  const uint64_t serial = answer.serial;
  session->answer.reset();
  return encode_answer(serial, Answer{});
}

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
