// SPDX-License-Identifier: Apache-2.0
#include "base/environment.h"

#include <gtest/gtest.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <string>

#include "abi/host_clock.h"
#include "abi/lease.h"
#include "base/log.h"

namespace powerccl::test {
namespace {

class EnvironmentTest : public testing::Test {
 protected:
  void set(const std::string& name, const std::string& value) {
    setenv(name.c_str(), value.c_str(), 1);
    names_.push_back(name);
  }
  void TearDown() override {
    for (const auto& name : names_) unsetenv(name.c_str());
  }
  // What is said on stderr while the environment is read.
  std::string read() {
    int text[2];
    EXPECT_EQ(pipe(text), 0);
    log_to(text[1]);
    read_environment(&environment);
    log_to(2);
    close(text[1]);
    std::string said(4096, '\0');
    said.resize(static_cast<size_t>(::read(text[0], said.data(), said.size())));
    close(text[0]);
    return said;
  }
  Environment environment;

 private:
  std::vector<std::string> names_;
};

TEST_F(EnvironmentTest, WithoutARunFolderNothingIsReadOrSaid) {
  set("POWERCCL_POLICY", "nonsense");
  EXPECT_EQ(read(), "");
  EXPECT_STREQ(environment.run_folder, "");
}

TEST_F(EnvironmentTest, RecordsGoToTheNodesOwnFolderWhereThereIsOne) {
  set("POWERCCL_RUN_FOLDER", "/tmp/run");
  EXPECT_EQ(read(), "");
  EXPECT_STREQ(environment.record_folder, "/tmp/run");

  char own[] = "/tmp/powerccl-environment-XXXXXX";
  ASSERT_NE(mkdtemp(own), nullptr);
  set("POWERCCL_LOCAL_FOLDER", own);
  EXPECT_EQ(read(), "");
  EXPECT_STREQ(environment.record_folder, own);
  EXPECT_STREQ(environment.run_folder, "/tmp/run");

  // A link may lead to another user's folder.
  const std::string link = std::string(own) + "/link";
  ASSERT_EQ(symlink(own, link.c_str()), 0);
  set("POWERCCL_LOCAL_FOLDER", link.c_str());
  EXPECT_EQ(read(), "");
  EXPECT_STREQ(environment.record_folder, "/tmp/run");

  ASSERT_EQ(unlink(link.c_str()), 0);
  ASSERT_EQ(rmdir(own), 0);
  set("POWERCCL_LOCAL_FOLDER", own);  // a host without `powerccl run`
  EXPECT_EQ(read(), "");
  EXPECT_STREQ(environment.record_folder, "/tmp/run");
}

TEST_F(EnvironmentTest, AnotherUsersFolderTakesNoRecords) {
  char other[] = "/tmp/powerccl-environment-XXXXXX";
  ASSERT_NE(mkdtemp(other), nullptr);
  if (chown(other, 65534, 65534) != 0) {
    rmdir(other);
    GTEST_SKIP() << "needs root, and another user in this user namespace";
  }
  set("POWERCCL_RUN_FOLDER", "/tmp/run");
  set("POWERCCL_LOCAL_FOLDER", other);
  EXPECT_EQ(read(), "");
  EXPECT_STREQ(environment.record_folder, "/tmp/run");
  rmdir(other);
}

TEST_F(EnvironmentTest, DefaultsAreTheTables) {
  set("POWERCCL_RUN_FOLDER", "/tmp/run");
  EXPECT_EQ(read(), "");
  EXPECT_STREQ(environment.run_folder, "/tmp/run");
  EXPECT_EQ(environment.policy, PolicyName::kObserve);
  EXPECT_EQ(environment.clocks, ClockClientName::kDry);
  EXPECT_STREQ(environment.lease_socket, POWERCCL_LEASE_SOCKET);
  EXPECT_EQ(environment.kernel_events, KernelEvents::kAuto);
  EXPECT_EQ(environment.trace_limit_bytes, 256u << 20);
  EXPECT_EQ(environment.rank, -1);
  EXPECT_EQ(environment.local_rank, -1);
  EXPECT_FALSE(environment.disabled);
  EXPECT_FALSE(environment.emulated);
}

TEST_F(EnvironmentTest, ValuesAreTaken) {
  set("POWERCCL_RUN_FOLDER", "/tmp/run");
  set("POWERCCL_POLICY", "per-call");
  set("POWERCCL_CLOCKS", "lease");
  set("POWERCCL_KERNEL_EVENTS", "all");
  set("POWERCCL_TRACE_LIMIT_MB", "3");
  set("POWERCCL_DEBUG", "2");
  set("POWERCCL_EMULATOR_SOCKET", "/tmp/socket");
  set("RANK", "5");
  set("WORLD_SIZE", "8");
  set("LOCAL_RANK", "1");
  set("SLURM_PROCID", "7");
  EXPECT_EQ(read(), "");
  EXPECT_EQ(environment.policy, PolicyName::kPerCall);
  EXPECT_EQ(environment.clocks, ClockClientName::kLease);
  EXPECT_EQ(environment.kernel_events, KernelEvents::kAll);
  EXPECT_EQ(environment.trace_limit_bytes, 3u << 20);
  EXPECT_EQ(environment.debug, 2);
  EXPECT_TRUE(environment.emulated);
  EXPECT_EQ(environment.rank, 5);
  EXPECT_EQ(environment.nranks, 8);
  EXPECT_EQ(environment.local_rank, 1);
}

TEST_F(EnvironmentTest, ATraceSaysWhichRunAndStartItIsOf) {
  set("POWERCCL_RUN_FOLDER", "/tmp/run");
  set("POWERCCL_RUN_ID", "00112233445566778899aabbccddeeff");
  set("TORCHELASTIC_RESTART_COUNT", "2");
  EXPECT_EQ(read(), "");
  powerccl_trace_header header = {};
  identify(environment, &header);
  for (uint8_t i = 0; i < 16; ++i) EXPECT_EQ(header.run_id[i], i * 0x11);
  EXPECT_EQ(header.starts, 3u);
  powerccl_trace_header again = {};
  identify(environment, &again);
  EXPECT_EQ(memcmp(header.boot_id, again.boot_id, sizeof(header.boot_id)), 0);
  const uint8_t none[16] = {};
  EXPECT_NE(memcmp(header.boot_id, none, sizeof(none)), 0);
}

TEST_F(EnvironmentTest, ARunIdOfAnyOtherFormNamesNoRun) {
  set("POWERCCL_RUN_FOLDER", "/tmp/run");
  const uint8_t none[16] = {};
  for (const char* text : {"", "12", "00112233445566778899aabbccddeeff00", "00112233445566778899aabbccddeefg"}) {
    set("POWERCCL_RUN_ID", text);
    EXPECT_EQ(read(), "");
    EXPECT_EQ(memcmp(environment.run_id, none, sizeof(none)), 0) << text;
    EXPECT_EQ(environment.starts, 0u);
  }
}

TEST_F(EnvironmentTest, ALeaseIsTaken) {
  set("POWERCCL_RUN_FOLDER", "/tmp/run");
  set("POWERCCL_CLOCKS", "lease");
  set("POWERCCL_LEASE_SOCKET", "/tmp/socket");
  EXPECT_EQ(read(), "");
  EXPECT_EQ(environment.clocks, ClockClientName::kLease);
  EXPECT_STREQ(text_of(environment.clocks), "lease");
  EXPECT_STREQ(environment.lease_socket, "/tmp/socket");
}

TEST_F(EnvironmentTest, NonsenseIsSaidAndReplacedByTheDefault) {
  set("POWERCCL_RUN_FOLDER", "/tmp/run");
  set("POWERCCL_POLICY", "fastest");
  set("POWERCCL_TRACE_LIMIT_MB", "-5");
  set("RANK", "five");
  const std::string said = read();
  EXPECT_NE(said.find("powerccl: POWERCCL_POLICY=fastest is not known; using observe\nhint: "), std::string::npos);
  EXPECT_NE(said.find("POWERCCL_TRACE_LIMIT_MB=-5"), std::string::npos);
  EXPECT_EQ(environment.policy, PolicyName::kObserve);
  EXPECT_EQ(environment.trace_limit_bytes, 256u << 20);
  EXPECT_EQ(environment.rank, -1);
  // What all ranks of a host would say, the first one says.
  set("LOCAL_RANK", "3");
  EXPECT_EQ(read(), "");
}

}  // namespace

}  // namespace powerccl::test

namespace powerccl {
namespace {

TEST(HostClock, OffsetsAsTheKernelStatesThem) {
  constexpr char kOffsets[] = "monotonic       86400         5\nboottime           -2 500000000\n";
  EXPECT_EQ(time_shift_in(kOffsets, "monotonic"), 86400000000005);
  EXPECT_EQ(time_shift_in(kOffsets, "boottime"), -1500000000);
  EXPECT_EQ(time_shift_in("", "monotonic"), 0);
  EXPECT_EQ(time_shift_in("monotonic", "monotonic"), 0);
}

}  // namespace

}  // namespace powerccl
