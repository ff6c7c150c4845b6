// SPDX-License-Identifier: Apache-2.0
// Loads what a communicating job loads, and uses it or not. Built with -DWITH_MPI it is linked with MPI.
//   mpi     initialises MPI and ends it       idle    does nothing for a while
//   gloo    runs a thread named like those of PyTorch's process group for gloo
//   nccl    loads libnccl.so.2 and creates no communicator
#define _GNU_SOURCE
#include <dlfcn.h>
#include <pthread.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>
#ifdef WITH_MPI
#include <mpi.h>
#endif

static void a_while(void) {
  usleep(400000);
}

static void* loop(void* unused) {
  pthread_setname_np(pthread_self(), "pt_gloo_runloop");
  a_while();
  return unused;
}

int main(int argc, char** argv) {
  const char* what = argc > 1 ? argv[1] : "idle";
  if (strcmp(what, "gloo") == 0) {
    pthread_t thread;
    pthread_create(&thread, NULL, loop, NULL);
    pthread_join(thread, NULL);
  } else if (strcmp(what, "nccl") == 0) {
    if (dlopen("libnccl.so.2", RTLD_NOW) == NULL) {
      fprintf(stderr, "%s\n", dlerror());
      return 1;
    }
    a_while();
#ifdef WITH_MPI
  } else if (strcmp(what, "mpi") == 0) {
    MPI_Init(&argc, &argv);
    a_while();
    MPI_Finalize();
  } else if (strcmp(what, "never") == 0) {
    int version, subversion;
    MPI_Get_version(&version, &subversion);
    a_while();
#endif
  } else {
    a_while();
  }
  return 0;
}
