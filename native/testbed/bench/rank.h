// SPDX-License-Identifier: Apache-2.0
// One rank: a GPU, a stream, a communicator while it has joined one, and waiting that ends when another rank has
// failed.
#pragma once
#include <functional>
#include <memory>
#include <mutex>
#include <vector>

#include "bench/board.h"
#include "bench/cuda_api.h"
#include "bench/nccl_api.h"
#include "bench/options.h"
#include "bench/values.h"

namespace powerccl::bench {

// One rank's place in the communicator of all ranks, and in those split off it, in one instance of NCCL. The rank's
// thread makes and destroys them; the watchdog's thread may ask and abort at any time between. And buffers in symmetric
// windows of one.
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

class Rank {
 public:
  // Takes device `device` and names itself on the board.
  // `spin`: poll for completion instead of sleeping (exact to a microsecond, costs a core).
  Rank(const Options& options, Board& board, int rank, int device, bool spin);
  Rank(const Rank&) = delete;
  Rank& operator=(const Rank&) = delete;
  // Gives back what it holds of the GPU; call once at the end of work that went well.
  void close();

  // Joins the communicator of all ranks, which all must do; and leaves it, with those split off it. May be repeated,
  // each time with another instance of NCCL.
  void join(const std::shared_ptr<const NcclApi>& nccl, Way way = Way::kAsGiven);
  // Another communicator and other buffers, for another way: all ranks together.
  void change_way(Way way);
  void leave();
  // One more communicator of all ranks, for a way, which all must join; it is watched, aborted and left with the first.
  Communicator& join_also(Way way);
  // After NCCL has refused a call to all ranks: aborts instead, and waits until the GPU has nothing left to do.
  void abandon();

  int rank() const { return rank_; }
  int ranks() const { return board_.ranks(); }
  Board& board() { return board_; }
  const CudaApi& cuda() const { return cuda_; }
  CUstream stream() const { return stream_; }
  const NcclApi& nccl() const { return communicator_->nccl(); }
  const std::shared_ptr<const NcclApi>& shared_nccl() const { return communicator_->shared_nccl(); }
  NcclComm comm() const { return communicator_->all(); }
  // It is watched, aborted and destroyed with the communicator of all.
  NcclComm split(int color) { return communicator_->split(color); }
  int sm_count() const { return board_.about[rank_].sm_count; }

  // At least so many bytes each; contents are lost when they grow.
  void reserve(size_t send_bytes, size_t recv_bytes);
  CUdeviceptr send_buffer() const { return has_.send; }
  CUdeviceptr recv_buffer() const { return has_.recv; }

  // The event number `index` of this rank, made when first asked for; with timing.
  CUevent event(size_t index);
  void record(CUevent event, CUstream stream) { cuda_.check(cuda_.event_record(event, stream), "cuEventRecord"); }
  double elapsed_ms(CUevent from, CUevent to) const;

  // Until everything in the stream is done. Throws Aborted when a rank failed meanwhile.
  void wait(CUstream stream);
  void throw_if_failed() const {
    if (board_.failed()) throw Aborted();
  }
  // Rank 0 states by when its present work must be done.
  void set_deadline();

  // For the watchdog: false where there is no communicator to look after.
  bool poll_async_error();
  void abort();

 private:
  std::shared_ptr<Communicator> communicator();
  std::vector<std::shared_ptr<Communicator>> communicators();
  void reserve_windows(size_t bytes);
  void forget_buffers();

  const Options& options_;
  Board& board_;
  int rank_;
  bool spin_;
  const CudaApi& cuda_;
  CUstream stream_ = nullptr;
  std::mutex communicator_mutex_;  // between the rank's thread, which changes the pointers, and the watchdog's
  std::shared_ptr<Communicator> communicator_;
  std::vector<std::shared_ptr<Communicator>> more_;
  struct {
    CUdeviceptr send = 0, recv = 0;
    size_t send_bytes = 0, recv_bytes = 0;
  } has_;
  bool windows_wanted_ = false;  // of the present communicator
  std::unique_ptr<Windows> windows_;
  CUevent done_ = nullptr;
  std::vector<CUevent> events_;
};

// Runs `work` for the local ranks [first, first + count) in this process, a thread each. A watchdog aborts their
// communicators once the board has a failure. Returns the process's exit code.
int run_ranks(const Options& options, Board& board, int first, int count, int first_device,
              const std::function<void(Rank&)>& work);

}  // namespace powerccl::bench
