// SPDX-License-Identifier: Apache-2.0
// A program that knows no MPI and opens a plugin that does, as language bindings are opened: plugin PATH local|deep.
// Compiled with -DPLUGIN: the plugin.
#ifdef PLUGIN
#include "results.h"

int compute(void);
int compute(void) {
  int rank;
  MPI_Init(NULL, NULL);
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  long value = rank + 1, sum = 0;
  for (int i = 0; i < 3; ++i) {
    if (rank == 0) usleep(2000);
    MPI_Allreduce(&value, &sum, 1, MPI_LONG, MPI_SUM, MPI_COMM_WORLD);
  }
  note(" sum=%ld", sum);
  print_notes(rank);
  MPI_Finalize();
  return 3;
}
#else
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdio.h>
#include <string.h>

int main(int count, char** words) {
  if (count < 3) return 2;
  const int deep = strcmp(words[2], "deep") == 0 ? RTLD_DEEPBIND : 0;
  void* plugin = dlopen(words[1], RTLD_NOW | RTLD_LOCAL | deep);
  if (plugin == NULL) {
    fprintf(stderr, "%s\n", dlerror());
    return 1;
  }
  int (*compute)(void) = (int (*)(void))dlsym(plugin, "compute");
  return compute();
}
#endif
