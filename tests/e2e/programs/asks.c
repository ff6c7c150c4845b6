// SPDX-License-Identifier: Apache-2.0
// Asks whether functions are there that no library of this process defines, and prints what it finds.
// Compiled with -DMAIN: a program that refers to them weakly. -DLIBRARY: a library that does. -DUSER: a program that is
// linked with that library. -DLOOKS: a program that looks them up by name. -DOPENS: a program that opens the library in
// argv[1], twice. -DFAKE: a library that defines two of them. -DMODULE: one that is linked with it. -DSTRONG: a program that refers to one as if it were sure.
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdio.h>
#include <string.h>

#define EACH(USE) \
  USE(MPI_Init) USE(MPI_Session_init) USE(PMPI_Send) USE(MPI_Allreduce_c) USE(ncclCommInitRank) USE(ncclGroupStart) \
  USE(cuLaunchKernel) USE(cudaLaunchKernel) USE(ucp_worker_progress)

#if defined(MAIN) || defined(LIBRARY)
#define DECLARE(name) extern int name(void*, void*) __attribute__((weak));
EACH(DECLARE)
#undef DECLARE
#define POINTER(name) int (*pointer_to_##name)(void*, void*) = name;
EACH(POINTER)
void ask(const char* when);
void ask(const char* when) {
#define PRINT(name) printf("%s " #name " %d %d\n", when, name != NULL, pointer_to_##name != NULL);
  EACH(PRINT)
#define ALWAYS __gmon_start__
  extern void ALWAYS(void) __attribute__((weak));
  printf("%s profiled %d\n", when, ALWAYS != NULL);
  if (MPI_Init != NULL) printf("called: %d\n", MPI_Init(NULL, NULL));
  if (ncclGroupStart != NULL) printf("called: %d\n", ncclGroupStart(NULL, NULL));
}
#endif

#ifdef LIBRARY
__attribute__((constructor)) static void begin(void) {
  ask("constructor");
}
#elif defined(MAIN)
int main(void) {
  ask("main");
  return 3;
}
#elif defined(USER)
void ask(const char* when);
int main(void) {
  ask("main");
  return 4;
}
#elif defined(OPENS)
int main(int count, char** words) {
  if (count < 3) return 2;
  const int global = strstr(words[2], "global") != NULL ? RTLD_GLOBAL : RTLD_LOCAL;
  for (int i = 0; i < 2; ++i) {
    void* library = dlopen(words[1], (strstr(words[2], "now") != NULL ? RTLD_NOW : RTLD_LAZY) | global);
    if (library == NULL) return printf("%s\n", dlerror()), 1;
    ((void (*)(const char*))dlsym(library, "ask"))("main");
    dlclose(library);
  }
  return 5;
}
#elif defined(FAKE)
int ncclGroupStart(void);
int ncclGroupStart(void) {
  static int calls;
  return ++calls;
}
int MPI_Barrier(int comm);
int MPI_Barrier(int comm) {
  static int calls;
  return comm + ++calls;
}
#elif defined(MODULE)
int ncclGroupStart(void);
int MPI_Barrier(int comm);
void ask(const char* when);
void ask(const char* when) {
  printf("%s %d %d\n", when, ncclGroupStart(), MPI_Barrier(40));
}
#elif defined(STRONG)
int MPI_Barrier(void*);
int main(int count, char** words) {
  printf("begins\n");
  fflush(stdout);
  if (count > 1) return MPI_Barrier(words);
  return 6;
}
#else
int main(void) {
  void* const handles[] = {RTLD_DEFAULT, RTLD_NEXT, dlopen(NULL, RTLD_LAZY)};
  for (int i = 0; i < 3; ++i) {
#define LOOK(name)                                         \
  {                                                        \
    void* found = dlsym(handles[i], #name);                \
    const char* error = dlerror();                         \
    printf("%d %d %s\n", i, found != NULL, error ? error : "no error"); \
  }
    EACH(LOOK)
  }
  return 7;
}
#endif
