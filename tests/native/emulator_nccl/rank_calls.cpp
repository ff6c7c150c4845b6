// SPDX-License-Identifier: Apache-2.0
// Calls: groups, streams, threads, graphs, arguments, time.
#include <memory>
#include <thread>

#include "rank.h"

namespace {

SCENARIO(groups) {
  const auto [stream, comm] = join(job);
  const auto n = static_cast<int32_t>(job.ranks);
  Buffer<int32_t> a(std::vector<int32_t>(10, 1)), b(std::vector<int32_t>(1000, 2)),
      c(std::vector<int32_t>(10, job.rank)), d(10);
  NCCL(ncclGroupStart());
  NCCL(ncclAllReduce(a.at(), a.at(), 10, ncclInt32, ncclSum, comm, stream));
  NCCL(ncclGroupStart());
  NCCL(ncclAllReduce(b.at(), b.at(), 1000, ncclInt32, ncclSum, comm, stream));
  NCCL(ncclGroupEnd());
  NCCL(ncclSend(c.at(), 10, ncclInt32, (job.rank + 1) % job.ranks, comm, stream));
  NCCL(ncclRecv(d.at(), 10, ncclInt32, (job.rank + job.ranks - 1) % job.ranks, comm, stream));
  CUDA(cuStreamSynchronize(stream));
  CHECK(a.get() == std::vector<int32_t>(10, 1));  // nothing starts before the outermost end
  NCCL(ncclGroupEnd());
  CUDA(cuStreamSynchronize(stream));
  CHECK(a.get() == std::vector<int32_t>(10, n));
  CHECK(b.get() == std::vector<int32_t>(1000, 2 * n));
  CHECK(d.get() == std::vector<int32_t>(10, (job.rank + job.ranks - 1) % job.ranks));

  // A failed call spoils its group, and only that.
  NCCL(ncclGroupStart());
  NCCL(ncclAllReduce(a.at(), a.at(), 10, ncclInt32, ncclSum, comm, stream));
  CHECK_IS(ncclBroadcast(a.at(), a.at(), 10, ncclInt32, 99, comm, stream), ncclInvalidArgument);
  CHECK_IS(ncclGroupEnd(), ncclInvalidArgument);
  CHECK_IS(ncclGroupEnd(), ncclInvalidUsage);
  NCCL(ncclGroupStart());
  CHECK_IS(ncclGroupSimulateEnd(nullptr), ncclInvalidUsage);
  NCCL(ncclAllReduce(a.at(), a.at(), 10, ncclInt32, ncclSum, comm, stream));
  CUDA(cuStreamSynchronize(stream));
  CHECK(a.get() == std::vector<int32_t>(10, n * n));
  NCCL(ncclCommDestroy(comm));
}

SCENARIO(arguments) {
  const auto [stream, comm] = join(job);
  Buffer<float> buffer(100);
  CHECK_IS(ncclAllReduce(buffer.at(), buffer.at(), 10, ncclFloat32, ncclSum, nullptr, stream), ncclInvalidArgument);
  CHECK_IS(ncclAllReduce(buffer.at(), buffer.at(), 10, static_cast<ncclDataType_t>(99), ncclSum, comm, stream),
           ncclInvalidArgument);
  CHECK_IS(ncclAllReduce(buffer.at(), buffer.at(), 10, ncclFloat32, static_cast<ncclRedOp_t>(99), comm, stream),
           ncclInvalidArgument);
  CHECK_IS(ncclAllReduce(buffer.at(), buffer.at(), 10, ncclFloat8e4m3, ncclSum, comm, stream), ncclInvalidArgument);
  CHECK_IS(ncclReduce(buffer.at(), buffer.at(), 10, ncclFloat32, ncclSum, -1, comm, stream), ncclInvalidArgument);
  CHECK_IS(ncclSend(buffer.at(), 10, ncclFloat32, job.ranks, comm, stream), ncclInvalidArgument);
  CHECK_IS(ncclAllReduce(buffer.at(), buffer.at(), 101, ncclFloat32, ncclSum, comm, stream), ncclInvalidArgument);
  float on_host[10] = {};
  CHECK_IS(ncclAllReduce(on_host, buffer.at(), 10, ncclFloat32, ncclSum, comm, stream), ncclInvalidArgument);
  CHECK(strstr(ncclGetLastError(comm), "not in device memory") != nullptr);
  // Empty operations are no operations.
  NCCL(ncclAllReduce(nullptr, nullptr, 0, ncclFloat32, ncclSum, comm, stream));
  NCCL(ncclAlltoAll(nullptr, nullptr, 0, ncclFloat32, comm, stream));
  if (job.rank == 0) NCCL(ncclSend(nullptr, 0, ncclFloat32, 1, comm, stream));
  if (job.rank == 1) NCCL(ncclRecv(nullptr, 0, ncclFloat32, 0, comm, stream));
  // 8-bit floats move, though they are not reduced.
  NCCL(ncclBcast(buffer.at(), 100, ncclFloat8e5m2, 0, comm, stream));
  CUDA(cuStreamSynchronize(stream));
  NCCL(ncclCommDestroy(comm));
}

SCENARIO(streams) {
  const CUstream first = take_device(job.rank);
  CUstream second = nullptr;
  CUDA(cuStreamCreate(&second, CU_STREAM_NON_BLOCKING));
  const ncclComm_t comm = init(job);
  Buffer<int32_t> a(std::vector<int32_t>(100, 1)), b(std::vector<int32_t>(100, 1));
  // Alternating streams without synchronisation: the communicator keeps the order by itself.
  for (int i = 0; i < 5; ++i) {
    NCCL(ncclAllReduce(a.at(), b.at(), 100, ncclInt32, ncclMax, comm, first));
    NCCL(ncclAllReduce(b.at(), a.at(), 100, ncclInt32, ncclSum, comm, second));
  }
  CUDA(cuStreamSynchronize(second));
  int32_t expected = 1;
  for (int i = 0; i < 5; ++i) expected *= job.ranks;
  CHECK(a.get() == std::vector<int32_t>(100, expected));
  // Two streams in one group are one kernel, and both wait for it.
  NCCL(ncclGroupStart());
  NCCL(ncclAllReduce(a.at(), a.at(), 100, ncclInt32, ncclMax, comm, first));
  NCCL(ncclAllReduce(b.at(), b.at(), 100, ncclInt32, ncclMax, comm, second));
  NCCL(ncclGroupEnd());
  CUDA(cuStreamSynchronize(first));
  CUDA(cuStreamSynchronize(second));
  // The default stream is a stream.
  NCCL(ncclAllReduce(a.at(), a.at(), 100, ncclInt32, ncclMax, comm, nullptr));
  CUDA(cuCtxSynchronize());
  NCCL(ncclCommDestroy(comm));
}

// Several communicators at once, each with work in flight.
SCENARIO(many_communicators) {
  const CUstream first = take_device(job.rank);
  CUstream second = nullptr;
  CUDA(cuStreamCreate(&second, CU_STREAM_NON_BLOCKING));
  Rank other = job;
  other.id.internal[0] ^= 0x55;
  const ncclComm_t a = init(job), b = init(other);
  Buffer<int32_t> x(std::vector<int32_t>(1 << 16, 1)), y(std::vector<int32_t>(1 << 16, 1));
  // Opposite order of enqueueing on even and odd ranks, as different streams allow.
  for (int i = 0; i < 2; ++i) {
    const bool first_turn = (i == 0) == (job.rank % 2 == 0);
    if (first_turn)
      NCCL(ncclAllReduce(x.at(), x.at(), 1 << 16, ncclInt32, ncclSum, a, first));
    else
      NCCL(ncclAllReduce(y.at(), y.at(), 1 << 16, ncclInt32, ncclSum, b, second));
  }
  CUDA(cuStreamSynchronize(first));
  CUDA(cuStreamSynchronize(second));
  CHECK(x.get() == std::vector<int32_t>(1 << 16, job.ranks));
  CHECK(y.get() == std::vector<int32_t>(1 << 16, job.ranks));
  NCCL(ncclCommDestroy(a));
  NCCL(ncclCommDestroy(b));
}

// One process, all GPUs, one thread.
SCENARIO(init_all) {
  constexpr int kDevices = 4;
  CUDA(cuInit(0));
  ncclComm_t comms[kDevices];
  const int devices[kDevices] = {3, 1, 0, 2};
  const int twice[2] = {1, 1};
  CHECK_IS(ncclCommInitAll(comms, 2, twice), ncclInvalidUsage);
  CHECK_IS(ncclCommInitAll(comms, 1000, nullptr), ncclUnhandledCudaError);
  NCCL(ncclCommInitAll(comms, kDevices, devices));
  CUstream streams[kDevices];
  std::vector<std::unique_ptr<Buffer<int32_t>>> buffers;
  for (int i = 0; i < kDevices; ++i) {
    int device = -1;
    NCCL(ncclCommCuDevice(comms[i], &device));
    CHECK_IS(device, devices[i]);
    streams[i] = take_device(devices[i]);
    buffers.push_back(std::make_unique<Buffer<int32_t>>(std::vector<int32_t>(100, i)));
  }
  NCCL(ncclGroupStart());
  for (int i = 0; i < kDevices; ++i)
    NCCL(ncclAllReduce(buffers[static_cast<size_t>(i)]->at(), buffers[static_cast<size_t>(i)]->at(), 100, ncclInt32,
                       ncclSum, comms[i], streams[i]));
  NCCL(ncclGroupEnd());
  for (int i = 0; i < kDevices; ++i) {
    CUDA(cuStreamSynchronize(streams[i]));
    CHECK(buffers[static_cast<size_t>(i)]->get() == std::vector<int32_t>(100, 6));
    NCCL(ncclCommDestroy(comms[i]));
  }
}

// One process, a thread a GPU.
SCENARIO(threads) {
  constexpr int kThreads = 4;
  ncclUniqueId id;
  NCCL(ncclGetUniqueId(&id));
  std::vector<std::thread> running;
  for (int rank = 0; rank < kThreads; ++rank) {
    running.emplace_back([rank, id] {
      const CUstream stream = take_device(rank);
      const ncclComm_t comm = init({rank, kThreads, id});
      Buffer<int32_t> buffer(std::vector<int32_t>(1000, 1));
      for (int i = 0; i < 20; ++i)
        NCCL(ncclAllReduce(buffer.at(), buffer.at(), 1000, ncclInt32, i % 2 ? ncclMax : ncclSum, comm, stream));
      CUDA(cuStreamSynchronize(stream));
      CHECK(buffer.get() == std::vector<int32_t>(1000, 1 << 20));
      NCCL(ncclCommDestroy(comm));
    });
  }
  for (std::thread& thread : running) thread.join();
}

SCENARIO(graphs) {
  const auto [stream, comm] = join(job);
  Buffer<int32_t> buffer(std::vector<int32_t>(100, 1)), other(std::vector<int32_t>(100, 1));
  CUDA(cuStreamBeginCapture(stream, CU_STREAM_CAPTURE_MODE_THREAD_LOCAL));
  NCCL(ncclAllReduce(buffer.at(), buffer.at(), 100, ncclInt32, ncclSum, comm, stream));
  NCCL(ncclGroupStart());
  NCCL(ncclBroadcast(other.at(), other.at(), 100, ncclInt32, 0, comm, stream));
  NCCL(ncclSend(other.at(), 100, ncclInt32, (job.rank + 1) % job.ranks, comm, stream));
  NCCL(ncclRecv(other.at(), 100, ncclInt32, (job.rank + job.ranks - 1) % job.ranks, comm, stream));
  NCCL(ncclGroupEnd());
  CUgraph graph = nullptr;
  CUDA(cuStreamEndCapture(stream, &graph));
  CHECK(buffer.get() == std::vector<int32_t>(100, 1));
  CUgraphExec executable = nullptr;
  CUDA(cuGraphInstantiate(&executable, graph, 0));
  int32_t expected = 1;
  for (int replay = 0; replay < 3; ++replay) {
    CUDA(cuGraphLaunch(executable, stream));
    expected *= job.ranks;
  }
  NCCL(ncclAllReduce(buffer.at(), buffer.at(), 100, ncclInt32, ncclMax, comm, stream));
  CUDA(cuStreamSynchronize(stream));
  CHECK(buffer.get() == std::vector<int32_t>(100, expected));
  // Destroying waits for replays that are still queued; a replay after it changes nothing and hangs nobody.
  CUDA(cuGraphLaunch(executable, stream));
  NCCL(ncclCommDestroy(comm));
  CHECK(buffer.get() == std::vector<int32_t>(100, expected * job.ranks));
  CUDA(cuGraphLaunch(executable, stream));
  CUDA(cuStreamSynchronize(stream));
  CHECK(buffer.get() == std::vector<int32_t>(100, expected * job.ranks));
  CUDA(cuGraphExecDestroy(executable));
  CUDA(cuGraphDestroy(graph));
}

// A rank alone.
SCENARIO(alone) {
  const CUstream stream = take_device(0);
  const ncclComm_t comm = init({0, 1, job.id});
  Buffer<float> in(std::vector<float>(100, 3)), out(100);
  NCCL(ncclAllReduce(in.at(), out.at(), 100, ncclFloat32, ncclAvg, comm, stream));
  CUDA(cuStreamSynchronize(stream));
  CHECK(out.get() == std::vector<float>(100, 3));
  NCCL(ncclAlltoAll(in.at(), out.at(), 100, ncclFloat32, comm, stream));
  CUDA(cuStreamSynchronize(stream));
  NCCL(ncclCommDestroy(comm));
}

// Prints the mean microseconds of a 64 MiB all-reduce, by events.
SCENARIO(timing) {
  constexpr size_t kCount = 16 << 20;
  constexpr int kRounds = 5;
  const auto [stream, comm] = join(job);
  Buffer<float> buffer(kCount);
  CUevent start = nullptr, stop = nullptr;
  CUDA(cuEventCreate(&start, CU_EVENT_DEFAULT));
  CUDA(cuEventCreate(&stop, CU_EVENT_DEFAULT));
  NCCL(ncclAllReduce(buffer.at(), buffer.at(), kCount, ncclFloat32, ncclSum, comm, stream));
  CUDA(cuEventRecord(start, stream));
  for (int i = 0; i < kRounds; ++i)
    NCCL(ncclAllReduce(buffer.at(), buffer.at(), kCount, ncclFloat32, ncclSum, comm, stream));
  CUDA(cuEventRecord(stop, stream));
  CUDA(cuStreamSynchronize(stream));
  float ms = 0;
  CUDA(cuEventElapsedTime(&ms, start, stop));
  if (job.rank == 0) printf("%.1f\n", static_cast<double>(ms) * 1000 / kRounds);
  NCCL(ncclCommDestroy(comm));
}

// Operations for a recording plugin to see (nccl_profiler_test.cpp says in which order).
SCENARIO(profiled) {
  const auto [stream, comm] = join(job);
  Buffer<float> buffer(1000), other(1000);
  NCCL(ncclAllReduce(buffer.at(), buffer.at(), 1000, ncclFloat32, ncclSum, comm, stream));
  CUDA(cuStreamSynchronize(stream));
  NCCL(ncclGroupStart());
  NCCL(ncclAllGather(buffer.at(), other.at(), 100, ncclFloat32, comm, stream));
  NCCL(ncclSend(buffer.at(), 10, ncclFloat32, (job.rank + 1) % job.ranks, comm, stream));
  NCCL(ncclRecv(other.at(), 10, ncclFloat32, (job.rank + job.ranks - 1) % job.ranks, comm, stream));
  NCCL(ncclGroupEnd());
  CUDA(cuStreamSynchronize(stream));
  NCCL(ncclAlltoAll(buffer.at(), other.at(), 10, ncclFloat32, comm, stream));
  CUDA(cuStreamSynchronize(stream));
  CUDA(cuStreamBeginCapture(stream, CU_STREAM_CAPTURE_MODE_THREAD_LOCAL));
  NCCL(ncclReduce(buffer.at(), buffer.at(), 1000, ncclFloat32, ncclSum, 0, comm, stream));
  CUgraph graph = nullptr;
  CUDA(cuStreamEndCapture(stream, &graph));
  CUgraphExec executable = nullptr;
  CUDA(cuGraphInstantiate(&executable, graph, 0));
  for (int replay = 0; replay < 2; ++replay) CUDA(cuGraphLaunch(executable, stream));
  CUDA(cuStreamSynchronize(stream));
  NCCL(ncclCommDestroy(comm));
}

// For a plugin that asks for kernel events by size.
SCENARIO(sampled) {
  const auto [stream, comm] = join(job);
  Buffer<float> buffer(1000);
  for (const size_t count : {1000, 1000, 10, 10, 1000}) {
    NCCL(ncclAllReduce(buffer.at(), buffer.at(), count, ncclFloat32, ncclSum, comm, stream));
    CUDA(cuStreamSynchronize(stream));
  }
  NCCL(ncclCommDestroy(comm));
}

}  // namespace
