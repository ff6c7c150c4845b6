// SPDX-License-Identifier: Apache-2.0
// A profiler plugin between NCCL and PowerCCL's own, by which a job switches recording off and on while it runs.
//
// For recording-cost.py, which compares both within one process. TOGGLE_BEHIND is PowerCCL's library. Off, NCCL
// is asked for no event: its word of event bits, which it reads again for each group of calls, is 0.
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdint.h>
#include <stdlib.h>

// NCCL's table of a plugin, version 5.
struct Profiler {
  const char* name;
  int (*init)(void**, uint64_t, int*, const char*, int, int, int, void*);
  int (*start)(void*, void**, void*);
  int (*stop)(void*);
  int (*state)(void*, int, void*);
  int (*finalize)(void*);
};

static struct Profiler g_behind;  // PowerCCL's
static int* g_word;               // NCCL's
static int g_wanted;              // what PowerCCL has in its place
static int g_on = 1;

// PowerCCL changes what it wants at any event.
static int shown(int result) {
  if (g_word != NULL) __atomic_store_n(g_word, g_on ? g_wanted : 0, __ATOMIC_RELAXED);
  return result;
}

void toggle_recording(int on) {
  g_on = on;
  shown(0);
}

static int init(void** context, uint64_t id, int* word, const char* name, int nodes, int ranks, int rank, void* log) {
  g_word = word;
  return shown(g_behind.init(context, id, &g_wanted, name, nodes, ranks, rank, log));
}
static int start(void* context, void** handle, void* event) {
  return shown(g_behind.start(context, handle, event));
}
static int stop(void* handle) {
  return shown(g_behind.stop(handle));
}
static int state(void* handle, int number, void* more) {
  return shown(g_behind.state(handle, number, more));
}
static int finalize(void* context) {
  return g_behind.finalize(context);
}

struct Profiler ncclProfiler_v5 = {"Toggle", init, start, stop, state, finalize};

__attribute__((constructor)) static void load(void) {
  const char* path = getenv("TOGGLE_BEHIND");
  void* library = path == NULL ? NULL : dlopen(path, RTLD_NOW);
  struct Profiler* found = library == NULL ? NULL : dlsym(library, "ncclProfiler_v5");
  if (found == NULL) abort();
  g_behind = *found;
}
