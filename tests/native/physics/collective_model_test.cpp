// SPDX-License-Identifier: Apache-2.0
// Time and membership of collectives, in model time.
#include "collective_model.h"

#include <gtest/gtest.h>
#include <sys/mman.h>

namespace powerccl::physics::test {
namespace {

constexpr uint64_t kMiB = 1 << 20;
constexpr Time kMs = 1'000'000;
constexpr Time kLong = 10'000 * kMs;

class CollectiveModel : public ::testing::Test {
 protected:
  CollectiveModel() : model(flat_platform(4)) { model.run_for(kMs); }

  // GB/s, as NCCL tests reckon: from the last start to the last end.
  double bus_bandwidth(Pattern pattern, double bytes, uint32_t ranks) {
    Time start = 0, end = 0;
    for (uint32_t rank = 0; rank < ranks; ++rank) {
      EXPECT_TRUE(model.ended(rank)) << "rank " << rank;
      start = std::max(start, model.started_at(rank));
      end = std::max(end, model.ended_at(rank));
    }
    return bytes / static_cast<double>(end - start) * bus_factor(pattern, ranks);
  }

  Model model;
};

TEST_F(CollectiveModel, EveryPatternHasItsBusBandwidth) {
  const uint64_t comm = model.communicator(4);
  constexpr uint64_t kSize = 16 * kMiB;
  const std::pair<TaskKind, Pattern> kinds[] = {{TaskKind::kAllReduce, Pattern::kAllReduce},
                                                {TaskKind::kBroadcast, Pattern::kBroadcast},
                                                {TaskKind::kReduce, Pattern::kReduce},
                                                {TaskKind::kAllGather, Pattern::kAllGather},
                                                {TaskKind::kReduceScatter, Pattern::kReduceScatter}};
  for (const auto& [kind, pattern] : kinds) {
    const bool per_rank = kind == TaskKind::kAllGather || kind == TaskKind::kReduceScatter;
    for (uint32_t rank = 0; rank < 4; ++rank)
      model.submit(comm, rank, {Model::task(kind, per_rank ? kSize / 4 : kSize, DataType::kInt8, 1)});
    model.run_for(kLong);
    EXPECT_NEAR(bus_bandwidth(pattern, kSize, 4), kBandwidthGbs, 0.01) << pattern_name(pattern);
  }
}

// Who sends to whom tells the pattern of a group, and so its curve.
TEST_F(CollectiveModel, GroupsOfSendsAndReceivesHaveTheirPatternsBusBandwidth) {
  constexpr uint64_t kPart = 4 * kMiB;
  const struct {
    Pattern pattern;
    double gbs, parts;
    bool (*sends)(uint32_t from, uint32_t to);
  } shapes[] = {{Pattern::kAllToAll, 4, 4, [](uint32_t, uint32_t) { return true; }},
                {Pattern::kScatter, 3, 4, [](uint32_t from, uint32_t) { return from == 2; }},
                {Pattern::kGather, 2, 4, [](uint32_t, uint32_t to) { return to == 0; }},
                {Pattern::kSendReceive, 1, 1, [](uint32_t from, uint32_t to) { return to == (from + 1) % 4; }}};
  for (const auto& shape : shapes)
    model.platform.patterns[static_cast<size_t>(shape.pattern)].bandwidth_gbs = {{1, shape.gbs}};
  const uint64_t comm = model.communicator(4);
  for (const auto& shape : shapes) {
    for (uint32_t rank = 0; rank < 4; ++rank) {
      std::vector<CollectiveTask> tasks;
      for (uint32_t peer = 0; peer < 4; ++peer) {
        if (shape.sends(rank, peer)) tasks.push_back(Model::transfer(TaskKind::kSend, kPart, peer));
        if (shape.sends(peer, rank)) tasks.push_back(Model::transfer(TaskKind::kReceive, kPart, peer));
      }
      model.submit(comm, rank, tasks);
    }
    model.run_for(kLong);
    EXPECT_NEAR(bus_bandwidth(shape.pattern, shape.parts * kPart, 4), shape.gbs, 0.01) << pattern_name(shape.pattern);
  }
}

TEST_F(CollectiveModel, NothingIsShorterThanTheLatency) {
  const uint64_t comm = model.communicator(4);
  for (uint32_t rank = 0; rank < 4; ++rank) model.submit(comm, rank, {Model::task(TaskKind::kAllReduce, 1)});
  model.run_for(kLong);
  EXPECT_EQ(model.ended_at(0) - model.started_at(0), 10'000);
  model.submit(comm, 0, {Model::transfer(TaskKind::kSend, 0, 1)});
  model.submit(comm, 1, {Model::transfer(TaskKind::kReceive, 0, 0)});
  model.run_for(kLong);
  EXPECT_EQ(model.ended_at(1) - model.started_at(1), 10'000);
}

TEST_F(CollectiveModel, EverybodyWaitsForTheLastRank) {
  const uint64_t comm = model.communicator(4);
  for (uint32_t rank = 0; rank < 4; ++rank)
    model.submit(comm, rank, {Model::task(TaskKind::kAllReduce, 4 * kMiB)}, 1, rank == 3 ? 50 * kMs : 0);
  model.run_for(49 * kMs);
  EXPECT_EQ(model.started_at(3), 0);
  EXPECT_FALSE(model.ended(0));
  model.run_for(kLong);
  EXPECT_EQ(model.started_at(3) - model.started_at(0), 50 * kMs);
  EXPECT_EQ(model.ended_at(0), model.ended_at(3));
}

TEST_F(CollectiveModel, TheSlowestClockCountsFromTheMomentItChanges) {
  const uint64_t comm = model.communicator(4);
  const auto all_reduce = [&] {
    for (uint32_t rank = 0; rank < 4; ++rank) model.submit(comm, rank, {Model::task(TaskKind::kAllReduce, 64 * kMiB)});
  };
  all_reduce();
  model.run_for(kLong);
  const Time full = model.ended_at(0) - model.started_at(0);
  all_reduce();
  model.run_for(full / 2);
  model.engine.set_locked_clocks(2, 750, 750, true, model.engine.now(), [](Time) {});
  model.run_for(kLong);
  // The second half at half the bandwidth.
  EXPECT_NEAR(static_cast<double>(model.ended_at(0) - model.started_at(0)), 1.5 * static_cast<double>(full),
              0.005 * static_cast<double>(full));
}

TEST_F(CollectiveModel, ConcurrentCollectivesShareBandwidth) {
  const uint64_t first = model.communicator(4, 1);
  const uint64_t second = model.communicator(4, 2);
  for (uint32_t rank = 0; rank < 4; ++rank) {
    model.submit(first, rank, {Model::task(TaskKind::kAllReduce, 4 * kMiB)}, 1);
    model.submit(second, rank, {Model::task(TaskKind::kAllReduce, 4 * kMiB)}, 2);
  }
  model.run_for(kLong);
  const double alone_ns = model.platform.collective_ns(Pattern::kAllReduce, 16 * kMiB, kFastMhz, 4);
  EXPECT_NEAR(static_cast<double>(model.ended_at(0, 1) - model.started_at(0, 1)), 2 * alone_ns, 0.001 * alone_ns);
  EXPECT_NEAR(static_cast<double>(model.ended_at(0, 2) - model.started_at(0, 2)), 2 * alone_ns, 0.001 * alone_ns);
}

TEST_F(CollectiveModel, AGroupOfCollectivesIsOneKernel) {
  const uint64_t comm = model.communicator(2);
  for (uint32_t rank = 0; rank < 2; ++rank)
    model.submit(
        comm, rank,
        {Model::task(TaskKind::kAllReduce, kMiB), Model::task(TaskKind::kBroadcast, kMiB),
         Model::transfer(TaskKind::kSend, kMiB, 1 - rank), Model::transfer(TaskKind::kReceive, kMiB, 1 - rank)});
  model.run_for(kLong);
  EXPECT_TRUE(model.ended(0) && model.ended(1));
  const double parts = 4.0 * kMiB / kBandwidthGbs + 4.0 * kMiB / kBandwidthGbs + kMiB / kBandwidthGbs;
  EXPECT_NEAR(static_cast<double>(model.ended_at(0) - model.started_at(0)), parts, 100);
}

TEST_F(CollectiveModel, TransfersMatchFirstInFirstOut) {
  const uint64_t comm = model.communicator(2);
  model.submit(comm, 0, {Model::transfer(TaskKind::kSend, 100, 1)});
  model.submit(comm, 0, {Model::transfer(TaskKind::kSend, 200, 1)});
  model.submit(comm, 1, {Model::transfer(TaskKind::kReceive, 100, 0), Model::transfer(TaskKind::kReceive, 200, 0)});
  model.run_for(kLong);
  EXPECT_TRUE(model.ended(0));
  EXPECT_TRUE(model.ended(1));
  EXPECT_EQ(model.result(0), kCollectiveOk);
}

std::vector<CommEvent> poll(Model& model, uint64_t comm, uint32_t rank) {
  const uint64_t request = model.request(Model::client_of(rank), CollectiveMessage::kPoll, Member{comm, rank, 0});
  model.run_for(0);
  if (!model.replies.contains(request)) return {};
  const auto& body = model.replies[request].body;
  std::vector<CommEvent> events(body.size() / sizeof(CommEvent));
  memcpy(events.data(), body.data(), events.size() * sizeof(CommEvent));
  return events;
}

TEST_F(CollectiveModel, UnequalSendAndReceiveAreToldAndFreed) {
  const uint64_t comm = model.communicator(2);
  model.submit(comm, 0, {Model::transfer(TaskKind::kSend, 100, 1)});
  model.submit(comm, 1, {Model::transfer(TaskKind::kReceive, 50, 0)});
  model.run_for(kLong);
  EXPECT_TRUE(model.ended(0));
  EXPECT_TRUE(model.ended(1));
  EXPECT_EQ(poll(model, comm, 0).at(0).result, kCollectiveInvalidUsage);
}

TEST_F(CollectiveModel, ARankThatLeavesIsMissedByThoseWhoWaitForItAlone) {
  const uint64_t comm = model.communicator(3);
  model.submit(comm, 0, {Model::transfer(TaskKind::kSend, 100, 1)});
  model.submit(comm, 2, {Model::transfer(TaskKind::kReceive, 100, 1)});
  const uint64_t waiting = model.request(Model::client_of(2), CollectiveMessage::kPoll, Member{comm, 2, 0});
  model.run_for(kMs);
  model.submit(comm, 1, {Model::transfer(TaskKind::kReceive, 100, 0)});
  model.run_for(kMs);
  model.request(Model::client_of(0), CollectiveMessage::kLeave, Member{comm, 0, 0});
  model.run_for(kMs);
  EXPECT_TRUE(poll(model, comm, 1).empty());
  EXPECT_FALSE(model.replies.contains(waiting));
  model.request(Model::client_of(1), CollectiveMessage::kLeave, Member{comm, 1, 0});
  model.run_for(kMs);
  EXPECT_EQ(model.replies[waiting].as<CommEvent>().result, kCollectiveRemoteError);
}

TEST_F(CollectiveModel, JoiningFailsForAllWhenARankIsWrong) {
  const uint64_t a = model.request(1, CollectiveMessage::kJoin, model.join_of(0, 2, 9));
  Join same_gpu = model.join_of(1, 2, 9);
  same_gpu.gpu = 0;
  const uint64_t b = model.request(2, CollectiveMessage::kJoin, same_gpu);
  for (const uint64_t request : {a, b}) {
    EXPECT_EQ(model.replies.at(request).error, kCollectiveInvalidUsage);
    EXPECT_NE(std::string(model.replies.at(request).as<Joined>().text).find("Duplicate GPU"), std::string::npos);
  }
  const uint64_t c = model.request(1, CollectiveMessage::kJoin, model.join_of(0, 2, 9));
  const uint64_t d = model.request(2, CollectiveMessage::kJoin, model.join_of(1, 3, 9));
  EXPECT_EQ(model.replies.at(c).error, kCollectiveInvalidUsage);
  EXPECT_EQ(model.replies.at(d).error, kCollectiveInvalidUsage);
  const uint64_t e = model.request(1, CollectiveMessage::kJoin, model.join_of(0, 2, 9));
  EXPECT_FALSE(model.replies.contains(e));
  model.engine.remove_client(1);
  const uint64_t f = model.request(2, CollectiveMessage::kJoin, model.join_of(0, 2, 8));
  const uint64_t g = model.request(3, CollectiveMessage::kJoin, model.join_of(1, 2, 8));
  EXPECT_EQ(model.replies.at(f).error, kCollectiveOk);
  EXPECT_EQ(model.replies.at(g).error, kCollectiveOk);
}

TEST_F(CollectiveModel, ARankThatDiesWhileJoiningFailsTheJoin) {
  model.request(1, CollectiveMessage::kJoin, model.join_of(0, 3, 9));
  const uint64_t waiting = model.request(2, CollectiveMessage::kJoin, model.join_of(1, 3, 9));
  model.engine.remove_client(1);
  ASSERT_TRUE(model.replies.contains(waiting));
  EXPECT_EQ(model.replies.at(waiting).error, kCollectiveRemoteError);
}

TEST_F(CollectiveModel, ARankThatDiesWhileSplittingFailsTheSplit) {
  const uint64_t comm = model.communicator(3);
  model.request(1, CollectiveMessage::kSplit, Split{comm, 0, 0, 0, 0});
  const uint64_t waiting = model.request(2, CollectiveMessage::kSplit, Split{comm, 1, 0, 0, 0});
  model.engine.remove_client(3);
  ASSERT_TRUE(model.replies.contains(waiting));
  EXPECT_EQ(model.replies.at(waiting).error, kCollectiveRemoteError);
}

TEST_F(CollectiveModel, DataMovesOnlyIfEveryRankWantsIt) {
  const auto memory = [&](ClientId client) {
    auto made = std::make_shared<Memory>();
    made->bytes = 4096;
    made->data =
        static_cast<std::byte*>(mmap(nullptr, made->bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0));
    *reinterpret_cast<int32_t*>(made->data) = static_cast<int32_t>(client);
    model.memories[{client, 7}] = made;
    return reinterpret_cast<int32_t*>(made->data);
  };
  const int32_t* values[] = {memory(1), memory(2)};
  CollectiveTask task = Model::task(TaskKind::kAllReduce, 1, DataType::kInt32);
  task.input = task.output = {7, 0};
  for (const bool all_want : {false, true}) {
    uint64_t last = 0;
    const auto key = static_cast<uint8_t>(10 + all_want);
    for (uint32_t rank = 0; rank < 2; ++rank)
      last = model.request(Model::client_of(rank), CollectiveMessage::kJoin,
                           model.join_of(rank, 2, key, all_want || rank == 0));
    const uint64_t comm = model.replies.at(last).as<Joined>().comm;
    for (uint32_t rank = 0; rank < 2; ++rank) model.submit(comm, rank, {task});
    model.run_for(kMs);
    EXPECT_EQ(*values[0], all_want ? 3 : 1);
    EXPECT_EQ(*values[1], all_want ? 3 : 2);
  }
  task.output = {7, 4094};
  const uint64_t comm = model.communicator(2, 20, true);
  for (uint32_t rank = 0; rank < 2; ++rank) model.submit(comm, rank, {task});
  model.run_for(kMs);
  EXPECT_EQ(model.result(0), kCollectiveInvalidArgument);
}

TEST_F(CollectiveModel, ABadPayloadEndsWithAnErrorAndHarmsNobody) {
  const uint64_t comm = model.communicator(2);
  model.submit(comm + 7, 0, {Model::task(TaskKind::kAllReduce, 1)});
  model.run_for(kMs);
  EXPECT_TRUE(model.ended(0));
  EXPECT_EQ(model.result(0), kCollectiveInvalidUsage);
  model.submit(comm, 0, {Model::task(TaskKind::kBroadcast, 1, DataType::kInt8, 5)});
  model.run_for(kMs);
  EXPECT_EQ(model.result(0), kCollectiveInvalidArgument);
  for (uint32_t rank = 0; rank < 2; ++rank) model.submit(comm, rank, {Model::task(TaskKind::kAllReduce, 1)});
  model.run_for(kMs);
  EXPECT_EQ(model.result(0), kCollectiveOk);
  EXPECT_EQ(model.result(1), kCollectiveOk);
}

}  // namespace
}  // namespace powerccl::physics::test
