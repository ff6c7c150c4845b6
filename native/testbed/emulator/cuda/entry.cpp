// SPDX-License-Identifier: Apache-2.0
// Error names, and the look-up of entry points that CUDA programs use instead of symbols.
#include <dlfcn.h>

#include <cstring>
#include <string>

#include "emulator/cuda/state.h"

using namespace powerccl::emulator;

namespace {

struct Named {
  CUresult code;
  const char* name;
  const char* text;
};

constexpr Named kErrors[] = {
    {CUDA_SUCCESS, "CUDA_SUCCESS", "no error"},
    {CUDA_ERROR_INVALID_VALUE, "CUDA_ERROR_INVALID_VALUE", "invalid argument"},
    {CUDA_ERROR_OUT_OF_MEMORY, "CUDA_ERROR_OUT_OF_MEMORY", "out of memory"},
    {CUDA_ERROR_NOT_INITIALIZED, "CUDA_ERROR_NOT_INITIALIZED", "initialization error"},
    {CUDA_ERROR_NO_DEVICE, "CUDA_ERROR_NO_DEVICE", "no CUDA-capable device is detected"},
    {CUDA_ERROR_INVALID_DEVICE, "CUDA_ERROR_INVALID_DEVICE", "invalid device ordinal"},
    {CUDA_ERROR_INVALID_CONTEXT, "CUDA_ERROR_INVALID_CONTEXT", "invalid device context"},
    {CUDA_ERROR_NO_BINARY_FOR_GPU, "CUDA_ERROR_NO_BINARY_FOR_GPU", "the emulated GPU runs no machine code: load PTX"},
    {CUDA_ERROR_INVALID_PTX, "CUDA_ERROR_INVALID_PTX", "not PTX, or without a kernel"},
    {CUDA_ERROR_INVALID_HANDLE, "CUDA_ERROR_INVALID_HANDLE", "invalid resource handle"},
    {CUDA_ERROR_ILLEGAL_STATE, "CUDA_ERROR_ILLEGAL_STATE", "the operation cannot be performed in the present state"},
    {CUDA_ERROR_NOT_FOUND, "CUDA_ERROR_NOT_FOUND", "named symbol not found"},
    {CUDA_ERROR_NOT_READY, "CUDA_ERROR_NOT_READY", "device not ready"},
    {CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED, "CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED",
     "the memory is already registered"},
    {CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED, "CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED", "the memory is not registered"},
    {CUDA_ERROR_NOT_SUPPORTED, "CUDA_ERROR_NOT_SUPPORTED", "operation not supported by the emulator"},
    {CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED, "CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED",
     "operation not permitted when stream is capturing"},
    {CUDA_ERROR_STREAM_CAPTURE_MERGE, "CUDA_ERROR_STREAM_CAPTURE_MERGE", "dependency would merge two captures"},
    {CUDA_ERROR_STREAM_CAPTURE_ISOLATION, "CUDA_ERROR_STREAM_CAPTURE_ISOLATION",
     "dependency on uncaptured work in a capturing stream"},
    {CUDA_ERROR_UNKNOWN, "CUDA_ERROR_UNKNOWN", "the emulated GPU server is gone"},
};

const Named* find(CUresult code) {
  for (const Named& error : kErrors)
    if (error.code == code) return &error;
  return nullptr;
}

// What a name stands for since which CUDA version, where it is not simply the highest _vN exported.
struct Renamed {
  const char* name;
  int since;
  const char* symbol;
};
constexpr Renamed kRenamed[] = {
    {"cuGetProcAddress", 12000, "cuGetProcAddress_v2"},
    {"cuGetProcAddress", 0, "cuGetProcAddress"},
    {"cuStreamGetCaptureInfo", 12030, "cuStreamGetCaptureInfo_v3"},
    {"cuStreamGetCaptureInfo", 0, "cuStreamGetCaptureInfo_v2"},
    {"cuGraphInstantiate", 0, "cuGraphInstantiateWithFlags"},
    {"cuCtxCreate", 13000, "cuCtxCreate_v4"},
    {"cuCtxCreate", 0, "cuCtxCreate_v2"},
};

void* look_up(const char* name, int version) {
  static void* self = [] {
    Dl_info info{};
    return dladdr(reinterpret_cast<void*>(&look_up), &info) != 0 ? dlopen(info.dli_fname, RTLD_NOW | RTLD_NOLOAD)
                                                                 : nullptr;
  }();
  if (self == nullptr) return nullptr;
  for (const Renamed& renamed : kRenamed)
    if (strcmp(renamed.name, name) == 0 && version >= renamed.since) return dlsym(self, renamed.symbol);
  const std::string base = name;
  for (const char* suffix : {"_v4", "_v3", "_v2", ""})
    if (void* function = dlsym(self, (base + suffix).c_str())) return function;
  return nullptr;
}

}  // namespace

PWE_EXPORT CUresult cuGetErrorName(CUresult code, const char** name) {
  const Named* error = find(code);
  if (name != nullptr) *name = error != nullptr ? error->name : nullptr;
  return error != nullptr ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

PWE_EXPORT CUresult cuGetErrorString(CUresult code, const char** text) {
  const Named* error = find(code);
  if (text != nullptr) *text = error != nullptr ? error->text : nullptr;
  return error != nullptr ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

PWE_EXPORT CUresult cuGetProcAddress_v2(const char* name, void** function, int version, cuuint64_t,
                                        CUdriverProcAddressQueryResult* status) {
  if (name == nullptr || function == nullptr) return CUDA_ERROR_INVALID_VALUE;
  *function = look_up(name, version);
  if (status != nullptr)
    *status = *function != nullptr ? CU_GET_PROC_ADDRESS_SUCCESS : CU_GET_PROC_ADDRESS_SYMBOL_NOT_FOUND;
  return *function != nullptr || status != nullptr ? CUDA_SUCCESS : CUDA_ERROR_NOT_FOUND;
}

#undef cuGetProcAddress
PWE_EXPORT CUresult cuGetProcAddress(const char* name, void** function, int version, cuuint64_t flags) {
  return cuGetProcAddress_v2(name, function, version, flags, nullptr);
}
