// SPDX-License-Identifier: Apache-2.0
#include "adapters/filters.h"

#include <errno.h>
#include <linux/filter.h>
#include <linux/prctl.h>
#include <linux/seccomp.h>
#include <stdarg.h>
#include <sys/syscall.h>

#include "adapters/names.h"

#define POWERCCL_EXPORT extern "C" __attribute__((visibility("default")))

namespace {

using Call = long (*)(long, long, long, long, long, long, long);
using Prctl = int (*)(int, unsigned long, unsigned long, unsigned long, unsigned long);

long by_kernel(long number, long a, long b, long c, long d, long e, long f) {
#if defined(__x86_64__)
  register long fourth asm("r10") = d;
  register long fifth asm("r8") = e;
  register long sixth asm("r9") = f;
  long result;
  asm volatile("syscall"
               : "=a"(result)
               : "a"(number), "D"(a), "S"(b), "d"(c), "r"(fourth), "r"(fifth), "r"(sixth)
               : "rcx", "r11", "memory");
#else
  register long which asm("x8") = number;
  register long result asm("x0") = a;
  register long second asm("x1") = b;
  register long third asm("x2") = c;
  register long fourth asm("x3") = d;
  register long fifth asm("x4") = e;
  register long sixth asm("x5") = f;
  asm volatile("svc 0"
               : "+r"(result)
               : "r"(which), "r"(second), "r"(third), "r"(fourth), "r"(fifth), "r"(sixth)
               : "memory");
#endif
  constexpr long kMostErrors = 4095;
  if (result >= 0 || result < -kMostErrors) return result;
  errno = static_cast<int>(-result);
  return -1;
}

int prctl_by_kernel(int option, unsigned long a, unsigned long b, unsigned long c, unsigned long d) {
  return static_cast<int>(by_kernel(SYS_prctl, option, static_cast<long>(a), static_cast<long>(b), static_cast<long>(c),
                                    static_cast<long>(d), 0));
}

Prctl g_next_prctl = prctl_by_kernel;

// NOLINTBEGIN(performance-no-int-to-ptr): a system call's arguments are numbers
void seen(bool is_strict, unsigned long program) {
  powerccl::SeccompFilter filter;
  if (!is_strict) {
    // Programs ask whether there are filters by passing none.
    const auto* given = reinterpret_cast<const sock_fprog*>(program);
    if (given == nullptr || given->filter == nullptr) return;
    filter.code = given->filter;
    filter.length = given->len;
  }
  const int before = errno;
  powerccl::filters::filter_comes(filter);
  errno = before;
}
// NOLINTEND(performance-no-int-to-ptr)

void prctl_seen(unsigned long option, unsigned long mode, unsigned long program) {
  if (option == PR_SET_SECCOMP && (mode == SECCOMP_MODE_STRICT || mode == SECCOMP_MODE_FILTER)) {
    seen(mode == SECCOMP_MODE_STRICT, program);
  }
}

}  // namespace

// What is called behind ours. Until the constructor below has run, the kernel itself.
extern "C" {
__attribute__((visibility("hidden"), used)) Call powerccl_next_syscall = by_kernel;
}

extern "C" __attribute__((visibility("hidden"), used)) long powerccl_syscall_seen(long number, long a, long b, long c,
                                                                                  long d, long e, long f) {
  if (number == SYS_prctl) {
    prctl_seen(static_cast<unsigned long>(a), static_cast<unsigned long>(b), static_cast<unsigned long>(c));
  } else if (a == SECCOMP_SET_MODE_STRICT || a == SECCOMP_SET_MODE_FILTER) {
    seen(a == SECCOMP_SET_MODE_STRICT, static_cast<unsigned long>(c));
  }
  return powerccl_next_syscall(number, a, b, c, d, e, f);
}

POWERCCL_EXPORT int prctl(int option, ...) {
  va_list arguments;
  va_start(arguments, option);
  const unsigned long a = va_arg(arguments, unsigned long), b = va_arg(arguments, unsigned long);
  const unsigned long c = va_arg(arguments, unsigned long), d = va_arg(arguments, unsigned long);
  va_end(arguments);
  prctl_seen(static_cast<unsigned long>(option), a, b);
  return g_next_prctl(option, a, b, c, d);
}

// Every other call is passed on by a jump, with registers and stack unchanged. Otherwise, after vfork() the child would
// return into a frame that its parent still needs.
#if defined(__x86_64__)
static_assert(SYS_seccomp == 317 && SYS_prctl == 157);
asm(R"(
  .pushsection .text
  .globl syscall
  .type syscall, @function
syscall:
  .cfi_startproc
  endbr64
  cmpq $317, %rdi
  je 1f
  cmpq $157, %rdi
  je 1f
  jmp *powerccl_next_syscall(%rip)
1:
  jmp powerccl_syscall_seen
  .cfi_endproc
  .size syscall, .-syscall
  .popsection
)");
#elif defined(__aarch64__)
static_assert(SYS_seccomp == 277 && SYS_prctl == 167);
asm(R"(
  .pushsection .text
  .globl syscall
  .type syscall, @function
syscall:
  .cfi_startproc
  hint 34
  cmp x0, #277
  b.eq 1f
  cmp x0, #167
  b.eq 1f
  adrp x16, powerccl_next_syscall
  ldr x16, [x16, #:lo12:powerccl_next_syscall]
  br x16
1:
  b powerccl_syscall_seen
  .cfi_endproc
  .size syscall, .-syscall
  .popsection
)");
#endif

namespace {

// Both are libc's, or those of an object that was loaded with the program: neither is ever unloaded.
__attribute__((constructor)) void find_next() {
  if (void* next = powerccl::names::definition_in_list("syscall")) {
    powerccl_next_syscall = reinterpret_cast<Call>(next);
  }
  if (void* next = powerccl::names::definition_in_list("prctl")) g_next_prctl = reinterpret_cast<Prctl>(next);
}

}  // namespace
