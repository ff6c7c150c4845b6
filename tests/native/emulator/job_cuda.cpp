// SPDX-License-Identifier: Apache-2.0
// What programs expect of the driver API.
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <cstring>
#include <thread>
#include <vector>

#include "job.h"

using namespace job;

namespace {

// At this clock a kernel takes (0.15 + 0.85 * 1090 / 1080) of what it declares (platforms/t4x8.conf).
constexpr unsigned kLockedMhz = 1080;
constexpr double kStretch = 0.15 + 0.85 * 1090 / 1080;
// Hides the launches of what follows, however busy this machine is.
constexpr double kHidesMs = 300;

class LockedClock {
 public:
  explicit LockedClock(unsigned index) : index_(index) { lock_clock(index, kLockedMhz); }
  ~LockedClock() { OK(nvmlDeviceResetGpuLockedClocks(nvml_device(index_))); }
  LockedClock(const LockedClock&) = delete;
  LockedClock& operator=(const LockedClock&) = delete;

 private:
  const unsigned index_;
};

// How long the stream works on what `launch` puts into it.
template <typename Launch>
double timed_ms(const Gpu& gpu, CUstream stream, Launch launch) {
  const CUevent begin = new_event(), end = new_event();
  OK(gpu.burn(stream, kHidesMs));
  OK(cuEventRecord(begin, stream));
  launch();
  OK(cuEventRecord(end, stream));
  OK(cuEventSynchronize(end));
  return elapsed_ms(begin, end);
}

}  // namespace

SCENARIO(events) {
  const Gpu gpu;
  const LockedClock locked(0);
  const CUstream stream = new_stream();
  const CUevent begin = new_event(), middle = new_event(), end = new_event();
  float ms;
  CHECK_EQ(cuEventElapsedTime(&ms, begin, end), CUDA_ERROR_INVALID_HANDLE);  // never recorded
  OK(cuEventQuery(begin));
  OK(gpu.burn(stream, kHidesMs));
  OK(cuEventRecord(begin, stream));
  OK(gpu.burn(stream, 5));
  OK(cuEventRecord(middle, stream));
  for (int i = 0; i < 10; ++i) OK(gpu.burn(stream, 2));
  OK(cuEventRecord(end, stream));
  CHECK_EQ(cuEventQuery(end), CUDA_ERROR_NOT_READY);
  CHECK_EQ(cuStreamQuery(stream), CUDA_ERROR_NOT_READY);
  CHECK_EQ(cuEventElapsedTime(&ms, begin, end), CUDA_ERROR_NOT_READY);
  OK(cuEventSynchronize(middle));
  OK(cuStreamSynchronize(stream));
  OK(cuStreamQuery(stream));
  OK(cuEventQuery(end));
  CHECK_NEAR(elapsed_ms(begin, middle), 5 * kStretch, 0.01);
  CHECK_NEAR(elapsed_ms(middle, end), 20 * kStretch, 0.02);
  CUevent untimed;
  OK(cuEventCreate(&untimed, CU_EVENT_DISABLE_TIMING));
  OK(cuEventRecord(untimed, stream));
  OK(cuEventSynchronize(untimed));
  CHECK_EQ(cuEventElapsedTime(&ms, begin, untimed), CUDA_ERROR_INVALID_HANDLE);
  OK(cuEventDestroy(untimed));
  CHECK_EQ(cuEventRecord(untimed, stream), CUDA_ERROR_INVALID_HANDLE);
}

