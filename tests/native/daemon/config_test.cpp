// SPDX-License-Identifier: Apache-2.0
#include "daemon/config.h"

#include <fcntl.h>
#include <grp.h>
#include <gtest/gtest.h>
#include <sched.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <numeric>

#include "daemon/log.h"
#include "daemon/messages.h"
#include "daemon/peer.h"
#include "device/process.h"

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

template <typename Message>
Message made(uint16_t type) {
  Message message{};
  message.header.magic = POWERCCL_LEASE_MAGIC;
  message.header.version = POWERCCL_LEASE_VERSION;
  message.header.type = type;
  message.header.size = sizeof message;
  message.header.serial = 7;
  return message;
}

struct Bare {
  powerccl_lease_header header;
};

template <typename Message>
bool understood(const Message& message, Request* request, size_t length = sizeof(Message)) {
  return decode(&message, length, request);
}

TEST(Messages, AreReadWhole) {
  Request request;
  auto set = made<powerccl_lease_set>(POWERCCL_LEASE_SET);
  set.lease = 99;
  set.min_mhz = 5;
  set.max_mhz = 6;
  ASSERT_TRUE(understood(set, &request));
  EXPECT_EQ(request.type, POWERCCL_LEASE_SET);
  EXPECT_EQ(request.serial, 7u);
  EXPECT_EQ(request.lease, 99u);
  EXPECT_EQ(request.min_mhz, 5u);
  EXPECT_EQ(request.max_mhz, 6u);
  auto acquire = made<powerccl_lease_acquire>(POWERCCL_LEASE_ACQUIRE);
  std::strcpy(acquire.device, "GPU-1");
  ASSERT_TRUE(understood(acquire, &request));
  EXPECT_EQ(request.device, "GPU-1");
  for (const uint16_t type : {POWERCCL_LEASE_HEARTBEAT, POWERCCL_LEASE_STATUS})
    EXPECT_TRUE(understood(made<Bare>(type), &request));
  auto drain = made<powerccl_lease_drain>(POWERCCL_LEASE_DRAIN);
  drain.on = 1;
  ASSERT_TRUE(understood(drain, &request));
  EXPECT_TRUE(request.on);
}

TEST(Messages, MalformedOnesAreNone) {
  Request request;
  const auto good = made<powerccl_lease_set>(POWERCCL_LEASE_SET);
  for (size_t length = 0; length < sizeof good; ++length) EXPECT_FALSE(understood(good, &request, length)) << length;
  auto bad = good;
  bad.header.magic ^= 1;
  EXPECT_FALSE(understood(bad, &request));
  bad = good;
  bad.header.version = POWERCCL_LEASE_VERSION + 1;
  EXPECT_FALSE(understood(bad, &request));
  bad = good;
  bad.header.serial = 0;
  EXPECT_FALSE(understood(bad, &request));
  bad = good;
  bad.header.size += 1;
  EXPECT_FALSE(understood(bad, &request));
  EXPECT_FALSE(understood(made<powerccl_lease_set>(POWERCCL_LEASE_HELLO), &request)) << "another type's length";
  EXPECT_FALSE(understood(made<Bare>(0), &request));
  EXPECT_FALSE(understood(made<Bare>(POWERCCL_LEASE_REPLY), &request)) << "an answer is no request";
  auto drain = made<powerccl_lease_drain>(POWERCCL_LEASE_DRAIN);
  drain.on = 2;
  EXPECT_FALSE(understood(drain, &request));
}

TEST(Messages, TextsMustEndAndBePrintable) {
  Request request;
  auto hello = made<powerccl_lease_hello>(POWERCCL_LEASE_HELLO);
  std::memset(hello.run, 'x', sizeof hello.run);
  EXPECT_FALSE(understood(hello, &request));
  hello.run[63] = '\0';
  EXPECT_TRUE(understood(hello, &request));
  hello.run[5] = '\x1b';
  EXPECT_FALSE(understood(hello, &request)) << "a terminal would obey it";
}

TEST(Messages, AnswersCarryTheirNumberAndACutText) {
  Answer answer;
  answer.status = POWERCCL_LEASE_HELD;
  answer.text = std::string(500, 'y');
  const Bytes bytes = encode_reply(POWERCCL_LEASE_REPLY, 12, answer);
  powerccl_lease_reply reply;
  ASSERT_EQ(bytes.size(), sizeof reply);
  std::memcpy(&reply, bytes.data(), sizeof reply);
  EXPECT_EQ(reply.header.serial, 12u);
  EXPECT_EQ(reply.status, POWERCCL_LEASE_HELD);
  EXPECT_EQ(std::strlen(reply.text), POWERCCL_LEASE_TEXT - 1);
}

namespace fs = std::filesystem;

