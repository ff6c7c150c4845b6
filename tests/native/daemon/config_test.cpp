// SPDX-License-Identifier: Apache-2.0
#include "daemon/config.h"

#include <gtest/gtest.h>

#include "daemon/log.h"

namespace powerccl::daemon {
namespace {

std::vector<std::string> faults_of(const std::string& toml) {
  Config config;
  return read_config(toml, "file", &config);
}

TEST(Config, DefaultsAreWellAndNarrow) {
  const Config config = default_config();
  EXPECT_EQ(config.socket_path, "/run/powerccl/powerccld.sock");
  EXPECT_EQ(config.socket_bits, 0660u);
  EXPECT_EQ(config.socket_bits & 0007u, 0u) << "not for all by default";
  EXPECT_EQ(config.access_heartbeat_ms, 6000);
  EXPECT_TRUE(config.anybody());
  EXPECT_EQ(config.level, kInfo);
}

TEST(Config, ReadsEveryType) {
  Config config;
  const auto faults = read_config(R"(
[socket]
path = "/tmp/x.sock"
mode = "0666"
group = 0
[access]
users = ["root", 4711]
groups = ["root"]
[gpu]
min_mhz = 600
max_mhz = 1200
interval_ms = 5
[log]
level = "debug"
)",
                                  "file", &config);
  EXPECT_EQ(faults, (std::vector<std::string>{"file:5: socket.group must be a string in quotes"}));
  EXPECT_TRUE(
      read_config("[access]\nusers = [\"root\", 4711]\n[gpu]\nmin_mhz = 600\n[log]\ndry = true", "file", &config)
          .empty());
  EXPECT_EQ(config.allowed_uids, (std::vector<uid_t>{0, 4711}));
  EXPECT_EQ(config.gpu_min_mhz, 600);
  EXPECT_TRUE(config.log_dry);
  EXPECT_FALSE(config.anybody());
}

TEST(Config, SaysWhereAndWhat) {
  EXPECT_EQ(faults_of("[gpu]\nmin_mzh = 5"), (std::vector<std::string>{"file:2: unknown key `gpu.min_mzh`"}));
  EXPECT_EQ(faults_of("[gqu]\nmin_mhz = 5"), (std::vector<std::string>{"file:2: unknown key `gqu.min_mhz`"}));
  EXPECT_EQ(faults_of("min_mhz = 5"), (std::vector<std::string>{"file:1: `min_mhz` is outside any section"}));
  EXPECT_EQ(faults_of("[gpu]\nmin_mhz = \"5\""),
            (std::vector<std::string>{"file:2: gpu.min_mhz is not a whole number"}));
  EXPECT_EQ(faults_of("[gpu]\nmin_mhz = -5"),
            (std::vector<std::string>{"file:2: gpu.min_mhz is not between 0 and 100000"}));
  EXPECT_EQ(faults_of("[gpu]\nmin_mhz = 900\nmax_mhz = 600"),
            (std::vector<std::string>{"file:2: gpu.min_mhz is above gpu.max_mhz"}));
  EXPECT_EQ(faults_of("[access]\nusers = [\"nobody-of-that-name\"]"),
            (std::vector<std::string>{
                "file:2: access.users names user `nobody-of-that-name`, which does not exist on this system"}));
  EXPECT_EQ(faults_of("[socket]\nmode = \"rw\""),
            (std::vector<std::string>{"file:2: socket.mode must be an octal mode such as \"0660\""}));
  EXPECT_EQ(faults_of("[gpu] # \xc3\xa9\n\xc3\xa9 = 1").size(), 1u);
  EXPECT_TRUE(faults_of("[gpu] # \xc3\xa9\nmin_mhz = 300").empty());
  EXPECT_EQ(faults_of("[log]\nlevel = \"loud\"").size(), 1u);
  EXPECT_EQ(faults_of("[gpu\n").size(), 1u);
  EXPECT_EQ(faults_of("[gpu]\nusual_max_mhz = 900").size(), 1u);
  EXPECT_EQ(faults_of("[gpu]\ndevice_files = \"/dev/nvidia0\"").size(), 1u);
  EXPECT_EQ(faults_of("gpu = 1\n[gpu]\n").size(), 1u);
}

TEST(Config, AFaultyFileChangesNothing) {
  Config config = default_config();
  EXPECT_FALSE(read_config("[gpu]\nmin_mhz = 600\nmax_mzh = 5", "file", &config).empty());
  EXPECT_EQ(config.gpu_min_mhz, 0);
}

TEST(Config, AFileThatCannotBeRead) {
  Config config;
  const auto faults = read_config_file("/nonexistent/file.toml", &config);
  ASSERT_EQ(faults.size(), 1u);
  EXPECT_NE(faults[0].find("cannot be opened"), std::string::npos);
  EXPECT_FALSE(read_config_file("/", &config).empty());
}

}  // namespace
}  // namespace powerccl::daemon
