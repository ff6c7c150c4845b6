// SPDX-License-Identifier: Apache-2.0
#include "bench/replay.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <map>
#include <memory>
#include <set>
#include <utility>

#include "bench/carriers.h"
#include "bench/computation.h"
#include "bench/failure.h"
#include "bench/graph.h"
#include "bench/timeline.h"

namespace powerccl::bench {
namespace {

class Replay {
 public:
  Replay(const Options& options, const Scenario& scenario, Rank& rank)
      : options_(options), scenario_(scenario), rank_(rank), board_(rank.board()) {}

  void run() {
    rank_.set_deadline();
    prepare();
    timeline_ = std::make_unique<Timeline>(rank_, streams_);
    if (rank_.rank() == 0) tell_start();
    for (int i = -options_.train.warmup; i < 0; ++i) {
      rank_.set_deadline();
      iterate(i, scenario_.sections.front());
    }
    const int iterations = agree_on_iterations();
    for (int i = 0; i < iterations; ++i) {
      rank_.set_deadline();
      iterate(i, scenario_.section_at(i / static_cast<double>(iterations)));
    }
    board_.barrier();
    tell_last();
    graphs_.clear();
    carriers_->close();
    compute_.reset();  // before the streams that it works in
    for (const CUevent event : crossings_) rank_.cuda().event_destroy(event);
    for (size_t i = 1; i < streams_.size(); ++i) rank_.cuda().stream_destroy(streams_[i]);
  }

 private:
  void prepare() {
    const CudaApi& cuda = rank_.cuda();
    streams_.push_back(rank_.stream());
    while (streams_.size() < scenario_.streams.size()) {
      CUstream stream = nullptr;
      cuda.check(cuda.stream_create(&stream, CU_STREAM_NON_BLOCKING), "cuStreamCreate");
      streams_.push_back(stream);
    }
    carriers_ = std::make_unique<Carriers>(rank_, scenario_);
    // Streams wait for each other through this many events, used in turn: a wait goes by the record before it.
    for (size_t i = 0; i < streams_.size(); ++i) {
      CUevent event = nullptr;
      cuda.check(cuda.event_create(&event, CU_EVENT_DISABLE_TIMING), "cuEventCreate");
      crossings_.push_back(event);
    }
    std::set<size_t> computing;
    for (const Section& section : scenario_.sections) {
      for (const Operation& operation : section.operations) {
        if (operation.act == Act::kCompute) computing.insert(operation.stream);
      }
    }
    compute_ = std::make_unique<Computation>(rank_, options_.compute, options_.products, streams_, computing);
    for (const Section& section : scenario_.sections) capture_all(section);
  }

  // With --seconds, rank 0's last warm-up tells: later ones have neither connections to make nor kernels to load.
  int agree_on_iterations() {
    int iterations = iterations_of(options_, scenario_);
    if (options_.seconds) {
      const double mine = rank_.rank() == 0 ? iterations_in(*options_.seconds, last_s_) : 0;
      iterations = static_cast<int>(board_.max(rank_.rank(), mine));
    }
    if (rank_.rank() == 0) board_.iterations = iterations;
    return iterations;
  }

  void tell_start() {
    compute_->tell(board_.start);
    board_.tell(Tell::kStart);
    board_.clock_mhz = options_.clocks_mhz.front();
    if (options_.wants_clock()) board_.tell(Tell::kClock);
  }

  // One graph a line: what is captured does not vary, so repeats of it are launches of the same.
  void capture_all(const Section& section) {
    const auto& all = section.operations;
    for (size_t i = 0; i < all.size(); ++i) {
      if (all[i].act != Act::kCapture || graphs_.contains(all[i].line)) continue;
      compute_->begin_graph();
      graphs_[all[i].line] = std::make_unique<Graph>(rank_.cuda(), streams_[0], [&] {
        for (size_t k = i + 1; all[k].act != Act::kEndCapture; ++k) enqueue_operation(all[k], 0);
      });
      compute_->end_graph();
    }
  }

  void iterate(int number, const Section& section) {
    board_.barrier();
    const uint64_t start_ns = monotonic_ns();
    timeline_->begin();
    timed_ = true;
    bool captured = false;
    for (const Operation& operation : section.operations) {
      if (operation.act == Act::kCapture) {
        captured = true;
        timeline_->leave(0);
        timeline_->enter(0, Timeline::Doing::kGraph);
        graphs_.at(operation.line)->launch(streams_[0]);
        timeline_->leave(0);
      } else if (operation.act == Act::kEndCapture) {
        captured = false;
      } else if (!captured) {
        enqueue_operation(operation, number);
      }
    }
    timeline_->end();
    timed_ = false;
    tell_last();  // while the GPUs are busy: between iterations it would keep them waiting
    for (const CUstream stream : streams_) rank_.wait(stream);
    last_ = {number, start_ns};
    last_s_ = static_cast<double>(monotonic_ns() - start_ns) * 1e-9;
    board_.times[number & 1][rank_.rank()] = timeline_->times();
  }

  // Rank 0 tells of the iteration before this one, whose times all ranks left behind by the barrier.
  void tell_last() {
    if (rank_.rank() != 0 || last_.start_ns == 0) return;
    IterationNews& news = board_.iteration;
    news.iteration = last_.number < 0 ? last_.number + options_.train.warmup : last_.number;
    news.warmup = last_.number < 0 ? 1 : 0;
    news.start_ns = last_.start_ns;
    std::copy_n(board_.times[last_.number & 1], rank_.ranks(), news.ranks);
    board_.tell(Tell::kIteration);
    last_ = {};
  }