TEST(Peer, IsWhoTheKernelSays) {
  int ends[2];
  ASSERT_EQ(socketpair(AF_UNIX, SOCK_SEQPACKET, 0, ends), 0);
  Peer peer;
  ASSERT_TRUE(read_credentials(ends[0], &peer));
  read_groups(ends[0], &peer);
  ASSERT_TRUE(open_process(&peer));
  EXPECT_EQ(peer.pid, getpid());
  EXPECT_EQ(peer.uid, getuid());
  EXPECT_NE(std::find(peer.groups.begin(), peer.groups.end(), getgid()), peer.groups.end());
  EXPECT_NE(peer.start_ticks, 0u);
  for (const int fd : {ends[0], ends[1], peer.pidfd})
    if (fd >= 0) close(fd);
}

// However many groups it has: they are in front of what tells.
TEST(Peer, RootInAPidNamespaceOfItsOwnIsContained) {
  EXPECT_FALSE(device::process_is_contained(getpid()));
  EXPECT_FALSE(device::process_is_contained(0x7ffffff0)) << "there is no such process";
  int told[2], hold[2];
  ASSERT_EQ(pipe(told), 0);
  ASSERT_EQ(pipe(hold), 0);
  const pid_t outer = fork();
  if (outer == 0) {
    close(hold[1]);
    std::vector<gid_t> groups(5000);
    std::iota(groups.begin(), groups.end(), 100000);
    pid_t inner = -1;
    if (setgroups(groups.size(), groups.data()) == 0 && unshare(CLONE_NEWPID) == 0) inner = fork();
    if (inner != 0) (void)!write(told[1], &inner, sizeof inner);
    char byte;
    (void)!read(hold[0], &byte, 1);  // until the test closes its end
    _exit(0);
  }
  pid_t inner = -1;
  ASSERT_EQ(read(told[0], &inner, sizeof inner), static_cast<ssize_t>(sizeof inner));
  const bool contained = inner > 0 && device::process_is_contained(inner);
  for (const int fd : {told[0], told[1], hold[0], hold[1]}) close(fd);
  waitpid(outer, nullptr, 0);
  if (inner <= 0) GTEST_SKIP() << "needs root, to make a pid namespace";
  EXPECT_TRUE(contained);
}

TEST(Peer, ListsOfUsersAndGroups) {
  Peer peer;
  peer.uid = 1000;
  peer.groups = {1000, 27};
  Config config = default_config();
  EXPECT_TRUE(may_lease(peer, config)) << "no list: whoever may write to the socket";
  EXPECT_FALSE(may_administer(peer, config));
  config.allowed_uids = {1001};
  EXPECT_FALSE(may_lease(peer, config));
  config.allowed_gids = {27};
  EXPECT_TRUE(may_lease(peer, config));
  config.allowed_gids = {28};
  EXPECT_FALSE(may_lease(peer, config));
  config.allowed_uids = {1000};
  EXPECT_TRUE(may_lease(peer, config));
  config.admin_gids = {27};
  EXPECT_TRUE(may_administer(peer, config));
  Peer root;
  EXPECT_TRUE(may_lease(root, config));
  EXPECT_TRUE(may_administer(root, config));
  root.contained = true;
  EXPECT_FALSE(may_lease(root, config));
  EXPECT_FALSE(may_administer(root, config));
}

TEST(Peer, AFileIsShownByItsOpenDescriptorOnly) {
  const fs::path folder = fs::temp_directory_path();
  const std::string file = folder / ("powerccl-peer-" + std::to_string(getpid()));
  const std::string other = file + ".other";
  std::ofstream(file) << "x";
  std::ofstream(other) << "x";
  const auto shown = [&](const std::string& path, int flags, const std::string& wanted) {
    const int fd = open(path.c_str(), flags | O_CLOEXEC);
    EXPECT_GE(fd, 0) << path;
    const bool shows = shows_file(fd, wanted);
    close(fd);
    return shows;
  };
  EXPECT_TRUE(shown(file, O_RDWR, file));
  EXPECT_FALSE(shown(file, O_RDONLY, file));
  EXPECT_FALSE(shown(file, O_PATH, file)) << "no right is needed to have such a descriptor";
  EXPECT_FALSE(shown(other, O_RDWR, file));
  EXPECT_FALSE(shown(file, O_RDWR, file + ".gone"));
  EXPECT_FALSE(shows_file(-1, file));
  EXPECT_TRUE(shown("/dev/null", O_RDWR, "/dev/null"));
  EXPECT_FALSE(shown("/dev/zero", O_RDWR, "/dev/null")) << "another device number";
  EXPECT_FALSE(shown(file, O_RDWR, "/dev/null"));
  fs::remove(file);
  fs::remove(other);
}

}  // namespace

}  // namespace powerccl::daemon
