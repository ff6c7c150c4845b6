// SPDX-License-Identifier: Apache-2.0
// Buffers in symmetric windows, which ways other than the plain one need. They are of NCCL's own memory.
#ifndef POWERCCL_BENCH_WINDOWS_H
#define POWERCCL_BENCH_WINDOWS_H
#include <memory>

#include "bench/nccl_api.h"

namespace powerccl::bench {

class Windows {
 public:
  // All ranks of the communicator together, with the same size for each of both buffers.
  Windows(std::shared_ptr<const NcclApi> nccl, NcclComm comm, size_t bytes);
  Windows(const Windows&) = delete;
  Windows& operator=(const Windows&) = delete;

  // While the communicator stands. There is no destructor: after an abort windows go with it, their memory stays
  // NCCL's.
  void release();
  CUdeviceptr send() const { return buffers_[0]; }
  CUdeviceptr recv() const { return buffers_[1]; }

 private:
  std::shared_ptr<const NcclApi> nccl_;
  NcclComm comm_;
  CUdeviceptr buffers_[2] = {};
  void* windows_[2] = {};
};

}  // namespace powerccl::bench
#endif
