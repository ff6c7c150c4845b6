// SPDX-License-Identifier: Apache-2.0
// What the operations of a random MPI program share. All ranks draw the same numbers in the same order, so that all
// know what every rank does and what every result must be.
#pragma once
#include <mpi.h>

#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <vector>

inline uint64_t mixed(uint64_t value) {
  value += 0x9e3779b97f4a7c15u;
  value = (value ^ (value >> 30)) * 0xbf58476d1ce4e5b9u;
  value = (value ^ (value >> 27)) * 0x94d049bb133111ebu;
  return value ^ (value >> 31);
}

struct Draws {
  uint64_t state;
  uint64_t next() { return mixed(state++); }
  int below(int bound) { return static_cast<int>(next() % static_cast<uint64_t>(bound)); }
  bool chance(int percent) { return below(100) < percent; }
};

struct Program {
  uint64_t seed = 0;
  Draws draws{0};
  uint64_t step = 0;  // of the operation under way
  int operation = 0;
  uint64_t hash = 0;  // of all results of this rank
  long faults = 0;
  int world_rank = 0;
  bool threads = false;

  // Small enough that sums over ranks are exact in every type.
  long value(int rank, int place) const {
    return static_cast<long>(
        mixed(step * 1000003u + static_cast<uint64_t>(rank) * 7919u + static_cast<uint64_t>(place)) % 100000u);
  }
  // A result: must be what it is said to be, and goes into the hash.
  void expect(long is, long should_be) {
    hash = mixed(hash ^ static_cast<uint64_t>(is));
    if (is == should_be) return;
    if (faults++ < 3) {
      fprintf(stderr, "seed %llu, step %llu, operation %d, world rank %d: %ld, should be %ld\n",
              static_cast<unsigned long long>(seed), static_cast<unsigned long long>(step), operation, world_rank, is,
              should_be);
    }
  }
  void expect_all(const std::vector<long>& are, const std::vector<long>& should_be) {
    expect(static_cast<long>(are.size()), static_cast<long>(should_be.size()));
    for (size_t i = 0; i < are.size() && i < should_be.size(); ++i) expect(are[i], should_be[i]);
  }
};

// A communicator with what everybody in it knows.
struct Group {
  MPI_Comm comm;
  int rank, size;
};

inline Group group_of(MPI_Comm comm) {
  Group group{comm, 0, 0};
  MPI_Comm_rank(comm, &group.rank);
  MPI_Comm_size(comm, &group.size);
  return group;
}

// Libraries that clusters still have and whose faults programs step around, with the adapter and without.
bool is_mpich_402();  // Debian 12's
bool is_open_mpi_41();

// Computing, or away.
void delay(long microseconds, bool busy);

using Operation = void (*)(Program& program, const Group& group);

void add_collectives(std::vector<Operation>& operations);
void add_point_to_point(std::vector<Operation>& operations);
void add_one_sided(std::vector<Operation>& operations);
void add_communicators(std::vector<Operation>& operations);
void add_requests(std::vector<Operation>& operations);
void add_types(std::vector<Operation>& operations);
void add_shapes(std::vector<Operation>& operations);
