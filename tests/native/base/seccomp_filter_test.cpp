// SPDX-License-Identifier: Apache-2.0
#include "base/seccomp_filter.h"

#include <gtest/gtest.h>
#include <linux/filter.h>
#include <linux/seccomp.h>

#include <vector>

namespace powerccl {
namespace {

constexpr OwnCall kWrite = {"write", SYS_write, {2}};
constexpr OwnCall kPwrite = {"pwrite64", SYS_pwrite64, {}};
constexpr OwnCall kCalls[] = {kWrite, kPwrite};

using Code = std::vector<sock_filter>;

SeccompFilter filter_of(const Code& code) {
  return {code.data(), static_cast<unsigned>(code.size())};
}

constexpr uint32_t kNumber = offsetof(seccomp_data, nr);
constexpr uint32_t kFirst = offsetof(seccomp_data, args);

TEST(SeccompFilter, AnAllowListRefusesTheRest) {
  const Code code = {
      BPF_STMT(BPF_LD | BPF_W | BPF_ABS, kNumber),
      BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_write, 0, 1),
      BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
      BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_KILL_PROCESS),
  };
  EXPECT_TRUE(filter_of(code).allows(kWrite));
  EXPECT_FALSE(filter_of(code).allows(kPwrite));
  EXPECT_STREQ(filter_of(code).refuses(kCalls), "pwrite64");
}

TEST(SeccompFilter, AnErrorIsARefusal) {
  const Code code = {BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | 1)};
  EXPECT_STREQ(filter_of(code).refuses(kCalls), "write");
}

TEST(SeccompFilter, ACallThatIsLoggedIsAllowed) {
  const Code code = {BPF_STMT(BPF_RET | BPF_K, 0x7ffc0000)};  // SECCOMP_RET_LOG
  EXPECT_EQ(filter_of(code).refuses(kCalls), nullptr);
}

TEST(SeccompFilter, ArgumentsAndArithmeticCount) {
  // write to a descriptor from 2 on, computed the long way round
  const Code code = {
      BPF_STMT(BPF_LD | BPF_W | BPF_ABS, kFirst),    BPF_STMT(BPF_ST, 3),
      BPF_STMT(BPF_LDX | BPF_W | BPF_MEM, 3),        BPF_STMT(BPF_MISC | BPF_TXA, 0),
      BPF_STMT(BPF_ALU | BPF_ADD | BPF_X, 0),        BPF_STMT(BPF_ALU | BPF_LSH | BPF_K, 1),
      BPF_JUMP(BPF_JMP | BPF_JGE | BPF_K, 8, 1, 0),  BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_TRAP),
      BPF_STMT(BPF_LD | BPF_IMM, SECCOMP_RET_ALLOW), BPF_STMT(BPF_RET | BPF_A, 0),
  };
  EXPECT_TRUE(filter_of(code).allows(kWrite));
  EXPECT_FALSE(filter_of(code).allows({"write", SYS_write, {1}}));
}

TEST(SeccompFilter, AnotherArchitectureIsNotOurs) {
  const Code code = {
      BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(seccomp_data, arch)),
      BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, 0x40000003, 0, 1),  // i386
      BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_KILL_PROCESS),
      BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
  };
  EXPECT_EQ(filter_of(code).refuses(kCalls), nullptr);
}

TEST(SeccompFilter, StrictModeLeavesWrite) {
  EXPECT_STREQ(SeccompFilter{}.refuses(kCalls), "pwrite64");
  EXPECT_FALSE(SeccompFilter{}.allows_saying());
}

TEST(SeccompFilter, WhatTheKernelWouldNotAcceptIsNotRead) {
  const Code jumps = {BPF_STMT(BPF_JMP | BPF_JA, 0xfffffffe), BPF_STMT(BPF_RET | BPF_K, 0)};
  EXPECT_EQ(filter_of(jumps).refuses(kCalls), nullptr);
  const Code reads = {BPF_STMT(BPF_LD | BPF_W | BPF_ABS, 4096), BPF_STMT(BPF_RET | BPF_K, 0)};
  EXPECT_EQ(filter_of(reads).refuses(kCalls), nullptr);
  const Code endless = {BPF_STMT(BPF_LD | BPF_IMM, 1)};
  EXPECT_EQ(filter_of(endless).refuses(kCalls), nullptr);
}

}  // namespace
}  // namespace powerccl
