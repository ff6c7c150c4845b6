// SPDX-License-Identifier: Apache-2.0
// Programs that end, start or behave in ways of their own, by name:
// abort, killed, never, children, alarm, yields, many, late, plain.
#include <sched.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/resource.h>
#include <sys/time.h>
#include <sys/wait.h>
#include <time.h>

#include "results.h"

static volatile sig_atomic_t g_alarms;
static void on_alarm(int number) {
  g_alarms += number == SIGALRM;
}

static int children(int rank) {
  int failed = 0;
  for (int i = 0; i < 4; ++i) {
    const pid_t child = fork();
    if (child == 0) {
      if (i == 0) _exit(11);
      if (i == 3) exit(13);  // by way of what libraries do at exit
      execlp("sh", "sh", "-c", i == 1 ? "exit 12" : "kill -9 $$", (char*)NULL);
      _exit(99);
    }
    int status = 0;
    failed += waitpid(child, &status, 0) != child;
    note(" child:%d/%d", WIFEXITED(status) ? WEXITSTATUS(status) : -1, WIFSIGNALED(status) ? WTERMSIG(status) : 0);
  }
  failed += system("true") != 0;
  (void)rank;
  return failed;
}

int main(int count, char** words) {
  const char* what = count > 1 ? words[1] : "plain";
  int rank = 0, size = 1, ready = -1;
  if (strcmp(what, "never") == 0) {
    MPI_Initialized(&ready);
    int version = 0, minor = 0;
    MPI_Get_version(&version, &minor);
    note(" initialized=%d version=%d.%d", ready, version, minor);
    print_notes(0);
    return 0;
  }
  MPI_Init(&count, &words);
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  MPI_Comm_size(MPI_COMM_WORLD, &size);
  MPI_Barrier(MPI_COMM_WORLD);
  long value = rank + 1, sum = 0;
  if (strcmp(what, "abort") == 0) {
    if (rank == 1) {
      usleep(20000);
      MPI_Abort(MPI_COMM_WORLD, 7);
    }
    MPI_Barrier(MPI_COMM_WORLD);
  } else if (strcmp(what, "killed") == 0) {
    for (int i = 0; i < 100; ++i) MPI_Allreduce(&value, &sum, 1, MPI_LONG, MPI_SUM, MPI_COMM_WORLD);
    if (rank == 1) {
      usleep(20000);
      raise(SIGKILL);
    }
    MPI_Barrier(MPI_COMM_WORLD);
  } else if (strcmp(what, "children") == 0) {
    note(" failed=%d", children(rank));
    for (int i = 0; i < 100; ++i) MPI_Allreduce(&value, &sum, 1, MPI_LONG, MPI_SUM, MPI_COMM_WORLD);
  } else if (strcmp(what, "late") == 0) {
    if (rank == 1) usleep(600000);
    MPI_Barrier(MPI_COMM_WORLD);
    usleep(50000);
  } else if (strcmp(what, "many") == 0) {
    // One rank has more communicators than the others, and than anybody expects.
    static MPI_Comm own[6000], copy;
    int made = 0;
    MPI_Comm_set_errhandler(MPI_COMM_SELF, MPI_ERRORS_RETURN);
    for (; rank == 0 && made < 6000 && MPI_Comm_dup(MPI_COMM_SELF, &own[made]) == MPI_SUCCESS; ++made) {
      MPI_Barrier(own[made]);
    }
    if (made > 100 && made < 6000) {  // the library has no more; leave it room for one
      for (int i = 0; i < 50; ++i) MPI_Comm_free(&own[--made]);
    }
    for (int i = 0; i < 3; ++i) {
      MPI_Comm_dup(MPI_COMM_WORLD, &copy);
      MPI_Allreduce(&value, &sum, 1, MPI_LONG, MPI_SUM, copy);
      MPI_Barrier(copy);
      MPI_Comm_free(&copy);
    }
    while (made > 0) MPI_Comm_free(&own[--made]);
  } else if (strcmp(what, "alarm") == 0) {
    // A timer of its own, every millisecond, also while it waits in MPI: neither lost nor in the way.
    struct sigaction action = {.sa_handler = on_alarm};
    sigaction(SIGALRM, &action, NULL);
    const struct itimerval each_ms = {{0, 1000}, {0, 1000}}, never = {{0, 0}, {0, 0}};
    setitimer(ITIMER_REAL, &each_ms, NULL);
    for (int i = 0; i < 5; ++i) {
      for (struct timespec left = {0, 20000000}; rank == i % size && nanosleep(&left, &left) != 0;) continue;
      MPI_Allreduce(&value, &sum, 1, MPI_LONG, MPI_SUM, MPI_COMM_WORLD);
    }
    setitimer(ITIMER_REAL, &never, NULL);
    note(" alarms=%d", g_alarms >= 20);
  } else if (strcmp(what, "yields") == 0) {
    struct timespec start, stop;
    clock_gettime(CLOCK_MONOTONIC, &start);
    for (int i = 0; i < 100000; ++i) sched_yield();
    clock_gettime(CLOCK_MONOTONIC, &stop);
    fprintf(stderr, "ns_each %.1f\n", ((stop.tv_sec - start.tv_sec) * 1e9 + (stop.tv_nsec - start.tv_nsec)) / 1e5);
  }
  MPI_Allreduce(&value, &sum, 1, MPI_LONG, MPI_SUM, MPI_COMM_WORLD);
  note(" size=%d sum=%ld", size, sum);
  print_notes(rank);
  MPI_Finalize();
  return 0;
}
