// SPDX-License-Identifier: Apache-2.0
#include "daemon/state_file.h"

#include <fcntl.h>
#include <gtest/gtest.h>

#include <cerrno>
#include <cstdlib>
#include <filesystem>
#include <fstream>

namespace powerccl::daemon {
namespace {

namespace fs = std::filesystem;

class StateFileTest : public testing::Test {
 protected:
  StateFileTest() {
    std::string pattern = fs::temp_directory_path() / "powerccl-state-XXXXXX";
    folder_ = mkdtemp(pattern.data());
    path_ = folder_ / "leases";
  }
  ~StateFileTest() override { fs::remove_all(folder_); }

  std::string bytes() const {
    std::ifstream file(path_, std::ios::binary);
    return {std::istreambuf_iterator<char>(file), {}};
  }
  void put(const std::string& bytes) const { std::ofstream(path_, std::ios::binary) << bytes; }

  fs::path folder_, path_;
  std::string reason_;
};

TEST_F(StateFileTest, MarksOutliveTheDaemon) {
  {
    StateFile state;
    ASSERT_TRUE(state.open(path_, &reason_)) << reason_;
    EXPECT_TRUE(state.left().empty());
    EXPECT_EQ(state.mark("GPU-1", 1000, 42), 0);
    EXPECT_EQ(state.mark("GPU-3", 1000, 42), 0);
    EXPECT_EQ(state.mark("GPU-2", 1000, 42), 0);
    EXPECT_EQ(state.clear("GPU-2"), 0);
  }
  StateFile next;
  ASSERT_TRUE(next.open(path_, &reason_)) << reason_;
  EXPECT_EQ(next.left(), (std::vector<std::string>{"GPU-1", "GPU-3"}));
  EXPECT_FALSE(next.doubtful());
}

TEST_F(StateFileTest, OneDaemonAtATime) {
  StateFile state, other;
  ASSERT_TRUE(state.open(path_, &reason_));
  EXPECT_FALSE(other.open(path_, &reason_));
  EXPECT_NE(reason_.find("another powerccld"), std::string::npos) << reason_;
}

TEST_F(StateFileTest, FolderThatIsNotThere) {
  StateFile state;
  EXPECT_FALSE(state.open(folder_ / "no/leases", &reason_));
  EXPECT_NE(reason_.find("cannot be made"), std::string::npos) << reason_;
}

TEST_F(StateFileTest, ALinkIsNotFollowed) {
  fs::create_symlink(folder_ / "elsewhere", path_);
  StateFile state;
  EXPECT_FALSE(state.open(path_, &reason_));
  EXPECT_FALSE(fs::exists(folder_ / "elsewhere"));
}

TEST_F(StateFileTest, ManyMarksAndNoMore) {
  StateFile state;
  ASSERT_TRUE(state.open(path_, &reason_));
  for (size_t i = 0; i < kStateSlots; ++i) ASSERT_EQ(state.mark("GPU-" + std::to_string(i), 0, 0), 0);
  EXPECT_EQ(state.mark("GPU-more", 0, 0), ENOSPC);
  EXPECT_EQ(state.mark("GPU-7", 0, 0), 0) << "marked already";
  EXPECT_EQ(state.clear("GPU-7"), 0);
  EXPECT_EQ(state.mark("GPU-more", 0, 0), 0);
  EXPECT_EQ(state.mark(std::string(48, 'x'), 0, 0), ENAMETOOLONG);
}

// A mark or its clearing that a power cut stopped after any number of bytes: the mark is there, or the file is doubted.
TEST_F(StateFileTest, TornWritesAreNeverTakenForNothing) {
  std::string before, after;
  {
    StateFile state;
    ASSERT_TRUE(state.open(path_, &reason_));
    before = bytes();
    ASSERT_EQ(state.mark("GPU-1", 1000, 42), 0);
    after = bytes();
  }
  ASSERT_NE(before, after);
  for (size_t cut = 0; cut <= sizeof(StateSlot); ++cut) {
    const size_t at = 128 + cut;  // behind the header
    put(after.substr(0, at) + before.substr(at));
    StateFile state;
    ASSERT_TRUE(state.open(path_, &reason_));
    if (cut == 0) {
      EXPECT_TRUE(state.left().empty() && !state.doubtful());
    } else {
      EXPECT_TRUE(state.doubtful() || state.left() == std::vector<std::string>{"GPU-1"}) << cut;
    }
  }
  for (size_t cut = 0; cut < sizeof(StateSlot); ++cut) {
    put(before.substr(0, 128 + cut) + after.substr(128 + cut));
    StateFile state;
    ASSERT_TRUE(state.open(path_, &reason_));
    EXPECT_TRUE(state.doubtful() || state.left() == std::vector<std::string>{"GPU-1"}) << cut;
  }
}

TEST_F(StateFileTest, DoubtOutlivesADaemonThatIsKilledBeforeItHasPutBack) {
  {
    StateFile state;
    ASSERT_TRUE(state.open(path_, &reason_));
    ASSERT_EQ(state.mark("GPU-1", 1000, 42), 0);
  }
  std::string torn = bytes();
  torn[128 + 50] ^= 1;
  put(torn);
  for (int life = 0; life < 2; ++life) {
    StateFile state;
    ASSERT_TRUE(state.open(path_, &reason_));
    EXPECT_TRUE(state.doubtful());
    EXPECT_EQ(state.mark("GPU-9", 0, 0), 0);
    EXPECT_EQ(state.clear("GPU-9"), 0);
    if (life == 1) {
      EXPECT_EQ(state.settle_doubt(), 0);
    }
  }
  StateFile state;
  ASSERT_TRUE(state.open(path_, &reason_));
  EXPECT_FALSE(state.doubtful());
}

TEST_F(StateFileTest, ForeignAndShortFilesAreSetAsideAndDoubted) {
  for (const std::string& content : {std::string(), std::string("short"), std::string(200'000, 'x')}) {
    put(content);
    {
      StateFile state;
      ASSERT_TRUE(state.open(path_, &reason_)) << reason_;
      EXPECT_TRUE(state.doubtful());
      EXPECT_TRUE(fs::exists(path_.string() + ".bad"));
    }
    StateFile next;  // the one before was killed before it had put anything back
    ASSERT_TRUE(next.open(path_, &reason_));
    EXPECT_TRUE(next.doubtful());
    EXPECT_EQ(next.settle_doubt(), 0);
  }
}

TEST(Crc32, IsZlibs) {
  EXPECT_EQ(crc32_of("123456789", 9), 0xcbf43926u);
}

}  // namespace
}  // namespace powerccl::daemon
