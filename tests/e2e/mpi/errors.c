// SPDX-License-Identifier: Apache-2.0
// Collectives and exchanges with wrong arguments, under MPI_ERRORS_RETURN: errors WHO HOW CASE...
//
// WHO: the rank whose arguments are wrong, or -1 for all. HOW: `alone`, no other rank makes the call; `again`, the rank
// then makes the right call, which the others make once. CASE: 14 times a place in kNames, plus a fault's number; those
// that do not exist are left out. After each case the communicator must still work.
// A rank says what it got: the case, the function, the fault, the error class. The job ends at a case that the library
// does not notice. Ranks: an even number.
#include <stdlib.h>

#include "results.h"

enum { kMost = 8, kEach = 4, kPatience = 1 };  // ranks, elements for each, seconds

typedef enum {
  kRight,
  kCount,
  kOtherCount,
  kType,
  kOtherType,
  kUncommitted,
  kOp,
  kOpForType,
  kLowRoot,
  kHighRoot,
  kComm,
  kAlias,
  kInPlace,
  kNull,
  kFaults
} Fault;
static const char* const kFaultNames[] = {"right",       "count", "other count", "type",       "other type",
                                          "uncommitted", "op",    "op for type", "low root",   "high root",
                                          "comm",        "alias", "in place",    "null buffer"};
static const char* const kNames[] = {"Barrier",    "Bcast",     "Reduce",    "Allreduce",      "Allgather",
                                     "Allgatherv", "Gather",    "Gatherv",   "Scatter",        "Scatterv",
                                     "Alltoall",   "Alltoallv", "Alltoallw", "Reduce_scatter", "Reduce_scatter_block",
                                     "Scan",       "Exscan",    "Sendrecv"};
enum { kFunctions = sizeof(kNames) / sizeof(*kNames), kSendrecv = kFunctions - 1 };

static MPI_Comm g_work;
static MPI_Datatype g_uncommitted;
static int g_size, g_rank;
static int g_from[kMost * kEach], g_into[kMost * kEach];

// Whether the function has an argument that could be wrong in this way.
static int applies(int function, Fault fault) {
  const int two_sides = (function >= 4 && function <= 12) || function == kSendrecv;
  const int one_side = (function >= 13 && !two_sides) || function == 2 || function == 3;
  switch (fault) {
    case kRight:
      return 0;
    case kComm:
      return 1;
    case kOtherCount:
    case kOtherType:
      return two_sides;
    case kOp:
    case kOpForType:
      return one_side;
    case kLowRoot:
    case kHighRoot:
      return function == 1 || function == 2 || (function >= 6 && function <= 9) || function == kSendrecv;
    case kCount:
    case kType:
    case kUncommitted:
      return function >= 1;
    case kAlias:
      return function >= 2 && function != kSendrecv;
    default:
      return function >= 1 && function != kSendrecv;
  }
}

