// SPDX-License-Identifier: Apache-2.0
#include <cstdio>

#include "emulator/client/gpu_ids.h"
#include "emulator/cuda/state.h"

namespace powerccl::emulator {
namespace {

constexpr int kDriverVersion = 12080;

void announce(State& state, const ContextState& context, bool alive) {
  Context message{};
  message.header.type = static_cast<uint32_t>(Message::kContext);
  message.gpu = context.gpu;
  message.alive = alive ? 1 : 0;
  state.connection->post(&message.header, sizeof message);
}

ContextState* new_context(State& state, int device, bool primary) {
  auto* context = new ContextState{device, state.devices[static_cast<size_t>(device)], primary};
  context->legacy = state.new_stream(*context, 0);
  if (context->legacy == nullptr) {
    delete context;
    return nullptr;
  }
  state.contexts.insert(context);
  announce(state, *context, true);
  return context;
}

void destroy_context(State& state, ContextState* context) {
  while (!context->streams.empty()) state.destroy_stream(*context->streams.begin());
  announce(state, *context, false);
  state.contexts.erase(context);
  delete context;
}

bool has_device(const State& state, int device) {
  return device >= 0 && static_cast<size_t>(device) < state.devices.size();
}

const BoardGpu& gpu_of(const State& state, int device) {
  return state.connection->board().gpu[state.devices[static_cast<size_t>(device)]];
}

// 0: an attribute that the emulator knows nothing of.
int attribute_of(const State& state, CUdevice_attribute attribute, CUdevice device) {
  const BoardPage& board = state.connection->board();
  switch (attribute) {
    case CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR:
      return static_cast<int>(board.compute_major);
    case CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR:
      return static_cast<int>(board.compute_minor);
    case CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT:
      return static_cast<int>(board.multiprocessors);
    case CU_DEVICE_ATTRIBUTE_CLOCK_RATE:
      return static_cast<int>(board.clock_max_mhz * 1000);
    case CU_DEVICE_ATTRIBUTE_MEMORY_CLOCK_RATE:
      return static_cast<int>(board.memory_clock_mhz * 1000);
    case CU_DEVICE_ATTRIBUTE_PCI_BUS_ID:
      return static_cast<int>(gpu_of(state, device).bus);
    case CU_DEVICE_ATTRIBUTE_WARP_SIZE:
      return 32;
    case CU_DEVICE_ATTRIBUTE_MAX_THREADS_PER_BLOCK:
    case CU_DEVICE_ATTRIBUTE_MAX_BLOCK_DIM_X:
    case CU_DEVICE_ATTRIBUTE_MAX_BLOCK_DIM_Y:
      return 1024;
    case CU_DEVICE_ATTRIBUTE_MAX_BLOCK_DIM_Z:
      return 64;
    case CU_DEVICE_ATTRIBUTE_MAX_GRID_DIM_X:
      return 0x7fffffff;
    case CU_DEVICE_ATTRIBUTE_MAX_GRID_DIM_Y:
    case CU_DEVICE_ATTRIBUTE_MAX_GRID_DIM_Z:
      return 65535;
    case CU_DEVICE_ATTRIBUTE_MAX_THREADS_PER_MULTIPROCESSOR:
      return 2048;
    case CU_DEVICE_ATTRIBUTE_UNIFIED_ADDRESSING:
    case CU_DEVICE_ATTRIBUTE_CAN_MAP_HOST_MEMORY:
    case CU_DEVICE_ATTRIBUTE_CONCURRENT_KERNELS:
    case CU_DEVICE_ATTRIBUTE_CAN_USE_HOST_POINTER_FOR_REGISTERED_MEM:
    case CU_DEVICE_ATTRIBUTE_STREAM_PRIORITIES_SUPPORTED:
      return 1;
    case CU_DEVICE_ATTRIBUTE_ASYNC_ENGINE_COUNT:
      return 2;
    default:
      return 0;
  }
}

ContextState* context_of(State& state, CUcontext handle) {
  auto* context = reinterpret_cast<ContextState*>(handle);
  return state.contexts.count(context) != 0 ? context : nullptr;
}

CUresult create(CUcontext* handle, CUdevice device) {
  POWERCCL_READY(state);
  if (handle == nullptr) return CUDA_ERROR_INVALID_VALUE;
  const std::lock_guard lock(state.mutex);
  if (!has_device(state, device)) return CUDA_ERROR_INVALID_DEVICE;
  ContextState* context = new_context(state, device, false);
  if (context == nullptr) return CUDA_ERROR_OUT_OF_MEMORY;
  context_stack().push_back(context);
  *handle = reinterpret_cast<CUcontext>(context);
  return CUDA_SUCCESS;
}

}  // namespace

std::vector<ContextState*>& context_stack() {
  thread_local std::vector<ContextState*> stack;
  return stack;
}

ContextState* current_context() {
  auto& stack = context_stack();
  return stack.empty() ? nullptr : stack.back();
}

}  // namespace powerccl::emulator

