/* SPDX-License-Identifier: Apache-2.0
   A library to preload: a thread of its own installs a seccomp filter for all threads of the program. FILTER has the
   delay in ms, then the numbers of the system calls that end the process. Delay 0: before the program begins. */
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <pthread.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <unistd.h>

static void* install(void* delay_us) {
  const char* at = getenv("FILTER");
  char* next = NULL;
  struct sock_filter code[64] = {BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr))};
  unsigned short length = 1;
  usleep((useconds_t)(size_t)delay_us);
  strtoul(at, &next, 10);
  while (*next != '\0' && length < 60) {
    code[length++] = (struct sock_filter)BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, (unsigned)strtoul(next, &next, 10), 0, 1);
    code[length++] = (struct sock_filter)BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_KILL_PROCESS);
  }
  code[length++] = (struct sock_filter)BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW);
  const struct sock_fprog program = {length, code};
  if (prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) != 0 ||
      syscall(SYS_seccomp, SECCOMP_SET_MODE_FILTER, SECCOMP_FILTER_FLAG_TSYNC, &program) != 0) {
    fprintf(stderr, "no filter\n");
    _exit(40);
  }
  return NULL;
}

static void begin_later(void) {
  pthread_t thread;
  const size_t delay_us = strtoul(getenv("FILTER"), NULL, 10) * 1000;
  if (delay_us != 0 && pthread_create(&thread, NULL, install, (void*)delay_us) == 0) pthread_detach(thread);
}

__attribute__((constructor)) static void begin(void) {
  const char* filter = getenv("FILTER");
  if (filter == NULL) return;
  if (strtoul(filter, NULL, 10) == 0) {
    install(NULL);
  } else {
    pthread_atfork(NULL, NULL, begin_later); /* ranks are forked by their launcher */
    begin_later();
  }
}
