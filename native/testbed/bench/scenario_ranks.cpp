// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <cmath>
#include <set>

#include "bench/scenario.h"
#include "bench/values.h"

namespace powerccl::bench {
namespace {

constexpr size_t kAligned = 16;  // bytes; pieces are whole elements of any type

[[noreturn]] void refuse(const Scenario& scenario, int line, const std::string& what, const std::string& right) {
  throw Failure(kExitUsage, scenario.file + (line > 0 ? ":" + std::to_string(line) : "") + ": " + what, right);
}

uint64_t mixed(uint64_t word) {  // splitmix64
  word += 0x9e3779b97f4a7c15ULL;
  word = (word ^ (word >> 30)) * 0xbf58476d1ce4e5b9ULL;
  word = (word ^ (word >> 27)) * 0x94d049bb133111ebULL;
  return word ^ (word >> 31);
}

bool is_transfer(const Operation& operation) {
  return operation.act == Act::kSend || operation.act == Act::kReceive;
}

// All ranks walk through the section side by side; who cannot go on waits for whom it must meet.
class Walk {
 public:
  Walk(const Scenario& scenario, const Section& section, int ranks)
      : scenario_(scenario), all_(section.operations), at_(static_cast<size_t>(ranks), 0) {}

  void run() {
    const int ranks = this->ranks();
    for (bool moved = true; moved;) {
      moved = false;
      for (int rank = 0; rank < ranks; ++rank) moved = step(rank) || moved;
    }
    for (int rank = 0; rank < ranks; ++rank) {
      if (operation_of(rank) != nullptr) refuse_stuck(culprit(rank));
    }
  }

 private:
  int ranks() const { return static_cast<int>(at_.size()); }
  Place place(const Operation& operation, int rank) const {
    return place_of(scenario_.groups[operation.group], rank, ranks());
  }
  // What the rank has to do next with others; null: nothing is left.
  const Operation* operation_of(int rank) {
    size_t& at = at_[static_cast<size_t>(rank)];
    while (at < all_.size() && !takes_part(all_[at], place(all_[at], rank))) ++at;
    return at < all_.size() ? &all_[at] : nullptr;
  }
  void done(int rank) { ++at_[static_cast<size_t>(rank)]; }

  int peer(const Operation& operation, int rank) const {
    const Place own = place(operation, rank);
    return own.member(own.rank + operation.towards);
  }

  bool step(int rank) {
    const Operation* operation = operation_of(rank);
    if (operation == nullptr) return false;
    if (!is_transfer(*operation)) return meet(*operation, rank);
    const int other = peer(*operation, rank);
    const Operation* partner = operation_of(other);
    if (partner == nullptr || !is_transfer(*partner) || partner->act == operation->act ||
        partner->group != operation->group || peer(*partner, other) != rank) {
      return false;
    }
    if (partner->bytes != operation->bytes) {
      refuse(scenario_, operation->line,
             "rank " + std::to_string(rank) + " and rank " + std::to_string(other) + " (line " +
                 std::to_string(partner->line) + ") disagree about the message: " + std::to_string(operation->bytes) +
                 " and " + std::to_string(partner->bytes) + " bytes",
             "the same size on both ends");
    }
    done(rank);
    done(other);
    return true;
  }

  bool meet(const Operation& operation, int rank) {
    const Place here = place(operation, rank);
    for (int i = 0; i < here.size; ++i) {
      if (operation_of(here.member(i)) != &operation) return false;
    }
    for (int i = 0; i < here.size; ++i) done(here.member(i));
    return true;
  }

  // From a rank that waits to whom it waits for, as far as that leads: most wait only because of others.
  int culprit(int rank) {
    for (std::set<int> seen{rank};;) {
      const Operation& operation = *operation_of(rank);
      int other = rank;
      if (is_transfer(operation)) {
        other = peer(operation, rank);
      } else {
        const Place here = place(operation, rank);
        for (int i = here.size; i-- > 0;) {
          if (operation_of(here.member(i)) != &operation) other = here.member(i);
        }
      }
      if (operation_of(other) == nullptr || !seen.insert(other).second) return rank;
      rank = other;
    }
  }

