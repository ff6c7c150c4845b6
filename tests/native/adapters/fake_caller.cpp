// SPDX-License-Identifier: Apache-2.0
// Code linked with one of two CUDA runtimes, as an extension module is.
#include <cstddef>

struct Dim3 {
  unsigned x, y, z;
};
extern "C" int cudaLaunchKernel(const void*, Dim3, Dim3, void**, size_t, void*);

extern "C" __attribute__((visibility("default"))) int launch(void* stream) {
  // Behind it something is left to do, lest the compiler jump there and leave no address of ours.
  const volatile int answer = cudaLaunchKernel(nullptr, {2, 3, 4}, {5, 6, 7}, nullptr, 8, stream);
  return answer;
}
