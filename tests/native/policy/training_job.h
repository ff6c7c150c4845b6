// SPDX-License-Identifier: Apache-2.0
// A training job on one GPU in virtual time, for what follows a job's iterations: computation that runs as fast as the
// clock lets it, communication that does not care, a driver that takes its time.
#ifndef POWERCCL_TESTS_TRAINING_JOB_H
#define POWERCCL_TESTS_TRAINING_JOB_H
#include <algorithm>
#include <cstdint>
#include <deque>
#include <random>
#include <vector>

#include "policy/conductor.h"

namespace powerccl {

class TrainingJob {
 public:
  static constexpr uint32_t kMaxMhz = 1590, kLowMhz = 480;
  enum Stream { kCompute, kComm };
  struct Operation {
    enum Kind { kComputes, kCommunicates, kWaits } kind;  // kWaits: for all of the other stream so far
    Stream stream;
    double ms = 0;
    uint32_t mhz = kLowMhz;  // the table's for this communication
  };
  static Operation compute(double ms) { return {Operation::kComputes, kCompute, ms}; }
  static Operation communicate(double ms, Stream stream = kComm) { return {Operation::kCommunicates, stream, ms}; }
  static Operation wait(Stream waiting) { return {Operation::kWaits, waiting}; }

  struct Machine {
    double call_ms = 0.25, transition_ms = 1;
    double natural_mhz = kMaxMhz;  // where computation runs if nobody sets a clock
    bool marks = false;            // the door tells where computation waits
    double jitter = 0.002;         // of each computation
    double drawn = 0;              // the same of communication, as where others are waited for
    double carried_low = 1;        // of communication's bandwidth, at a low clock
    bool captured = false;         // iterations are launches of a graph
    double vague_ms = 0;           // reading a clock says no more than that it took between nothing and so much longer
  };

  TrainingJob(std::vector<Operation> iteration, Machine machine, Conductor* conductor)
      : iteration_(std::move(iteration)), machine_(machine), conductor_(conductor) {}

  // Durations of so many iterations, in ms.
  std::vector<double> run(int iterations) {
    std::vector<double> lengths;
    for (int i = 0; i < iterations; ++i) {
      const double start = now_ms_;
      begin_iteration();
      while (!done()) step();
      lengths.push_back(now_ms_ - start);
      for (int k = 0; k < 10; ++k) step();  // the host comes round
    }
    return lengths;
  }

  void change(std::vector<Operation> iteration) { iteration_ = std::move(iteration); }
  void run_by_itself_at(double mhz) { machine_.natural_mhz = mhz; }
  double low_exposed_ms() const { return low_exposed_ms_; }  // the clock was low while computation waited
  double exposed_ms() const { return exposed_ms_; }
  double low_ms() const { return low_ms_; }
  int changes() const { return changes_; }
  void forget_sums() { low_exposed_ms_ = exposed_ms_ = low_ms_ = changes_ = 0; }
  uint64_t now_ns() const { return static_cast<uint64_t>(now_ms_ * 1e6); }

 private:
  static constexpr double kStepMs = 0.01;
  struct Running {
    Operation operation;
    double left_ms = 0;
    bool begun = false;
    uint64_t call = 0;
    size_t awaited = 0;  // operations of the other stream that must be over
    double stalled_ms = -1;
  };
  struct Told {
    double at_ms;
    uint64_t call;
    double time_ms;
    int what;  // 0: started, 1: stopped, 2: waited
  };

  void begin_iteration() {
    size_t put[2] = {over_[0], over_[1]};
    if (machine_.captured && conductor_ != nullptr) conductor_->graph_called(++calls_, 77);
    for (const Operation& each : iteration_) {
      Running running{each, each.ms};
      if (each.kind == Operation::kComputes) {
        running.left_ms *= 1 + machine_.jitter * std::normal_distribution<double>()(random_);
      }
      if (each.kind == Operation::kCommunicates) {
        if (machine_.drawn > 0)
          running.left_ms *= 1 + machine_.drawn * std::uniform_real_distribution<>(-1, 1)(random_);
        running.call = ++calls_;
        if (conductor_ != nullptr && !machine_.captured) conductor_->called(running.call, kind_of(each), each.mhz);
      }
      if (each.kind == Operation::kWaits) running.awaited = put[1 - each.stream];
      queue_[each.stream].push_back(running);
      ++put[each.stream];
    }
  }
  static uint32_t kind_of(const Operation& operation) { return static_cast<uint32_t>(operation.ms * 1000); }
  bool done() const { return queue_[0].empty() && queue_[1].empty(); }
  double clock_mhz() const {
    return set_mhz_ != 0 ? std::min<double>(set_mhz_, machine_.natural_mhz) : machine_.natural_mhz;
  }

