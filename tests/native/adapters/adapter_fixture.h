// SPDX-License-Identifier: Apache-2.0
// The plugin as NCCL sees it: dlopened, driven through its tables, with a fake libcuda beneath.
#pragma once
#include <dlfcn.h>

#include <string>

#include "child_test.h"
#include "nccl_driver.h"

namespace powerccl::test {

struct FakeCuda {
  void* library = dlopen(POWERCCL_FAKE_CUDA_PATH, RTLD_NOW | RTLD_GLOBAL);
  void (*set_device)(int) = reinterpret_cast<void (*)(int)>(dlsym(library, "fake_set_device"));
  void (*set_launch_result)(int) = reinterpret_cast<void (*)(int)>(dlsym(library, "fake_set_launch_result"));
  bool (*run_one)() = reinterpret_cast<bool (*)()>(dlsym(library, "fake_run_one"));
  int (*pending)() = reinterpret_cast<int (*)()>(dlsym(library, "fake_pending"));
  void* (*last_stream)() = reinterpret_cast<void* (*)()>(dlsym(library, "fake_last_stream"));
};

// By version of NCCL's interface.
class Adapter : public ChildTest, public testing::WithParamInterface<int> {};

// What NCCL tells from 2.28 on: the calls themselves.
class ApiAdapter : public Adapter {};

inline std::string name_of_version(const testing::TestParamInfo<int>& version) {
  return "v" + std::to_string(version.param);
}

}  // namespace powerccl::test
