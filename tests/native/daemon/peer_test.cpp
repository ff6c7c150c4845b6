// SPDX-License-Identifier: Apache-2.0
#include "daemon/peer.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sched.h>
#include <signal.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <fstream>

namespace powerccl::daemon {
namespace {

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

TEST(Peer, AThreadBoundToOneCore) {
  Peer self;
  self.pid = getpid();
  const auto thread = static_cast<uint32_t>(syscall(SYS_gettid));
  cpu_set_t before, one;
  ASSERT_EQ(sched_getaffinity(0, sizeof before, &before), 0);
  const int cpu = sched_getcpu();
  CPU_ZERO(&one);
  CPU_SET(cpu, &one);
  EXPECT_EQ(bound_to(self, thread, cpu), CPU_COUNT(&before) == 1);
  ASSERT_EQ(sched_setaffinity(0, sizeof one, &one), 0);
  EXPECT_TRUE(bound_to(self, thread, cpu));
  EXPECT_FALSE(bound_to(self, thread, cpu + 1));
  EXPECT_FALSE(bound_to(self, 1, cpu)) << "not a thread of this process";
  sched_setaffinity(0, sizeof before, &before);
}

// In a PID namespace the thread that asks is number 1 or so.
TEST(Peer, AThreadOfAContainer) {
  int ends[2];
  ASSERT_EQ(pipe2(ends, O_CLOEXEC), 0);
  const pid_t child = fork();
  if (child == 0) {
    if (unshare(CLONE_NEWPID) != 0 && unshare(CLONE_NEWUSER | CLONE_NEWPID) != 0) _exit(1);
    const pid_t contained = fork();
    if (contained == 0) {
      cpu_set_t one;
      CPU_ZERO(&one);
      CPU_SET(sched_getcpu(), &one);
      const bool bound = sched_setaffinity(0, sizeof one, &one) == 0;
      const int told[2] = {bound ? static_cast<int>(syscall(SYS_gettid)) : -1, sched_getcpu()};
      if (write(ends[1], told, sizeof told) != sizeof told) _exit(1);
      for (;;) pause();
    }
    if (write(ends[1], &contained, sizeof contained) != sizeof contained) _exit(1);
    int status = 0;
    waitpid(contained, &status, 0);
    _exit(0);
  }
  close(ends[1]);
  int told[3] = {};  // the number outside and, in whichever order they came, the number inside and the core
  for (size_t got = 0; got < sizeof told;) {
    const ssize_t length = read(ends[0], reinterpret_cast<char*>(told) + got, sizeof told - got);
    ASSERT_GT(length, 0) << "no PID namespace can be made here";
    got += static_cast<size_t>(length);
  }
  close(ends[0]);
  if (told[0] == 1) std::rotate(told, told + 2, told + 3);
  ASSERT_EQ(told[1], 1);
  Peer peer;
  peer.pid = told[0];
  EXPECT_TRUE(bound_to(peer, 1, told[2]));
  EXPECT_FALSE(bound_to(peer, 1, told[2] + 1));
  EXPECT_FALSE(bound_to(peer, static_cast<uint32_t>(told[0]), told[2])) << "as nobody inside numbers it";
  kill(told[0], SIGKILL);
  waitpid(child, nullptr, 0);
}

}  // namespace
}  // namespace powerccl::daemon
