// SPDX-License-Identifier: Apache-2.0
// Any bytes as messages of four sessions to a lease table, on a driver that does what it is told, late, or fails.
//
// The input is a row of steps: a byte that says what and of which session, and for a message its length and its bytes.
// Whatever comes: only a well-formed SET of the session's own lease sets a clock, within the range; it is marked
// before; each request is answered once; and once all sessions have ended and the driver works, every clock is usual.
#include <algorithm>
#include <deque>
#include <map>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "daemon/log.h"
#include "daemon/messages.h"
#include "fuzz.h"

using namespace powerccl::daemon;

namespace {

constexpr int64_t kMs = 1'000'000;
constexpr uint32_t kLowest = 300, kHighest = 1590;
constexpr SessionId kSessions = 4;

const std::vector<DeviceAbout>& devices() {
  static const std::vector<DeviceAbout> about = [] {
    set_log_level(0);  // a driver that fails is nothing to tell of here
    std::vector<DeviceAbout> made(3);
    for (size_t i = 0; i < made.size(); ++i) {
      made[i].device = "GPU-" + std::to_string(i);
      made[i].lowest_mhz = kLowest;
      made[i].highest_mhz = kHighest;
    }
    return made;
  }();
  return about;
}

class World : public Actions {
 public:
  explicit World(Sharing sharing) : table_(this), sharing_(sharing) {
    table_.take_devices(devices(), 20 * kMs, 20 * kMs, sharing);
  }

  void step(Input* input) {
    const uint8_t what = input->byte();
    const SessionId session = what % kSessions + 1;
    switch (what / kSessions % 8) {
      default:
        return message(session, input);
      case 4:
        now_ns_ += input->byte() * kMs;
        return table_.advance(now_ns_);
      case 5:
        return finish_job((what & 0x80) != 0 ? input->byte() : 0);
      case 6:
        return leave(session, (what & 0x80) != 0 ? Ending::kMissed : Ending::kGone);
      case 7:
        return table_.end(input->byte() % devices().size(), Ending::kRevoked, now_ns_);
    }
  }

  void end() {
    for (SessionId session = 1; session <= kSessions; ++session) leave(session, Ending::kMissed);
    while (!jobs_.empty() || table_.next_ns() != INT64_MAX) {
      while (!jobs_.empty()) finish_job(0);
      if (table_.next_ns() != INT64_MAX) now_ns_ = std::max(now_ns_, table_.next_ns());
      table_.advance(now_ns_);
    }
    REQUIRE(table_.at_rest());
    REQUIRE(marks_.empty());
    for (const auto& [device, clock] : clocks_) REQUIRE(clock.second == 0);
    REQUIRE(unanswered_.empty());
  }

  // Actions
  void enqueue(Job job) override {
    if (job.kind != Job::kRead) REQUIRE(busy_.insert(job.device).second);  // one job a device
    if (job.kind == Job::kSet) {
      ++sets_;
      REQUIRE(marks_.count(devices()[job.device].device) == 1);
      REQUIRE(job.min_mhz >= kLowest && job.max_mhz <= kHighest && job.min_mhz <= job.max_mhz);
      REQUIRE(table_.view(job.device).leases > 0);
      if (job.session != 0)
        require_own_wish(job);
      else  // those who share it had other wishes before
        REQUIRE(sharing_ != Sharing::kNone);
    }
    jobs_.push_back(std::move(job));
  }
  int mark(const std::string& device, const Holder&) override {
    marks_.insert(device);
    return 0;
  }
  int clear(const std::string& device) override {
    marks_.erase(device);
    return 0;
  }
  void reply(SessionId session, uint64_t serial, const Answer& answer) override {
    answered(session, serial);
    const auto asked = asked_.find({session, serial});
    if (asked == asked_.end() || answer.status != POWERCCL_LEASE_OK) return;
    if (asked->second.type == POWERCCL_LEASE_ACQUIRE)
      leases_[answer.lease] = {session, *table_.find(asked->second.device)};
  }
  void tell(SessionId session, uint16_t type, const Answer& answer) override {
    REQUIRE(type == POWERCCL_LEASE_ENDED || type == POWERCCL_LEASE_SETTLED);
    REQUIRE(leases_.count(answer.lease) == 1 && leases_[answer.lease].first == session);
  }
  uint64_t new_lease_number() override { return ++numbers_; }

 private:
  void answered(SessionId session, uint64_t serial) {
    // Who is gone is not answered, or is and does not hear it.
    if (gone_.count({session, serial}) == 0) REQUIRE(unanswered_.erase({session, serial}) == 1);
  }

