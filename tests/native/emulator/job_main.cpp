// SPDX-License-Identifier: Apache-2.0
#include <time.h>

#include "job.h"

namespace job {

std::map<std::string, Scenario>& scenarios() {
  static std::map<std::string, Scenario> all;
  return all;
}

Gpu::Gpu(int ordinal) {
  CUdevice device;
  OK(cuInit(0));
  OK(cuDeviceGet(&device, ordinal));
  OK(cuDevicePrimaryCtxRetain(&context, device));
  OK(cuCtxSetCurrent(context));
  OK(cuModuleLoadData(&module, kPtx));
  OK(cuModuleGetFunction(&kernel, module, "burn"));
}

CUresult Gpu::burn(CUstream stream, double ms) const {
  uint32_t rounds = 1;
  auto declared_ns = static_cast<uint64_t>(ms * 1e6);
  void* parameters[] = {&rounds, &declared_ns};
  return cuLaunchKernel(kernel, 1, 1, 1, 32, 1, 1, 0, stream, parameters, nullptr);
}

CUstream new_stream(unsigned flags) {
  CUstream stream;
  OK(cuStreamCreate(&stream, flags));
  return stream;
}

CUevent new_event() {
  CUevent event;
  OK(cuEventCreate(&event, 0));
  return event;
}

double elapsed_ms(CUevent begin, CUevent end) {
  float ms = 0;
  OK(cuEventElapsedTime(&ms, begin, end));
  return ms;
}

uint64_t now_ns() {
  timespec ts;
  clock_gettime(CLOCK_MONOTONIC, &ts);
  return static_cast<uint64_t>(ts.tv_sec) * 1'000'000'000 + static_cast<uint64_t>(ts.tv_nsec);
}

void sleep_ms(int ms) {
  const timespec duration{ms / 1000, ms % 1000 * 1'000'000L};
  nanosleep(&duration, nullptr);
}

nvmlDevice_t nvml_device(unsigned index) {
  nvmlDevice_t device;
  OK(nvmlInit_v2());
  OK(nvmlDeviceGetHandleByIndex_v2(index, &device));
  return device;
}

void lock_clock(unsigned index, unsigned mhz) {
  OK(nvmlDeviceSetGpuLockedClocks(nvml_device(index), mhz, mhz));
  sleep_ms(5);  // the platform's transition takes one
}

}  // namespace job

int main(int argc, char** argv) {
  if (argc != 5) return 2;
  const auto found = job::scenarios().find(argv[1]);
  if (found == job::scenarios().end()) return 3;
  found->second({atoi(argv[2]), atoi(argv[3]), argv[4]});
  return 0;
}