SCENARIO(ordering) {
  const Gpu gpu;
  const CUstream first = new_stream(), second = new_stream(), blocking = new_stream(CU_STREAM_DEFAULT);
  const CUevent first_done = new_event(), second_done = new_event(), blocking_done = new_event(),
                legacy_done = new_event(), after = new_event();
  OK(gpu.burn(first, 10));
  OK(cuEventRecord(first_done, first));
  OK(cuStreamWaitEvent(second, first_done, 0));
  OK(cuEventRecord(second_done, second));
  OK(cuStreamSynchronize(second));
  OK(cuEventQuery(first_done));
  CHECK(elapsed_ms(first_done, second_done) >= 0);
  // The legacy default stream waits for blocking streams and they for it.
  OK(gpu.burn(blocking, 10));
  OK(cuEventRecord(blocking_done, blocking));
  OK(gpu.burn(nullptr, 1));
  OK(cuEventRecord(legacy_done, nullptr));
  OK(cuEventRecord(after, blocking));
  OK(cuEventSynchronize(after));
  CHECK(elapsed_ms(blocking_done, legacy_done) > 0.5);
  CHECK(elapsed_ms(legacy_done, after) >= 0);
  // A stream destroyed with work in it finishes it.
  const CUevent last = new_event();
  OK(gpu.burn(first, 5));
  OK(cuEventRecord(last, first));
  OK(cuStreamDestroy(first));
  CHECK_EQ(cuStreamQuery(first), CUDA_ERROR_INVALID_HANDLE);
  OK(cuEventSynchronize(last));
  OK(cuCtxSynchronize());
}

SCENARIO(memory) {
  const Gpu gpu;
  const CUstream stream = new_stream();
  std::vector<uint32_t> out(1 << 18), in(1 << 18);
  for (size_t i = 0; i < out.size(); ++i) out[i] = static_cast<uint32_t>(i * 2654435761u);
  const size_t bytes = out.size() * 4;
  CUdeviceptr a, b;
  OK(cuMemAlloc(&a, bytes));
  OK(cuMemAlloc(&b, bytes));
  OK(cuMemcpyHtoD(a, out.data(), bytes));
  OK(cuMemcpyDtoDAsync(b, a, bytes, stream));
  OK(cuMemcpyDtoHAsync(in.data(), b, bytes, stream));
  OK(cuStreamSynchronize(stream));
  CHECK(in == out);
  OK(cuMemsetD32(b + 4, 0xabcd1234, 3));
  OK(cuMemcpyDtoH(in.data(), b, 20));
  CHECK_EQ(in[0], out[0]);
  CHECK_EQ(in[1], 0xabcd1234);
  CHECK_EQ(in[3], 0xabcd1234);
  CHECK_EQ(in[4], out[4]);
  OK(cuMemsetD8Async(b, 0x5a, 4, stream));
  OK(cuMemcpyDtoHAsync(in.data(), b, 4, stream));
  OK(cuStreamSynchronize(stream));
  CHECK_EQ(in[0], 0x5a5a5a5a);
  CHECK_EQ(cuMemcpyHtoD(a + 8, out.data(), bytes), CUDA_ERROR_INVALID_VALUE);  // past its end
  CHECK_EQ(cuMemsetD8(a, 0, bytes + (1 << 20)), CUDA_ERROR_INVALID_VALUE);
  CHECK_EQ(cuMemAlloc(&b, 0), CUDA_ERROR_INVALID_VALUE);
  CUdeviceptr most, more;
  OK(cuMemAlloc(&most, 14ull << 30));  // reserved, not touched
  CHECK_EQ(cuMemAlloc(&more, 2ull << 30), CUDA_ERROR_OUT_OF_MEMORY);
  size_t free_bytes, total_bytes;
  OK(cuMemGetInfo(&free_bytes, &total_bytes));
  CHECK_EQ(total_bytes, 15ull << 30);
  CHECK(free_bytes < 1ull << 30);
  OK(cuMemFree(most));
  OK(cuMemAlloc(&more, 2ull << 30));
  OK(cuMemFree(more));
  CHECK_EQ(cuMemFree(more), CUDA_ERROR_INVALID_VALUE);
  OK(cuMemFree(0));
  unsigned type = 0;
  OK(cuPointerGetAttribute(&type, CU_POINTER_ATTRIBUTE_MEMORY_TYPE, a));
  CHECK_EQ(type, CU_MEMORYTYPE_DEVICE);
}

