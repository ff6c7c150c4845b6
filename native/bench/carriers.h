// SPDX-License-Identifier: Apache-2.0
// What a scenario's operations go by: a communicator for each way that occurs in a group, and the buffers that the way
// takes.
#ifndef POWERCCL_BENCH_CARRIERS_H
#define POWERCCL_BENCH_CARRIERS_H
#include <map>
#include <memory>
#include <utility>
#include <vector>

#include "bench/rank.h"
#include "bench/scenario_ranks.h"

namespace powerccl::bench {

inline constexpr Type kScenarioType = Type::kFloat16;  // results are not looked at, and time goes by bytes

class Carriers {
 public:
  // All ranks together: they make the same communicators in the same order.
  Carriers(Rank& rank, const Scenario& scenario);
  Carriers(const Carriers&) = delete;
  Carriers& operator=(const Carriers&) = delete;
  // Gives windows back, which must go before their communicators. Call once, at the end of work that went well.
  void close();

  // The rank's own in the operation's group.
  const Place& place(const Operation& operation) const { return places_[operation.group]; }
  struct Carrier {
    NcclComm comm;  // null where this rank has nobody to talk to
    Buffers buffers;
  };
  Carrier of(const Operation& operation) const;

 private:
  using Key = std::pair<size_t, Way>;  // of a group, in which it occurs
  NcclComm make(const Key& key, std::map<Way, Communicator*>& of_all);
  size_t bytes_of(const Operation& operation) const;

  Rank& rank_;
  const Scenario& scenario_;
  std::vector<Place> places_;  // by group
  std::map<Key, NcclComm> comms_;
  std::map<Key, std::unique_ptr<Windows>> windows_;
};

}  // namespace powerccl::bench
#endif
