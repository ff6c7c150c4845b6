// SPDX-License-Identifier: Apache-2.0
#include "emulator/nccl/driver.h"

#include <dlfcn.h>

#include <type_traits>

#include "emulator/nccl/log.h"

namespace powerccl::emulated_nccl {
namespace {

#define POWERCCL_TEXT2(x) #x
#define POWERCCL_TEXT(x) POWERCCL_TEXT2(x)

bool load(Driver& d) {
  void* library = dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
  if (!library) {
    error("libcuda.so.1 cannot be loaded: %s. hint: start the job with `powerccl run --emulate <platform>`", dlerror());
    return false;
  }
  bool complete = true;
  const auto find = [&](auto& into, const char* name) {
    into = reinterpret_cast<std::remove_reference_t<decltype(into)>>(dlsym(library, name));
    if (into) return;
    if (complete)
      error(
          "libcuda.so.1 has no %s: it is not the emulator's. hint: put the emulator's folder first in LD_LIBRARY_PATH",
          name);
    complete = false;
  };
// cuda.h renames functions to their current versions (cuMemAlloc to cuMemAlloc_v2): the text of the expansion is the
// symbol.
#define POWERCCL_FIND(name) find(d.name, POWERCCL_TEXT(name))
  POWERCCL_FIND(pwe_abi);
  if (!complete) return false;
  if (d.pwe_abi() != PWE_ABI) {
    error("libcuda.so.1 and libnccl.so.2 are of different builds of the emulator. hint: reinstall powerccl");
    return false;
  }
  POWERCCL_FIND(cuInit);
  POWERCCL_FIND(cuDeviceGet);
  POWERCCL_FIND(cuDeviceGetCount);
  POWERCCL_FIND(cuDevicePrimaryCtxRetain);
  POWERCCL_FIND(cuCtxGetCurrent);
  POWERCCL_FIND(cuCtxSetCurrent);
  POWERCCL_FIND(cuCtxSynchronize);
  POWERCCL_FIND(cuEventCreate);
  POWERCCL_FIND(cuEventRecord);
  POWERCCL_FIND(cuEventDestroy);
  POWERCCL_FIND(cuStreamWaitEvent);
  POWERCCL_FIND(cuMemAlloc);
  POWERCCL_FIND(cuMemFree);
  POWERCCL_FIND(pwe_current_gpu);
  POWERCCL_FIND(pwe_current_device);
  POWERCCL_FIND(pwe_request);
  POWERCCL_FIND(pwe_post);
  POWERCCL_FIND(pwe_submit);
  POWERCCL_FIND(pwe_call_beside);
  POWERCCL_FIND(pwe_is_capturing);
  POWERCCL_FIND(pwe_moves_data);
  POWERCCL_FIND(pwe_op_wait);
  POWERCCL_FIND(pwe_op_release);
  POWERCCL_FIND(pwe_resolve);
#undef POWERCCL_FIND
  return complete;
}

}  // namespace

const Driver* driver() {
  static Driver loaded{};
  static const bool usable = load(loaded);
  return usable ? &loaded : nullptr;
}

}  // namespace powerccl::emulated_nccl