  [[noreturn]] void refuse_stuck(int rank) {
    const Operation& operation = *operation_of(rank);
    const std::string who = "rank " + std::to_string(rank);
    if (!is_transfer(operation)) {
      refuse(scenario_, operation.line, who + " waits here for ever for the others of its group",
             "every rank must come to it: is a `send` or `receive` above unmatched?");
    }
    const int other = peer(operation, rank);
    const Operation* partner = operation_of(other);
    const std::string them = "rank " + std::to_string(other);
    const std::string does = operation.act == Act::kSend ? " sends to " : " receives from ";
    const std::string right = std::string(operation.act == Act::kSend ? "`receive ... from " : "`send ... to ") +
                              (operation.towards > 0 ? "previous" : "next") + "` where it is due";
    if (partner == nullptr)
      refuse(scenario_, operation.line, who + does + them + ", which has no such operation left", right);
    refuse(scenario_, operation.line,
           who + does + them + ", which never comes to that: it waits at line " + std::to_string(partner->line), right);
  }

  const Scenario& scenario_;
  const std::vector<Operation>& all_;
  std::vector<size_t> at_;  // of each rank, in the section
};

}  // namespace

Place place_of(const Group& group, int rank, int ranks) {
  const int stride = std::max(group.stride, 1), size = group.size > 0 ? group.size : ranks / stride;
  const int inside = rank % (size * stride);  // of as many ranks as `stride` communicators have
  return {inside / stride, size, rank - inside + inside % stride, stride};
}

bool takes_part(const Operation& operation, const Place& place) {
  if (operation.act == Act::kCollective) return place.size > 1;
  const int other = place.rank + operation.towards;
  return is_transfer(operation) && other >= 0 && other < place.size;
}

double draw(uint64_t seed, int iteration, int rank) {
  const uint64_t word = mixed(mixed(mixed(seed) + static_cast<uint64_t>(iteration)) + static_cast<uint64_t>(rank));
  return std::ldexp(static_cast<double>(word >> 11), -52) - 1;
}

uint64_t declared_time(double ms, double memory) {
  constexpr int kShareBit = 48;
  const auto share = memory < 0 ? uint64_t{0} : static_cast<uint64_t>(std::lround(memory * 1000)) + 1;
  return static_cast<uint64_t>(ms * 1e6) | share << kShareBit;
}

double compute_ms(const Scenario& scenario, const Operation& operation, int iteration, int rank) {
  const auto factor = scenario.factors.find(rank);
  return operation.ms * (factor != scenario.factors.end() ? factor->second : 1) *
         (1 + operation.vary * draw(scenario.seed, iteration, rank));
}

size_t largest_piece_bytes(const Operation& operation, int ranks) {
  const double even = static_cast<double>(operation.bytes) / ranks;
  return (static_cast<size_t>(even * (1 + operation.vary)) / kAligned + 1) * kAligned;
}

size_t piece_bytes(const Scenario& scenario, const Operation& operation, int iteration, const Place& place, int to) {
  const double even = static_cast<double>(operation.bytes) / place.size;
  const double share = 1 + operation.vary * draw(scenario.seed, iteration, place.member(to));
  return static_cast<size_t>(even * share) / kAligned * kAligned;
}

void check_ranks(const Scenario& scenario, int ranks) {
  for (const Group& group : scenario.groups) {
    const int unit = std::max(group.size, 1) * std::max(group.stride, 1);
    if (ranks % unit == 0) continue;
    refuse(scenario, 0,
           "group " + group.name + " does not divide " + std::to_string(ranks) + " ranks by " + std::to_string(unit),
           "another number of ranks: -g " + std::to_string(unit * std::max(1, ranks / unit)));
  }
  if (!scenario.factors.empty() && scenario.factors.rbegin()->first >= ranks) {
    refuse(
        scenario, 0,
        "there is no rank " + std::to_string(scenario.factors.rbegin()->first) + ": there are " + std::to_string(ranks),
        "ranks count from 0; -g says how many there are");
  }
  for (const Section& section : scenario.sections) Walk(scenario, section, ranks).run();
}

}  // namespace powerccl::bench
