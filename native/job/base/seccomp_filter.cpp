// SPDX-License-Identifier: Apache-2.0
#include "base/seccomp_filter.h"

#include <fcntl.h>
#include <limits.h>
#include <linux/audit.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/log.h"

#ifndef SECCOMP_RET_LOG
#define SECCOMP_RET_LOG 0x7ffc0000U
#endif

namespace powerccl {
namespace {

#if defined(__x86_64__)
constexpr uint32_t kArchitecture = AUDIT_ARCH_X86_64;
#elif defined(__aarch64__)
constexpr uint32_t kArchitecture = AUDIT_ARCH_AARCH64;
#else
constexpr uint32_t kArchitecture = 0;
#endif

uint32_t calculated(uint16_t operation, uint32_t a, uint32_t b) {
  switch (operation) {
    case BPF_ADD:
      return a + b;
    case BPF_SUB:
      return a - b;
    case BPF_MUL:
      return a * b;
    case BPF_DIV:
      return b != 0 ? a / b : 0;
    case BPF_OR:
      return a | b;
    case BPF_AND:
      return a & b;
    case BPF_XOR:
      return a ^ b;
    case BPF_LSH:
      return b < 32 ? a << b : 0;
    case BPF_RSH:
      return b < 32 ? a >> b : 0;
    default:
      return 0 - a;  // BPF_NEG
  }
}

bool holds(uint16_t comparison, uint32_t a, uint32_t b) {
  switch (comparison) {
    case BPF_JEQ:
      return a == b;
    case BPF_JGT:
      return a > b;
    case BPF_JGE:
      return a >= b;
    default:
      return (a & b) != 0;  // BPF_JSET
  }
}

// What the program answers, as the kernel runs it (classic BPF as far as seccomp allows it: no loops).
uint32_t run(const sock_filter* code, unsigned length, const seccomp_data& data) {
  uint32_t a = 0, x = 0, memory[BPF_MEMWORDS] = {};
  for (unsigned at = 0; at < length; ++at) {
    const sock_filter& step = code[at];
    const uint32_t operand = BPF_SRC(step.code) == BPF_X ? x : step.k;
    switch (BPF_CLASS(step.code)) {
      case BPF_LD:
      case BPF_LDX: {
        uint32_t loaded = step.k;  // BPF_IMM
        if (BPF_MODE(step.code) == BPF_MEM) loaded = memory[step.k % BPF_MEMWORDS];
        if (BPF_MODE(step.code) == BPF_LEN) loaded = sizeof(data);
        if (BPF_MODE(step.code) == BPF_ABS) {
          if (step.k > sizeof(data) - sizeof(loaded)) return SECCOMP_RET_ALLOW;
          memcpy(&loaded, reinterpret_cast<const char*>(&data) + step.k, sizeof(loaded));
        }
        (BPF_CLASS(step.code) == BPF_LD ? a : x) = loaded;
        break;
      }
      case BPF_ST:
        memory[step.k % BPF_MEMWORDS] = a;
        break;
      case BPF_STX:
        memory[step.k % BPF_MEMWORDS] = x;
        break;
      case BPF_ALU:
        a = calculated(BPF_OP(step.code), a, operand);
        break;
      case BPF_JMP:
        if (BPF_OP(step.code) == BPF_JA) {
          at = step.k < length ? at + step.k : length;
        } else {
          at += holds(BPF_OP(step.code), a, operand) ? step.jt : step.jf;
        }
        break;
      case BPF_RET:
        return BPF_RVAL(step.code) == BPF_A ? a : step.k;
      default:
        if (BPF_MISCOP(step.code) == BPF_TAX) {
          x = a;
        } else {
          a = x;
        }
    }
  }
  return SECCOMP_RET_ALLOW;  // it has no end, which the kernel does not accept
}

}  // namespace

void Refusal::say_so() const {
  if (!may_say) return;
  say("add PowerCCL's system calls to the filter: see docs/concepts/no-harm.md",
      "the job's seccomp filter refuses %s: from here on nothing is recorded or changed", call);
}

void Refusal::leave_word() const {
  const char* folder = getenv("POWERCCL_RUN_FOLDER");
  const char* disabled = getenv("POWERCCL_DISABLE");
  char path[PATH_MAX];
  if (folder == nullptr || *folder == '\0') return;
  if (disabled != nullptr && *disabled != '\0' && strcmp(disabled, "0") != 0) return;
  const int length = snprintf(path, sizeof(path), "%s/.refused-%s", folder, call);
  if (length < 0 || static_cast<size_t>(length) >= sizeof(path)) return;
  const int file = open(path, O_WRONLY | O_CREAT | O_CLOEXEC, 0644);
  if (file >= 0) close(file);
}

void Refusal::write_note(char* text, size_t size) const {
  snprintf(text, size, "recording ends: filter refuses %.16s", call);
}

bool SeccompFilter::allows_saying() const {
  return allows({"write", SYS_write, {2}}) && allows({"fstat", SYS_fstat, {}});
}

bool SeccompFilter::allows(const OwnCall& call) const {
  // Strict mode has read, write, exit and sigreturn.
  if (code == nullptr) return call.number == SYS_write;
  seccomp_data data = {};
  data.nr = static_cast<int>(call.number);
  data.arch = kArchitecture;
  data.args[0] = call.arguments[0];
  data.args[1] = call.arguments[1];
  const uint32_t answer = run(code, length, data) & SECCOMP_RET_ACTION_FULL;
  return answer == SECCOMP_RET_ALLOW || answer == SECCOMP_RET_LOG;
}

}  // namespace powerccl