  void message(SessionId session, Input* input) {
    size_t length = input->byte();
    const uint8_t* bytes = input->bytes(&length);
    const uint64_t sets = sets_;
    Request request;
    if (!decode(bytes, length, &request)) {
      leave(session, Ending::kGone);
      // Its own clock goes back; where the highest wish counts, it may have held up what another one wishes for.
      REQUIRE(sets_ == sets || sharing_ == Sharing::kHighest);
      return;
    }
    require_form(request, length);
    uint64_t& last = last_serial_[session];
    if (request.serial <= last) return;
    last = request.serial;
    asked_[{session, request.serial}] = request;
    switch (request.type) {
      case POWERCCL_LEASE_ACQUIRE:
        if (const auto device = table_.find(request.device); device) {
          unanswered_.insert({session, request.serial});
          table_.acquire({session, 1000, 4711, "", request.shares}, request.serial, *device, now_ns_);
        }
        break;
      case POWERCCL_LEASE_SET:
        unanswered_.insert({session, request.serial});
        table_.set(session, request.serial, request.lease, request.min_mhz, request.max_mhz, now_ns_);
        break;
      case POWERCCL_LEASE_READ:
        unanswered_.insert({session, request.serial});
        table_.read(session, request.serial, request.lease);
        break;
      case POWERCCL_LEASE_RELEASE:
        unanswered_.insert({session, request.serial});
        table_.release(session, request.serial, request.lease, now_ns_);
        break;
      case POWERCCL_LEASE_DRAIN:
        table_.draining = request.on;
        break;
      default:
        break;
    }
    require_own_clocks();
  }

  static void require_form(const Request& request, size_t length) {
    REQUIRE(length >= sizeof(powerccl_lease_header) && request.serial != 0);
    for (const std::string* text : {&request.device, &request.run})
      for (const char c : *text) REQUIRE(c >= ' ' && c < '\x7f');
    REQUIRE(request.device.size() < 48 && request.run.size() < 64);
  }

  void require_own_wish(const Job& job) {
    const auto asked = asked_.find({job.session, job.serial});
    REQUIRE(asked != asked_.end());
    const Request& request = asked->second;
    REQUIRE(request.type == POWERCCL_LEASE_SET && request.lease == job.lease);
    const auto lease = leases_.find(job.lease);
    REQUIRE(lease != leases_.end() && lease->second.first == job.session && lease->second.second == job.device);
    const std::vector<Holder> holders = table_.holders(job.device);
    REQUIRE(std::any_of(holders.begin(), holders.end(), [&](const Holder& one) { return one.session == job.session; }));
    const uint32_t min_mhz = std::clamp(request.min_mhz, kLowest, kHighest);
    const uint32_t max_mhz = std::clamp(request.max_mhz, kLowest, kHighest);
    if (sharing_ == Sharing::kHighest && holders.size() > 1)
      REQUIRE(job.min_mhz >= min_mhz && job.max_mhz >= max_mhz);
    else
      REQUIRE(job.min_mhz == min_mhz && job.max_mhz == max_mhz);
  }

  // Whoever has a device that nothing is under way for finds it as they left it: not as the one before did.
  void require_own_clocks() {
    for (size_t i = 0; i < devices().size(); ++i) {
      const DeviceView view = table_.view(i);
      if (view.holder == nullptr || busy_.count(i) != 0 || view.pending) continue;
      const auto clock = clocks_.find(i);
      if (clock == clocks_.end() || clock->second.second == 0) continue;
      REQUIRE(set_by_[i] == view.holder->session || view.holder->shares);
      REQUIRE(clock->second == std::make_pair(view.min_mhz, view.max_mhz));
    }
  }

  void finish_job(uint8_t code) {
    if (jobs_.empty()) return;
    Done done;
    done.job = std::move(jobs_.front());
    jobs_.pop_front();
    const Job& job = done.job;
    done.outcome.code = code;
    done.outcome.untouched = code >= 2 && code <= 4;
    if (job.kind != Job::kRead) busy_.erase(job.device);
    if (code == 0 && job.kind == Job::kSet) {
      clocks_[job.device] = {job.min_mhz, job.max_mhz};
      set_by_[job.device] = job.session;
    }
    if (code == 0 && job.kind == Job::kRestore) clocks_[job.device] = {0, 0};
    if (job.session != 0) answered(job.session, job.serial);
    table_.call_done(done, now_ns_);
    require_own_clocks();
  }

  void leave(SessionId session, Ending ending) {
    if (ending == Ending::kGone)
      for (auto at = unanswered_.begin(); at != unanswered_.end();) {
        if (at->first != session) {
          ++at;
          continue;
        }
        gone_.insert(*at);
        at = unanswered_.erase(at);
      }
    table_.end_session(session, ending, now_ns_);
  }

  LeaseTable table_;
  Sharing sharing_;
  int64_t now_ns_ = 1000 * kMs;
  uint64_t numbers_ = 0, sets_ = 0;
  std::deque<Job> jobs_;
  std::set<size_t> busy_;
  std::set<std::string> marks_;
  std::map<size_t, std::pair<uint32_t, uint32_t>> clocks_;
  std::map<size_t, SessionId> set_by_;
  std::map<SessionId, uint64_t> last_serial_;
  using Name = std::pair<SessionId, uint64_t>;
  std::map<Name, Request> asked_;
  std::set<Name> unanswered_, gone_;
  std::map<uint64_t, std::pair<SessionId, size_t>> leases_;
};

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  Input input(data, size);
  constexpr Sharing kSharings[] = {Sharing::kNone, Sharing::kNewest, Sharing::kHighest};
  World world(kSharings[input.byte() % 3]);
  while (!input.empty()) world.step(&input);
  world.end();
  return 0;
}
