// SPDX-License-Identifier: Apache-2.0
#include "daemon/peer.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/socket.h>
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

}  // namespace
}  // namespace powerccl::daemon
