// SPDX-License-Identifier: Apache-2.0
// What ranks receive in an all-to-all tells how long they compute behind it: an expert with more tokens takes longer,
// and all others wait for it. So each rank knows, before computation begins, who comes last and by how much, and may
// compute as slowly as that allows; and how long an iteration takes is known but for what a clock does to it.
#ifndef POWERCCL_POLICY_LOTS_H
#define POWERCCL_POLICY_LOTS_H
#include <stdint.h>

#include "policy/joint.h"
#include "policy/timetable.h"

namespace powerccl {

// A straight line through points, the latest some tens of them.
class Line {
 public:
  void add(double x, double y);
  uint32_t count() const { return count_; }
  double at(double x) const { return y_ + slope() * (x - x_); }
  double slope() const { return xx_ > 0 ? xy_ / xx_ : 0; }
  double mean_x() const { return x_; }
  double mean_y() const { return y_; }
  // How far y lies from its mean, and from the line; squared.
  double variance() const { return count_ > 1 ? yy_ / (count_ - 1) : 0; }
  double residual() const;

 private:
  static constexpr uint32_t kMemory = 64;
  uint32_t count_ = 0;
  double x_ = 0, y_ = 0, xx_ = 0, xy_ = 0, yy_ = 0;
};

// Not for several threads at once; nothing is allocated.
class Lots {
 public:
  // `place`: of this GPU in the joint page.
  void begin(Joint* joint, uint32_t place);
  void clear();

  // A call was made in which this rank receives so many bytes; all ranks of it know it by the same key. Others can
  // read from now on what that means here.
  void received(const Timetable& timetable, uint64_t call, uint64_t sequence, uint32_t key, uint64_t bytes);
  // An iteration in which nothing is managed.
  void learn(const Timetable& timetable, uint64_t iteration);
  // Whether the computation behind any kernel goes by lots and is long enough for a clock to follow: looked at once in
  // a while, with what a change of clock takes.
  void arrange(const Timetable& timetable, double change_ns);
  bool any() const { return any_; }
  bool behind(uint32_t position) const { return drawn_[position]; }
  uint32_t changes() const { return changes_; }  // of clock, in an iteration

  // How much longer computation behind that kernel may take in this iteration than it would at the job's clock, as a
  // factor. `rush`: less than 1 for whoever all others wait for. A job's time is better given up where all GPUs compute
  // at full stretch, and each saves something, than where one does.
  double stretch(const Timetable& timetable, uint64_t iteration, uint32_t position, bool rush) const;

  // How long an iteration would have taken with lots as they are on average; 0: nobody can tell. As it was until
  // choose() has found that lots tell much of it, and says so once: from then on it is another kind of length.
  bool choose();
  // Whether it is worth waiting no longer for more iterations to choose by; asked once an iteration.
  bool ready();
  uint64_t without_luck(const Timetable& timetable, uint64_t iteration, uint64_t duration_ns) const;

 private:
  static constexpr uint32_t kRuns = 2 * Timetable::kLongest;
  static constexpr uint32_t kFewest = 16;        // iterations that a line is made of
  static constexpr uint32_t kPatience = 64;      // iterations, while ranks are missing
  static constexpr double kExplained = 0.7;      // of how computation varies, by what was received
  static constexpr double kPartExplained = 0.3;  // of how iterations do
  static constexpr double kDiffers = 0.03;       // computation that varies by less is taken for regular
  static constexpr double kLongEnough = 2;       // times a change of clock
  static constexpr double kDoubt = 2;            // deviations from the line that are left
  static constexpr double kMargin = 0.005;       // that is left at least
  static constexpr double kMostStretch = 2.5, kMostRush = 1.2;
  struct Received {
    uint64_t call = 0;
    uint32_t key = 0, kib = 0;
  };
  const Received* of(const Timetable& timetable, uint64_t iteration, uint32_t position) const;
  static double rush_of(const Joint::Loads& loads);
  static double length_of(const Timetable& timetable, uint64_t iteration);
  double lots_of(const Timetable& timetable, uint64_t iteration) const;
  bool drawn(const Line& line) const;

  Joint* joint_ = nullptr;
  uint32_t place_ = 0;
  Received received_[kRuns];         // by call
  Line lines_[Timetable::kLongest];  // by position: us of computation by KiB received
  uint8_t members_[Timetable::kLongest] = {};
  bool drawn_[Timetable::kLongest] = {};
  Line whole_;  // ns of an iteration by KiB that each all-to-all's busiest rank receives, in all
  double per_kib_ns_ = 0, usual_kib_ = 0;
  uint32_t changes_ = 0, asked_ = 0;
  bool any_ = false;
  bool chosen_ = false;
};

}  // namespace powerccl
#endif
