// SPDX-License-Identifier: Apache-2.0
#include "doors/mpi/narrow.h"

#include <limits.h>
#include <stdlib.h>

#include "doors/mpi/library.h"

namespace powerccl::mpi {
namespace {

// The same in every library that lacks the large forms (MPICH before 4.0, Open MPI).
constexpr int kErrCount = 2, kErrOther = 15;

struct Shape {
  Function function;
  int8_t scalars[2];  // counts; -1: none
  int8_t arrays[4];   // counts and displacements, one for each rank
  int8_t root;        // the arrays mean something there only
};
constexpr Shape kShapes[] = {
    {kAllgather, {1, 4}, {-1, -1, -1, -1}, -1},
    {kGather, {1, 4}, {-1, -1, -1, -1}, -1},
    {kScatter, {1, 4}, {-1, -1, -1, -1}, -1},
    {kAlltoall, {1, 4}, {-1, -1, -1, -1}, -1},
    {kNeighbor_allgather, {1, 4}, {-1, -1, -1, -1}, -1},
    {kNeighbor_alltoall, {1, 4}, {-1, -1, -1, -1}, -1},
    {kSendrecv, {1, 6}, {-1, -1, -1, -1}, -1},
    {kAllgatherv, {1, -1}, {4, 5, -1, -1}, -1},
    {kGatherv, {1, -1}, {4, 5, -1, -1}, 7},
    {kScatterv, {5, -1}, {1, 2, -1, -1}, 7},
    {kAlltoallv, {-1, -1}, {1, 2, 5, 6}, -1},
    {kAlltoallw, {-1, -1}, {1, 2, 5, 6}, -1},
    {kReduce_scatter, {-1, -1}, {2, -1, -1, -1}, -1},
};

bool fits(int64_t value) {
  return value >= INT_MIN && value <= INT_MAX;
}

// How many entries the arrays have at this rank; 0: they mean nothing here.
int entries_of(const Shape& shape, const Word* arguments) {
  using Ask = int (*)(Word, int*);
  static const Ask size_of = reinterpret_cast<Ask>(next_symbol("PMPI_Comm_size"));
  static const Ask remote_size_of = reinterpret_cast<Ask>(next_symbol("PMPI_Comm_remote_size"));
  static const Ask rank_of = reinterpret_cast<Ask>(next_symbol("PMPI_Comm_rank"));
  static const Ask inter_of = reinterpret_cast<Ask>(next_symbol("PMPI_Comm_test_inter"));
  const Word communicator = arguments[kSignatures[shape.function].comm];
  int inter = 0, entries = 0, rank = 0;
  if (inter_of == nullptr || inter_of(communicator, &inter) != 0) return 0;
  // Between two groups it is the other side's ranks that are counted, but for the sums that this side keeps.
  const bool remote = inter != 0 && shape.function != kReduce_scatter;
  if ((remote ? remote_size_of : size_of)(communicator, &entries) != 0) return 0;
  if (shape.root < 0) return entries;
  const int root = static_cast<int32_t>(arguments[shape.root]);
  if (inter != 0) return root < -2 ? entries : 0;  // MPI_ROOT is -3 or -4, MPI_PROC_NULL -1 or -2
  return rank_of(communicator, &rank) == 0 && rank == root ? entries : 0;
}

}  // namespace

Narrowed::~Narrowed() {
  for (int* copy : copies_) free(copy);
}

int Narrowed::narrow(Function function, Word* arguments) {
  const Shape* shape = nullptr;
  for (const Shape& each : kShapes) {
    if (each.function == function) shape = &each;
  }
  if (shape == nullptr) {
    const int8_t count = kSignatures[function].count;
    return count < 0 || fits(arguments[count]) ? 0 : kErrCount;
  }
  for (const int8_t place : shape->scalars) {
    if (place >= 0 && !fits(arguments[place])) return kErrCount;
  }
  if (shape->arrays[0] < 0) return 0;
  const int entries = entries_of(*shape, arguments);
  for (int i = 0; i < 4 && entries > 0; ++i) {
    if (shape->arrays[i] < 0 || arguments[shape->arrays[i]] == 0) continue;
    const int64_t* wide = pointer_to<int64_t>(arguments[shape->arrays[i]]);
    copies_[i] = static_cast<int*>(malloc(sizeof(int) * static_cast<size_t>(entries)));
    if (copies_[i] == nullptr) return kErrOther;
    for (int entry = 0; entry < entries; ++entry) {
      if (!fits(wide[entry])) return kErrCount;
      copies_[i][entry] = static_cast<int>(wide[entry]);
    }
    arguments[shape->arrays[i]] = reinterpret_cast<Word>(copies_[i]);
  }
  return 0;
}

}  // namespace powerccl::mpi
