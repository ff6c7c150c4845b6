// SPDX-License-Identifier: Apache-2.0
// A mini-application: Laplace's equation on a slab a rank, by Jacobi sweeps. In each iteration the ranks exchange the
// rows at their borders, sweep over their own rows some times, and all-reduce the residual.
#include <algorithm>
#include <cmath>
#include <vector>

#include "bench/mpi/report.h"

namespace powerccl::bench::mpi {
namespace {

constexpr int kUpTag = 1;
constexpr int kDownTag = 2;
constexpr int kCalibrations = 7;
constexpr int kCalibrationSweeps = 50;

class Slab {
 public:
  Slab(const StencilOptions& options, const Mpi& mpi)
      : mpi_(mpi),
        rows_(options.rows),
        columns_(options.columns),
        sendrecv_(options.sendrecv),
        now_(cells(rows_ + 2)),
        next_(cells(rows_ + 2)),
        requests_(mpi.abi(), 4) {
    reset();
  }

  // The edge above the first rank is at 1, all others at 0.
  void reset() {
    std::ranges::fill(now_, 0);
    if (mpi_.rank() == 0) std::fill_n(now_.begin(), columns_, 1.0);
    next_ = now_;
  }

  // Sweeps over the rows; the sum of squares of the last sweep's changes.
  double sweep(int times) {
    double residual = 0;
    for (int i = 0; i < times; ++i) {
      residual = 0;
      for (int row = 1; row <= rows_; ++row) residual += sweep_row(row);
      // Rows of others came with the exchange and are in the one buffer only.
      std::copy_n(now_.begin(), columns_, next_.begin());
      std::copy_n(now_.begin() + cells(rows_ + 1), columns_, next_.begin() + cells(rows_ + 1));
      now_.swap(next_);
    }
    return residual;
  }

  void exchange() {
    const int above = mpi_.rank() > 0 ? mpi_.rank() - 1 : mpi_.abi().no_process;
    const int below = mpi_.rank() + 1 < mpi_.size() ? mpi_.rank() + 1 : mpi_.abi().no_process;
    const Functions& call = mpi_.call();
    const Handle real = mpi_.handle().float64;
    const Handle world = mpi_.handle().world;
    void* ignore = mpi_.abi().ignore_status;
    if (sendrecv_) {
      call.sendrecv(row_at(1), columns_, real, above, kUpTag, row_at(rows_ + 1), columns_, real, below, kUpTag, world,
                    ignore);
      call.sendrecv(row_at(rows_), columns_, real, below, kDownTag, row_at(0), columns_, real, above, kDownTag, world,
                    ignore);
      return;
    }
    call.irecv(row_at(rows_ + 1), columns_, real, below, kUpTag, world, requests_.at(0));
    call.irecv(row_at(0), columns_, real, above, kDownTag, world, requests_.at(1));
    call.isend(row_at(1), columns_, real, above, kUpTag, world, requests_.at(2));
    call.isend(row_at(rows_), columns_, real, below, kDownTag, world, requests_.at(3));
    call.waitall(4, requests_.data(), ignore);
  }

  double checksum() const {
    double sum = 0;
    for (size_t i = cells(1); i < cells(rows_ + 1); ++i) sum += now_[i] * static_cast<double>(1 + i % 17);
    return sum;
  }

 private:
  size_t cells(int rows) const { return static_cast<size_t>(rows) * static_cast<size_t>(columns_); }
  double* row_at(int row) { return now_.data() + cells(row); }
  double sweep_row(int row) {
    const double* middle = now_.data() + cells(row);
    const double* above = middle - columns_;
    const double* below = middle + columns_;
    double* out = next_.data() + cells(row);
    double residual = 0;
    for (int i = 1; i + 1 < columns_; ++i) {
      out[i] = 0.25 * (above[i] + below[i] + middle[i - 1] + middle[i + 1]);
      const double change = out[i] - middle[i];
      residual += change * change;
    }
    return residual;
  }

  const Mpi& mpi_;
  int rows_, columns_;
  bool sendrecv_;
  std::vector<double> now_, next_;
  Requests requests_;
};

// Sweeps that take a rank --step-us: from the median of the fastest half, since what disturbs only ever slows down.
int calibrate(const StencilOptions& options, const Mpi& mpi, Slab& slab) {
  if (options.sweeps > 0) return options.sweeps;
  std::vector<double> sweep_us;
  mpi.barrier();
  for (int i = 0; i < kCalibrations; ++i) {
    const int64_t begin_ns = host_now_ns();
    slab.sweep(kCalibrationSweeps);
    sweep_us.push_back(us_since(begin_ns) / kCalibrationSweeps);
  }
  const double mean_us = mpi.sum(Spread::of(sweep_us).low) / mpi.size();
  slab.reset();
  return std::max(1, static_cast<int>(std::lround(options.step_us / mean_us)));
}

}  // namespace

void run_stencil(const Options& options, const Mpi& mpi, Report& report) {
  const StencilOptions& stencil = options.stencil;
  const Functions& call = mpi.call();
  const Handles& handle = mpi.handle();
  Slab slab(stencil, mpi);
  const int sweeps = calibrate(stencil, mpi, slab);
  const bool last = mpi.rank() == mpi.size() - 1;
  const int own_sweeps = last ? static_cast<int>(std::lround(sweeps * (1 + options.imbalance_pct / 100))) : sweeps;
  std::vector<double> steps_us;
  double compute_s = 0;
  double residual = 0;
  mpi.barrier();
  const double cpu_begin_s = process_cpu_s();
  const int64_t begin_ns = host_now_ns();
  for (int i = 0; i < stencil.iterations; ++i) {
    const int64_t step_begin_ns = host_now_ns();
    slab.exchange();
    const int64_t compute_begin_ns = host_now_ns();
    const double changes = slab.sweep(own_sweeps);
    compute_s += 1e-6 * us_since(compute_begin_ns);
    call.allreduce(&changes, &residual, 1, handle.float64, handle.sum, handle.world);
    steps_us.push_back(us_since(step_begin_ns));
  }
  const double run_s = 1e-6 * us_since(begin_ns);
  const double cpu_s = process_cpu_s() - cpu_begin_s;
  const double checksum = mpi.sum(slab.checksum());
  const Spread runs = Spread::of(mpi.gather(run_s));
  const std::vector<double> cpus = mpi.gather(cpu_s);
  const std::vector<double> computes = mpi.gather(compute_s);
  if (!mpi.leads()) return;
  double total_s = 0;
  for (size_t rank = 0; rank < cpus.size(); ++rank) {
    total_s += cpus[rank];
    json::Object result;
    result.add("rank", rank).add("cpu_s", cpus[rank]).add("compute_s", computes[rank]);
    result.add("mpi_s", runs.max - computes[rank]);
    report.add(result);
  }
  json::Object summary;
  summary.add("run_s", runs.max).add("cpu_s", total_s).add("step_us", Spread::of(steps_us).json());
  summary.add("iterations", stencil.iterations).add("sweeps", sweeps).add("rows", stencil.rows);
  summary.add("columns", stencil.columns).add("halo", stencil.sendrecv ? "sendrecv" : "isend");
  summary.add("residual", std::sqrt(residual)).add("checksum", checksum);
  report.summarise(summary);
}

}  // namespace powerccl::bench::mpi
