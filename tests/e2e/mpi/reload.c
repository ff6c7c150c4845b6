// SPDX-License-Identifier: Apache-2.0
// A program that knows no MPI and opens a plugin that does, closes it, and opens it again: reload PATH sessions|world N.
// Compiled with -DPLUGIN: the plugin. Between two lives something else takes the place of the libraries.
#ifdef PLUGIN
#include "results.h"

static int of_world(int* rank) {
  MPI_Init(NULL, NULL);
  MPI_Comm_rank(MPI_COMM_WORLD, rank);
  MPI_Comm copy;
  MPI_Comm_dup(MPI_COMM_WORLD, &copy);
  long value = *rank + 1, sum = 0, other = 0;
  int size;
  MPI_Comm_size(copy, &size);
  for (int i = 0; i < 3; ++i) {
    if (*rank == 0) usleep(2000);
    MPI_Allreduce(&value, &sum, 1, MPI_LONG, MPI_SUM, copy);
    MPI_Sendrecv(&sum, 1, MPI_LONG, (*rank + 1) % size, 0, &other, 1, MPI_LONG, (*rank + size - 1) % size, 0, copy,
                 MPI_STATUS_IGNORE);
  }
  MPI_Comm_free(&copy);
  MPI_Finalize();
  return (int)(sum + other);
}

static int of_session(int* rank) {
#if MPI_VERSION >= 4
  MPI_Session session;
  MPI_Group group;
  MPI_Comm comm;
  MPI_Session_init(MPI_INFO_NULL, MPI_ERRORS_ARE_FATAL, &session);
  MPI_Group_from_session_pset(session, "mpi://WORLD", &group);
  MPI_Comm_create_from_group(group, "powerccl-test", MPI_INFO_NULL, MPI_ERRORS_ARE_FATAL, &comm);
  MPI_Comm_rank(comm, rank);
  long value = *rank + 1, sum = 0;
  for (int i = 0; i < 3; ++i) {
    if (*rank == 0) usleep(2000);
    MPI_Allreduce(&value, &sum, 1, MPI_LONG, MPI_SUM, comm);
  }
  MPI_Group_free(&group);
  MPI_Comm_free(&comm);
  MPI_Session_finalize(&session);
  return (int)sum;
#else
  return of_world(rank);
#endif
}

int compute(int sessions, int* rank);
int compute(int sessions, int* rank) {
  return sessions ? of_session(rank) : of_world(rank);
}
#else
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

int main(int count, char** words) {
  if (count < 4) return 2;
  char line[256];
  int length = 0, rank = 0;
  for (int life = 0; life < atoi(words[3]); ++life) {
    void* plugin = dlopen(words[1], RTLD_NOW | RTLD_LOCAL);
    if (plugin == NULL) return fprintf(stderr, "%s\n", dlerror()), 1;
    int (*compute)(int, int*) = (int (*)(int, int*))dlsym(plugin, "compute");
    length += snprintf(line + length, sizeof(line) - length, " %d", compute(strcmp(words[2], "sessions") == 0, &rank));
    dlclose(plugin);
    mmap(NULL, 64 << 20, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  }
  char whole[512];
  length = snprintf(whole, sizeof(whole), "rank %d:%s\n", rank, line);
  return write(1, whole, length) == length ? 3 : 4;
}
#endif
