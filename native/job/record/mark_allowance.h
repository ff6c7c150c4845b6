// SPDX-License-Identifier: Apache-2.0
// How many waits of a job are marked: as many as marks may cost. Time is an argument, for the simulator asks as well.
#pragma once
#include <stdint.h>

namespace powerccl {

// Not thread-safe.
class MarkAllowance {
 public:
  // All waits are marked for a while (a burst), then none, because whole iterations tell more than every third wait of
  // each. The first burst holds a short job.
  static constexpr int64_t kFirstBurst = 1024, kBurst = 512;
  // A mark costs an H200 3 us, and 9 us where NCCL's traffic is heavy: they may take 0.2 %.
  static constexpr int64_t kSpanNs = 4000000;
  // And 0.1 % of the host, whose time is measured.
  static constexpr int64_t kHostShare = 1000;
  static constexpr uint64_t kCosted = 128;  // marks, whose mean is a mark's cost

  struct Answer {
    bool granted;
    bool pauses;                // the first that is refused since one was granted
    bool wants_cost;            // call `costs` with the mean of the last kCosted marks
    uint32_t burst;             // its number, from 1
    uint64_t marked, unmarked;  // before this one
  };

  // May one more wait be marked? Once no, then no until a whole burst can be had again.
  Answer ask(int64_t now_ns) {
    const bool known = marked_ >= kFirstBurst && host_span_ns_ > kSpanNs;
    const int64_t span_ns = known ? host_span_ns_ : kSpanNs;
    const int64_t most = now_ns - (paused_before_ ? kBurst : kFirstBurst) * span_ns;
    Answer answer = {!paused_ || spent_until_ns_ <= most, false, false, burst_, marked_, unmarked_};
    if (!answer.granted) {
      answer.pauses = !refused_;
      refused_ = true;
      ++unmarked_;
      return answer;
    }
    spent_until_ns_ = (spent_until_ns_ > most ? spent_until_ns_ : most) + span_ns;
    paused_ = spent_until_ns_ + span_ns > now_ns;
    paused_before_ |= paused_;
    if (refused_) answer.burst = ++burst_;
    refused_ = false;
    answer.wants_cost = ++marked_ % kCosted == 0;
    return answer;
  }

  // What a mark takes of the job's thread.
  void costs(int64_t host_ns) { host_span_ns_ = kHostShare * host_ns; }

 private:
  int64_t host_span_ns_ = 0;            // one mark in such a time
  int64_t spent_until_ns_ = INT64_MIN;  // nothing was spent before the job
  uint64_t marked_ = 0, unmarked_ = 0;
  uint32_t burst_ = 1;
  bool paused_ = false, paused_before_ = false;
  bool refused_ = false;  // one, since the last that was granted
};

}  // namespace powerccl
