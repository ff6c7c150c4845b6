// SPDX-License-Identifier: Apache-2.0
#include "bench/communicator.h"

#include <bit>
#include <string>
#include <utility>

#include "bench/failure.h"

namespace powerccl::bench {

Communicator::Communicator(std::shared_ptr<const NcclApi> nccl, Board& board, int rank, int cta_policy)
    : nccl_(std::move(nccl)), board_(board), rank_(rank), cta_policy_(cta_policy) {
  NcclUniqueId made_id{};
  int result = kNcclSuccess;
  if (rank == 0) result = nccl_->get_unique_id(&made_id);
  const auto id = board_.exchange_id(rank, rank == 0 && result == kNcclSuccess ? &made_id : nullptr);
  nccl_->check(result, "ncclGetUniqueId");
  if (!id) throw NcclFailure("rank 0 could not make an id for the communicator");
  if (cta_policy < 0) {
    nccl_->check(nccl_->comm_init_rank(&all_, board_.ranks(), *id, rank), "ncclCommInitRank");
  } else if (nccl_->comm_init_rank_config != nullptr) {
    NcclConfig config;
    config.cta_policy = cta_policy;
    const int refused = nccl_->comm_init_rank_config(&all_, board_.ranks(), *id, rank, &config);
    if (refused == kNcclInvalidArgument) {
      throw Failure(kExitMissing, "this NCCL refuses the CTA policy " + std::to_string(cta_policy),
                    "NCCL 2.28.9 has no zero-CTA policy for a communicator: take 2.29 or newer (--nccl FILE), or leave "
                    "copy-engine out of --way or the scenario");
    }
    nccl_->check(refused, "ncclCommInitRankConfig");
  } else {
    throw Failure(kExitMissing, "this NCCL has no CTA policy",
                  "--way and a scenario's `by` take NCCL 2.27 or newer (--nccl FILE)");
  }
  standing_.push_back(all_);
}

NcclComm Communicator::split(int color) {
  if (nccl_->comm_split == nullptr) {
    throw Failure(kExitMissing, "this NCCL cannot split communicators", "groups take NCCL 2.18 or newer (--nccl FILE)");
  }
  NcclComm part = nullptr;
  NcclConfig config;
  config.cta_policy = cta_policy_;
  nccl_->check(nccl_->comm_split(all_, color, rank_, &part, cta_policy_ < 0 ? nullptr : &config), "ncclCommSplit",
               all_);
  const std::lock_guard lock(mutex_);
  standing_.push_back(part);
  return part;
}

std::vector<NcclComm> Communicator::take() {
  const std::lock_guard lock(mutex_);
  return std::exchange(standing_, {});
}

void Communicator::destroy() {
  std::vector<NcclComm> comms = take();
  if (comms.empty()) throw Aborted();
  for (; !comms.empty(); comms.pop_back()) nccl_->check(nccl_->comm_destroy(comms.back()), "ncclCommDestroy");
}

void Communicator::poll_async_error() {
  const std::lock_guard lock(mutex_);
  for (const NcclComm comm : standing_) report_async_error(comm);
}

void Communicator::report_async_error(NcclComm comm) {
  int state = kNcclSuccess;
  int result = nccl_->comm_get_async_error(comm, &state);
  if (result == kNcclSuccess) result = state;
  if (result == kNcclSuccess || result == kNcclInProgress) return;
  const char* last = nccl_->get_last_error != nullptr ? nccl_->get_last_error(comm) : nullptr;
  board_.fail(kExitRankFailed,
              "rank " + std::to_string(rank_) + ": NCCL reports " + nccl_->get_error_string(result) +
                  (last != nullptr && *last != '\0' ? std::string(": ") + last : ""),
              "NCCL_DEBUG=WARN shows NCCL's own messages");
}

void Communicator::abort() {
  std::vector<NcclComm> comms = take();
  for (; !comms.empty(); comms.pop_back()) nccl_->comm_abort(comms.back());
}

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
