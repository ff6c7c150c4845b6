// SPDX-License-Identifier: Apache-2.0
// One clock for a whole job: the lowest at which its iterations take no longer than a budget allows, found by running
// some of them at one clock and some at the default. Where power is what limits computation, that is far below the
// GPU's maximum, and communication saves the difference.
#ifndef POWERCCL_RUNTIME_CLOCK_SEARCH_H
#define POWERCCL_RUNTIME_CLOCK_SEARCH_H
#include <stdint.h>

namespace powerccl {

// Not for several threads at once.
class ClockSearch {
 public:
  struct Terms {
    uint32_t most_mhz = 0, least_mhz = 0;  // tried are clocks between them
    uint32_t step_mhz = 15;
    double slowdown = 0.005;  // that the clock may cost, as a fraction
  };
  // Starts with the iteration `from`.
  void begin(const Terms& terms, uint64_t from);
  bool begun() const { return terms_.most_mhz != 0; }

  // The clock for an iteration, the default (0) included. Iterations are asked about in ascending order.
  uint32_t clock(uint64_t iteration) const;
  // How long it took. `computing`: the share of an iteration that slows down as the clock falls, as far as is known.
  void iteration(uint64_t iteration, uint64_t duration_ns, double computing);

  bool done() const { return done_; }
  uint32_t found_mhz() const { return best_mhz_; }  // 0: none but the default
  uint32_t tried() const { return tried_; }
  // The clock found turned out to cost too much: one above it, or the default.
  void raise();

 private:
  // Blocks of iterations at the default and at a clock that is tried take turns; a GPU needs an iteration or two to get
  // used to either.
  static constexpr uint32_t kReference = 6, kTry = 10, kUnused = 2;
  static constexpr uint32_t kMostTries = 8;
  static constexpr double kFarTooSlow = 0.04;  // needs no ten iterations to be told

  struct Sum {
    uint32_t count = 0;
    double mean = 0, squares = 0;
    void add(double value);
    double error_squared() const { return count > 1 ? squares / (count - 1) / count : 0; }
  };

  void judge(double computing);
  void next(double wish_mhz);

  Terms terms_;
  uint64_t from_ = 0;
  uint32_t candidate_mhz_ = 0, best_mhz_ = 0;
  uint32_t slow_mhz_ = 0;  // the highest clock that was too slow
  uint32_t tried_ = 0;
  bool done_ = false;
  bool given_up_ = false;  // the clock on trial, for the rest of its block
  Sum reference_, before_, with_;
};

}  // namespace powerccl
#endif
