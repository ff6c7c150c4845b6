// SPDX-License-Identifier: Apache-2.0
#include "policy/lots.h"

#include "policy/square_root.h"

namespace powerccl {

void Line::add(double x, double y) {
  if (count_ < kMemory) {
    ++count_;
  } else {
    const double kept = 1 - 1.0 / kMemory;
    xx_ *= kept;
    xy_ *= kept;
    yy_ *= kept;
  }
  const double off_x = x - x_, off_y = y - y_;
  x_ += off_x / count_;
  y_ += off_y / count_;
  xx_ += off_x * (x - x_);
  xy_ += off_x * (y - y_);
  yy_ += off_y * (y - y_);
}

double Line::residual() const {
  if (count_ < 3) return 0;
  const double left = yy_ - xy_ * slope();
  return left > 0 ? left / (count_ - 2) : 0;
}

void Lots::begin(Joint* joint, uint32_t place) {
  joint_ = joint;
  place_ = place;
}

// What was received stays: those calls may not have run yet.
void Lots::clear() {
  for (Line& each : lines_) each = {};
  for (uint8_t& each : members_) each = 0;
  for (bool& each : drawn_) each = false;
  whole_ = {};
  any_ = chosen_ = false;
  per_kib_ns_ = usual_kib_ = 0;
  asked_ = 0;
}

void Lots::received(const Timetable& timetable, uint64_t call, uint64_t sequence, uint32_t key, uint64_t bytes) {
  if (joint_ == nullptr) return;
  const uint32_t kib = static_cast<uint32_t>(bytes / 1024);
  received_[call % kRuns] = {call, key, kib};
  double us = 0;
  if (timetable.belongs(sequence)) {
    const uint32_t position = timetable.position_of(sequence);
    if (drawn_[position]) us = lines_[position].at(kib);
  }
  joint_->tell_load(place_, key, kib, us > 0 ? static_cast<uint32_t>(us) : 0);
}

const Lots::Received* Lots::of(const Timetable& timetable, uint64_t iteration, uint32_t position) const {
  const uint64_t call = timetable.run(iteration, position).call;
  const Received* found = &received_[call % kRuns];
  return call != 0 && found->call == call ? found : nullptr;
}

// From when all left the last kernel of the iteration before, for they come to it one by one; 0: not known.
double Lots::length_of(const Timetable& timetable, uint64_t iteration) {
  if (iteration == 0 || timetable.order_count() == 0) return 0;
  const uint32_t last = timetable.order(timetable.order_count() - 1);
  const uint64_t from_ns = timetable.run(iteration - 1, last).stop_ns, to_ns = timetable.run(iteration, last).stop_ns;
  return from_ns != 0 && to_ns > from_ns ? static_cast<double>(to_ns - from_ns) : 0;
}

// What the busiest ranks receive meanwhile, in KiB; 0: not all of it is known.
double Lots::lots_of(const Timetable& timetable, uint64_t iteration) const {
  double all = 0;
  for (uint32_t i = 0; i < timetable.order_count(); ++i) {
    const uint32_t position = timetable.order(i);
    const bool last = i + 1 == timetable.order_count();
    const Received* mine = of(timetable, last ? iteration - 1 : iteration, position);
    if (mine == nullptr) continue;
    const Joint::Loads loads = joint_->loads(place_, mine->key);
    if (loads.ranks < members_[position]) return 0;
    all += loads.most_kib;
  }
  return all;
}

void Lots::learn(const Timetable& timetable, uint64_t iteration) {
  if (joint_ == nullptr) return;
  for (uint32_t i = 0; i < timetable.order_count(); ++i) {
    const uint32_t position = timetable.order(i);
    const Received* mine = of(timetable, iteration, position);
    if (mine == nullptr) continue;
    const uint32_t ranks = joint_->loads(place_, mine->key).ranks;
    if (ranks > members_[position]) members_[position] = static_cast<uint8_t>(ranks);
    const double pause_ns = timetable.pause_ns(iteration, i);
    if (pause_ns >= 0) lines_[position].add(mine->kib, pause_ns * 1e-3);
  }
  const double length = length_of(timetable, iteration), lots = length > 0 ? lots_of(timetable, iteration) : 0;
  if (lots > 0) whole_.add(lots, length);
}

bool Lots::drawn(const Line& line) const {
  const double least = kDiffers * line.mean_y();
  return line.count() >= kFewest && line.slope() > 0 && line.variance() > least * least &&
         line.residual() < (1 - kExplained) * line.variance();
}

void Lots::arrange(const Timetable& timetable, double change_ns) {
  any_ = false;
  changes_ = 0;
  for (uint32_t i = 0; i < timetable.order_count(); ++i) {
    const uint32_t position = timetable.order(i);
    const Line& line = lines_[position];
    drawn_[position] = drawn(line) && line.mean_y() * 1e3 > kLongEnough * change_ns;
    any_ = any_ || drawn_[position];
    if (drawn_[position]) changes_ += 2;
  }
}

// What a ms of time saves rises with the clock squared or so (energy with f V^2, and V with its root), and at a clock
// that makes up for a lot's length that is the lot squared. So where lots are half of the longest on average, the
// longest is worth a clock that is higher by a root of what they amount to.
double Lots::rush_of(const Joint::Loads& loads) {
  const double longest = static_cast<double>(loads.most_us) * loads.most_us * loads.ranks;
  const double rush = square_root(longest / loads.squares_us);
  return rush > kMostRush ? kMostRush : rush;
}

double Lots::stretch(const Timetable& timetable, uint64_t iteration, uint32_t position, bool rush) const {
  if (joint_ == nullptr || !drawn_[position]) return 1;
  const Received* mine = of(timetable, iteration, position);
  if (mine == nullptr) return 1;
  const Joint::Loads loads = joint_->loads(place_, mine->key);
  if (loads.ranks < members_[position] || loads.own_us == 0 || loads.unknown) return 1;
  const Line& line = lines_[position];
  const double least = kMargin * line.mean_y(), doubt = kDoubt * square_root(line.residual());
  const double off = doubt > least ? doubt : least;
  const double factor = (loads.most_us - off) / loads.own_us;
  return (factor < 1 ? 1 : factor > kMostStretch ? kMostStretch : factor) / (rush ? rush_of(loads) : 1);
}

bool Lots::ready() {
  return whole_.count() == 0 || whole_.count() >= 2 * kFewest || ++asked_ > kPatience;
}

bool Lots::choose() {
  if (chosen_ || whole_.count() < kFewest || whole_.slope() <= 0) return false;
  if (whole_.residual() > (1 - kPartExplained) * whole_.variance()) return false;
  per_kib_ns_ = whole_.slope();
  usual_kib_ = whole_.mean_x();
  chosen_ = true;
  return true;
}

uint64_t Lots::without_luck(const Timetable& timetable, uint64_t iteration, uint64_t duration_ns) const {
  if (!chosen_) return duration_ns;
  const double length = length_of(timetable, iteration), lots = length > 0 ? lots_of(timetable, iteration) : 0;
  const double would_be = length - per_kib_ns_ * (lots - usual_kib_);
  return lots > 0 && would_be > 0 ? static_cast<uint64_t>(would_be) : 0;
}

}  // namespace powerccl
