// SPDX-License-Identifier: Apache-2.0
// Where an iteration's time went on one rank: computing, communicating, both, or neither.
#ifndef POWERCCL_BENCH_TIMELINE_H
#define POWERCCL_BENCH_TIMELINE_H
#include <utility>
#include <vector>

#include "bench/rank.h"

namespace powerccl::bench {

// A stretch of one stream's time, in ns since the iteration's start.
struct Stretch {
  uint64_t begin, end;
  bool computes;  // else it communicates, waiting for other ranks included
};
// What an iteration consisted of; exposed is where something communicates and nothing computes.
IterationTimes times_of(const std::vector<Stretch>& stretches);

// Which stretches of its streams an iteration computed and communicated in, told by CUDA events between them.
class Timeline {
 public:
  enum class Doing : uint8_t { kNothing, kComputing, kCommunicating, kGraph };

  Timeline(Rank& rank, std::vector<CUstream> streams)
      : rank_(rank), streams_(std::move(streams)), open_(streams_.size()) {}

  void begin() {
    used_ = 0;
    marked_.clear();
    unseen_ = false;
    mark(0);
  }
  // What is enqueued from here on is of this kind; one event parts it from what came before.
  void enter(size_t stream, Doing doing) {
    Open& open = open_[stream];
    if (open.doing == doing) return;
    const size_t event = mark(stream);
    close(open, event);
    open = {doing, event};
  }
  // The stream may pause here: for another stream, or for the host.
  void leave(size_t stream) {
    Open& open = open_[stream];
    if (open.doing == Doing::kNothing) return;
    close(open, mark(stream));
    open = {};
  }
  void end() {
    for (size_t stream = 0; stream < streams_.size(); ++stream) leave(stream);
  }

  // Once all streams are done.
  IterationTimes times() const;

 private:
  struct Open {
    Doing doing = Doing::kNothing;
    size_t event = 0;
  };
  struct Marked {
    size_t begin, end;
    Doing doing;
  };
  size_t mark(size_t stream) {
    rank_.record(rank_.event(used_), streams_[stream]);
    return used_++;
  }
  void close(const Open& open, size_t event) {
    if (open.doing == Doing::kNothing) return;
    unseen_ = unseen_ || open.doing == Doing::kGraph;
    marked_.push_back({open.event, event, open.doing});
  }
  double elapsed_ms(size_t event) const { return rank_.elapsed_ms(rank_.event(0), rank_.event(event)); }

  Rank& rank_;
  std::vector<CUstream> streams_;
  std::vector<Open> open_;
  std::vector<Marked> marked_;
  size_t used_ = 0;
  bool unseen_ = false;  // something ran in a graph
};

}  // namespace powerccl::bench
#endif
