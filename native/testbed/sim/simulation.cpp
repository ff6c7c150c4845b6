// SPDX-License-Identifier: Apache-2.0
#include "sim/simulation.h"

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <new>
#include <stdexcept>

#include "bench/scenario.h"
#include "bench/values.h"
#include "policy/learning_policy.h"
#include "policy/node_state.h"
#include "sim/host.h"

namespace powerccl::sim {
namespace {

constexpr Time kBarrierNs = 30'000;  // from the last rank's arrival until the first one goes on

class NoTrace final : public Trace {};

void refuse_what_is_not_simulated(const bench::Scenario& scenario) {
  for (const bench::Section& section : scenario.sections) {
    for (const bench::Operation& operation : section.operations) {
      const bool pattern =
          operation.act == bench::Act::kCollective &&
          (operation.pattern == bench::Pattern::kScatter || operation.pattern == bench::Pattern::kGather ||
           operation.pattern == bench::Pattern::kSendReceive);
      const bool way = operation.way != bench::Way::kAsGiven && operation.way != bench::Way::kPlain;
      if (!pattern && !way) continue;
      throw bench::Failure(bench::kExitUsage,
                           scenario.file + ":" + std::to_string(operation.line) + ": " +
                               (way ? "other ways than plain" : "this pattern") + " cannot be simulated yet",
                           "replay it in real time: powerccl run --emulate");
    }
  }
}

// Of scenarios of ranks of their own.
void refuse_other_groups(const std::vector<bench::Scenario>& scenarios, uint32_t ranks) {
  if (scenarios.size() != ranks) {
    throw bench::Failure(bench::kExitUsage,
                         std::to_string(scenarios.size()) + " scenarios for " + std::to_string(ranks) + " ranks",
                         "give one for all, or one for each in the order of ranks");
  }
  for (const bench::Scenario& scenario : scenarios) {
    if (scenario.groups == scenarios.front().groups) continue;
    throw bench::Failure(bench::kExitUsage, scenario.file + " has other groups than " + scenarios.front().file,
                         "each rank's scenario has the same `group` lines");
  }
}

struct Free {
  void operator()(void* memory) const { std::free(memory); }
};
template <typename T>
using Zeroed = std::unique_ptr<T, Free>;

// In memory that is all zero to begin with, as both count on.
template <typename T>
Zeroed<T> zeroed() {
  constexpr size_t kLine = 64, kBytes = (sizeof(T) + kLine - 1) / kLine * kLine;
  void* memory = std::aligned_alloc(kLine, kBytes);
  if (memory == nullptr) throw std::bad_alloc();
  memset(memory, 0, kBytes);
  return Zeroed<T>(new (memory) T());
}

class Simulation {
 public:
  Simulation(const physics::Platform& platform, const std::vector<bench::Scenario>& scenarios, const PolicyTable* table,
             const Asked& asked, RunFolder* folder)
      : scenarios_(scenarios),
        asked_(asked),
        ranks_(platform.gpus),
        begun_iterations_(ranks_),
        server_(platform, ranks_),
        folder_(folder) {
    if (folder_ != nullptr) folder_->begin(server_.now());
    for (uint32_t host = 0; host < platform.hosts; ++host) nodes_.push_back(zeroed<NodeState>());
    std::vector<std::vector<uint64_t>> comms(ranks_);
    for (const bench::Group& group : scenarios.front().groups) join(group, comms);
    for (uint32_t rank = 0; rank < ranks_; ++rank) {
      per_call_.push_back(std::make_unique<PerCallPolicy>());
      ClockPolicy* policy = per_call_.back().get();
      if (asked.policy == PolicyName::kAuto) {
        learning_.push_back(zeroed<LearningPolicy>());
        policy = learning_.back().get();
        NodeState* node = nodes_[platform.host_of(rank)].get();
        learning_.back()->begin({asked.budget_pct / 100, false, node, asked.parts.slack});
      }
      const Rules rules{asked.policy == PolicyName::kPerCall ? table : nullptr, per_call_.back().get(),
                        asked.parts.marks, std::ranges::find(asked.ranks_off, rank) != asked.ranks_off.end()};
      hosts_.push_back(std::make_unique<Host>(
          server_, scenario_of(rank), rank, ranks_, asked.seed, comms[rank], rules, *policy, lease_of(rank),
          folder_ != nullptr ? folder_->trace(rank) : no_trace_, [this, rank] { arrive(rank); }));
      const auto& clocks = asked.clocks_mhz;
      const uint32_t mhz = clocks.empty() ? 0 : clocks[clocks.size() == 1 ? 0 : rank];
      if (mhz == 0) continue;
      per_call_.back()->hold(mhz, 0, static_cast<uint64_t>(server_.now()));
      hosts_.back()->clock().look();
    }
  }

  Found run() {
    const auto began = std::chrono::steady_clock::now();
    const Time first = server_.now();
    start_ = first;
    go();
    while (!over_) {
      const Time next = server_.engine().next_event();
      if (folder_ != nullptr && next != INT64_MAX) folder_->sample(server_, next);
      if (!server_.step()) throw std::runtime_error("the ranks have come to a standstill: nothing will ever happen");
      for (const auto& host : hosts_) host->poll();
    }
    found_.real_s = std::chrono::duration<double>(std::chrono::steady_clock::now() - began).count();
    const auto number = static_cast<double>(std::max<size_t>(found_.iterations.size(), 1));
    uint64_t switches = 0;
    Time end = server_.now();
    for (const auto& host : hosts_) {
      found_.exposed_ms += host->exposed_ms();
      host->finish();
      end = std::max(end, host->clock().settled_at());
      switches += host->clock().switches();
      const auto set = host->clock().first_set();
      if (!set) continue;
      const double at_s = static_cast<double>(*set - first) * 1e-9;
      found_.first_clock_s = std::min(found_.first_clock_s.value_or(at_s), at_s);
    }
    found_.virtual_s = static_cast<double>(end - first) * 1e-9;
    for (const auto& policy : learning_) found_.clocks_mhz.push_back(policy->state().clock_mhz);
    found_.exposed_ms = (found_.exposed_ms - exposed_before_) / number / ranks_;
    found_.switches_per_s = static_cast<double>(switches) / found_.virtual_s / ranks_;
    if (folder_ != nullptr) folder_->finish(server_, end);
    return found_;
  }