SCENARIO(write_value) {
  const Gpu gpu;
  const CUstream stream = new_stream();
  void* pinned = nullptr;
  CUdeviceptr address;
  OK(cuMemHostAlloc(&pinned, 4096, CU_MEMHOSTALLOC_DEVICEMAP));
  OK(cuMemHostGetDevicePointer(&address, pinned, 0));
  auto* word = static_cast<volatile uint32_t*>(pinned);
  word[3] = 0;
  OK(gpu.burn(stream, kHidesMs));
  OK(cuStreamWriteValue32(stream, address + 12, 7, 0));
  OK(gpu.burn(stream, kHidesMs));
  CHECK_EQ(word[3], 0);
  while (word[3] != 7) sleep_ms(1);
  CHECK_EQ(cuStreamQuery(stream), CUDA_ERROR_NOT_READY);  // seen while what is behind it runs
  static uint32_t mine[16];
  OK(cuMemHostRegister(mine, sizeof mine, CU_MEMHOSTREGISTER_DEVICEMAP));
  OK(cuMemHostGetDevicePointer(&address, mine, 0));
  OK(cuStreamWriteValue32(stream, address + 4, 9, 0));
  OK(cuStreamSynchronize(stream));
  CHECK_EQ(mine[1], 9);
  CHECK_EQ(cuStreamWriteValue32(stream, address + 2, 9, 0), CUDA_ERROR_INVALID_VALUE);
  CHECK_EQ(cuStreamWriteValue32(stream, 4096, 9, 0), CUDA_ERROR_INVALID_VALUE);
  OK(cuMemHostUnregister(mine));
  OK(cuMemFreeHost(pinned));
}

namespace {

std::atomic<int> calls{0};

void CUDA_CB count_call(void*) {
  calls.fetch_add(1);
}
void CUDA_CB look_at_event(void* slot) {
  sleep_ms(20);
  static_cast<std::atomic<int>*>(slot)->store(calls.load());
}

}  // namespace

SCENARIO(host_functions) {
  const Gpu gpu;
  const LockedClock locked(0);
  const CUstream stream = new_stream();
  std::atomic<int> seen{-1};
  const CUevent begin = new_event(), end = new_event();
  OK(gpu.burn(stream, kHidesMs));
  OK(cuEventRecord(begin, stream));
  for (int i = 0; i < 10; ++i) OK(cuLaunchHostFunc(stream, count_call, nullptr));
  OK(cuEventRecord(end, stream));
  OK(cuLaunchHostFunc(stream, look_at_event, &seen));
  const CUevent last = new_event();
  OK(cuEventRecord(last, stream));
  CHECK_EQ(calls.load(), 0);
  OK(cuEventSynchronize(end));
  CHECK_EQ(calls.load(), 10);
  OK(cuEventSynchronize(last));
  CHECK_EQ(seen.load(), 10);
  CHECK(elapsed_ms(begin, end) >= 10 * 0.040 - 1e-3);  // 40 us each
}

