// SPDX-License-Identifier: Apache-2.0
// A machine for the lease table: devices whose clocks are numbers, a driver that is as slow and as faulty as a test
// wants, and a state file in memory.
#pragma once
#include <algorithm>
#include <deque>
#include <set>
#include <string>
#include <vector>

#include "daemon/lease_table.h"

namespace powerccl::daemon {

inline constexpr int64_t kMs = 1'000'000;

struct Heard {
  SessionId session = 0;
  uint64_t serial = 0;
  uint16_t type = POWERCCL_LEASE_REPLY;
  Answer answer;
};

class Machine : public Actions {
 public:
  explicit Machine(size_t gpus, int64_t interval_ns = 20 * kMs, Sharing sharing = Sharing::kHighest) {
    for (size_t i = 0; i < gpus; ++i) {
      DeviceAbout about;
      about.device = "GPU-" + std::to_string(i);
      about.pci = "0000:0" + std::to_string(i) + ":00.0";
      about.lowest_mhz = 300;
      about.highest_mhz = 1590;
      about_.push_back(about);
    }
    clock_mhz.assign(gpus, 0);
    table.take_devices(about_, interval_ns, 10 * kMs, sharing);
  }

  // The driver does its oldest job, and the table hears of it.
  void work() {
    Job job = jobs.front();
    jobs.pop_front();
    Outcome outcome;
    if (job.kind == Job::kSet && fail_sets > 0) {
      --fail_sets;
      outcome.code = 999;
      outcome.text = "unknown driver error";
      clock_mhz[job.device] = 1;  // what it is set to is not known
    } else if (job.kind == Job::kSet && refuse_sets > 0) {
      --refuse_sets;
      outcome.code = 4;
      outcome.untouched = true;
    } else if (job.kind == Job::kRestore && fail_restores > 0) {
      --fail_restores;
      outcome.code = 15;
    } else if (job.kind == Job::kSet) {
      if (marks.count("GPU-" + std::to_string(job.device)) == 0) unmarked_set = true;
      clock_mhz[job.device] = job.max_mhz;
      outcome.now_mhz = arrives ? job.max_mhz : 1590;
    } else if (job.kind == Job::kRestore) {
      clock_mhz[job.device] = 0;
    } else {
      outcome.now_mhz = clock_mhz[job.device] != 0 ? clock_mhz[job.device] : 1590;
    }
    if (job.session != 0) {
      Answer answer;
      answer.status = outcome.code;
      answer.flags = job.flags;
      answer.lease = job.lease;
      answer.min_mhz = job.min_mhz;
      answer.max_mhz = job.max_mhz;
      answer.outcome = outcome;
      heard.push_back({job.session, job.serial, POWERCCL_LEASE_REPLY, answer});
    }
    table.call_done({job, outcome}, now);
  }
  void work_all() {
    while (!jobs.empty()) work();
  }
  // Time passes, everything due is done.
  void pass(int64_t ns) {
    const int64_t until = now + ns;
    while (table.next_ns() <= until) {
      now = std::max(now, table.next_ns());
      table.advance(now);
      work_all();
    }
    now = until;
    table.advance(now);
    work_all();
  }

  // Requests; what was answered at once or by work().
  uint64_t acquire(SessionId session, size_t device, bool shares = false, uint32_t uid = 1000) {
    table.acquire({session, uid, static_cast<uint32_t>(session), "run", shares}, ++serial, device, now);
    const Answer& answer = answer_to(serial)->answer;
    return answer.status == POWERCCL_LEASE_OK ? answer.lease : 0;
  }
  uint64_t set(SessionId session, uint64_t lease, uint32_t mhz) {
    table.set(session, ++serial, lease, mhz, mhz, now);
    return serial;
  }
  uint64_t set_done(SessionId session, uint64_t lease, uint32_t mhz) {  // and all that it causes
    const uint64_t number = set(session, lease, mhz);
    work_all();
    return number;
  }
  void release(SessionId session, uint64_t lease) { table.release(session, ++serial, lease, now); }
  void end_session(SessionId session, Ending ending) { table.end_session(session, ending, now); }
  const Heard* answer_to(uint64_t number) const {
    for (const Heard& said : heard)
      if (said.serial == number) return &said;
    return nullptr;
  }
  int32_t status_of(uint64_t number) const {
    const Heard* said = answer_to(number);
    return said == nullptr ? 12345 : said->answer.status;
  }

  void enqueue(Job job) override { jobs.push_back(std::move(job)); }
  int mark(const std::string& device, const Holder&) override {
    if (disk_full) return 28;
    marks.insert(device);
    return 0;
  }
  int clear(const std::string& device) override {
    if (disk_full) return 28;
    marks.erase(device);
    return 0;
  }
  void reply(SessionId session, uint64_t number, const Answer& answer) override {
    heard.push_back({session, number, POWERCCL_LEASE_REPLY, answer});
  }
  void tell(SessionId session, uint16_t type, const Answer& answer) override {
    heard.push_back({session, 0, type, answer});
  }
  uint64_t new_lease_number() override { return ++last_lease; }

  int64_t now = 1000 * kMs;
  LeaseTable table{this};
  std::deque<Job> jobs;
  std::vector<uint32_t> clock_mhz;  // 0: usual
  std::set<std::string> marks;
  std::vector<Heard> heard;
  int fail_sets = 0, refuse_sets = 0, fail_restores = 0;
  bool arrives = true, disk_full = false, unmarked_set = false;
  uint64_t serial = 0, last_lease = 100;

 private:
  std::vector<DeviceAbout> about_;
};

}  // namespace powerccl::daemon
