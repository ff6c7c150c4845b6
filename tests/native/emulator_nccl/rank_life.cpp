// SPDX-License-Identifier: Apache-2.0
// Communicators: how they come, split, fail and go.
#include <signal.h>
#include <unistd.h>

#include <chrono>
#include <climits>

#include "rank.h"

namespace {

using Clock = std::chrono::steady_clock;

ncclConfig_t config() {
  ncclConfig_t made{};
  made.size = sizeof made;
  made.magic = kConfigMagic;
  made.version = kNcclVersion;
  made.blocking = INT_MIN;
  made.cgaClusterSize = made.minCTAs = made.maxCTAs = made.splitShare = made.trafficClass = INT_MIN;
  made.collnetEnable = made.CTAPolicy = made.shrinkShare = made.nvlsCTAs = INT_MIN;
  made.nChannelsPerNetPeer = made.nvlinkCentricSched = INT_MIN;
  return made;
}

void expect_sum(ncclComm_t comm, CUstream stream, int ranks) {
  Buffer<int32_t> buffer(std::vector<int32_t>(100, 1));
  NCCL(ncclAllReduce(buffer.at(), buffer.at(), 100, ncclInt32, ncclSum, comm, stream));
  CUDA(cuStreamSynchronize(stream));
  CHECK(buffer.get() == std::vector<int32_t>(100, ranks));
}

ncclResult_t async_error(ncclComm_t comm) {
  ncclResult_t error = ncclSuccess;
  NCCL(ncclCommGetAsyncError(comm, &error));
  return error;
}

ncclResult_t await_async_error(ncclComm_t comm, ncclResult_t while_it_is) {
  const auto deadline = Clock::now() + std::chrono::seconds(20);
  while (async_error(comm) == while_it_is && Clock::now() < deadline) usleep(1000);
  return async_error(comm);
}

SCENARIO(queries) {
  const auto [stream, comm] = join(job);
  int version = 0, count = 0, rank = -1, device = -1;
  NCCL(ncclGetVersion(&version));
  CHECK_IS(version, 22809);
  NCCL(ncclCommCount(comm, &count));
  NCCL(ncclCommUserRank(comm, &rank));
  NCCL(ncclCommCuDevice(comm, &device));
  CHECK_IS(count, job.ranks);
  CHECK_IS(rank, job.rank);
  CHECK_IS(device, job.rank);
  CHECK_IS(async_error(comm), ncclSuccess);
  CHECK(strcmp(ncclGetErrorString(ncclSuccess), "no error") == 0);
  void *memory = nullptr, *handle = nullptr;
  NCCL(ncclMemAlloc(&memory, 4096));
  NCCL(ncclCommRegister(comm, memory, 4096, &handle));
  NCCL(ncclAllReduce(memory, memory, 1024, ncclFloat32, ncclSum, comm, stream));
  CUDA(cuStreamSynchronize(stream));
  NCCL(ncclCommDeregister(comm, handle));
  ncclWindow_t window = nullptr;
  NCCL(ncclCommWindowRegister(comm, memory, 4096, &window, 0));
  CHECK(window == nullptr);
  NCCL(ncclMemFree(memory));
  NCCL(ncclCommFinalize(comm));
  CHECK_IS(ncclCommFinalize(comm), ncclInvalidArgument);
  NCCL(ncclCommDestroy(comm));
}

SCENARIO(split) {
  const auto [stream, comm] = join(job);
  ncclComm_t half = nullptr, none = comm;
  NCCL(ncclCommSplit(comm, job.rank % 2, -job.rank, &half, nullptr));
  int count = 0, rank = -1;
  NCCL(ncclCommCount(half, &count));
  NCCL(ncclCommUserRank(half, &rank));
  CHECK_IS(count, job.ranks / 2);
  CHECK_IS(rank, (job.ranks - 1 - job.rank) / 2);
  expect_sum(half, stream, job.ranks / 2);
  NCCL(ncclCommSplit(comm, job.rank == 0 ? -1 : 0, 0, &none, nullptr));
  CHECK((none == nullptr) == (job.rank == 0));
  if (none) expect_sum(none, stream, job.ranks - 1);
  expect_sum(comm, stream, job.ranks);
  NCCL(ncclCommDestroy(none));
  NCCL(ncclCommDestroy(half));
  NCCL(ncclCommDestroy(comm));
}

SCENARIO(shrink) {
  const auto [stream, comm] = join(job);
  int gone[] = {1};
  ncclComm_t rest = nullptr;
  if (job.rank == 1) {
    CHECK_IS(ncclCommShrink(comm, gone, 1, &rest, nullptr, 0), ncclInvalidArgument);
  } else {
    NCCL(ncclCommShrink(comm, gone, 1, &rest, nullptr, 0));
    expect_sum(rest, stream, job.ranks - 1);
    NCCL(ncclCommDestroy(rest));
  }
  NCCL(ncclCommDestroy(comm));
}

SCENARIO(scalable) {
  const CUstream stream = take_device(job.rank);
  ncclUniqueId ids[2] = {job.id, job.id};
  ids[1].internal[0] ^= 1;
  ncclComm_t comm = nullptr;
  NCCL(ncclCommInitRankScalable(&comm, job.ranks, job.rank, 2, ids, nullptr));
  expect_sum(comm, stream, job.ranks);
  NCCL(ncclCommDestroy(comm));
}

SCENARIO(non_blocking) {
  const CUstream stream = take_device(job.rank);
  ncclConfig_t wanted = config();
  wanted.blocking = 0;
  ncclComm_t comm = nullptr;
  CHECK_IS(ncclCommInitRankConfig(&comm, job.ranks, job.id, job.rank, &wanted), ncclInProgress);
  CHECK(comm != nullptr);
  CHECK_IS(await_async_error(comm, ncclInProgress), ncclSuccess);
  Buffer<int32_t> buffer(std::vector<int32_t>(100, 1));
  const ncclResult_t result = ncclAllReduce(buffer.at(), buffer.at(), 100, ncclInt32, ncclSum, comm, stream);
  CHECK(result == ncclInProgress || result == ncclSuccess);
  CHECK_IS(await_async_error(comm, ncclInProgress), ncclSuccess);
  CUDA(cuStreamSynchronize(stream));
  CHECK(buffer.get() == std::vector<int32_t>(100, job.ranks));
  ncclComm_t child = nullptr;
  CHECK_IS(ncclCommSplit(comm, job.rank == 0 ? -1 : 0, 0, &child, nullptr), ncclInProgress);
  CHECK_IS(await_async_error(comm, ncclInProgress), ncclSuccess);
  CHECK((child == nullptr) == (job.rank == 0));
  if (child) {
    CHECK_IS(await_async_error(child, ncclInProgress), ncclSuccess);
    NCCL(ncclCommDestroy(child));
  }
  NCCL(ncclCommDestroy(comm));
}

// Nobody else comes: the owner gives up.
SCENARIO(abort_initialisation) {
  take_device(0);
  ncclConfig_t wanted = config();
  wanted.blocking = 0;
  ncclComm_t comm = nullptr;
  CHECK_IS(ncclCommInitRankConfig(&comm, 2, job.id, 0, &wanted), ncclInProgress);
  usleep(50'000);
  CHECK_IS(async_error(comm), ncclInProgress);
  NCCL(ncclCommAbort(comm));
}

SCENARIO(bad_config) {
  take_device(0);
  ncclConfig_t wanted = config();
  wanted.magic = 1;
  ncclComm_t comm = nullptr;
  CHECK_IS(ncclCommInitRankConfig(&comm, 1, job.id, 0, &wanted), ncclInvalidArgument);
  wanted = config();
  wanted.blocking = 7;
  CHECK_IS(ncclCommInitRankConfig(&comm, 1, job.id, 0, &wanted), ncclInvalidArgument);
  // An older caller's structure ends behind `blocking`.
  wanted = config();
  wanted.size = offsetof(ncclConfig_t, cgaClusterSize);
  wanted.commName = reinterpret_cast<const char*>(1);
  NCCL(ncclCommInitRankConfig(&comm, 1, job.id, 0, &wanted));
  NCCL(ncclCommDestroy(comm));
  CHECK_IS(ncclCommInitRank(&comm, 2, job.id, 2), ncclInvalidArgument);
  CHECK_IS(ncclCommInitRank(nullptr, 1, job.id, 0), ncclInvalidArgument);
}

SCENARIO(same_gpu) {
  take_device(0);
  ncclComm_t comm = nullptr;
  CHECK_IS(ncclCommInitRank(&comm, job.ranks, job.id, job.rank), ncclInvalidUsage);
  CHECK(comm == nullptr);
  CHECK(strstr(ncclGetLastError(nullptr), "Duplicate GPU") != nullptr);
}

// Rank 1 kills itself while the others are in an all-reduce that waits for it.
SCENARIO(killed) {
  const auto [stream, comm] = join(job);
  expect_sum(comm, stream, job.ranks);
  if (job.rank == 1) {
    for (int other = 0; other < job.ranks; other += 2) await_sign("called", other);
    kill(getpid(), SIGKILL);
  }
  Buffer<float> buffer(1 << 20);
  NCCL(ncclAllReduce(buffer.at(), buffer.at(), 1 << 20, ncclFloat32, ncclSum, comm, stream));
  give_sign("called");
  CHECK_IS(await_async_error(comm, ncclSuccess), ncclRemoteError);
  CHECK_IS(cuStreamQuery(stream), CUDA_ERROR_NOT_READY);
  CHECK_IS(ncclAllReduce(buffer.at(), buffer.at(), 1 << 20, ncclFloat32, ncclSum, comm, stream), ncclRemoteError);
  NCCL(ncclCommAbort(comm));
  CUDA(cuStreamSynchronize(stream));
  // The GPU is usable again, with those who are left.
  Rank rest = job;
  rest.id.internal[0] ^= 0x55;
  rest.ranks = job.ranks - 1;
  rest.rank = job.rank == 0 ? 0 : job.rank - 1;
  const ncclComm_t again = init(rest);
  expect_sum(again, stream, rest.ranks);
  NCCL(ncclCommDestroy(again));
}

// Rank 1 never makes the call.
SCENARIO(abort_waiting) {
  const auto [stream, comm] = join(job);
  Buffer<float> buffer(1024);
  if (job.rank == 0) {
    NCCL(ncclAllReduce(buffer.at(), buffer.at(), 1024, ncclFloat32, ncclSum, comm, stream));
    NCCL(ncclAllReduce(buffer.at(), buffer.at(), 1024, ncclFloat32, ncclSum, comm, stream));
    usleep(50'000);
    CHECK_IS(cuStreamQuery(stream), CUDA_ERROR_NOT_READY);
    CHECK_IS(async_error(comm), ncclSuccess);
    give_sign("waited");
  } else {
    await_sign("waited", 0);
  }
  NCCL(ncclCommAbort(comm));
  CUDA(cuStreamSynchronize(stream));
}

SCENARIO(revoke) {
  const auto [stream, comm] = join(job);
  Buffer<float> buffer(1024);
  CHECK_IS(ncclCommRevoke(comm, 1), ncclInvalidArgument);
  if (job.rank == 0) NCCL(ncclAllReduce(buffer.at(), buffer.at(), 1024, ncclFloat32, ncclSum, comm, stream));
  NCCL(ncclCommRevoke(comm, 0));
  CUDA(cuStreamSynchronize(stream));
  CHECK_IS(ncclAllReduce(buffer.at(), buffer.at(), 1024, ncclFloat32, ncclSum, comm, stream), ncclInvalidUsage);
  NCCL(ncclCommDestroy(comm));
}

SCENARIO(mismatch) {
  const auto [stream, comm] = join(job);
  Buffer<float> buffer(1024);
  NCCL(ncclAllReduce(buffer.at(), buffer.at(), job.rank == 0 ? 1000 : 1001, ncclFloat32, ncclSum, comm, stream));
  CUDA(cuStreamSynchronize(stream));
  CHECK_IS(await_async_error(comm, ncclSuccess), ncclInvalidUsage);
  CHECK(strstr(ncclGetLastError(comm), "ranks disagree") != nullptr);
  NCCL(ncclCommDestroy(comm));
}

// The server is killed by the test when all ranks have said that they are up.
SCENARIO(server_death) {
  const auto [stream, comm] = join(job);
  expect_sum(comm, stream, job.ranks);
  printf("up\n");
  fflush(stdout);
  CHECK_IS(await_async_error(comm, ncclSuccess), ncclSystemError);
  CHECK(ncclAllReduce(nullptr, nullptr, 1, ncclFloat32, ncclSum, comm, stream) != ncclSuccess);
  CHECK_IS(ncclCommDestroy(comm), ncclSuccess);
}

SCENARIO(leave_without_destroying) {
  const auto [stream, comm] = join(job);
  expect_sum(comm, stream, job.ranks);
  if (job.rank == 1) _Exit(0);
  usleep(300'000);
  CHECK_IS(async_error(comm), ncclSuccess);
  NCCL(ncclCommDestroy(comm));
}

}  // namespace
