// SPDX-License-Identifier: Apache-2.0
#include "bench/windows.h"

#include <bit>
#include <utility>

#include "bench/failure.h"

namespace powerccl::bench {

Windows::Windows(std::shared_ptr<const NcclApi> nccl, NcclComm comm, size_t bytes)
    : nccl_(std::move(nccl)), comm_(comm) {
  if (nccl_->window_register == nullptr) {
    throw Failure(kExitUsage, "this NCCL has no windows: -R 2, --way and a scenario's `by` need 2.27");
  }
  for (int i = 0; i < 2; ++i) {
    void* buffer = nullptr;
    nccl_->check(nccl_->mem_alloc(&buffer, bytes), "ncclMemAlloc", comm_);
    buffers_[i] = std::bit_cast<CUdeviceptr>(buffer);
    constexpr int kSymmetric = 1;
    nccl_->check(nccl_->window_register(comm_, buffer, bytes, &windows_[i], kSymmetric), "ncclCommWindowRegister",
                 comm_);
  }
}

void Windows::release() {
  for (int i = 0; i < 2; ++i) {
    nccl_->window_deregister(comm_, windows_[i]);
    nccl_->mem_free(std::bit_cast<void*>(buffers_[i]));
  }
}

}  // namespace powerccl::bench
