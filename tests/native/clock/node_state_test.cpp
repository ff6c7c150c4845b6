// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <memory>
#include <string>
#include <thread>

#include "../record/trace_reader.h"
#include "clock/node_memory.h"

namespace powerccl {
namespace {

TEST(NodeState, TheLeastOfAKindIsEverybodys) {
  const auto node = std::make_unique<NodeState>();
  EXPECT_EQ(node->least_us(1, 44000), 44000u);
  EXPECT_EQ(node->least_us(1, 27000), 27000u);
  EXPECT_LT(node->least_us(1, 44000), 27200u);
  EXPECT_EQ(node->least_us(2, 5000), 5000u);
  // It rises when nobody sees it any more, slowly.
  uint32_t last = 0;
  for (int i = 0; i < 2000; ++i) last = node->least_us(1, 44000);
  EXPECT_GT(last, 40000u);
}

TEST(NodeState, KindsThatFindNoPlaceAreLeftOut) {
  const auto node = std::make_unique<NodeState>();
  for (uint32_t kind = 1; kind <= 5000; ++kind) EXPECT_GT(node->least_us(kind, 100), 0u);
  EXPECT_EQ(node->least_us(9999, 77), 77u);
}

std::filesystem::path state_file(const test::Folder& folder) {
  for (const auto& entry : std::filesystem::directory_iterator(folder.path())) {
    if (entry.path().filename().string().starts_with(".node-")) return entry.path();
  }
  return {};
}

TEST(NodeState, ItsMemoryIsOneForAHostAndNobodyElses) {
  auto folder = std::make_unique<test::Folder>();
  const std::string path = folder->path();
  NodeState* one = open_node_state(path.c_str());
  NodeState* other = open_node_state(path.c_str());
  ASSERT_NE(one, nullptr);
  ASSERT_NE(other, nullptr);
  one->least_us(1, 1080);
  EXPECT_EQ(other->least_us(1, 2000), 1083u) << "1080, and a little more";
  const auto mode = std::filesystem::status(state_file(*folder)).permissions();
  EXPECT_EQ(static_cast<unsigned>(mode), 0600u);
  const test::Folder another;
  NodeState* others = open_node_state(another.path().c_str());
  ASSERT_NE(others, nullptr);
  EXPECT_EQ(others->least_us(1, 2000), 2000u);
  folder.reset();
  EXPECT_EQ(open_node_state(path.c_str()), nullptr);
}

// A rank that is restarted finds the others'; once all have gone, the first one makes it anew.
TEST(NodeState, LivesAsLongAsAnybodyHasIt) {
  const test::Folder folder;
  const std::string path = folder.path();
  const auto in_child = [&](uint32_t sees) {
    const pid_t child = fork();
    if (child == 0) {
      NodeState* its = open_node_state(path.c_str());
      if (its == nullptr) _exit(255);
      _exit(static_cast<int>(its->least_us(1, sees)));
    }
    int status = 0;
    waitpid(child, &status, 0);
    return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
  };
  EXPECT_EQ(in_child(100), 100);
  EXPECT_EQ(in_child(101), 101) << "the one before had nobody who kept it";
  NodeState* kept = open_node_state(path.c_str());
  ASSERT_NE(kept, nullptr);
  kept->least_us(1, 102);
  EXPECT_EQ(in_child(103), 102);
  EXPECT_EQ(in_child(99), 99);
  EXPECT_EQ(kept->least_us(1, 103), 99u);
}

// A store to a mapped file that somebody cut short would end the process.
TEST(NodeState, NothingThatHappensToItsFileEndsTheProcess) {
  const test::Folder folder;
  NodeState* node = open_node_state(folder.path().c_str());
  ASSERT_NE(node, nullptr);
  std::filesystem::resize_file(state_file(folder), 0);
  for (uint32_t kind = 1; kind <= 1024; ++kind) node->least_us(kind, 1080);
  NodeState* next = open_node_state(folder.path().c_str());
  ASSERT_NE(next, nullptr);
  EXPECT_EQ(next->least_us(1, 2000), 2000u);
  folder.write(state_file(folder).filename(), "not what is told there, but as long");
  EXPECT_NE(open_node_state(folder.path().c_str()), nullptr);
}

TEST(NodeState, OfManyThatComeAtOnceAllHaveTheSame) {
  const test::Folder folder;
  std::vector<std::thread> threads;
  std::vector<NodeState*> had(16);
  for (NodeState*& each : had)
    threads.emplace_back([&each, &folder] { each = open_node_state(folder.path().c_str()); });
  for (auto& thread : threads) thread.join();
  had[0]->least_us(1, 7);
  for (NodeState* each : had) EXPECT_EQ(each->least_us(1, 100), 7u);
}

}  // namespace
}  // namespace powerccl
