// SPDX-License-Identifier: Apache-2.0
// What a scenario means for each of so many ranks: who talks to whom, for how long it computes, and whether all of it
// can ever end.
#ifndef POWERCCL_BENCH_SCENARIO_RANKS_H
#define POWERCCL_BENCH_SCENARIO_RANKS_H
#include "bench/scenario.h"

namespace powerccl::bench {

// A rank's place in its communicator of a group.
struct Place {
  int rank, size;
  int first;                                                        // the communicator's rank 0, among all ranks
  int distance;                                                     // from each of its ranks to the next
  int member(int index) const { return first + index * distance; }  // among all ranks
};
Place place_of(const Group& group, int rank, int ranks);

// Whether the rank takes part: a communicator of one rank does not communicate, and the first rank of one has nobody
// before it.
bool takes_part(const Operation& operation, const Place& place);

// The draw that `vary` goes by: even in [-1, 1), one for each rank and iteration, the same on every machine.
double draw(uint64_t seed, int iteration, int rank);
double compute_ms(const Scenario& scenario, const Operation& operation, int iteration, int rank);
// What the emulator reads of a kernel: nanoseconds and, above them, one more than the thousandths of them that no clock
// changes; 0: `memory` is below 0, and that is as usual there.
uint64_t declared_time(double ms, double memory);
// Bytes that each rank of a varying all-to-all sends to the member `to`: those whose draw is high are sent more.
size_t piece_bytes(const Scenario& scenario, const Operation& operation, int iteration, const Place& place, int to);
size_t largest_piece_bytes(const Operation& operation, int ranks);

// Throws Failure(kExitUsage) where groups do not divide the ranks, a factor is for a rank that there is not, a message
// has no other end, or ranks would wait for each other for ever. The last is told as if each rank made one operation
// after another, which NCCL's first connections and one communicator's operations do in fact.
void check_ranks(const Scenario& scenario, int ranks);

}  // namespace powerccl::bench
#endif