SCENARIO(graphs) {
  const Gpu gpu;
  const LockedClock locked(0);
  const CUstream stream = new_stream(), side = new_stream();
  const CUevent fork = new_event(), join = new_event(), begin = new_event(), end = new_event();
  CUdeviceptr data;
  OK(cuMemAlloc(&data, 4096));
  OK(cuMemsetD8(data, 0, 4096));
  CUstreamCaptureStatus status;
  OK(cuStreamIsCapturing(stream, &status));
  CHECK_EQ(status, CU_STREAM_CAPTURE_STATUS_NONE);
  OK(cuStreamBeginCapture(stream, CU_STREAM_CAPTURE_MODE_GLOBAL));
  OK(gpu.burn(stream, 3));
  OK(cuEventRecord(fork, stream));
  OK(cuStreamWaitEvent(side, fork, 0));
  cuuint64_t id = 0, side_id = 1;
  OK(cuStreamGetCaptureInfo(stream, &status, &id, nullptr, nullptr, nullptr, nullptr));
  CHECK_EQ(status, CU_STREAM_CAPTURE_STATUS_ACTIVE);
  OK(cuStreamGetCaptureInfo(side, &status, &side_id, nullptr, nullptr, nullptr, nullptr));
  CHECK_EQ(id, side_id);
  OK(cuLaunchHostFunc(side, count_call, nullptr));
  OK(cuMemsetD8Async(data, 0x11, 4096, side));
  OK(cuEventRecord(join, side));
  OK(cuStreamWaitEvent(stream, join, 0));
  OK(gpu.burn(stream, 4));
  CHECK_EQ(cuStreamSynchronize(stream), CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED);
  CHECK_EQ(cuStreamDestroy(stream), CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED);
  CUgraph graph;
  CHECK_EQ(cuStreamEndCapture(side, &graph), CUDA_ERROR_ILLEGAL_STATE);  // it joined, it did not begin
  OK(cuStreamEndCapture(stream, &graph));
  OK(cuStreamIsCapturing(side, &status));
  CHECK_EQ(status, CU_STREAM_CAPTURE_STATUS_NONE);
  size_t nodes = 0;
  OK(cuGraphGetNodes(graph, nullptr, &nodes));
  CHECK_EQ(nodes, 4);
  uint8_t byte = 1;
  OK(cuMemcpyDtoH(&byte, data, 1));
  CHECK_EQ(byte, 0);  // captured, not carried out
  CHECK_EQ(calls.load(), 0);
  CUgraphExec executable;
  OK(cuGraphInstantiateWithFlags(&executable, graph, 0));
  OK(cuGraphDestroy(graph));
  OK(gpu.burn(stream, 5));
  OK(cuEventRecord(begin, stream));
  for (int i = 0; i < 3; ++i) OK(cuGraphLaunch(executable, stream));
  OK(cuEventRecord(end, stream));
  OK(cuStreamSynchronize(stream));
  CHECK_EQ(calls.load(), 3);
  OK(cuMemcpyDtoH(&byte, data, 1));
  CHECK_EQ(byte, 0x11);
  CHECK(elapsed_ms(begin, end) >= 3 * 7 * kStretch);
  OK(cuGraphExecDestroy(executable));
  CHECK_EQ(cuGraphLaunch(executable, stream), CUDA_ERROR_INVALID_HANDLE);
}

SCENARIO(modules) {
  const Gpu gpu;
  const LockedClock locked(0);
  CUmodule module;
  CUfunction function;
  CHECK_EQ(cuModuleLoadData(&module, "this is not PTX"), CUDA_ERROR_INVALID_PTX);
  CHECK_EQ(cuModuleLoadData(&module,
                            "\x7f"
                            "ELF"),
           CUDA_ERROR_NO_BINARY_FOR_GPU);
  CHECK_EQ(cuModuleGetFunction(&function, gpu.module, "not_a_kernel"), CUDA_ERROR_NOT_FOUND);
  OK(cuModuleGetFunction(&function, gpu.module, "silent"));
  OK(cuLaunchKernel(function, 1, 1, 1, 1, 1, 1, 0, nullptr, nullptr, nullptr));
  CHECK_EQ(cuLaunchKernel(function, 0, 1, 1, 1, 1, 1, 0, nullptr, nullptr, nullptr), CUDA_ERROR_INVALID_VALUE);
  // Parameters as one buffer, and through a launch configuration.
  const CUstream stream = new_stream();
  struct {
    uint32_t rounds;
    uint64_t declared_ns;
  } packed{1, 6'000'000};
  size_t size = sizeof packed;
  void* extra[] = {CU_LAUNCH_PARAM_BUFFER_POINTER, &packed, CU_LAUNCH_PARAM_BUFFER_SIZE, &size, CU_LAUNCH_PARAM_END};
  CUlaunchConfig config{};
  config.gridDimX = config.gridDimY = config.gridDimZ = config.blockDimY = config.blockDimZ = 1;
  config.blockDimX = 64;
  config.hStream = stream;
  const double ms = timed_ms(gpu, stream, [&] { OK(cuLaunchKernelEx(&config, gpu.kernel, nullptr, extra)); });
  CHECK_NEAR(ms, 6 * kStretch, 0.01);
}