using namespace powerccl::emulator;

PWE_EXPORT CUresult cuInit(unsigned flags) {
  return flags != 0 ? CUDA_ERROR_INVALID_VALUE : State::get().initialise();
}

PWE_EXPORT CUresult cuDriverGetVersion(int* version) {
  if (version == nullptr) return CUDA_ERROR_INVALID_VALUE;
  *version = kDriverVersion;
  return CUDA_SUCCESS;
}

PWE_EXPORT CUresult cuDeviceGetCount(int* count) {
  POWERCCL_READY(state);
  if (count == nullptr) return CUDA_ERROR_INVALID_VALUE;
  *count = static_cast<int>(state.devices.size());
  return CUDA_SUCCESS;
}

PWE_EXPORT CUresult cuDeviceGet(CUdevice* device, int ordinal) {
  POWERCCL_READY(state);
  if (device == nullptr) return CUDA_ERROR_INVALID_VALUE;
  if (!has_device(state, ordinal)) return CUDA_ERROR_INVALID_DEVICE;
  *device = ordinal;
  return CUDA_SUCCESS;
}

PWE_EXPORT CUresult cuDeviceGetName(char* name, int length, CUdevice device) {
  POWERCCL_READY(state);
  if (name == nullptr || length <= 0) return CUDA_ERROR_INVALID_VALUE;
  if (!has_device(state, device)) return CUDA_ERROR_INVALID_DEVICE;
  const bool slice = in_mig_mode(state.devices[static_cast<size_t>(device)]);
  snprintf(name, static_cast<size_t>(length), "%s%s", state.connection->board().gpu_name, slice ? " MIG 1g.5gb" : "");
  return CUDA_SUCCESS;
}

PWE_EXPORT CUresult cuDeviceGetUuid(CUuuid* uuid, CUdevice device) {
  POWERCCL_READY(state);
  if (uuid == nullptr) return CUDA_ERROR_INVALID_VALUE;
  if (!has_device(state, device)) return CUDA_ERROR_INVALID_DEVICE;
  memcpy(uuid->bytes, gpu_of(state, device).uuid_bytes, 16);
  if (in_mig_mode(state.devices[static_cast<size_t>(device)])) uuid->bytes[0] ^= kSliceMask;
  return CUDA_SUCCESS;
}

// Before slices came: of a slice it tells the GPU.
#undef cuDeviceGetUuid
PWE_EXPORT CUresult cuDeviceGetUuid(CUuuid* uuid, CUdevice device) {
  const CUresult result = cuDeviceGetUuid_v2(uuid, device);
  if (result == CUDA_SUCCESS) memcpy(uuid->bytes, gpu_of(State::get(), device).uuid_bytes, 16);
  return result;
}

PWE_EXPORT CUresult cuDeviceGetPCIBusId(char* bus, int length, CUdevice device) {
  POWERCCL_READY(state);
  if (bus == nullptr || length < 13) return CUDA_ERROR_INVALID_VALUE;
  if (!has_device(state, device)) return CUDA_ERROR_INVALID_DEVICE;
  snprintf(bus, static_cast<size_t>(length), "0000:%02X:00.0", gpu_of(state, device).bus);
  return CUDA_SUCCESS;
}