  void step() {
    now_ms_ += kStepMs;
    change_clock();
    bool computes = false, communicates = false;
    for (int stream = 0; stream < 2; ++stream) {
      auto& queue = queue_[stream];
      while (!queue.empty()) {
        Running& front = queue.front();
        if (front.operation.kind == Operation::kWaits) {
          if (over_[1 - stream] < front.awaited) {
            if (front.stalled_ms < 0) front.stalled_ms = now_ms_;
            break;
          }
          if (machine_.marks && stream == kCompute && last_call_ != 0) {
            tell(last_call_, front.stalled_ms >= 0 ? front.stalled_ms : now_ms_, 2);
          }
          finish(stream);
          continue;
        }
        if (!front.begun) {
          front.begun = true;
          if (front.operation.kind == Operation::kCommunicates) {
            if (machine_.captured && conductor_ != nullptr) {
              front.call = conductor_->captured_begins(kind_of(front.operation), front.operation.mhz);
            }
            tell(front.call, now_ms_, 0);
          }
          if (machine_.marks && front.operation.kind == Operation::kCommunicates && stream == kCompute) {
            tell(front.call, now_ms_, 2);
          }
        }
        const bool computing = front.operation.kind == Operation::kComputes;
        const double carried = clock_mhz() < 0.9 * machine_.natural_mhz ? machine_.carried_low : 1;
        const double speed = computing ? 1 / (0.15 + 0.85 * machine_.natural_mhz / clock_mhz()) : carried;
        front.left_ms -= kStepMs * speed;
        (computing ? computes : communicates) = true;
        if (front.left_ms > 0) break;
        if (!computing) {
          tell(front.call, now_ms_, 1);
          last_call_ = front.call;
        }
        finish(stream);
        break;
      }
    }
    if (communicates && !computes) {
      exposed_ms_ += kStepMs;
      if (set_mhz_ != 0 && set_mhz_ <= kLowMhz) low_exposed_ms_ += kStepMs;
    }
    if (set_mhz_ != 0) low_ms_ += kStepMs;
    deliver();
  }

  void finish(int stream) {
    queue_[stream].pop_front();
    ++over_[stream];
  }
  void tell(uint64_t call, double time_ms, int what) { told_.push_back({now_ms_ + 0.05, call, time_ms, what}); }

  void deliver() {
    if (conductor_ == nullptr) return;
    while (!told_.empty() && told_.front().at_ms <= now_ms_) {
      const Told told = told_.front();
      told_.pop_front();
      const uint64_t time_ns = static_cast<uint64_t>(told.time_ms * 1e6);
      if (told.what == 0 && conductor_->started(told.call, time_ns)) look_ms_ = now_ms_;
      if (told.what == 1 && conductor_->stopped(told.call, time_ns)) look_ms_ = now_ms_;
      if (told.what == 2) conductor_->waited(told.call, time_ns);
    }
    if (calling_until_ms_ > now_ms_ || now_ms_ < look_ms_) return;
    if (calls_back_) {
      calls_back_ = false;
      conductor_->carried_out(asked_mhz_, static_cast<uint64_t>(called_ms_ * 1e6), now_ns());
    }
    const Conductor::Wanted wanted = conductor_->wanted(now_ns());
    look_ms_ = static_cast<double>(wanted.until_ns) * 1e-6;
    if (conductor_->wants_sample()) conductor_->sampled(static_cast<uint32_t>(clock_mhz()));
    if (wanted.mhz == asked_mhz_) return;
    asked_mhz_ = wanted.mhz;
    called_ms_ = now_ms_;
    calling_until_ms_ = look_ms_ = now_ms_ + machine_.call_ms;
    pending_ms_ = calling_until_ms_ + machine_.transition_ms;  // replaces what was under way
    pending_mhz_ = asked_mhz_;
    calls_back_ = true;
    ++changes_;
  }

  void change_clock() {
    if (pending_ms_ < 0 || now_ms_ < pending_ms_) return;
    pending_ms_ = -1;
    const uint64_t took_ns = static_cast<uint64_t>(machine_.transition_ms * 1e6);
    const bool vague = machine_.vague_ms > 0;
    if (conductor_->wants_arrivals() && pending_mhz_ != 0)
      conductor_->arrived(vague ? 0 : took_ns, took_ns + static_cast<uint64_t>(machine_.vague_ms * 1e6), !vague);
    set_mhz_ = pending_mhz_;
  }

  std::vector<Operation> iteration_;
  Machine machine_;
  Conductor* conductor_;
  std::mt19937_64 random_{7};
  double now_ms_ = 1000;
  std::deque<Running> queue_[2];
  size_t over_[2] = {0, 0};
  uint64_t calls_ = 0, last_call_ = 0;
  std::deque<Told> told_;
  double look_ms_ = 0, called_ms_ = 0, calling_until_ms_ = 0, pending_ms_ = -1;
  uint32_t asked_mhz_ = 0, pending_mhz_ = 0, set_mhz_ = 0;
  bool calls_back_ = false;
  double low_exposed_ms_ = 0, exposed_ms_ = 0, low_ms_ = 0;
  int changes_ = 0;
};

}  // namespace powerccl
#endif
