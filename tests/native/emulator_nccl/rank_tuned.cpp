// SPDX-License-Identifier: Apache-2.0
// NCCL's variables and tuner plugins: what is asked, what it does to time, failures, and several instances of the
// library in one process.
#include <dlfcn.h>
#include <unistd.h>

#include <algorithm>

#include "rank.h"

namespace {

// RANK<n>_CHOICE: a tuner's answer on that rank alone.
void choose(const Rank& job) {
  const std::string name = "RANK" + std::to_string(job.rank) + "_CHOICE";
  if (const char* choice = getenv(name.c_str())) setenv("TUNER_CHOICE", choice, 1);
}

// The shortest of some rounds: what a busy machine adds is not the model's.
template <typename Call>
double microseconds(CUstream stream, int rounds, const Call& call) {
  CUevent start = nullptr, stop = nullptr;
  CUDA(cuEventCreate(&start, CU_EVENT_DEFAULT));
  CUDA(cuEventCreate(&stop, CU_EVENT_DEFAULT));
  call();
  double least = 1e12;
  for (int i = 0; i < rounds; ++i) {
    CUDA(cuEventRecord(start, stream));
    call();
    CUDA(cuEventRecord(stop, stream));
    CUDA(cuStreamSynchronize(stream));
    float ms = 0;
    CUDA(cuEventElapsedTime(&ms, start, stop));
    least = std::min(least, static_cast<double>(ms) * 1000);
  }
  return least;
}

// One operation of each kind, then a group.
SCENARIO(every_function) {
  choose(job);
  const auto [stream, comm] = join(job);
  constexpr size_t kCount = 1 << 20;
  const auto ranks = static_cast<size_t>(job.ranks);
  Buffer<float> small(kCount), large(kCount * ranks);
  NCCL(ncclAllReduce(small.at(), small.at(), kCount, ncclFloat32, ncclSum, comm, stream));
  NCCL(ncclBroadcast(small.at(), small.at(), kCount, ncclFloat32, 0, comm, stream));
  NCCL(ncclReduce(small.at(), small.at(), kCount, ncclFloat32, ncclSum, 0, comm, stream));
  NCCL(ncclAllGather(small.at(), large.at(), kCount, ncclFloat32, comm, stream));
  NCCL(ncclReduceScatter(large.at(), small.at(), kCount, ncclFloat32, ncclSum, comm, stream));
  NCCL(ncclAlltoAll(large.at(), large.at(), 16, ncclFloat32, comm, stream));
  NCCL(ncclGroupStart());
  NCCL(ncclAllReduce(small.at(), small.at(), 1000, ncclFloat32, ncclSum, comm, stream));
  NCCL(ncclAllReduce(small.at(), small.at(), 2000, ncclFloat32, ncclSum, comm, stream));
  NCCL(ncclAllReduce(small.at(), small.at(), 100000, ncclFloat32, ncclSum, comm, stream));
  NCCL(ncclAllReduce(small.at(), small.at(), 1000, ncclFloat32, ncclMax, comm, stream));
  NCCL(ncclGroupEnd());
  CUDA(cuStreamSynchronize(stream));
  NCCL(ncclCommDestroy(comm));
}

// Prints the time of an all-reduce of $BYTES. $CONFIG_MIN_CTAS: of the communicator's own configuration.
SCENARIO(tuned_timing) {
  choose(job);
  const CUstream stream = take_device(job.rank);
  ncclComm_t comm = nullptr;
  ncclConfig_t config;
  memset(&config, 0, sizeof config);
  config.size = sizeof config;
  config.magic = kConfigMagic;
  config.version = kNcclVersion;
  config.blocking = config.minCTAs = config.maxCTAs = kConfigUndefined;
  if (const char* least = getenv("CONFIG_MIN_CTAS")) config.minCTAs = atoi(least);
  NCCL(ncclCommInitRankConfig(&comm, job.ranks, job.id, job.rank, &config));
  const size_t bytes = strtoull(getenv("BYTES"), nullptr, 0);
  Buffer<char> buffer(bytes);
  const double us = microseconds(
      stream, 5, [&] { NCCL(ncclAllReduce(buffer.at(), buffer.at(), bytes, ncclInt8, ncclSum, comm, stream)); });
  if (job.rank == 0) printf("us=%.2f\n", us);
  NCCL(ncclCommDestroy(comm));
}

SCENARIO(nothing_available) {
  const auto [stream, comm] = join(job);
  Buffer<float> buffer(1000);
  CHECK_IS(ncclBroadcast(buffer.at(), buffer.at(), 1000, ncclFloat32, 0, comm, stream), ncclInvalidUsage);
  CHECK(strstr(ncclGetLastError(comm), "no algorithm/protocol available for function Broadcast") != nullptr);
  NCCL(ncclGroupStart());
  NCCL(ncclBroadcast(buffer.at(), buffer.at(), 1000, ncclFloat32, 0, comm, stream));
  CHECK_IS(ncclGroupEnd(), ncclInvalidUsage);
  CUDA(cuStreamSynchronize(stream));
  // What is available goes on.
  if (getenv("ALL_REDUCE_WORKS")) {
    NCCL(ncclAllReduce(buffer.at(), buffer.at(), 1000, ncclFloat32, ncclSum, comm, stream));
    CUDA(cuStreamSynchronize(stream));
  }
  NCCL(ncclCommDestroy(comm));
}

SCENARIO(init_fails) {
  take_device(job.rank);
  ncclComm_t comm = nullptr;
  CHECK_IS(ncclCommInitRank(&comm, job.ranks, job.id, job.rank), atoi(getenv("EXPECTED")));
  CHECK(comm == nullptr);
  if (job.rank == 0) printf("%s\n", ncclGetLastError(nullptr));
}

SCENARIO(tuner_fails) {
  const auto [stream, comm] = join(job);
  Buffer<float> buffer(1000);
  CHECK_IS(ncclAllReduce(buffer.at(), buffer.at(), 1000, ncclFloat32, ncclSum, comm, stream), ncclInternalError);
  NCCL(ncclCommDestroy(comm));
}

// An all-reduce that never ends, until it is aborted.
SCENARIO(stuck) {
  choose(job);
  const auto [stream, comm] = join(job);
  Buffer<float> buffer(1000);
  NCCL(ncclAllReduce(buffer.at(), buffer.at(), 1000, ncclFloat32, ncclSum, comm, stream));
  usleep(300'000);
  CHECK_IS(cuStreamQuery(stream), CUDA_ERROR_NOT_READY);
  ncclResult_t error = ncclSuccess;
  NCCL(ncclCommGetAsyncError(comm, &error));
  CHECK(error == ncclSuccess || error == ncclRemoteError);  // it does not know that it hangs; the other may have left
  NCCL(ncclCommAbort(comm));
  CUDA(cuStreamSynchronize(stream));
}

// Copies of the library, one after the other in this process, each with variables of its own: $COPIES/1.so to 3.so.
SCENARIO(copies) {
  const CUstream stream = take_device(job.rank);
  constexpr size_t kBytes = 64 << 20;
  Buffer<char> buffer(kBytes);
  for (int trial = 1; trial <= 3; ++trial) {
    setenv("NCCL_SOCKET_NTHREADS", trial == 2 ? "2" : "1", 1);
    setenv("NCCL_NSOCKS_PERTHREAD", trial == 2 ? "8" : "1", 1);
    const std::string path = std::string(getenv("COPIES")) + "/" + std::to_string(trial) + ".so";
    void* library = dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL);
    if (!library) fprintf(stderr, "%s\n", dlerror());
    CHECK(library != nullptr);
    const auto init_rank = reinterpret_cast<decltype(&ncclCommInitRank)>(dlsym(library, "ncclCommInitRank"));
    const auto all_reduce = reinterpret_cast<decltype(&ncclAllReduce)>(dlsym(library, "ncclAllReduce"));
    const auto destroy = reinterpret_cast<decltype(&ncclCommDestroy)>(dlsym(library, "ncclCommDestroy"));
    CHECK(init_rank && all_reduce && destroy && init_rank != &ncclCommInitRank);
    ncclUniqueId id = job.id;
    id.internal[sizeof id.internal - 1] = static_cast<char>(trial);
    for (int again = 0; again < 2; ++again) {  // the second communicator does not read variables again
      ncclComm_t comm = nullptr;
      id.internal[sizeof id.internal - 2] = static_cast<char>(again);
      NCCL(init_rank(&comm, job.ranks, id, job.rank));
      if (again == 1) setenv("NCCL_SOCKET_NTHREADS", "16", 1);
      const double us = microseconds(
          stream, 3, [&] { NCCL(all_reduce(buffer.at(), buffer.at(), kBytes, ncclInt8, ncclSum, comm, stream)); });
      if (job.rank == 0) printf("%.1f\n", us);
      NCCL(destroy(comm));
    }
    CHECK_IS(dlclose(library), 0);
  }
  // The one that the program is linked with is none of them, and still works.
  const ncclComm_t comm = init(job);
  NCCL(ncclAllReduce(buffer.at(), buffer.at(), 1000, ncclInt8, ncclSum, comm, stream));
  CUDA(cuStreamSynchronize(stream));
  NCCL(ncclCommDestroy(comm));
}

}  // namespace