PWE_EXPORT CUresult cuDeviceGetByPCIBusId(CUdevice* device, const char* bus) {
  POWERCCL_READY(state);
  if (device == nullptr || bus == nullptr) return CUDA_ERROR_INVALID_VALUE;
  unsigned long number = 0;
  if (!parse_bus_id(bus, number)) return CUDA_ERROR_INVALID_VALUE;
  for (size_t i = 0; i < state.devices.size(); ++i) {
    if (gpu_of(state, static_cast<int>(i)).bus != number) continue;
    *device = static_cast<int>(i);
    return CUDA_SUCCESS;
  }
  return CUDA_ERROR_INVALID_DEVICE;
}

PWE_EXPORT CUresult cuDeviceTotalMem_v2(size_t* bytes, CUdevice device) {
  POWERCCL_READY(state);
  if (bytes == nullptr) return CUDA_ERROR_INVALID_VALUE;
  if (!has_device(state, device)) return CUDA_ERROR_INVALID_DEVICE;
  *bytes = state.connection->board().memory_bytes;
  return CUDA_SUCCESS;
}

PWE_EXPORT CUresult cuDeviceGetAttribute(int* value, CUdevice_attribute attribute, CUdevice device) {
  POWERCCL_READY(state);
  if (value == nullptr) return CUDA_ERROR_INVALID_VALUE;
  if (!has_device(state, device)) return CUDA_ERROR_INVALID_DEVICE;
  *value = attribute_of(state, attribute, device);
  return CUDA_SUCCESS;
}

PWE_EXPORT CUresult cuDeviceCanAccessPeer(int* can, CUdevice, CUdevice) {
  if (can == nullptr) return CUDA_ERROR_INVALID_VALUE;
  *can = 0;
  return CUDA_SUCCESS;
}

PWE_EXPORT CUresult cuDevicePrimaryCtxRetain(CUcontext* handle, CUdevice device) {
  POWERCCL_READY(state);
  if (handle == nullptr) return CUDA_ERROR_INVALID_VALUE;
  const std::lock_guard lock(state.mutex);
  if (!has_device(state, device)) return CUDA_ERROR_INVALID_DEVICE;
  ContextState*& primary = state.primaries[static_cast<size_t>(device)];
  if (primary == nullptr) primary = new_context(state, device, true);
  if (primary == nullptr) return CUDA_ERROR_OUT_OF_MEMORY;
  ++primary->references;
  *handle = reinterpret_cast<CUcontext>(primary);
  return CUDA_SUCCESS;
}

PWE_EXPORT CUresult cuDevicePrimaryCtxRelease_v2(CUdevice device) {
  POWERCCL_READY(state);
  const std::lock_guard lock(state.mutex);
  if (!has_device(state, device)) return CUDA_ERROR_INVALID_DEVICE;
  ContextState*& primary = state.primaries[static_cast<size_t>(device)];
  if (primary == nullptr) return CUDA_ERROR_INVALID_CONTEXT;
  // It stays up with its handles: a thread may still have it current, and it comes back with the next retain.
  if (primary->references > 0) --primary->references;
  return CUDA_SUCCESS;
}

PWE_EXPORT CUresult cuDevicePrimaryCtxGetState(CUdevice device, unsigned* flags, int* active) {
  POWERCCL_READY(state);
  if (flags == nullptr || active == nullptr) return CUDA_ERROR_INVALID_VALUE;
  const std::lock_guard lock(state.mutex);
  if (!has_device(state, device)) return CUDA_ERROR_INVALID_DEVICE;
  const ContextState* primary = state.primaries[static_cast<size_t>(device)];
  *flags = primary != nullptr ? primary->flags : 0;
  *active = primary != nullptr && primary->references > 0 ? 1 : 0;
  return CUDA_SUCCESS;
}

PWE_EXPORT CUresult cuDevicePrimaryCtxSetFlags_v2(CUdevice, unsigned) {
  return CUDA_SUCCESS;
}