 private:
  void join(const bench::Group& group, std::vector<std::vector<uint64_t>>& comms) {
    std::vector<uint64_t> made(ranks_);  // by a communicator's first rank
    for (uint32_t rank = 0; rank < ranks_; ++rank) {
      const bench::Place place = bench::place_of(group, static_cast<int>(rank), static_cast<int>(ranks_));
      uint64_t& number = made[static_cast<size_t>(place.first)];
      if (number == 0 && place.size > 1) {
        std::vector<uint32_t> members;
        members.reserve(static_cast<size_t>(place.size));
        for (int i = 0; i < place.size; ++i) members.push_back(static_cast<uint32_t>(place.member(i)));
        number = server_.communicator(members);
      }
      comms[rank].push_back(number);
    }
  }

  Lease lease_of(uint32_t rank) {
    Lease lease;
    lease.interval_ns = static_cast<Time>(asked_.lease_interval_ms * 1e6);
    const auto at = [this](double s) { return server_.now() + static_cast<Time>(s * 1e9); };
    for (const LeaseLoss& each : asked_.lease_losses) {
      if (each.host == server_.engine().platform().host_of(rank))
        lease.absences.push_back({at(each.from_s), at(each.to_s)});
    }
    return lease;
  }

  // Ranks with a scenario each go on by themselves, as in a job; an iteration is rank 0's.
  void arrive(uint32_t rank) {
    if (scenarios_.size() > 1) {
      if (rank == 0) end_iteration();
      if (!over_) server_.after(kBarrierNs, [this, rank] { rank == 0 ? go() : begin(rank); });
      return;
    }
    if (++arrived_ < ranks_) return;
    arrived_ = 0;
    end_iteration();
    if (!over_) server_.after(kBarrierNs, [this] { go(); });
  }

  void go() {
    begun_ = server_.now();
    if (!measured_ && since_s(start_) >= asked_.warm_up_s && number_ > 0) {
      measured_ = true;
      measured_since_ = begun_;
      found_.first = number_;
      for (const auto& host : hosts_) exposed_before_ += host->exposed_ms();
    }
    joules_ = joules();
    if (measured_ && found_.iterations.empty()) first_joules_ = joules_;
    const bool together = scenarios_.size() == 1 || number_ == 0;
    for (uint32_t rank = 0; rank < (together ? ranks_ : 1); ++rank) begin(rank);
    ++number_;
  }

  void begin(uint32_t rank) {
    const double share = measured_ ? std::min(since_s(measured_since_) / asked_.seconds, 0.999999) : 0;
    hosts_[rank]->begin(begun_iterations_[rank]++, scenario_of(rank).section_at(share));
  }

  void end_iteration() {
    if (!measured_) return;
    const double now = joules();
    found_.iterations.push_back({static_cast<double>(begun_ - start_) * 1e-6,
                                 static_cast<double>(server_.now() - begun_) * 1e-6, now - joules_});
    found_.seconds = since_s(measured_since_);
    found_.joules = now - first_joules_;
    over_ = found_.seconds >= asked_.seconds;
  }

  const bench::Scenario& scenario_of(uint32_t rank) const { return scenarios_[scenarios_.size() > 1 ? rank : 0]; }
  double since_s(Time when) const { return static_cast<double>(server_.now() - when) * 1e-9; }
  double joules() {
    double sum = 0;
    for (uint32_t rank = 0; rank < ranks_; ++rank) sum += server_.joules(rank);
    return sum;
  }

  const std::vector<bench::Scenario>& scenarios_;
  Asked asked_;
  uint32_t ranks_;
  std::vector<int> begun_iterations_;  // by rank
  Server server_;
  std::vector<Zeroed<NodeState>> nodes_;  // by host
  RunFolder* folder_;
  NoTrace no_trace_;
  std::vector<std::unique_ptr<PerCallPolicy>> per_call_;  // of per-call, and of a clock that is held; else of nothing
  std::vector<Zeroed<LearningPolicy>> learning_;
  std::vector<std::unique_ptr<Host>> hosts_;
  Found found_;
  uint32_t arrived_ = 0;
  int number_ = 0;
  bool measured_ = false, over_ = false;
  Time start_ = 0, begun_ = 0, measured_since_ = 0;
  double joules_ = 0, first_joules_ = 0, exposed_before_ = 0;
};

}  // namespace

Found simulate(const physics::Platform& platform, const std::vector<bench::Scenario>& scenarios,
               const PolicyTable* table, const Asked& asked, RunFolder* folder) {
  for (const bench::Scenario& scenario : scenarios) refuse_what_is_not_simulated(scenario);
  if (scenarios.size() == 1) {
    bench::check_ranks(scenarios.front(), static_cast<int>(platform.gpus));
  } else {
    refuse_other_groups(scenarios, platform.gpus);
  }
  return Simulation(platform, scenarios, table, asked, folder).run();
}

}  // namespace powerccl::sim
