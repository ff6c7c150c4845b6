// SPDX-License-Identifier: Apache-2.0
// Memory. Device memory is a sparse shared file (memfd) mapped here and, when a collective needs it, in the server;
// nothing is touched until data moves. A device pointer is the address of the mapping. Copies and fills go through the
// stream: the server gives them their turn and their time, a thread of this process moves the bytes. With
// POWERCCL_EMULATOR_MOVE_DATA=0 those above 64 KiB take their time and move nothing.
#include <sys/mman.h>
#include <unistd.h>

#include <bit>

#include "emulator/cuda/state.h"

namespace powerccl::emulator {
namespace {

constexpr size_t kAlwaysMovedBytes = 64 * 1024;

void* pointer_of(CUdeviceptr pointer) {
  return std::bit_cast<void*>(pointer);
}
void* pointer_of(void* pointer) {
  return pointer;
}
const void* pointer_of(const void* pointer) {
  return pointer;
}

CUresult allocate(void** pointer, size_t bytes, bool on_host) {
  POWERCCL_READY(state);
  const ContextState* context = current_context();
  if (context == nullptr) return CUDA_ERROR_INVALID_CONTEXT;
  if (pointer == nullptr || bytes == 0) return CUDA_ERROR_INVALID_VALUE;
  const size_t page = static_cast<size_t>(sysconf(_SC_PAGESIZE));
  const size_t mapped_bytes = (bytes + page - 1) / page * page;
  const int file = memfd_create("powerccl-emulator-memory", MFD_CLOEXEC);
  if (file < 0 || ftruncate(file, static_cast<off_t>(mapped_bytes)) != 0) {
    if (file >= 0) close(file);
    return CUDA_ERROR_OUT_OF_MEMORY;
  }
  void* data = mmap(nullptr, mapped_bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_NORESERVE, file, 0);
  if (data == MAP_FAILED) {
    close(file);
    return CUDA_ERROR_OUT_OF_MEMORY;
  }
  Allocate message{};
  message.header.type = static_cast<uint32_t>(Message::kAllocate);
  message.bytes = mapped_bytes;
  message.gpu = context->gpu;
  message.on_host = on_host ? 1 : 0;
  {
    const std::lock_guard lock(state.mutex);
    message.allocation = state.next_allocation++;
  }
  Reply reply;
  const bool answered = state.connection->request(&message.header, sizeof message, reply, nullptr, 0, file);
  close(file);  // the server holds the other descriptor
  if (!answered || reply.error != 0) {
    munmap(data, mapped_bytes);
    return answered ? static_cast<CUresult>(reply.error) : CUDA_ERROR_UNKNOWN;
  }
  const std::lock_guard lock(state.mutex);
  state.allocations[reinterpret_cast<uintptr_t>(data)] = {message.allocation, static_cast<std::byte*>(data), bytes,
                                                          on_host, context->gpu};
  *pointer = data;
  return CUDA_SUCCESS;
}

CUresult release(uintptr_t address, bool on_host) {
  POWERCCL_READY(state);
  if (address == 0) return CUDA_SUCCESS;
  Allocation allocation{};
  std::vector<std::pair<uint32_t, uint64_t>> points;
  {
    const std::lock_guard lock(state.mutex);
    const auto entry = state.allocations.find(address);
    if (entry == state.allocations.end() || entry->second.on_host != on_host || entry->second.id == 0)
      return CUDA_ERROR_INVALID_VALUE;
    for (const StreamState* stream : state.streams)
      if (stream->context->gpu == entry->second.gpu) points.emplace_back(stream->slot, state.submitted(stream->slot));
  }
  // As on the real driver, freeing waits for what is queued: it may use the memory.
  for (const auto& [slot, sequence] : points)
    if (const CUresult result = state.wait(slot, sequence); result != CUDA_SUCCESS) return result;
  {
    const std::lock_guard lock(state.mutex);
    const auto entry = state.allocations.find(address);
    if (entry == state.allocations.end()) return CUDA_ERROR_INVALID_VALUE;
    allocation = entry->second;
    state.allocations.erase(entry);
  }
  Free message{};
  message.header.type = static_cast<uint32_t>(Message::kFree);
  message.allocation = allocation.id;
  const bool posted = state.connection->post(&message.header, sizeof message);
  const size_t page = static_cast<size_t>(sysconf(_SC_PAGESIZE));
  munmap(allocation.data, (allocation.bytes + page - 1) / page * page);
  return posted ? CUDA_SUCCESS : CUDA_ERROR_UNKNOWN;
}

bool on_device(const State& state, const void* pointer) {
  const Allocation* allocation = state.allocation_at(reinterpret_cast<uintptr_t>(pointer));
  return allocation != nullptr && !allocation->on_host;
}

// Whether [pointer, pointer + bytes) is inside the device allocation that it starts in.
bool fits(const State& state, const void* pointer, size_t bytes) {
  const auto address = reinterpret_cast<uintptr_t>(pointer);
  const Allocation* allocation = state.allocation_at(address);
  if (allocation == nullptr) return false;
  return bytes <= reinterpret_cast<uintptr_t>(allocation->data) + allocation->bytes - address;
}

CUresult wait_here(State& state, std::unique_lock<std::mutex>& lock, const StreamState& stream) {
  const uint32_t slot = stream.slot;
  const uint64_t sequence = state.submitted(slot);
  lock.unlock();
  return state.wait(slot, sequence);
}

CUresult move(void* target, const void* source, size_t bytes, CUstream stream_handle, bool synchronous) {
  POWERCCL_READY(state);
  std::unique_lock lock(state.mutex);
  StreamState* stream = state.stream_of(stream_handle);
  if (stream == nullptr) return current_context() == nullptr ? CUDA_ERROR_INVALID_CONTEXT : CUDA_ERROR_INVALID_HANDLE;
  const bool to_device = on_device(state, target), from_device = on_device(state, source);
  if ((to_device && !fits(state, target, bytes)) || (from_device && !fits(state, source, bytes)))
    return CUDA_ERROR_INVALID_VALUE;
  if (bytes == 0) return CUDA_SUCCESS;
  if (synchronous && stream->capture != nullptr) return CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
  Node node;
  node.type = Message::kCallback;
  node.is_copy = true;
  node.to_host = !to_device || !from_device;
  node.bytes = bytes;
  if (state.move_data || bytes <= kAlwaysMovedBytes)
    node.run = [target, source, bytes] { memmove(target, source, bytes); };
  const CUresult result = state.enqueue(*stream, std::move(node));
  if (result != CUDA_SUCCESS || !synchronous) return result;
  return wait_here(state, lock, *stream);
}

CUresult fill(CUdeviceptr target, uint32_t pattern, size_t width, size_t count, CUstream stream_handle,
              bool synchronous) {
  POWERCCL_READY(state);
  std::unique_lock lock(state.mutex);
  StreamState* stream = state.stream_of(stream_handle);
  if (stream == nullptr) return current_context() == nullptr ? CUDA_ERROR_INVALID_CONTEXT : CUDA_ERROR_INVALID_HANDLE;
  auto* data = static_cast<std::byte*>(pointer_of(target));
  const size_t bytes = width * count;
  if (!fits(state, data, bytes)) return CUDA_ERROR_INVALID_VALUE;
  if (bytes == 0) return CUDA_SUCCESS;
  Node node;
  node.type = Message::kCallback;
  node.is_copy = true;
  node.bytes = bytes;
  if (state.move_data || bytes <= kAlwaysMovedBytes) {
    node.run = [data, pattern, width, count] {
      if (width == 1) {
        memset(data, static_cast<uint8_t>(pattern), count);
      } else {
        for (size_t i = 0; i < count; ++i) memcpy(data + i * width, &pattern, width);
      }
    };
  }
  const CUresult result = state.enqueue(*stream, std::move(node));
  if (result != CUDA_SUCCESS || !synchronous) return result;
  return wait_here(state, lock, *stream);
}

}  // namespace
}  // namespace powerccl::emulator

