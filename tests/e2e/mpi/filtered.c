/* SPDX-License-Identifier: Apache-2.0
   A job that installs a seccomp filter which ends it for listed system calls: filtered HOW NUMBER...
   HOW: tsync (all threads, by syscall()), thread (this one, by syscall()), prctl, strict, raw (all threads, without libc),
   forked (in a child after vfork). Rank 0 then waits for rank 1 for half a second, twice. */
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <mpi.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

static double now(void) {
  struct timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

static void install(const char* how, const struct sock_fprog* program) {
  if (strcmp(how, "tsync") == 0) {
    if (syscall(SYS_seccomp, SECCOMP_SET_MODE_FILTER, SECCOMP_FILTER_FLAG_TSYNC, program) != 0) exit(40);
  } else if (strcmp(how, "thread") == 0) {
    if (syscall(SYS_seccomp, SECCOMP_SET_MODE_FILTER, 0, program) != 0) exit(41);
  } else if (strcmp(how, "prctl") == 0) {
    if (prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, program) != 0) exit(42);
#ifdef __x86_64__
  } else if (strcmp(how, "raw") == 0) {
    long result;
    register long flags __asm__("rsi") = SECCOMP_FILTER_FLAG_TSYNC;
    __asm__ volatile("syscall"
                     : "=a"(result)
                     : "a"((long)SYS_seccomp), "D"((long)SECCOMP_SET_MODE_FILTER), "r"(flags), "d"(program)
                     : "rcx", "r11", "memory");
    if (result != 0) exit(43);
#endif
  } else if (strcmp(how, "forked") == 0) {
    pid_t child = vfork();
    if (child == 0) _exit(syscall(SYS_seccomp, SECCOMP_SET_MODE_FILTER, 0, program) != 0);
    int status = 1;
    if (waitpid(child, &status, 0) != child || status != 0) exit(44);
  } else {
    exit(45);
  }
}

int main(int count, char** words) {
  struct sock_filter code[64] = {BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr))};
  unsigned short length = 1;
  for (int i = 2; i < count && i < 30; ++i) {
    code[length++] = (struct sock_filter)BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, (unsigned)atoi(words[i]), 0, 1);
    code[length++] = (struct sock_filter)BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_KILL_PROCESS);
  }
  code[length++] = (struct sock_filter)BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW);
  const struct sock_fprog program = {length, code};
  MPI_Init(NULL, NULL);
  int rank = 0, value = 7;
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  MPI_Barrier(MPI_COMM_WORLD);
  if (prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) != 0) return 46;
  install(words[1], &program);
  for (int i = 0; i < 2; ++i) {
    if (rank == 1) {
      for (const double end = now() + 0.5; now() < end;) continue;
      MPI_Send(&value, 1, MPI_INT, 0, 0, MPI_COMM_WORLD);
    }
    if (rank == 0) MPI_Recv(&value, 1, MPI_INT, 1, 0, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
  }
  MPI_Barrier(MPI_COMM_WORLD);
  if (rank == 0) printf("received %d\n", value);
  fflush(stdout);
  MPI_Finalize();
  return 0;
}
