// SPDX-License-Identifier: Apache-2.0
// A CUDA runtime that answers a launch with its own version: built twice, as a process may hold two.
#include <cstddef>

struct Dim3 {
  unsigned x, y, z;
};

extern "C" __attribute__((visibility("default"))) int cudaLaunchKernel(const void*, Dim3 grid, Dim3 block, void**,
                                                                       size_t shared, void*) {
  return grid.x == 2 && grid.z == 4 && block.y == 6 && shared == 8 ? FAKE_CUDART_VERSION : 1;
}