SCENARIO(entry_points) {
  OK(cuInit(0));
  const char* names[] = {"cuInit",
                         "cuMemAlloc",
                         "cuMemFree",
                         "cuCtxCreate",
                         "cuStreamDestroy",
                         "cuEventElapsedTime",
                         "cuStreamWriteValue32",
                         "cuDeviceGetUuid",
                         "cuGraphInstantiate",
                         "cuStreamGetCaptureInfo",
                         "cuMemcpyHtoD",
                         "cuLaunchKernel",
                         "cuLaunchHostFunc",
                         "cuStreamBeginCapture",
                         "cuGetProcAddress"};
  for (const char* name : names) {
    void* found = nullptr;
    CUdriverProcAddressQueryResult query;
    OK(cuGetProcAddress(name, &found, 12080, 0, &query));
    if (found == nullptr) fprintf(stderr, "%s\n", name);
    CHECK(found != nullptr);
  }
  void* memory = nullptr;
  OK(cuGetProcAddress("cuMemAlloc", &memory, 12080, 0, nullptr));
  CHECK(memory == reinterpret_cast<void*>(&cuMemAlloc_v2));
  void* none = nullptr;
  CHECK_EQ(cuGetProcAddress("cuNoSuchFunction", &none, 12080, 0, nullptr), CUDA_ERROR_NOT_FOUND);
  const char* text = nullptr;
  OK(cuGetErrorName(CUDA_ERROR_OUT_OF_MEMORY, &text));
  CHECK(strcmp(text, "CUDA_ERROR_OUT_OF_MEMORY") == 0);
}

SCENARIO(contexts) {
  int count = 0;
  CHECK_EQ(cuDeviceGetCount(&count), CUDA_ERROR_NOT_INITIALIZED);
  OK(cuInit(0));
  CUstream stream;
  CHECK_EQ(cuStreamCreate(&stream, 0), CUDA_ERROR_INVALID_CONTEXT);
  CUdevice device;
  CHECK_EQ(cuDeviceGet(&device, 8), CUDA_ERROR_INVALID_DEVICE);
  CUcontext primary, again, current;
  OK(cuDevicePrimaryCtxRetain(&primary, 3));
  OK(cuDevicePrimaryCtxRetain(&again, 3));
  CHECK(primary == again);
  OK(cuCtxSetCurrent(primary));
  OK(cuCtxGetDevice(&device));
  CHECK_EQ(device, 3);
  CUcontext other;
  OK(cuCtxCreate_v4(&other, nullptr, 0, 5));
  OK(cuCtxGetCurrent(&current));
  CHECK(current == other);
  OK(cuCtxDestroy(other));
  OK(cuCtxGetCurrent(&current));
  CHECK(current == primary);
  std::thread([] {
    CUcontext mine;
    OK(cuCtxGetCurrent(&mine));
    CHECK(mine == nullptr);  // current is the thread's own
  }).join();
  OK(cuDevicePrimaryCtxRelease(3));
}