#undef cuCtxCreate
PWE_EXPORT CUresult cuCtxCreate_v2(CUcontext* handle, unsigned, CUdevice device) {
  return create(handle, device);
}
PWE_EXPORT CUresult cuCtxCreate_v4(CUcontext* handle, CUctxCreateParams*, unsigned, CUdevice device) {
  return create(handle, device);
}

PWE_EXPORT CUresult cuCtxDestroy_v2(CUcontext handle) {
  POWERCCL_READY(state);
  const std::lock_guard lock(state.mutex);
  ContextState* context = context_of(state, handle);
  if (context == nullptr || context->primary) return CUDA_ERROR_INVALID_CONTEXT;
  auto& stack = context_stack();
  if (!stack.empty() && stack.back() == context) stack.pop_back();
  destroy_context(state, context);
  return CUDA_SUCCESS;
}

PWE_EXPORT CUresult cuCtxSetCurrent(CUcontext handle) {
  POWERCCL_READY(state);
  auto& stack = context_stack();
  if (handle == nullptr) {
    if (!stack.empty()) stack.pop_back();
    return CUDA_SUCCESS;
  }
  const std::lock_guard lock(state.mutex);
  ContextState* context = context_of(state, handle);
  if (context == nullptr) return CUDA_ERROR_INVALID_CONTEXT;
  if (stack.empty()) stack.push_back(context);
  stack.back() = context;
  return CUDA_SUCCESS;
}

PWE_EXPORT CUresult cuCtxGetCurrent(CUcontext* handle) {
  POWERCCL_READY(state);
  if (handle == nullptr) return CUDA_ERROR_INVALID_VALUE;
  *handle = reinterpret_cast<CUcontext>(current_context());
  return CUDA_SUCCESS;
}

PWE_EXPORT CUresult cuCtxPushCurrent_v2(CUcontext handle) {
  POWERCCL_READY(state);
  const std::lock_guard lock(state.mutex);
  ContextState* context = context_of(state, handle);
  if (context == nullptr) return CUDA_ERROR_INVALID_CONTEXT;
  context_stack().push_back(context);
  return CUDA_SUCCESS;
}

PWE_EXPORT CUresult cuCtxPopCurrent_v2(CUcontext* handle) {
  POWERCCL_READY(state);
  auto& stack = context_stack();
  if (stack.empty()) return CUDA_ERROR_INVALID_CONTEXT;
  if (handle != nullptr) *handle = reinterpret_cast<CUcontext>(stack.back());
  stack.pop_back();
  return CUDA_SUCCESS;
}

PWE_EXPORT CUresult cuCtxGetDevice(CUdevice* device) {
  POWERCCL_READY(state);
  const ContextState* context = current_context();
  if (context == nullptr) return CUDA_ERROR_INVALID_CONTEXT;
  if (device == nullptr) return CUDA_ERROR_INVALID_VALUE;
  *device = context->device;
  return CUDA_SUCCESS;
}

PWE_EXPORT CUresult cuCtxSynchronize() {
  POWERCCL_READY(state);
  std::vector<std::pair<uint32_t, uint64_t>> points;
  {
    const std::lock_guard lock(state.mutex);
    const ContextState* context = current_context();
    if (context == nullptr) return CUDA_ERROR_INVALID_CONTEXT;
    for (const StreamState* stream : context->streams) points.emplace_back(stream->slot, state.submitted(stream->slot));
  }
  for (const auto& [slot, sequence] : points)
    if (const CUresult result = state.wait(slot, sequence); result != CUDA_SUCCESS) return result;
  return CUDA_SUCCESS;
}

PWE_EXPORT CUresult cuCtxGetApiVersion(CUcontext, unsigned* version) {
  if (version == nullptr) return CUDA_ERROR_INVALID_VALUE;
  *version = 3020;
  return CUDA_SUCCESS;
}

PWE_EXPORT CUresult cuCtxGetStreamPriorityRange(int* least, int* greatest) {
  if (least != nullptr) *least = 0;
  if (greatest != nullptr) *greatest = 0;
  return CUDA_SUCCESS;
}