  void enter(const Operation& operation, Timeline::Doing doing) {
    if (timed_) timeline_->enter(operation.stream, doing);
  }
  void leave(size_t stream) {
    if (timed_) timeline_->leave(stream);
  }

  void enqueue_operation(const Operation& operation, int iteration) {
    rank_.throw_if_failed();
    const Place& place = carriers_->place(operation);
    switch (operation.act) {
      case Act::kCompute:
        return compute(operation, iteration);
      case Act::kCollective:
      case Act::kSend:
      case Act::kReceive:
        if (!takes_part(operation, place)) return;
        enter(operation, Timeline::Doing::kCommunicating);
        if (operation.act != Act::kCollective) return transfer(operation, place);
        if (operation.vary > 0) return exchange(operation, place, iteration);
        return collective(operation, place);
      case Act::kWait:
        return cross(operation);
      case Act::kSync:
        leave(operation.stream);
        return rank_.wait(streams_[operation.stream]);
      case Act::kCapture:
      case Act::kEndCapture:
        return;
    }
  }

  void compute(const Operation& operation, int iteration) {
    const double ms = compute_ms(scenario_, operation, iteration, rank_.rank());
    if (ms <= 0) return;
    enter(operation, Timeline::Doing::kComputing);
    compute_->enqueue(ms, operation.stream, operation.memory);
  }

  void cross(const Operation& operation) {
    leave(operation.stream);
    const CudaApi& cuda = rank_.cuda();
    rank_.record(crossings_[operation.awaited], streams_[operation.awaited]);
    cuda.check(cuda.stream_wait_event(streams_[operation.stream], crossings_[operation.awaited], 0),
               "cuStreamWaitEvent");
  }

  void collective(const Operation& operation, const Place& place) {
    const Shape shape = shape_of(operation.pattern, operation.bytes, kScenarioType, place.size);
    const Call call{operation.pattern, kScenarioType, Op::kSum, 0, place.size, place.rank, shape, false, false};
    const auto [comm, buffers] = carriers_->of(operation);
    enqueue(rank_.nccl(), call, buffers, comm, streams_[operation.stream]);
  }

  void transfer(const Operation& operation, const Place& place) {
    const NcclApi& nccl = rank_.nccl();
    const size_t count = operation.bytes / info(kScenarioType).bytes;
    const int type = info(kScenarioType).nccl, peer = place.rank + operation.towards;
    const auto [comm, buffers] = carriers_->of(operation);
    const CUstream stream = streams_[operation.stream];
    if (operation.act == Act::kSend) {
      nccl.check(nccl.send(pointer(buffers.send), count, type, peer, comm, stream), "ncclSend", comm);
    } else {
      nccl.check(nccl.recv(pointer(buffers.recv), count, type, peer, comm, stream), "ncclRecv", comm);
    }
  }

  // An all-to-all whose pieces differ, as a mixture of experts makes it of sends and receives.
  void exchange(const Operation& operation, const Place& place, int iteration) {
    const NcclApi& nccl = rank_.nccl();
    const auto [comm, buffers] = carriers_->of(operation);
    const CUstream stream = streams_[operation.stream];
    const int type = info(kScenarioType).nccl;
    const size_t room = largest_piece_bytes(operation, place.size);
    const size_t mine = piece_bytes(scenario_, operation, iteration, place, place.rank) / info(kScenarioType).bytes;
    nccl.check(nccl.group_start(), "ncclGroupStart");
    for (int peer = 0; peer < place.size; ++peer) {
      const size_t theirs = piece_bytes(scenario_, operation, iteration, place, peer) / info(kScenarioType).bytes;
      const size_t offset = static_cast<size_t>(peer) * room;
      nccl.check(nccl.send(pointer(buffers.send + offset), theirs, type, peer, comm, stream), "ncclSend", comm);
      nccl.check(nccl.recv(pointer(buffers.recv + offset), mine, type, peer, comm, stream), "ncclRecv", comm);
    }
    nccl.check(nccl.group_end(), "ncclGroupEnd", comm);
  }

  static void* pointer(CUdeviceptr address) { return std::bit_cast<void*>(address); }

  const Options& options_;
  const Scenario& scenario_;
  Rank& rank_;
  Board& board_;
  std::vector<CUstream> streams_;
  std::vector<CUevent> crossings_;  // by the stream waited for
  std::unique_ptr<Carriers> carriers_;
  std::unique_ptr<Computation> compute_;
  std::map<int, std::unique_ptr<Graph>> graphs_;  // by line
  std::unique_ptr<Timeline> timeline_;
  bool timed_ = false;  // events inside a capture tell no time
  struct {
    int number = 0;
    uint64_t start_ns = 0;  // 0: nothing to tell
  } last_;
  double last_s_ = 0;  // how long that took on this rank
};

}  // namespace

int iterations_of(const Options& options, const Scenario& scenario) {
  return options.scenario_iterations.value_or(scenario.iterations);
}

int iterations_in(double seconds, double iteration_s) {
  constexpr double kMost = 1'000'000;
  return static_cast<int>(std::clamp(std::round(seconds / std::max(iteration_s, 1e-9)), 1.0, kMost));
}

void run_scenario(const Options& options, const Scenario& scenario, Rank& rank) {
  Replay(options, scenario, rank).run();
}

}  // namespace powerccl::bench
