// SPDX-License-Identifier: Apache-2.0
#include "schedule.h"

#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <csignal>
#include <cstdio>
#include <cstring>

#include "beliefs.h"
#include "client.h"

namespace powerccl::leases {
namespace {

constexpr int64_t kMs = 1'000'000;
// What hangs does so for ever; what only waits for a processor of an overloaded machine comes through in this time.
constexpr int64_t kHangMs = 30'000;
constexpr int64_t kUsualMs = 2000;  // from the last client's end to all clocks usual

}  // namespace

Schedule::Schedule(Machine* machine, Shared* shared, uint64_t seed)
    : machine_(machine), shared_(shared), seed_(seed), random_(seed) {}

Schedule::~Schedule() {
  end_clients();
  daemon_.kill_hard();
  reap_clients();
}

std::vector<std::string> Schedule::run() {
  prepare();
  write_config();
  if (!start_daemon(true)) return violations_;
  const uint32_t clients = random_.between(2, 10);
  for (uint32_t i = 0; i < clients; ++i) spawn();
  const int64_t end_ns = now_ns() + kMs * (short_heartbeat_ ? random_.between(250, 450) : random_.between(15, 45));
  while (now_ns() < end_ns) {
    sleep_us(random_.between(500, short_heartbeat_ ? 20'000 : 5000));
    look_for_ended();
    if (daemon_.running() && has_ended(daemon_.pid())) break;
    disturb();
    if (violations_.size() > 4) break;
  }
  settle();
  end_clients();
  check_usual();
  end_daemon();
  gather();
  return violations_;
}

void Schedule::prepare() {
  shared_->phase.store(Phase::kActing);
  shared_->ailing.store(false);
  for (ClientSlot& slot : shared_->client) {
    // The events behind the count need no clearing.
    std::memset(static_cast<void*>(&slot), 0, offsetof(ClientSlot, event));
  }
  shared_->gpus = machine_->gpus();
  for (uint32_t gpu = 0; gpu < shared_->gpus; ++gpu)
    snprintf(shared_->uuid[gpu], sizeof shared_->uuid[gpu], "%s", machine_->uuid(gpu).c_str());
  snprintf(shared_->socket, sizeof shared_->socket, "%s", machine_->socket().c_str());
  short_heartbeat_ = random_.chance(8);
  shared_->heartbeat_ms = short_heartbeat_ ? random_.between(100, 200) : 6000;
  const bool range = random_.chance(30);
  shared_->lowest_mhz = range ? 600 : machine_->lowest_mhz();
  shared_->highest_mhz = range ? 1200 : machine_->highest_mhz();
}

void Schedule::write_config() {
  constexpr uint32_t kRates[] = {200, 1000, 10'000};
  constexpr uint32_t kIntervals[] = {0, 1, 5, 20};
  std::FILE* file = std::fopen(machine_->config().c_str(), "we");
  if (file == nullptr) return;
  std::fprintf(file, "[access]\nheartbeat_ms = %u\nrequests_per_s = %u\n", shared_->heartbeat_ms,
               kRates[random_.between(0, 2)]);
  std::fprintf(file, "[gpu]\ninterval_ms = %u\nsettle_ms = %u\nmin_mhz = %u\nmax_mhz = %u\nsharing = \"%s\"\n",
               kIntervals[random_.between(0, 3)], random_.between(1, 10), shared_->lowest_mhz, shared_->highest_mhz,
               random_.chance(50) ? "newest" : "highest");
  std::fclose(file);
}

// ---- The daemon

bool Schedule::start_daemon(bool may_fail) {
  std::vector<std::string> environment = machine_->environment();
  bool ailing = false;
  if (may_fail && random_.chance(12)) {
    constexpr int kCodes[] = {999, 15, 10, 3};  // unknown, GPU is lost, timeout; not supported: nothing was done
    environment.push_back(
        "POWERCCL_EMULATOR_NVML_FAIL=set_locked_clocks:after=" + std::to_string(random_.between(0, 12)) +
        ":code=" + std::to_string(kCodes[random_.between(0, 3)]));
    ++counts_.failing;
  } else if (may_fail && random_.chance(8) && machine_->all_usual()) {
    environment.push_back(
        "POWERCCL_EMULATOR_NVML_FAIL=reset_locked_clocks:after=" + std::to_string(random_.between(0, 8)) + ":code=999");
    ailing = true;
    ++counts_.failing;
  }
  if (random_.chance(15)) {
    environment.push_back("POWERCCL_EMULATOR_NVML_SLOW=set_locked_clocks:ms=" + std::to_string(random_.between(3, 20)) +
                          ":every=" + std::to_string(random_.between(1, 7)) + ",reset_locked_clocks:ms=" +
                          std::to_string(random_.between(1, 10)) + ":every=" + std::to_string(random_.between(2, 7)));
    ++counts_.slow;
  }
  if (!daemon_.start(machine_->daemon_command(true), environment, machine_->path("daemon.log"), kHangMs)) {
    violated("the daemon did not start, status " + std::to_string(daemon_.status()));
    return false;
  }
  shared_->ailing.store(ailing);
  return true;
}

void Schedule::kill_daemon() {
  ++counts_.daemon_kills;
  daemon_.kill_hard();
  if (random_.chance(30)) sleep_us(random_.between(100, 4000));
  start_daemon(true);
}

// On SIGTERM every clock goes back before it ends, and it says by its exit code whether that was so.
void Schedule::stop_daemon() {
  if (shared_->ailing.load()) return kill_daemon();
  ++counts_.daemon_stops;
  daemon_.signal(SIGTERM);
  const int status = daemon_.wait_end(kHangMs);
  if (status != 0)
    violated(status == -1 ? "the daemon does not end on SIGTERM"
                          : "on SIGTERM it ended with " + std::to_string(status));
  else if (!within(500, [&] { return machine_->all_usual(); }))  // the clock follows the call by a millisecond
    violated("the daemon has ended on SIGTERM, and left " + machine_->clocks());
  daemon_.kill_hard();
  start_daemon(true);
}

// ---- Clients

void Schedule::spawn() {
  if (spawned_ >= kMostClients) return;
  const uint32_t number = spawned_++;
  const uint64_t seed = seed_ * 1000 + number;
  const pid_t worker = getpid();
  const pid_t pid = fork();
  if (pid == 0) {
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (getppid() != worker) _exit(1);
    Client(shared_, number, seed).run();
  }
  shared_->client[number].pid.store(pid);
  ++counts_.clients;
}

void Schedule::look_for_ended() {
  for (uint32_t i = 0; i < spawned_; ++i) {
    ClientSlot& slot = shared_->client[i];
    const int pid = slot.pid.load();
    if (pid <= 0 || !has_ended(pid)) continue;
    slot.pid.store(0);
    ended_.push_back(pid);
    if (!slot.ended.load() && slot.killed_ns.load() == 0) violated("client " + std::to_string(i) + " crashed");
  }
}

// Only when the daemon is gone, which looks at its clients in /proc: see reap_one_at_a_time().
void Schedule::reap_clients() {
  for (const pid_t pid : ended_) reap(pid);
  ended_.clear();
}

int Schedule::any_alive() {
  const uint32_t first = random_.between(0, kMostClients - 1);
  for (uint32_t i = 0; i < kMostClients; ++i) {
    const uint32_t number = (first + i) % kMostClients;
    const ClientSlot& slot = shared_->client[number];
    // Who has been killed may take a while to end.
    if (slot.pid.load() > 0 && slot.killed_ns.load() == 0) return static_cast<int>(number);
  }
  return -1;
}

void Schedule::disturb() {
  const int64_t now = now_ns();
  for (uint32_t i = 0; i < spawned_; ++i) {
    const int pid = shared_->client[i].pid.load();
    if (stopped_until_ns_[i] == 0 || now < stopped_until_ns_[i]) continue;
    if (pid > 0) kill(pid, SIGCONT);
    stopped_until_ns_[i] = 0;
  }
  uint32_t choice = random_.between(0, 99);
  const int number = any_alive();
  // Where heartbeats are to be missed there must be somebody left who holds something for so long.
  if (short_heartbeat_ && random_.chance(75)) choice = random_.chance(50) ? 44 : 99;
  if (choice < 25 && number >= 0) {
    ClientSlot& slot = shared_->client[number];
    slot.killed_ns.store(now_ns());
    kill(slot.pid.load(), SIGKILL);
    ++counts_.kills;
    if (random_.chance(60)) spawn();
  } else if (choice < 45 && number >= 0) {
    kill(shared_->client[number].pid.load(), SIGSTOP);
    ++counts_.stops;
    stopped_until_ns_[number] =
        now + kMs * (short_heartbeat_ ? shared_->heartbeat_ms + random_.between(10, 100) : random_.between(1, 15));
  } else if (choice < 52) {
    kill_daemon();
  } else if (choice < 56) {
    stop_daemon();
  } else if (choice < 60) {
    daemon_.signal(SIGSTOP);
    sleep_us(random_.between(500, 15'000));
    daemon_.signal(SIGCONT);
  } else if (choice < 65) {
    spawn();
  }
}

void Schedule::wake_all() {
  for (uint32_t i = 0; i < spawned_; ++i) {
    if (const int pid = shared_->client[i].pid.load(); pid > 0) kill(pid, SIGCONT);
    stopped_until_ns_[i] = 0;
  }
}

// ---- Afterwards

void Schedule::settle() {
  if (daemon_.running() && has_ended(daemon_.pid()))
    violated("the daemon has ended by itself with " + std::to_string(daemon_.wait_end(0)));
  // A driver that can reset nothing leaves clocks set, and there is nothing the daemon could do: the next one does it.
  if (shared_->ailing.load() || !daemon_.running()) {
    daemon_.kill_hard();
    if (!start_daemon(false)) return;
  }
  wake_all();
  shared_->phase.store(Phase::kSettling);
  const bool answered = within(kAnswerPatienceMs + 2000, [&] {
    look_for_ended();
    return std::all_of(shared_->client, shared_->client + spawned_, [](const ClientSlot& slot) {
      return slot.pid.load() <= 0 || slot.settled.load() || slot.faulty.load();
    });
  });
  if (!answered) violated("a client does not get its answers");
  std::string fault;
  const bool settled = within(kHangMs, [&] {
    look_for_ended();
    fault = unsettled();
    return fault.empty();
  });
  if (!settled) violated(fault);
}

std::string Schedule::unsettled() const {
  std::vector<powerccl_lease_device> devices;
  if (!ask_status(machine_->socket(), 1000, &devices))
    return has_ended(daemon_.pid()) ? "the daemon has ended by itself" : "the daemon does not tell its status";
  std::string fault;
  for (uint32_t gpu = 0; gpu < shared_->gpus && fault.empty(); ++gpu) {
    const auto found = std::find_if(devices.begin(), devices.end(), [&](const powerccl_lease_device& device) {
      return std::strcmp(device.device, shared_->uuid[gpu]) == 0;
    });
    if (found == devices.end()) return "the daemon's status lacks GPU " + std::to_string(gpu);
    check_gpu(gpu, *found, &fault);
    if (!fault.empty()) fault = "GPU " + std::to_string(gpu) + ": " + fault;
  }
  return fault;
}

void Schedule::check_gpu(uint32_t gpu, const powerccl_lease_device& device, std::string* fault) const {
  const Range truth = machine_->locked(gpu);
  uint32_t holders = 0;
  bool shared = true, known = device.holder_pid == 0;
  for (uint32_t i = 0; i < spawned_; ++i) {
    const ClientSlot& slot = shared_->client[i];
    const Held& held = slot.held[gpu];
    if (slot.pid.load() <= 0 || held.lease.load() == 0) continue;
    ++holders;
    shared = shared && held.shared.load();
    known = known || device.holder_pid == static_cast<uint32_t>(slot.pid.load());
    const Range told{held.min_mhz.load(), held.max_mhz.load()};
    if (!held.shared.load() && truth != told)
      *fault = "is at " + text_of(truth) + ", a holder was told " + text_of(told);
  }
  if (holders > 1 && !shared)
    *fault = "several clients believe that they hold it, and not all share it";
  else if (!known || device.sharers != holders)
    *fault = "process " + std::to_string(device.holder_pid) + " holds it by the daemon's account, one of " +
             std::to_string(device.sharers) + ", and " + std::to_string(holders) + " clients believe that they do";
  else if (holders == 0 && truth != Range{})
    *fault = "is at " + text_of(truth) + ", held by nobody";
  else if (Range{device.min_mhz, device.max_mhz} != truth)
    *fault = "is at " + text_of(truth) + ", the daemon says " + text_of({device.min_mhz, device.max_mhz});
  else if ((device.flags & POWERCCL_LEASE_PENDING) != 0)
    *fault = "is still to be put back by the daemon's account";
}

void Schedule::end_clients() {
  shared_->phase.store(Phase::kOver);
  for (uint32_t i = 0; i < spawned_; ++i) {
    if (const int pid = shared_->client[i].pid.load(); pid > 0) {
      kill(pid, SIGCONT);
      if (random_.chance(40)) kill(pid, SIGKILL);
    }
  }
  for (uint32_t i = 0; i < spawned_; ++i) {
    ClientSlot& slot = shared_->client[i];
    for (const int pid : {slot.pid.exchange(0), slot.heir_pid.exchange(0)}) {
      if (pid <= 0) continue;
      if (!within(200, [pid] { return has_ended(pid); })) kill(pid, SIGKILL);
      ended_.push_back(pid);
    }
  }
}

// What the daemon says of the GPUs that are not as usual.
std::string Schedule::account() const {
  std::vector<powerccl_lease_device> devices;
  if (!ask_status(machine_->socket(), 1000, &devices)) return "; the daemon says nothing";
  std::string text;
  for (uint32_t gpu = 0; gpu < shared_->gpus; ++gpu)
    for (const powerccl_lease_device& device : devices)
      if (!machine_->locked(gpu).usual() && std::strcmp(device.device, shared_->uuid[gpu]) == 0)
        text += "; the daemon says of GPU " + std::to_string(gpu) + ": held by process " +
                std::to_string(device.holder_pid) + ", " + text_of({device.min_mhz, device.max_mhz}) +
                ((device.flags & POWERCCL_LEASE_PENDING) != 0 ? ", still to be put back" : "");
  return text;
}

void Schedule::check_usual() {
  const auto starved_us = [&] { return daemon_.starved_us() + machine_->starved_us(); };
  const int64_t begin_ns = now_ns(), begin_us = starved_us();
  const auto late = [&] {
    return (now_ns() - begin_ns) / 1000 - std::max<int64_t>(starved_us() - begin_us, 0) > kUsualMs * 1000;
  };
  // While the daemon hears of one end after another, the clock may for a moment be what the rest of the dead wish for.
  within(kHangMs,
         [&] { return (ask_sessions(machine_->socket(), 1000) == 0 && marks_in(machine_->state()) == 0) || late(); });
  sleep_us(5000);  // the clock follows the call by a millisecond
  within(kHangMs, [&] { return machine_->all_usual() || late(); });
  if (!machine_->all_usual())
    violated("nobody is there any more, and " + machine_->clocks() + account());
  else if (const int marks = marks_in(machine_->state()); marks != 0)
    violated("all clocks are usual, and the state file has " + std::to_string(marks) + " marks");
}

void Schedule::end_daemon() {
  const uint32_t way = random_.between(0, 2);
  if (way == 0) daemon_.signal(SIGTERM);
  if (way == 1) daemon_.close_input();
  if (way < 2 && daemon_.wait_end(kHangMs) != 0)
    violated(std::string("nobody is there, and the daemon does not end well on ") +
             (way == 0 ? "SIGTERM" : "its input's end"));
  daemon_.kill_hard();
}

void Schedule::gather() {
  for (uint32_t i = 0; i < spawned_; ++i) {
    const ClientSlot& slot = shared_->client[i];
    counts_.requests += slot.requests.load();
    counts_.answers += slot.answers.load();
    counts_.longest_wait_ns = std::max(counts_.longest_wait_ns, slot.longest_wait_ns.load());
    for (uint32_t j = 0; j < slot.events.load(); ++j) {
      if (slot.event[j].what == What::kGranted) ++counts_.grants;
      if (slot.event[j].what == What::kEnded && slot.event[j].detail == POWERCCL_LEASE_MISSED) ++counts_.missed;
    }
    if (slot.faulty.load()) violated("client " + std::to_string(i) + ": " + slot.fault);
  }
  if (const std::string conflict = find_two_holders(*shared_); !conflict.empty()) violated(conflict);
}

}  // namespace powerccl::leases