using namespace powerccl::emulator;

PWE_EXPORT CUresult cuMemAlloc_v2(CUdeviceptr* pointer, size_t bytes) {
  void* data = nullptr;
  if (pointer == nullptr) return CUDA_ERROR_INVALID_VALUE;
  const CUresult result = allocate(&data, bytes, false);
  if (result == CUDA_SUCCESS) *pointer = reinterpret_cast<CUdeviceptr>(data);
  return result;
}

PWE_EXPORT CUresult cuMemFree_v2(CUdeviceptr pointer) {
  return release(static_cast<uintptr_t>(pointer), false);
}

PWE_EXPORT CUresult cuMemHostAlloc(void** pointer, size_t bytes, unsigned) {
  return allocate(pointer, bytes, true);
}

PWE_EXPORT CUresult cuMemAllocHost_v2(void** pointer, size_t bytes) {
  return allocate(pointer, bytes, true);
}

PWE_EXPORT CUresult cuMemFreeHost(void* pointer) {
  return release(reinterpret_cast<uintptr_t>(pointer), true);
}

PWE_EXPORT CUresult cuMemHostRegister_v2(void* pointer, size_t bytes, unsigned) {
  POWERCCL_READY(state);
  if (pointer == nullptr || bytes == 0) return CUDA_ERROR_INVALID_VALUE;
  const std::lock_guard lock(state.mutex);
  const auto address = reinterpret_cast<uintptr_t>(pointer);
  if (state.allocation_at(address) != nullptr) return CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED;
  state.allocations[address] = {0, static_cast<std::byte*>(pointer), bytes, true, 0};
  return CUDA_SUCCESS;
}

PWE_EXPORT CUresult cuMemHostUnregister(void* pointer) {
  POWERCCL_READY(state);
  const std::lock_guard lock(state.mutex);
  const auto entry = state.allocations.find(reinterpret_cast<uintptr_t>(pointer));
  if (entry == state.allocations.end() || entry->second.id != 0) return CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED;
  state.allocations.erase(entry);
  return CUDA_SUCCESS;
}

