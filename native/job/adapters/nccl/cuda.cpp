// SPDX-License-Identifier: Apache-2.0
#include "adapters/nccl/cuda.h"

#include <ctype.h>
#include <dlfcn.h>
#include <stdio.h>
#include <string.h>

#include <atomic>

#include "device/nvml_clock.h"

namespace powerccl::nccl {
namespace {

template <typename Function>
void find(void* library, const char* name, Function** function) {
  if (*function == nullptr) *function = reinterpret_cast<Function*>(dlsym(library, name));
}

}  // namespace

Cuda find_cuda() {
  Cuda cuda;
  void* library = dlopen("libcuda.so.1", RTLD_NOLOAD | RTLD_LAZY);
  if (library == nullptr) return cuda;
  find(library, "cuCtxGetDevice", &cuda.ctx_get_device);
  find(library, "cuDeviceGetUuid_v2", &cuda.device_get_uuid);
  find(library, "cuDeviceGetUuid", &cuda.device_get_uuid);
  find(library, "cuDeviceGetUuid", &cuda.device_get_whole_uuid);
  find(library, "cuDeviceGetPCIBusId", &cuda.device_get_pci_bus_id);
  find(library, "cuDeviceGetName", &cuda.device_get_name);
  find(library, "cuLaunchHostFunc", &cuda.launch_host_func);
  find(library, "cuCtxGetCurrent", &cuda.ctx_get_current);
  find(library, "cuCtxPushCurrent_v2", &cuda.ctx_push_current);
  find(library, "cuCtxPopCurrent_v2", &cuda.ctx_pop_current);
  find(library, "cuThreadExchangeStreamCaptureMode", &cuda.exchange_capture_mode);
  find(library, "cuStreamCreate", &cuda.stream_create);
  find(library, "cuStreamGetCtx", &cuda.stream_get_ctx);
  find(library, "cuStreamIsCapturing", &cuda.stream_is_capturing);
  find(library, "cuEventCreate", &cuda.event_create);
  find(library, "cuEventRecord", &cuda.event_record);
  find(library, "cuEventQuery", &cuda.event_query);
  find(library, "cuEventElapsedTime", &cuda.event_elapsed_ms);
  find(library, "cuMemHostRegister_v2", &cuda.mem_host_register);
  find(library, "cuMemHostGetDevicePointer_v2", &cuda.mem_host_get_device_pointer);
  find(library, "cuStreamWriteValue32_v2", &cuda.stream_write_value32);
  // The handle is kept: NCCL and the job keep the library anyway, and its functions must stay.
  return cuda;
}

GpuIdentity current_gpu(const Cuda& cuda) {
  int device = -1;
  if (cuda.ctx_get_device == nullptr || cuda.ctx_get_device(&device) != 0) return {};
  return gpu_of_device(cuda, device);
}

GpuIdentity gpu_of_device(const Cuda& cuda, int device) {
  GpuIdentity gpu;
  gpu.device = device;
  if (cuda.device_get_name != nullptr && cuda.device_get_name(gpu.name, sizeof(gpu.name), device) != 0) {
    gpu.name[0] = '\0';
  }
  unsigned char uuid[16], whole[16];
  if (cuda.device_get_uuid != nullptr && cuda.device_get_uuid(&uuid, device) == 0) {
    // A slice's UUID is its own, and its name says that it is one.
    const bool slice = strstr(gpu.name, " MIG ") != nullptr ||
                       (cuda.device_get_whole_uuid != nullptr && cuda.device_get_whole_uuid(&whole, device) == 0 &&
                        memcmp(uuid, whole, sizeof(uuid)) != 0);
    int at = snprintf(gpu.uuid, sizeof(gpu.uuid), slice ? "MIG-" : "GPU-");
    for (int i = 0; i < 16; ++i) {
      const bool dash = i == 4 || i == 6 || i == 8 || i == 10;
      at += snprintf(gpu.uuid + at, sizeof(gpu.uuid) - at, "%s%02x", dash ? "-" : "", uuid[i]);
    }
  }
  char pci[16] = "";
  if (cuda.device_get_pci_bus_id != nullptr && cuda.device_get_pci_bus_id(pci, sizeof(pci), device) == 0) {
    // CUDA writes four digits of the domain, NVML eight.
    const char* padding = pci[4] == ':' ? "0000" : "";
    snprintf(gpu.pci, sizeof(gpu.pci), "%s%s", padding, pci);
    for (char* c = gpu.pci; *c != '\0'; ++c) *c = static_cast<char>(toupper(static_cast<unsigned char>(*c)));
  }
  return gpu;
}

void library_text(char* text, size_t size, const char* how) {
  using GetVersion = int(int*);
  auto* get_version = reinterpret_cast<GetVersion*>(dlsym(RTLD_DEFAULT, "ncclGetVersion"));
  if (get_version == nullptr) {
    void* library = dlopen("libnccl.so.2", RTLD_NOLOAD | RTLD_LAZY);
    if (library != nullptr) get_version = reinterpret_cast<GetVersion*>(dlsym(library, "ncclGetVersion"));
  }
  int version = 0;
  if (get_version != nullptr && get_version(&version) == 0) {
    snprintf(text, size, "nccl %d.%d.%d %s", version / 10000, version % 10000 / 100, version % 100, how);
  } else {
    snprintf(text, size, "nccl %s", how);
  }
}

namespace {

class NvmlReader final : public ClockClient {
 public:
  bool open(const GpuIdentity& gpu) { return device::clock_open(&device_, gpu.id(), nullptr) == 0; }
  bool can_read() const override { return true; }
  int read(ClockPolicy::Reading* reading) override {
    device::clock_power_limit(&device_, &reading->limit_mw, nullptr);
    device::clock_throttle_reasons(&device_, &reading->reasons, nullptr);
    return device::clock_read_sm_mhz(&device_, &reading->mhz, nullptr);
  }

 private:
  device::ClockDevice device_;
};

}  // namespace

ClockClient* open_nvml_reader(void*, const GpuIdentity& gpu) {
  static NvmlReader readers[Runtime::kGpus];
  static std::atomic<uint32_t> count{0};
  const uint32_t index = count.fetch_add(1, std::memory_order_relaxed);
  return index < Runtime::kGpus && readers[index].open(gpu) ? &readers[index] : nullptr;
}

}  // namespace powerccl::nccl
