// SPDX-License-Identifier: Apache-2.0
// The status, an answer of many messages. Each message is made when the one before it has left. A client that asks and
// does not read costs the daemon a few bytes.
#include <algorithm>
#include <utility>

#include "daemon/clock.h"
#include "daemon/server.h"
#include "daemon/tags.h"

namespace powerccl::daemon {
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

}  // namespace powerccl::daemon