// Several threads, one GPU each.
SCENARIO(threads) {
  OK(cuInit(0));
  std::vector<std::thread> threads;
  for (int device = 0; device < 8; ++device) {
    threads.emplace_back([device] {
      const Gpu gpu(device);
      const LockedClock locked(static_cast<unsigned>(device));
      const CUstream stream = new_stream();
      for (int i = 0; i < 5; ++i) {
        const double ms = timed_ms(gpu, stream, [&] { OK(gpu.burn(stream, 2)); });
        CHECK_NEAR(ms, 2 * kStretch, 0.01);  // alone on its GPU
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
}

// The same with a process for each GPU, and all at once.
SCENARIO(processes) {
  const Gpu gpu(self.rank);
  const LockedClock locked(static_cast<unsigned>(self.rank));
  const CUstream stream = new_stream();
  const double ms = timed_ms(gpu, stream, [&] {
    for (int i = 0; i < 50; ++i) OK(gpu.burn(stream, 1));
  });
  CHECK_NEAR(ms, 50 * kStretch, 0.05);
}

SCENARIO(visible) {  // CUDA_VISIBLE_DEVICES=2,1
  OK(cuInit(0));
  int count = 0;
  OK(cuDeviceGetCount(&count));
  CHECK_EQ(count, 2);
  char bus[32], expected[32];
  OK(cuDeviceGetPCIBusId(bus, sizeof bus, 0));
  nvmlPciInfo_t pci;
  OK(nvmlDeviceGetPciInfo_v3(nvml_device(2), &pci));  // NVML numbers them all
  snprintf(expected, sizeof expected, "%s", pci.busId + 4);
  CHECK(strcmp(bus, expected) == 0);
}

SCENARIO(fork_child) {
  const Gpu gpu;
  OK(gpu.burn(nullptr, 1));
  const pid_t child = fork();
  if (child == 0) {
    int count = 0;
    _exit(cuDeviceGetCount(&count) == CUDA_ERROR_NOT_INITIALIZED ? 0 : 1);
  }
  int status = 0;
  waitpid(child, &status, 0);
  CHECK_EQ(status, 0);
  OK(cuCtxSynchronize());  // the parent is none the worse
}

SCENARIO(unmoved) {  // POWERCCL_EMULATOR_MOVE_DATA=0
  const Gpu gpu;
  CUdeviceptr data;
  OK(cuMemAlloc(&data, 1 << 20));
  std::vector<uint8_t> bytes(1 << 20, 0x77);
  OK(cuMemcpyHtoD(data, bytes.data(), bytes.size()));
  OK(cuMemcpyDtoH(bytes.data(), data, 16));  // small ones always move
  CHECK_EQ(bytes[0], 0);
}

// ---- Faults

SCENARIO(dies) {
  const Gpu gpu;
  const CUstream stream = new_stream();
  CUdeviceptr most;
  OK(cuMemAlloc(&most, 14ull << 30));
  for (int i = 0; i < 100; ++i) OK(gpu.burn(stream, 10'000));
  puts("running");
  fflush(stdout);
  sleep_ms(50);
  raise(SIGKILL);
}

// On the same GPU: nothing of the dead process is left there.
SCENARIO(survives) {
  const Gpu gpu;
  const CUstream stream = new_stream();
  CUdeviceptr most = 0;
  for (int i = 0; i < 1000 && most == 0; ++i) {
    if (cuMemAlloc(&most, 14ull << 30) != CUDA_SUCCESS) sleep_ms(5);
  }
  CHECK(most != 0);
  const LockedClock locked(0);
  const double ms = timed_ms(gpu, stream, [&] { OK(gpu.burn(stream, 5)); });
  CHECK_NEAR(ms, 5 * kStretch, 0.01);  // unshared
}

SCENARIO(outlives_server) {
  const Gpu gpu;
  const CUstream stream = new_stream();
  const CUevent end = new_event();
  nvmlDevice_t device = nvml_device(0);
  OK(gpu.burn(stream, 60'000));
  OK(cuEventRecord(end, stream));
  puts("running");
  fflush(stdout);
  CHECK_EQ(cuStreamSynchronize(stream), CUDA_ERROR_UNKNOWN);
  CHECK_EQ(cuEventSynchronize(end), CUDA_ERROR_UNKNOWN);
  CHECK_EQ(gpu.burn(stream, 1), CUDA_ERROR_UNKNOWN);
  for (int i = 0; i < 300 && cuEventQuery(end) == CUDA_ERROR_NOT_READY; ++i) sleep_ms(1);  // a poller is told as well
  CHECK_EQ(cuEventQuery(end), CUDA_ERROR_UNKNOWN);
  CUdeviceptr data;
  CHECK_EQ(cuMemAlloc(&data, 4096), CUDA_ERROR_UNKNOWN);
  CHECK_EQ(nvmlDeviceSetGpuLockedClocks(device, 600, 600), NVML_ERROR_UNKNOWN);
}

SCENARIO(no_server) {
  CHECK_EQ(cuInit(0), CUDA_ERROR_NO_DEVICE);
  CHECK_EQ(nvmlInit_v2(), NVML_ERROR_DRIVER_NOT_LOADED);
}
