// SPDX-License-Identifier: Apache-2.0
#include "schedule.h"

#include <algorithm>
#include <csignal>
#include <cstdio>
#include <cstring>

namespace powerccl::leases {
namespace {

constexpr int64_t kMs = 1'000'000;
// What hangs does so for ever; what only waits for a processor of an overloaded machine comes through in this time.
constexpr int64_t kHangMs = 30'000;
constexpr size_t kMostUnanswered = 8;
constexpr size_t kEnough = 4;  // violations: more of them say nothing more

}  // namespace

Schedule::Schedule(Machine* machine, uint64_t seed)
    : machine_(machine),
      random_(seed),
      short_heartbeat_(random_.chance(8)),
      heartbeat_ms_(short_heartbeat_ ? random_.between(100, 200) : 6000),
      allowed_(random_.chance(30) ? Range{600, 1200} : Range{machine->lowest_mhz(), machine->highest_mhz()}) {
  const uint32_t sessions = random_.between(2, 10);
  for (uint32_t i = 0; i < sessions; ++i) sessions_.emplace_back(machine, allowed_);
}

std::vector<std::string> Schedule::run() {
  write_config();
  if (!start_daemon(true)) return violations_;
  const int64_t end_ns = short_heartbeat_ ? now_ns() + kMs * random_.between(250, 450) : 0;
  for (uint32_t steps = random_.between(50, 300); steps > 0 || now_ns() < end_ns; steps -= steps > 0 ? 1 : 0) {
    Session* session = any();
    if (session != nullptr && (session->connected() || session->connect())) act(session);
    if (random_.chance(50)) listen();
    if (random_.chance(8)) disturb();
    if (short_heartbeat_) keep_alive();
    if (random_.chance(10)) sleep_us(random_.between(100, 3000));
    if (has_ended(daemon_.pid()) || violations_.size() > kEnough) break;
  }
  settle();
  end();
  return violations_;
}

void Schedule::write_config() {
  constexpr uint32_t kRates[] = {200, 1000, 10'000};
  constexpr uint32_t kIntervals[] = {0, 1, 5, 20};
  std::FILE* file = std::fopen(machine_->config().c_str(), "we");
  if (file == nullptr) return violated("no configuration can be written");
  std::fprintf(file, "[access]\nheartbeat_ms = %u\nrequests_per_s = %u\n", heartbeat_ms_,
               kRates[random_.between(0, 2)]);
  std::fprintf(file, "[gpu]\ninterval_ms = %u\nsettle_ms = %u\nmin_mhz = %u\nmax_mhz = %u\nsharing = \"%s\"\n",
               kIntervals[random_.between(0, 3)], random_.between(1, 10), allowed_.min_mhz, allowed_.max_mhz,
               random_.chance(50) ? "newest" : "highest");
  std::fclose(file);
}

// ---- The daemon

bool Schedule::start_daemon(bool may_fail) {
  std::vector<std::string> environment = machine_->environment();
  ailing_ = false;
  if (may_fail && random_.chance(12)) {
    constexpr int kCodes[] = {999, 15, 10, 3};  // unknown, GPU is lost, timeout; not supported: nothing was done
    environment.push_back(
        "POWERCCL_EMULATOR_NVML_FAIL=set_locked_clocks:after=" + std::to_string(random_.between(0, 12)) +
        ":code=" + std::to_string(kCodes[random_.between(0, 3)]));
  } else if (may_fail && random_.chance(8) && machine_->all_usual()) {
    environment.push_back(
        "POWERCCL_EMULATOR_NVML_FAIL=reset_locked_clocks:after=" + std::to_string(random_.between(0, 8)) + ":code=999");
    ailing_ = true;
  }
  if (random_.chance(15))
    environment.push_back("POWERCCL_EMULATOR_NVML_SLOW=set_locked_clocks:ms=" + std::to_string(random_.between(3, 20)) +
                          ":every=" + std::to_string(random_.between(1, 7)) + ",reset_locked_clocks:ms=" +
                          std::to_string(random_.between(1, 10)) + ":every=" + std::to_string(random_.between(2, 7)));
  if (daemon_.start(machine_->daemon_command(true), environment, machine_->path("daemon.log"), kHangMs)) return true;
  violated("the daemon did not start, status " + std::to_string(daemon_.status()));
  return false;
}

void Schedule::kill_daemon() {
  daemon_.kill_hard();
  if (random_.chance(30)) sleep_us(random_.between(100, 4000));
  start_daemon(true);
}

// On SIGTERM every clock goes back before it ends, and it says by its exit code whether that was so.
void Schedule::stop_daemon() {
  if (ailing_) return kill_daemon();
  daemon_.signal(SIGTERM);
  if (const int status = daemon_.wait_end(kHangMs); status != 0)
    violated("on SIGTERM the daemon does not end well: " + std::to_string(status));
  else if (!within(500, [&] { return machine_->all_usual(); }))  // the clock follows the call by a millisecond
    violated("the daemon has ended on SIGTERM, and left " + machine_->clocks());
  kill_daemon();
}

// ---- Sessions

// One that is not stopped; none: all are.
Session* Schedule::any() {
  const size_t first = random_.between(0, static_cast<uint32_t>(sessions_.size()) - 1);
  for (size_t i = 0; i < sessions_.size(); ++i) {
    Session& session = sessions_[(first + i) % sessions_.size()];
    if (session.stopped_until_ns <= now_ns()) return &session;
  }
  return nullptr;
}

uint32_t Schedule::held_by(const Session& session) {
  uint32_t skip = random_.between(0, static_cast<uint32_t>(std::max(session.holding(), 1)) - 1);
  for (uint32_t gpu = 0; gpu < machine_->gpus(); ++gpu)
    if (session.held(gpu).lease != 0 && skip-- == 0) return gpu;
  return 0;
}

void Schedule::act(Session* session) {
  if (session->doomed() || session->unanswered() >= kMostUnanswered) return;
  const bool holds = session->holding() > 0;
  const auto acquire = [&] { session->ask_for(POWERCCL_LEASE_ACQUIRE, any_gpu(), random_.chance(60)); };
  const auto about_held = [&](uint16_t type) {
    const uint32_t gpu = held_by(*session);
    session->ask_about(type, gpu, session->held(gpu).lease);
  };
  if (!holds && random_.chance(60)) return acquire();
  const uint32_t choice = random_.between(0, 99);
  if (choice < 55) return holds && choice >= 10 ? set(session) : acquire();
  if (choice < 60) return holds ? about_held(POWERCCL_LEASE_READ) : session->ask(POWERCCL_LEASE_HEARTBEAT);
  if (choice < 70) return holds ? about_held(POWERCCL_LEASE_RELEASE) : acquire();
  if (choice < 74) return session->ask(POWERCCL_LEASE_HEARTBEAT);
  if (choice < 76) return session->ask(POWERCCL_LEASE_STATUS);
  if (choice < 82) return meddle(session);
  if (choice < 88) return session->repeat();
  if (choice < 90) return babble(session);
  if (choice < 95) return session->disconnect();
  if (choice < 96)  // a process gets no lease again on what was revoked from it, until the daemon is another
    session->ask_for(random_.chance(30) ? POWERCCL_LEASE_RESTORE : POWERCCL_LEASE_REVOKE,
                     random_.chance(10) ? machine_->gpus() : any_gpu());
}

void Schedule::set(Session* session) {
  Range wish;  // usual
  const uint32_t kind = random_.between(0, 9);
  if (kind < 6)  // one clock, as a policy asks
    wish.min_mhz = wish.max_mhz = random_.between(allowed_.min_mhz, allowed_.max_mhz);
  else if (kind < 8)  // whatever, also outside the range, also the wrong way round
    wish = {random_.between(0, 3000), random_.between(0, 3000)};
  else if (kind < 9)
    wish = {random_.chance(50) ? 1 : UINT32_MAX, UINT32_MAX};
  const uint32_t gpu = held_by(*session);
  session->ask_about(POWERCCL_LEASE_SET, gpu, session->held(gpu).lease, wish);
}

// Uses the number of somebody else's lease, or one that nobody has.
void Schedule::meddle(Session* session) {
  const Session& other = sessions_[random_.between(0, static_cast<uint32_t>(sessions_.size()) - 1)];
  const uint16_t types[] = {POWERCCL_LEASE_SET, POWERCCL_LEASE_RELEASE, POWERCCL_LEASE_READ};
  const uint32_t gpu = any_gpu(), mhz = random_.chance(50) ? random_.between(1, 2000) : 0;
  session->ask_about(types[random_.between(0, 2)], gpu, &other == session ? random_.next() : other.held(gpu).lease,
                     {mhz, mhz});
}

void Schedule::babble(Session* session) {
  char bytes[400];
  for (char& byte : bytes) byte = static_cast<char>(random_.next());
  if (session->holding() == 0 || random_.chance(30))
    return session->talk_nonsense(bytes, random_.between(1, sizeof bytes));
  auto message = make_message<powerccl_lease_set>(POWERCCL_LEASE_SET, session->used_up());  // nearly right
  message.lease = session->held(held_by(*session)).lease;
  message.min_mhz = message.max_mhz = allowed_.min_mhz + 15;
  switch (random_.between(0, 4)) {
    case 0:
      message.header.magic ^= 1u << random_.between(0, 31);
      break;
    case 1:
      message.header.version = 2;
      break;
    case 2:
      message.header.size += 1;
      break;
    case 3:
      message.header.type = static_cast<uint16_t>(random_.between(12, 65535));
      break;
    default:
      message.header.serial = 0;
  }
  session->talk_nonsense(&message, sizeof message);
}

void Schedule::disturb() {
  const uint32_t choice = random_.between(0, 99);
  if (choice < 55) {
    const uint32_t ms = short_heartbeat_ ? heartbeat_ms_ + random_.between(10, 100) : random_.between(1, 15);
    if (Session* session = any()) session->stopped_until_ns = now_ns() + kMs * ms;
  } else if (choice < 75) {
    kill_daemon();
  } else if (choice < 85) {
    stop_daemon();
  } else {
    daemon_.signal(SIGSTOP);
    for (uint32_t acts = random_.between(0, 5); acts > 0; --acts)
      if (Session* session = any(); session != nullptr && session->connected()) act(session);
    sleep_us(random_.between(500, 15'000));
    daemon_.signal(SIGCONT);
  }
}

// Everybody who is not stopped takes in what has come, until nothing has.
void Schedule::listen() {
  const int64_t now = now_ns();  // of all, as whoever wakes meanwhile has not taken in what came
  for (bool more = true; more;) {
    more = false;
    for (Session& session : sessions_)
      if (session.stopped_until_ns <= now) more = session.take() || more;
  }
  require_exclusive(now);
  for (Session& session : sessions_)
    if (!session.fault().empty()) violated(session.fault());
}

void Schedule::keep_alive() {
  for (Session& session : sessions_)
    if (session.stopped_until_ns <= now_ns() && session.holding() > 0 &&
        now_ns() - session.spoke_ns > int64_t{heartbeat_ms_} * kMs / 5)
      session.ask(POWERCCL_LEASE_HEARTBEAT);
}

// Whoever was told of a grant has been told before of whatever ended: the daemon says it in that order.
void Schedule::require_exclusive(int64_t now) {
  for (uint32_t gpu = 0; gpu < machine_->gpus(); ++gpu) {
    int holders = 0, sharers = 0;
    for (const Session& session : sessions_) {
      if (session.stopped_until_ns > now || session.held(gpu).lease == 0) continue;
      ++holders;
      sharers += session.held(gpu).shared ? 1 : 0;
    }
    if (holders > 1 && sharers < holders)
      violated("GPU " + std::to_string(gpu) + " has " + std::to_string(holders) + " holders, and not all share it");
  }
}

// ---- Afterwards

void Schedule::settle() {
  if (daemon_.running() && has_ended(daemon_.pid()))
    violated("the daemon has ended by itself with " + std::to_string(daemon_.wait_end(0)));
  // A driver that can reset nothing leaves clocks set, and there is nothing the daemon could do: the next one does it.
  if (ailing_ || !daemon_.running()) {
    daemon_.kill_hard();
    if (!start_daemon(false)) return;
  }
  for (Session& session : sessions_) session.stopped_until_ns = 0;
  const bool answered = within(kHangMs, [&] {
    listen();
    keep_alive();
    return std::none_of(sessions_.begin(), sessions_.end(),
                        [](const Session& session) { return session.doomed() || session.unanswered() > 0; });
  });
  if (!answered) violated("a request has no answer, or nonsense does not end a connection");
  std::string fault;
  const bool settled = within(kHangMs, [&] {
    listen();
    keep_alive();
    fault = unsettled();
    return fault.empty();
  });
  if (!settled) violated(fault);
}

std::string Schedule::unsettled() const {
  std::vector<powerccl_lease_device> devices;
  if (!Client(machine_->socket(), 1000).status(&devices))
    return has_ended(daemon_.pid()) ? "the daemon has ended by itself" : "the daemon does not tell its status";
  for (uint32_t gpu = 0; gpu < machine_->gpus(); ++gpu) {
    const auto found = std::find_if(devices.begin(), devices.end(), [&](const powerccl_lease_device& device) {
      return machine_->uuid(gpu) == device.device;
    });
    const std::string fault = found == devices.end() ? "is missing in the daemon's status" : fault_of(gpu, *found);
    if (!fault.empty()) return "GPU " + std::to_string(gpu) + " " + fault;
  }
  return "";
}

std::string Schedule::fault_of(uint32_t gpu, const powerccl_lease_device& device) const {
  const Range truth = machine_->locked(gpu), said{device.min_mhz, device.max_mhz};
  uint32_t holders = 0;
  for (const Session& session : sessions_) {
    const Held& held = session.held(gpu);
    if (held.lease == 0) continue;
    ++holders;
    if (!held.shared && truth != held.told)
      return "is at " + text_of(truth) + ", its holder was told " + text_of(held.told);
  }
  if (device.sharers != holders || (device.holder_pid != 0) != (holders > 0))
    return "has " + std::to_string(device.sharers) + " leases by the daemon's account, and " + std::to_string(holders) +
           " sessions believe that they hold it";
  if (holders == 0 && !truth.usual()) return "is at " + text_of(truth) + ", held by nobody";
  if (said != truth) return "is at " + text_of(truth) + ", the daemon says " + text_of(said);
  return (device.flags & POWERCCL_LEASE_PENDING) != 0 ? "is still to be put back by the daemon's account" : "";
}

// Everybody goes: every clock becomes usual, no mark is left, and the daemon ends in one of three ways.
void Schedule::end() {
  for (Session& session : sessions_) {
    for (uint32_t gpu = 0; gpu < machine_->gpus() && random_.chance(50); ++gpu)
      session.ask_about(POWERCCL_LEASE_RELEASE, gpu, session.held(gpu).lease);
    session.disconnect();
  }
  if (!daemon_.running()) return;
  // While the daemon hears of one end after another, the clock may for a moment be what the rest wished for.
  std::string fault;
  if (!within(kHangMs, [&] {
        fault = unsettled();
        return fault.empty() && marks_in(machine_->state()) == 0;
      }))
    violated("nobody is there any more, and " + (fault.empty() ? "the state file has marks" : fault));
  const uint32_t way = random_.between(0, 2);
  if (way == 0) daemon_.signal(SIGTERM);
  if (way == 1) daemon_.close_input();
  if (way < 2 && daemon_.wait_end(kHangMs) != 0)
    violated(std::string("nobody is there, and the daemon does not end well on ") +
             (way == 0 ? "SIGTERM" : "its input's end"));
  daemon_.kill_hard();
  if (!machine_->all_usual()) violated("the daemon has ended, and " + machine_->clocks());
}

void Schedule::violated(const std::string& text) {
  if (violations_.size() <= kEnough) violations_.push_back(text);
}

}  // namespace powerccl::leases
