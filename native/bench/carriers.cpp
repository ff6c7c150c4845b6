// SPDX-License-Identifier: Apache-2.0
#include "bench/carriers.h"

#include <algorithm>

namespace powerccl::bench {

Carriers::Carriers(Rank& rank, const Scenario& scenario) : rank_(rank), scenario_(scenario) {
  std::map<Key, size_t> bytes;  // of the largest operation
  for (const Group& group : scenario.groups) {
    places_.push_back(place_of(group, rank.rank(), rank.ranks()));
  }
  for (const Section& section : scenario.sections) {
    for (const Operation& operation : section.operations) {
      size_t& most = bytes[{operation.group, operation.way}];
      most = std::max(most, bytes_of(operation));
    }
  }
  std::map<Way, Communicator*> of_all;
  size_t ordinary = 0;
  for (const auto& [key, most] : bytes) {
    const NcclComm comm = comms_[key] = make(key, of_all);
    const bool in_windows = key.second != Way::kAsGiven && info(key.second).windows;
    if (!in_windows) {
      ordinary = std::max(ordinary, most);
    } else if (comm != nullptr) {
      windows_[key] = std::make_unique<Windows>(rank.shared_nccl(), comm, most);
    }
  }
  rank.reserve(ordinary, ordinary);
}

NcclComm Carriers::make(const Key& key, std::map<Way, Communicator*>& of_all) {
  const auto [index, way] = key;
  const Place& place = places_[index];
  if (place.size == 1) return nullptr;
  const bool as_given = way == Way::kAsGiven;
  if (!as_given && !of_all.contains(way)) of_all[way] = &rank_.join_also(way);
  const Group& group = scenario_.groups[index];
  if (group.size == 0 && group.stride == 0) return as_given ? rank_.comm() : of_all[way]->all();
  return as_given ? rank_.split(place.first) : of_all[way]->split(place.first);
}

size_t Carriers::bytes_of(const Operation& operation) const {
  constexpr size_t kLeast = 256;
  const int ranks = place(operation).size;
  if (operation.vary > 0) return largest_piece_bytes(operation, ranks) * static_cast<size_t>(ranks);
  if (operation.act != Act::kCollective) return std::max(kLeast, operation.bytes);
  const Shape shape = shape_of(operation.pattern, operation.bytes, kScenarioType, ranks);
  return std::max(kLeast, std::max(shape.send_count, shape.recv_count) * info(kScenarioType).bytes);
}

Carriers::Carrier Carriers::of(const Operation& operation) const {
  const Key key{operation.group, operation.way};
  const auto found = windows_.find(key);
  const Buffers buffers = found == windows_.end() ? Buffers{rank_.send_buffer(), rank_.recv_buffer()}
                                                  : Buffers{found->second->send(), found->second->recv()};
  return {comms_.at(key), buffers};
}

void Carriers::close() {
  for (const auto& [key, windows] : windows_) windows->release();
  windows_.clear();
}

}  // namespace powerccl::bench
