// SPDX-License-Identifier: Apache-2.0
#include "agent/cpu_sampler.h"

#include <unistd.h>

#include <algorithm>
#include <cinttypes>
#include <cstdio>
#include <functional>

#include "abi/host_clock.h"
#include "agent/cadence.h"
#include "device/cpu_time.h"

namespace powerccl::agent {
namespace {

constexpr const char* kColumns = "time_ns,domain,energy_uj,cpu_busy_ns,cpu_idle_ns\n";
constexpr const char* kTimeDomain = "cpu";
constexpr unsigned long kTimerSlackNs = 5'000'000;  // rows carry their own time: no need to be woken on the dot

// As for a metric of a GPU, the second of two reads: the first may set things up.
int64_t affordable_period_ns(const std::function<void()>& read, int64_t interval_ns) {
  read();
  const int64_t cpu = read_clock_ns(CLOCK_THREAD_CPUTIME_ID);
  const int64_t wall = host_now_ns();
  read();
  const ReadPrice price{read_clock_ns(CLOCK_THREAD_CPUTIME_ID) - cpu, host_now_ns() - wall};
  return read_period_ns(device::kEnergyUj, price, 1, interval_ns);
}

}  // namespace

CpuSampler::CpuSampler(const std::string& sysfs, int64_t interval_ns)
    : interval_ns_(std::max(interval_ns, kCpuIntervalNs)), proc_stat_(device::cpu_time_open(device::kProcStat)) {
  device::rapl_open(&rapl_, sysfs.c_str());
}

CpuSampler::~CpuSampler() {
  ticker_.end();
  device::rapl_close(&rapl_);
  if (proc_stat_ >= 0) close(proc_stat_);
}

void CpuSampler::plan(int64_t start_ns) {
  const auto counters = [this] {
    for (int i = 0; i < rapl_.domains; ++i) device::rapl_read_uj(&rapl_.domain[i]);
  };
  const auto times = [this] {
    device::CpuTime time;
    device::cpu_time_read(proc_stat_, &time);
  };
  energy_.period_ns = affordable_period_ns(counters, interval_ns_);
  time_.period_ns = affordable_period_ns(times, interval_ns_);
  energy_.due_ns = start_ns + energy_.period_ns;
  time_.due_ns = start_ns + time_.period_ns;
}

std::string CpuSampler::head() const {
  std::string text = common_comments(interval_ns_);
  text += comment("cpus", std::to_string(sysconf(_SC_NPROCESSORS_ONLN)));
  text += comment("read_every_ns_cpu_time", std::to_string(time_.period_ns));
  text += comment("energy_source", rapl_.source);
  if (*rapl_.reason) return text + comment("energy_reason", rapl_.reason) + kColumns;
  text += comment("read_every_ns_energy_uj", std::to_string(energy_.period_ns));
  for (int i = 0; i < rapl_.domains; ++i) {
    const device::RaplDomain& domain = rapl_.domain[i];
    if (domain.range_uj > 0)
      text += comment(std::string(domain.name) + "_max_energy_range_uj", std::to_string(domain.range_uj));
  }
  return text + kColumns;
}

int CpuSampler::start(const std::string& path) {
  const int64_t start_ns = host_now_ns();
  plan(start_ns);
  int number = file_.open(path, head());
  if (number == 0) number = append_energy();
  if (number == 0) number = append_time();
  if (number == 0) number = file_.flush();
  if (number == 0)
    number = ticker_.start(start_ns, interval_ns_, kTimerSlackNs,
                           [this](int64_t deadline_ns, bool last_one) { return tick(deadline_ns, last_one); });
  if (number != 0) file_.say_failed(number, "The processors are not sampled");
  return number;
}

void CpuSampler::ask_to_stop() {
  ticker_.ask_to_stop();
}

bool CpuSampler::stop() {
  return ticker_.stop(kStopPatienceNs);
}

bool CpuSampler::tick(int64_t deadline_ns, bool last_one) {
  const auto is_due = [&](Reading* reading) {
    if (!last_one && deadline_ns < reading->due_ns) return false;
    reading->due_ns = next_due_ns(reading->due_ns, reading->period_ns, deadline_ns);
    return true;
  };
  int number = 0;
  if (is_due(&energy_)) number = append_energy();
  if (is_due(&time_) && number == 0) number = append_time();
  if (number == 0 && last_one) number = append_end();
  if (number == 0 && (last_one || file_.due(host_now_ns() + interval_ns_))) number = file_.flush();
  if (number != 0) file_.say_failed(number, "The processors are no longer sampled");
  return number == 0;
}

// The row's time is the middle of the read, as for a GPU (sampler.h). A read that took longer than three intervals,
// as on a busy machine, has no row, because the moment of its figures is not known.
int CpuSampler::append(int64_t before_ns, const Row& row) {
  const int64_t took_ns = host_now_ns() - before_ns;
  if (took_ns > kLongestReadIntervals * interval_ns_) return 0;
  char line[160];
  const int64_t time_ns = before_ns + took_ns / 2;
  const int length = std::snprintf(line, sizeof line, "%" PRId64 ",%s,%" PRId64 ",%" PRId64 ",%" PRId64 "\n", time_ns,
                                   row.domain, row.energy_uj, row.busy_ns, row.idle_ns);
  return file_.append(time_ns, line, static_cast<size_t>(length));
}

// What does not read has no row: a figure repeated at a later time would look like a processor that used nothing.
int CpuSampler::append_energy() {
  int number = 0;
  for (int i = 0; i < rapl_.domains && number == 0; ++i) {
    const int64_t before_ns = host_now_ns();
    const int64_t energy_uj = device::rapl_read_uj(&rapl_.domain[i]);
    if (energy_uj >= 0) number = append(before_ns, {rapl_.domain[i].name, energy_uj, -1, -1});
  }
  return number;
}

// A host that is killed leaves no such line.
int CpuSampler::append_end() {
  const int64_t now_ns = host_now_ns();
  const std::string line = comment("ended_ns", std::to_string(now_ns));
  return file_.append(now_ns, line.c_str(), line.size());
}

int CpuSampler::append_time() {
  const int64_t before_ns = host_now_ns();
  device::CpuTime time;
  if (!device::cpu_time_read(proc_stat_, &time)) return 0;
  return append(before_ns, {kTimeDomain, -1, time.busy_ns, time.idle_ns});
}

}  // namespace powerccl::agent