PWE_EXPORT CUresult cuMemHostGetDevicePointer_v2(CUdeviceptr* device, void* host, unsigned) {
  POWERCCL_READY(state);
  if (device == nullptr) return CUDA_ERROR_INVALID_VALUE;
  const std::lock_guard lock(state.mutex);
  if (state.allocation_at(reinterpret_cast<uintptr_t>(host)) == nullptr) return CUDA_ERROR_INVALID_VALUE;
  *device = reinterpret_cast<CUdeviceptr>(host);
  return CUDA_SUCCESS;
}

PWE_EXPORT CUresult cuMemGetInfo_v2(size_t* free_bytes, size_t* total_bytes) {
  POWERCCL_READY(state);
  const ContextState* context = current_context();
  if (context == nullptr) return CUDA_ERROR_INVALID_CONTEXT;
  const std::lock_guard lock(state.mutex);
  size_t used = 0;
  for (const auto& [address, allocation] : state.allocations)
    if (!allocation.on_host && allocation.gpu == context->gpu) used += allocation.bytes;
  const size_t total = state.connection->board().memory_bytes;
  if (free_bytes != nullptr) *free_bytes = total - std::min(used, total);  // this process's share alone
  if (total_bytes != nullptr) *total_bytes = total;
  return CUDA_SUCCESS;
}

PWE_EXPORT CUresult cuMemGetAddressRange_v2(CUdeviceptr* base, size_t* bytes, CUdeviceptr pointer) {
  POWERCCL_READY(state);
  const std::lock_guard lock(state.mutex);
  const Allocation* allocation = state.allocation_at(static_cast<uintptr_t>(pointer));
  if (allocation == nullptr) return CUDA_ERROR_NOT_FOUND;
  if (base != nullptr) *base = reinterpret_cast<CUdeviceptr>(allocation->data);
  if (bytes != nullptr) *bytes = allocation->bytes;
  return CUDA_SUCCESS;
}

PWE_EXPORT CUresult cuPointerGetAttribute(void* value, CUpointer_attribute attribute, CUdeviceptr pointer) {
  POWERCCL_READY(state);
  if (value == nullptr) return CUDA_ERROR_INVALID_VALUE;
  const std::lock_guard lock(state.mutex);
  const Allocation* allocation = state.allocation_at(static_cast<uintptr_t>(pointer));
  if (allocation == nullptr) return CUDA_ERROR_INVALID_VALUE;
  switch (attribute) {
    case CU_POINTER_ATTRIBUTE_MEMORY_TYPE:
      *static_cast<unsigned*>(value) = allocation->on_host ? CU_MEMORYTYPE_HOST : CU_MEMORYTYPE_DEVICE;
      return CUDA_SUCCESS;
    case CU_POINTER_ATTRIBUTE_DEVICE_POINTER:
      *static_cast<CUdeviceptr*>(value) = pointer;
      return CUDA_SUCCESS;
    case CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL:
      for (size_t i = 0; i < state.devices.size(); ++i)
        if (state.devices[i] == allocation->gpu) *static_cast<int*>(value) = static_cast<int>(i);
      return CUDA_SUCCESS;
    default:
      return CUDA_ERROR_NOT_SUPPORTED;
  }
}

#define POWERCCL_COPIES(name, name_async, To, From)                                 \
  PWE_EXPORT CUresult name(To to, From from, size_t bytes) {                        \
    return move(pointer_of(to), pointer_of(from), bytes, nullptr, true);            \
  }                                                                                 \
  PWE_EXPORT CUresult name_async(To to, From from, size_t bytes, CUstream stream) { \
    return move(pointer_of(to), pointer_of(from), bytes, stream, false);            \
  }
POWERCCL_COPIES(cuMemcpy, cuMemcpyAsync, CUdeviceptr, CUdeviceptr)
POWERCCL_COPIES(cuMemcpyHtoD_v2, cuMemcpyHtoDAsync_v2, CUdeviceptr, const void*)
POWERCCL_COPIES(cuMemcpyDtoH_v2, cuMemcpyDtoHAsync_v2, void*, CUdeviceptr)
POWERCCL_COPIES(cuMemcpyDtoD_v2, cuMemcpyDtoDAsync_v2, CUdeviceptr, CUdeviceptr)

#define POWERCCL_FILLS(name, name_async, Value)                                                \
  PWE_EXPORT CUresult name(CUdeviceptr to, Value value, size_t count) {                        \
    return fill(to, value, sizeof(Value), count, nullptr, true);                               \
  }                                                                                            \
  PWE_EXPORT CUresult name_async(CUdeviceptr to, Value value, size_t count, CUstream stream) { \
    return fill(to, value, sizeof(Value), count, stream, false);                               \
  }
POWERCCL_FILLS(cuMemsetD8_v2, cuMemsetD8Async, unsigned char)
POWERCCL_FILLS(cuMemsetD16_v2, cuMemsetD16Async, unsigned short)
POWERCCL_FILLS(cuMemsetD32_v2, cuMemsetD32Async, unsigned)
