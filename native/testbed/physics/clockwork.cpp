// SPDX-License-Identifier: Apache-2.0
#include "physics/clockwork.h"

#include <algorithm>
#include <cmath>
#include <limits>

namespace powerccl::physics {

Time after_us(Time from, double us) {
  return from + static_cast<Time>(std::llround(us * 1e3));
}

Clockwork::Clockwork(const Platform& platform, Time start)
    : platform_(platform), now_(start), stalled_until_(platform.gpus), driven_to_(start) {
  for (uint32_t i = 0; i < platform.gpus; ++i) gpus_.emplace_back(platform, start, i);
}

void Clockwork::advance(Time to) {
  driven_to_ = to;
  std::erase_if(holds_, [to](const auto& entry) { return entry.second.given_up_at <= to; });
  if (board_ != nullptr && !timers_.empty() && timers_.begin()->first.first <= limit(to)) {
    // This thread may lose its core before the states of all GPUs are written: no reader extrapolates meanwhile.
    board_->known_until_ns.store(static_cast<uint64_t>(timers_.begin()->first.first), std::memory_order_release);
    board_->advances.fetch_add(1, std::memory_order_acq_rel);
  }
  while (!timers_.empty() && timers_.begin()->first.first <= limit(to)) {
    const auto first = timers_.begin();
    // Not `to`: what is read later but was sent before it keeps its own time.
    now_ = std::max(now_, first->first.first);
    const Action action = std::move(first->second.action);
    timer_times_.erase(first->first.second);
    timers_.erase(first);
    action(now_);
  }
  if (board_ != nullptr) board_->known_until_ns.store(static_cast<uint64_t>(known_until()), std::memory_order_release);
}

Time Clockwork::limit(Time to) const {
  for (const auto& [id, hold] : holds_) to = std::min(to, hold.until);
  return to;
}

Time Clockwork::known_until() const {
  return limit(timers_.empty() ? std::numeric_limits<Time>::max() : timers_.begin()->first.first);
}

Time Clockwork::next() const {
  const Time due = timers_.empty() ? std::numeric_limits<Time>::max() : timers_.begin()->first.first;
  if (due <= limit(due)) return due;
  Time given_up_at = std::numeric_limits<Time>::max();
  for (const auto& [id, hold] : holds_) given_up_at = std::min(given_up_at, hold.given_up_at);
  return given_up_at;
}

Clockwork::HoldId Clockwork::hold(Time when, Time patience) {
  const HoldId id = new_id();
  holds_[id] = {when, std::max(when, driven_to_) + patience};
  return id;
}

bool Clockwork::release(HoldId hold) {
  return holds_.erase(hold) != 0;
}

bool Clockwork::next_is_precise() const {
  return !timers_.empty() && timers_.begin()->second.precise;
}

TimerId Clockwork::at(Time when, Action action, bool precise) {
  when = std::max(when, now_);
  const TimerId id = new_id();
  timers_.emplace(std::make_pair(when, id), Timer{std::move(action), precise});
  timer_times_.emplace(id, when);
  return id;
}

void Clockwork::cancel_timer(TimerId timer) {
  const auto entry = timer_times_.find(timer);
  if (entry == timer_times_.end()) return;
  timers_.erase({entry->second, timer});
  timer_times_.erase(entry);
}

void Clockwork::change_gpu(uint32_t index, const std::function<void(Gpu&)>& change) {
  Gpu& gpu = gpus_[index];
  gpu.settle(now_);
  change(gpu);
  gpu.update();
  rerate(index);
  if (board_ != nullptr) gpu.write(board_->gpu[index].state);
  if (!gpu.asleep()) start_ticking();
}

void Clockwork::stall(uint32_t gpu, Time until) {
  stalled_until_[gpu] = std::max(stalled_until_[gpu], until);
  rerate(gpu);
  at(until, [this, gpu](Time) { rerate(gpu); });
}

void Clockwork::publish(BoardPage& page) {
  board_ = &page;
  for (uint32_t i = 0; i < gpus(); ++i) gpus_[i].write(page.gpu[i].state);
}

void Clockwork::rerate(uint32_t gpu) {
  for (auto& [id, work] : works_) {
    if (std::find(work.gpus.begin(), work.gpus.end(), gpu) != work.gpus.end()) rate_work(id, work);
  }
}

void Clockwork::rate_work(WorkId id, Work& work) {
  work.remaining = std::max(0.0, work.remaining - work.rate * static_cast<double>(now_ - work.since));
  work.since = now_;
  std::vector<double> clocks;
  clocks.reserve(work.gpus.size());
  for (const uint32_t gpu : work.gpus) clocks.push_back(gpus_[gpu].clock_mhz());
  double rate = work.rate_of(clocks);
  if (work.kernel) {
    const Gpu& gpu = gpus_[work.gpus.front()];
    rate /= std::max(1u, gpu.kernels());
    rate *= gpu.compute_rate();
  }
  if (std::ranges::any_of(work.gpus, [this](uint32_t gpu) { return stalled_until_[gpu] > now_; })) rate = 0;
  if (work.timer != 0 && rate == work.rate) return;
  work.rate = rate;
  cancel_timer(work.timer);
  work.timer = 0;
  if (!(rate > 0)) return;
  const double left_ns = std::ceil(work.remaining / rate);
  if (left_ns > 1e17) return;  // three years: it waits for a clock that makes it move
  work.timer = at(now_ + static_cast<Time>(left_ns), [this, id](Time) { complete_work(id); });
}

void Clockwork::complete_work(WorkId id) {
  const auto entry = works_.find(id);
  if (entry == works_.end()) return;
  const Action done = std::move(entry->second.done);
  works_.erase(entry);
  done(now_);
}

WorkId Clockwork::add_work(std::vector<uint32_t> gpus, double total, Rate rate, Action done, bool kernel) {
  const WorkId id = new_id();
  Work work{std::move(gpus), total, 0, now_, std::move(rate), std::move(done), 0, kernel};
  rate_work(id, works_.emplace(id, std::move(work)).first->second);
  return id;
}

void Clockwork::cancel_work(WorkId work) {
  const auto entry = works_.find(work);
  if (entry == works_.end()) return;
  cancel_timer(entry->second.timer);
  works_.erase(entry);
}

void Clockwork::refresh_work(WorkId work) {
  const auto entry = works_.find(work);
  if (entry != works_.end()) rate_work(work, entry->second);
}

void Clockwork::start_ticking() {
  if (ticking_) return;
  ticking_ = true;
  schedule_tick();
}

void Clockwork::schedule_tick() {
  const Time period = std::max<Time>(1, std::llround(platform_.governor_period_ms * 1e6));
  at(now_ - now_ % period + period, [this](Time) { tick(); }, false);
}

void Clockwork::tick() {
  bool again = false;
  for (uint32_t i = 0; i < gpus(); ++i) {
    Gpu& gpu = gpus_[i];
    if (gpu.asleep()) continue;
    again |= gpu.tick(now_);
    if (gpu.update()) rerate(i);
    if (board_ != nullptr) gpu.write(board_->gpu[i].state);
  }
  ticking_ = again;
  if (again) schedule_tick();
}

}  // namespace powerccl::physics
