// SPDX-License-Identifier: Apache-2.0
#include "bench/computation.h"

#include <algorithm>
#include <cmath>

namespace powerccl::bench {
namespace {

// Computation comes in kernels of about this length at most. A GPU's processors are free for a collective's kernel only
// where one of ours ends, as between the matrix products of a model; emulated kernels leave them free at any time.
constexpr double kKernelMs = 0.5, kEmulatedKernelMs = 10;
// Some 0.1 s of products each: the first bring clock and power to where they stay.
constexpr int kWarmUnits = 500, kTimedUnits = 500;

int kernels_for(double ms, double longest_ms) {
  return std::max(1, static_cast<int>(std::ceil(ms / longest_ms)));
}

}  // namespace

int WholeUnits::take(double ms) {
  const int units = std::max(0, static_cast<int>(std::lround((ms + carry_ms_) / unit_ms_)));
  carry_ms_ += ms - units * unit_ms_;
  return units;
}

Computation::Computation(Rank& rank, Beside kind, const Products& products, const std::vector<CUstream>& streams,
                         const std::set<size_t>& computing)
    : rank_(rank), streams_(streams), units_(streams.size()) {
  const bool emulated = rank.cuda().stop_time != nullptr;
  if (kind == Beside::kNothing) {
    kernel_ = std::make_unique<ComputeKernel>(rank, emulated);
    return;
  }
  // One of its own for each stream: products of two streams at once must not share cuBLAS's workspace.
  for (const size_t stream : computing) {
    units_[stream] = std::make_unique<Units>(rank, kind, products, "--compute", streams[stream]);
  }
  if (!emulated && !computing.empty()) calibrate(computing);
}

void Computation::calibrate(const std::set<size_t>& computing) {
  // The first loads its kernels, which takes long and is not allowed while a graph is captured.
  for (const size_t stream : computing) time_units(*units_[stream], streams_[stream], 1);
  Board& board = rank_.board();
  board.barrier();
  const size_t first = *computing.begin();
  time_units(*units_[first], streams_[first], kWarmUnits);
  const double ms = time_units(*units_[first], streams_[first], kTimedUnits);
  // The mean of all GPUs: as in a job, all have the same work, and a slow one needs longer for it.
  unit_ms_ = board.sum(rank_.rank(), ms) / rank_.ranks();
  whole_.assign(streams_.size(), WholeUnits(unit_ms_));
}

double Computation::time_units(Units& units, CUstream stream, int count) {
  rank_.record(rank_.event(0), stream);
  for (int i = 0; i < count; ++i) units.enqueue();
  rank_.record(rank_.event(1), stream);
  rank_.wait(stream);
  return rank_.elapsed_ms(rank_.event(0), rank_.event(1)) / count;
}

void Computation::enqueue(double ms, size_t stream, double memory) {
  if (ms <= 0) return;
  if (unit_ms_ > 0) {
    for (int left = whole_[stream].take(ms); left > 0; --left) units_[stream]->enqueue();
    return;
  }
  const bool declared = kernel_ == nullptr || kernel_->iterations_per_ms() <= 0;
  const int kernels = kernels_for(ms, declared ? kEmulatedKernelMs : kKernelMs);
  for (int i = 0; i < kernels; ++i) {
    if (kernel_ != nullptr) {
      kernel_->enqueue(ms / kernels, streams_[stream], memory);
    } else {
      units_[stream]->enqueue_emulated(ms / kernels);
    }
  }
}

void Computation::begin_graph() {
  outside_ = whole_;
  whole_.assign(whole_.size(), WholeUnits(unit_ms_));
}

void Computation::end_graph() {
  whole_ = outside_;
}

void Computation::tell(StartNews& start) const {
  start.compute_unit_ms = unit_ms_;
  if (kernel_ == nullptr) return;
  start.compute_iterations_per_ms = kernel_->iterations_per_ms();
  start.blocks = static_cast<int32_t>(kernel_->blocks());
  start.threads = ComputeKernel::kThreads;
}

}  // namespace powerccl::bench