// The call with that fault; kRight: without.
static int call(int function, Fault fault) {
  const int root = fault == kLowRoot ? -7 : fault == kHighRoot ? g_size : 0;
  const int n = fault == kCount ? -1 : kEach, m = fault == kOtherCount ? -1 : kEach;
  MPI_Comm comm = fault == kComm ? MPI_COMM_NULL : g_work;
  MPI_Datatype type = fault == kType ? MPI_DATATYPE_NULL : fault == kUncommitted ? g_uncommitted : MPI_INT;
  if (fault == kOpForType) type = MPI_DOUBLE;
  MPI_Datatype other = fault == kOtherType ? MPI_DATATYPE_NULL : MPI_INT;
  MPI_Op op = fault == kOp ? MPI_OP_NULL : fault == kOpForType ? MPI_BAND : MPI_SUM;
  void* from = fault == kNull ? NULL : g_from;
  void* into = fault == kAlias ? (void*)g_from : fault == kInPlace ? MPI_IN_PLACE : (void*)g_into;
  int counts[kMost], others[kMost], places[kMost], bytes[kMost];
  MPI_Datatype types[kMost], other_types[kMost];
  for (int i = 0; i < g_size; ++i) {
    counts[i] = others[i] = kEach;
    places[i] = i * kEach;
    bytes[i] = i * kEach * (int)sizeof(int);
    types[i] = other_types[i] = MPI_INT;
  }
  counts[g_size - 1] = n;  // the last of them: each must be looked at
  others[g_size - 1] = m;
  types[g_size - 1] = type;
  other_types[g_size - 1] = other;
  switch (function) {
    case 0:
      return MPI_Barrier(comm);
    case 1:
      return MPI_Bcast(fault == kInPlace ? MPI_IN_PLACE : from, n, type, root, comm);
    case 2:
      return MPI_Reduce(from, into, n, type, op, root, comm);
    case 3:
      return MPI_Allreduce(from, into, n, type, op, comm);
    case 4:
      return MPI_Allgather(from, n, type, into, m, other, comm);
    case 5:
      return MPI_Allgatherv(from, n, type, into, others, places, other, comm);
    case 6:
      return MPI_Gather(from, n, type, into, m, other, root, comm);
    case 7:
      return MPI_Gatherv(from, n, type, into, others, places, other, root, comm);
    case 8:
      return MPI_Scatter(from, n, type, into, m, other, root, comm);
    case 9:
      return MPI_Scatterv(from, counts, places, type, into, m, other, root, comm);
    case 10:
      return MPI_Alltoall(from, n, type, into, m, other, comm);
    case 11:
      return MPI_Alltoallv(from, counts, places, type, into, others, places, other, comm);
    case 12:
      return MPI_Alltoallw(from, counts, bytes, types, into, others, bytes, other_types, comm);
    case 13:
      return MPI_Reduce_scatter(from, into, counts, type, op, comm);
    case 14:
      return MPI_Reduce_scatter_block(from, into, n, type, op, comm);
    case 15:
      return MPI_Scan(from, into, n, type, op, comm);
    case 16:
      return MPI_Exscan(from, into, n, type, op, comm);
    default:
      return MPI_Sendrecv(from, n, type, root != 0 ? root : g_rank ^ 1, 1, into, m, other, g_rank ^ 1, 1, comm,
                          MPI_STATUS_IGNORE);
  }
}

static int error_class(int code) {
  int class = 0;
  MPI_Error_class(code, &class);
  return class;
}

int main(int count, char** words) {
  MPI_Init(&count, &words);
  MPI_Comm_rank(MPI_COMM_WORLD, &g_rank);
  MPI_Comm_size(MPI_COMM_WORLD, &g_size);
  const int who = atoi(words[1]), again = strcmp(words[2], "again") == 0;
  MPI_Comm_dup(MPI_COMM_WORLD, &g_work);
  MPI_Comm_set_errhandler(MPI_COMM_WORLD, MPI_ERRORS_RETURN);  // of MPI_COMM_NULL
  MPI_Comm_set_errhandler(MPI_COMM_SELF, MPI_ERRORS_RETURN);
  MPI_Comm_set_errhandler(g_work, MPI_ERRORS_RETURN);
  MPI_Type_contiguous(1, MPI_INT, &g_uncommitted);
  for (int i = 3; i < count; ++i) {
    const int number = atoi(words[i]), function = number / kFaults, fault = number % kFaults;
    if (number < 0 || function >= kFunctions || !applies(function, fault)) continue;
    for (int k = 0; k < g_size * kEach; ++k) g_from[k] = g_rank + k;
    if (who < 0 || g_rank == who) {
      char line[128];
      int length = snprintf(line, sizeof(line), "case %d\n", number);
      if (write(2, line, length) != length) return 9;
      alarm(kPatience);
      const int class = error_class(call(function, fault));
      alarm(0);
      length = snprintf(line, sizeof(line), "rank %d: %d %s, %s: %d\n", g_rank, number, kNames[function],
                        kFaultNames[fault], class);
      if (write(1, line, length) != length) return 9;
      if (class == 0) MPI_Abort(MPI_COMM_WORLD, 7);
    }
    if (again) note(" %d", error_class(call(function, kRight)));
    int sum = -1;
    for (int k = 0; k < g_size * kEach; ++k) g_from[k] = 1 + number;
    const int code = MPI_Allreduce(g_from, &sum, 1, MPI_INT, MPI_SUM, g_work);
    if (code != 0 || sum != g_size * (1 + number)) note(" %d: sum %d, code %d", number, sum, code);
  }
  MPI_Type_free(&g_uncommitted);
  MPI_Comm_free(&g_work);
  print_notes(g_rank);
  MPI_Finalize();
  return 0;
}
