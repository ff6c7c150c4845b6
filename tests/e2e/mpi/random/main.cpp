// SPDX-License-Identifier: Apache-2.0
// Random correct MPI programs: random-mpi FIRST LAST runs one for each seed from FIRST to LAST - 1 and prints, on rank
// 0, `seed hash faults` for each: the same whatever stands between the program and its library. Exit code 1: a result
// was wrong.
#include <time.h>

#include <cstring>

#include "program.h"

namespace {

bool version_has(const char* first, const char* second) {
  static char version[MPI_MAX_LIBRARY_VERSION_STRING];
  int length = 0;
  if (version[0] == '\0') MPI_Get_library_version(version, &length);
  return strstr(version, first) != nullptr && strstr(version, second) != nullptr;
}

}  // namespace

bool is_mpich_402() {
  return version_has("MPICH", "4.0.2");
}

bool is_open_mpi_41() {
  return version_has("Open MPI", "v4.1.");
}

void delay(long microseconds, bool busy) {
  timespec now{}, until{};
  clock_gettime(CLOCK_MONOTONIC, &until);
  until.tv_nsec += microseconds * 1000;
  until.tv_sec += until.tv_nsec / 1000000000;
  until.tv_nsec %= 1000000000;
  if (!busy) {
    clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &until, nullptr);
    return;
  }
  do {
    clock_gettime(CLOCK_MONOTONIC, &now);
  } while (now.tv_sec < until.tv_sec || (now.tv_sec == until.tv_sec && now.tv_nsec < until.tv_nsec));
}

namespace {

struct Outcome {
  uint64_t hash;
  long faults;
};

Outcome run(uint64_t seed, const std::vector<Operation>& operations, const std::vector<MPI_Comm>& comms, bool threads) {
  Program program;
  program.seed = seed;
  program.draws.state = mixed(seed);
  program.threads = threads;
  const Group world = group_of(MPI_COMM_WORLD);
  program.world_rank = world.rank;
  const int steps = 4 + program.draws.below(12);
  for (int step = 0; step < steps; ++step) {
    program.step = seed * 1000 + static_cast<uint64_t>(step);
    program.operation = program.draws.below(static_cast<int>(operations.size()));
    const MPI_Comm comm = comms[static_cast<size_t>(program.draws.below(static_cast<int>(comms.size())))];
    // Late ranks are what waiting is about: mostly a little, now and then enough that the others sleep.
    const int late = program.draws.below(world.size), how = program.draws.below(100);
    const bool busy = program.draws.chance(30);
    const long microseconds = how < 8 ? 1000 + program.draws.below(4000) : how < 30 ? program.draws.below(300) : 0;
    if (microseconds > 0 && world.rank == late) delay(microseconds, busy);
    // Operations may draw more than once, and different ranks differently; the program goes on from one place.
    const Draws here = program.draws;
    program.draws.state = mixed(program.step);
    operations[static_cast<size_t>(program.operation)](program, group_of(comm));
    program.draws = here;
  }
  uint64_t mine[2] = {mixed(program.hash + static_cast<uint64_t>(world.rank)), static_cast<uint64_t>(program.faults)};
  uint64_t all[2] = {0, 0};
  MPI_Reduce(mine, all, 2, MPI_UINT64_T, MPI_SUM, 0, MPI_COMM_WORLD);
  return {all[0], static_cast<long>(all[1])};
}

}  // namespace

int main(int argc, char** argv) {
  if (argc < 3) {
    fprintf(stderr, "usage: random-mpi FIRST LAST [single]\n");
    return 2;
  }
  const uint64_t first = strtoull(argv[1], nullptr, 10), last = strtoull(argv[2], nullptr, 10);
  const bool single = argc > 3 && strcmp(argv[3], "single") == 0;
  int provided = MPI_THREAD_SINGLE;
  if (single) {
    MPI_Init(&argc, &argv);
  } else {
    MPI_Init_thread(&argc, &argv, MPI_THREAD_MULTIPLE, &provided);
  }
  std::vector<Operation> operations;
  add_collectives(operations);
  add_point_to_point(operations);
  add_one_sided(operations);
  add_communicators(operations);
  add_requests(operations);
  add_types(operations);
  add_shapes(operations);

  const Group world = group_of(MPI_COMM_WORLD);
  std::vector<MPI_Comm> comms{MPI_COMM_WORLD, MPI_COMM_WORLD, MPI_COMM_WORLD, MPI_COMM_SELF};
  MPI_Comm made;
  MPI_Comm_dup(MPI_COMM_WORLD, &made);
  comms.push_back(made);
  MPI_Comm_split(MPI_COMM_WORLD, 0, -world.rank, &made);  // the other way round
  comms.push_back(made);
  MPI_Comm_split(MPI_COMM_WORLD, world.rank % 2, world.rank, &made);
  comms.push_back(made);

  long faults = 0;
  for (uint64_t seed = first; seed < last; ++seed) {
    const Outcome outcome = run(seed, operations, comms, provided == MPI_THREAD_MULTIPLE);
    faults += outcome.faults;
    if (world.rank == 0) {
      printf("%llu %016llx %ld\n", static_cast<unsigned long long>(seed), static_cast<unsigned long long>(outcome.hash),
             outcome.faults);
      fflush(stdout);
    }
  }
  for (size_t i = 4; i < comms.size(); ++i) MPI_Comm_free(&comms[i]);
  MPI_Finalize();
  return faults == 0 ? 0 : 1;
}
