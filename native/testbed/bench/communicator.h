// SPDX-License-Identifier: Apache-2.0
// One rank's place in the communicator of all ranks, and in those split off it, in one instance of NCCL. The rank's
// thread makes and destroys them; the watchdog's thread may ask and abort at any time between. And buffers in symmetric
// windows of one.
#pragma once
#include <memory>
#include <mutex>
#include <vector>

#include "bench/board.h"
#include "bench/nccl_api.h"

namespace powerccl::bench {

class Communicator {
 public:
  // Joins the others; all ranks of the board must do so.
  // `cta_policy`: negative for NCCL's own.
  Communicator(std::shared_ptr<const NcclApi> nccl, Board& board, int rank, int cta_policy = -1);
  Communicator(const Communicator&) = delete;
  Communicator& operator=(const Communicator&) = delete;
  // Leaves them. Throws Aborted where the watchdog was faster: its call into NCCL may still be under way.
  void destroy();

  const NcclApi& nccl() const { return *nccl_; }
  const std::shared_ptr<const NcclApi>& shared_nccl() const { return nccl_; }
  NcclComm all() const { return all_; }
  // One with the ranks that give the same color, in their order, and with the same policy; all ranks must call.
  NcclComm split(int color);

  // Reports an asynchronous error to the board.
  void poll_async_error();
  void abort();

 private:
  std::vector<NcclComm> take();
  void report_async_error(NcclComm comm);

  std::shared_ptr<const NcclApi> nccl_;
  Board& board_;
  int rank_, cta_policy_;
  NcclComm all_ = nullptr;
  std::mutex mutex_;
  std::vector<NcclComm> standing_;  // the first is that of all ranks
};

// Buffers in symmetric windows, which ways other than the plain one need. They are of NCCL's own memory.
class Windows {
 public:
  // All ranks of the communicator together, with the same size for each of both buffers.
  Windows(std::shared_ptr<const NcclApi> nccl, NcclComm comm, size_t bytes);
  Windows(const Windows&) = delete;
  Windows& operator=(const Windows&) = delete;

  // Before the communicator ends. There is no destructor: after an abort windows go with it, their memory stays NCCL's.
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
