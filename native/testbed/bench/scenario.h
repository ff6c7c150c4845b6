// SPDX-License-Identifier: Apache-2.0
// A scenario file: what every rank computes and communicates in one iteration of a training job
// (docs/reference/scenarios.md has the language). Reading it says all that is wrong with it before a GPU is touched.
#pragma once
#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "bench/pattern.h"

namespace powerccl::bench {

enum class Act : uint8_t { kCompute, kCollective, kSend, kReceive, kWait, kSync, kCapture, kEndCapture };

struct Operation {
  Act act;
  int line;
  size_t stream = 0;   // in Scenario::streams
  size_t group = 0;    // in Scenario::groups
  size_t awaited = 0;  // kWait: the stream waited for
  Pattern pattern{};   // kCollective
  Way way{};           // kCollective
  size_t bytes = 0;    // kCollective: NCCL tests' size; kSend, kReceive: the message
  int towards = 0;     // kSend, kReceive: the distance to the other rank in the group; +1 the next, -1 the previous
  double ms = 0;       // kCompute
  double memory = -1;  // kCompute: share of it that no clock changes, on emulated GPUs; below 0: as is usual there
  double vary = 0;     // share by which a rank's draw makes it longer or shorter
};

// Who communicates together. Each rank is in one communicator of the group.
struct Group {
  std::string name;
  int size = 0;    // so many ranks; 0: as many as there are
  int stride = 0;  // at this distance from each other; 0: neighbours
  bool operator==(const Group&) const = default;
};

// What iterations look like from a share of the run on; repeats are written out.
struct Section {
  double from = 0;
  std::vector<Operation> operations;
};

struct Scenario {
  std::string file, name;  // the name is the file's, without folder and ending
  int iterations = 120;
  uint64_t seed = 1;
  std::vector<std::string> streams{"compute"};
  std::vector<Group> groups{Group{"all"}};
  std::map<int, double> factors;  // a rank's computation takes so many times as long
  std::vector<Section> sections{Section{}};

  bool captures(const Section& section) const;
  const Section& section_at(double share) const;
};

inline constexpr size_t kMaxOperations = 20'000;  // of an iteration, written out
inline constexpr size_t kMaxStreams = 16;

// Both throw Failure(kExitUsage) that names file and line, and shows what would be right.
Scenario read_scenario(const std::string& path);
Scenario parse_scenario(const std::string& text, const std::string& file);

// ---- What a scenario means for each of so many ranks: who talks to whom, for how long it computes, and whether all of
// it can ever end.

// A rank's place in its communicator of a group.
struct Place {
  int rank, size;
  int first;                                                        // the communicator's rank 0, among all ranks
  int distance;                                                     // from each of its ranks to the next
  int member(int index) const { return first + index * distance; }  // among all ranks
};
Place place_of(const Group& group, int rank, int ranks);

// Whether the rank takes part: a communicator of one rank does not communicate, and a first rank has none before it.
bool takes_part(const Operation& operation, const Place& place);

// The draw that `vary` goes by: even in [-1, 1), one for each rank and iteration, the same on every machine.
double draw(uint64_t seed, int iteration, int rank);
double compute_ms(const Scenario& scenario, const Operation& operation, int iteration, int rank);
// What the emulator reads of a kernel: nanoseconds and, above them, 1 + the thousandths of them that no clock changes.
// 0 there: `memory` is negative, and the emulator takes its usual share.
uint64_t declared_time(double ms, double memory);
// Bytes that each rank of a varying all-to-all sends to the member `to`: those whose draw is high are sent more.
size_t piece_bytes(const Scenario& scenario, const Operation& operation, int iteration, const Place& place, int to);
size_t largest_piece_bytes(const Operation& operation, int ranks);

// Throws Failure(kExitUsage) where groups do not divide the ranks, a factor is for no rank, a message has no other end,
// or ranks would deadlock. A deadlock is judged as if each rank made one operation after another, as NCCL's first
// connections and one communicator's operations do.
void check_ranks(const Scenario& scenario, int ranks);

}  // namespace powerccl::bench
