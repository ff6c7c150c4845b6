// SPDX-License-Identifier: Apache-2.0
#include "bench/replay.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>
#include <map>
#include <memory>
#include <set>
#include <utility>

#include "bench/computation.h"
#include "bench/values.h"

namespace powerccl::bench {
namespace {

inline constexpr Type kScenarioType = Type::kFloat16;  // results are not looked at, and time goes by bytes

// What a scenario's operations go by: a communicator for each way that occurs in a group, and the buffers that the way
// takes.
class Carriers {
 public:
  // All ranks together: they make the same communicators in the same order.
  Carriers(Rank& rank, const Scenario& scenario) : rank_(rank), scenario_(scenario) {
    std::map<Key, size_t> bytes;  // of the largest operation
    for (const Group& group : scenario.groups) {
      places_.push_back(place_of(group, rank.rank(), rank.ranks()));
    }
    for (const Section& section : scenario.sections) {
      for (const Operation& operation : section.operations) {
        size_t& most = bytes[{operation.group, operation.way}];
        most = std::max(most, bytes_of(operation));
      }
    }
    std::map<Way, Communicator*> of_all;
    size_t ordinary = 0;
    for (const auto& [key, most] : bytes) {
      const NcclComm comm = comms_[key] = make(key, of_all);
      const bool in_windows = key.second != Way::kAsGiven && info(key.second).windows;
      if (!in_windows) {
        ordinary = std::max(ordinary, most);
      } else if (comm != nullptr) {
        windows_[key] = std::make_unique<Windows>(rank.shared_nccl(), comm, most);
      }
    }
    rank.reserve(ordinary, ordinary);
  }
  Carriers(const Carriers&) = delete;
  Carriers& operator=(const Carriers&) = delete;
  // Gives windows back, which must go before their communicators. Call once, at the end of work that went well.
  void close() {
    for (const auto& [key, windows] : windows_) windows->release();
    windows_.clear();
  }

  // The rank's own in the operation's group.
  const Place& place(const Operation& operation) const { return places_[operation.group]; }
  struct Carrier {
    NcclComm comm;  // null where this rank is alone in its group
    Buffers buffers;
  };
  Carrier of(const Operation& operation) const {
    const Key key{operation.group, operation.way};
    const auto windows = windows_.find(key);
    const Buffers buffers = windows == windows_.end() ? Buffers{rank_.send_buffer(), rank_.recv_buffer()}
                                                      : Buffers{windows->second->send(), windows->second->recv()};
    return {comms_.at(key), buffers};
  }

 private:
  using Key = std::pair<size_t, Way>;  // of a group, in which it occurs
  NcclComm make(const Key& key, std::map<Way, Communicator*>& of_all) {
    const auto [index, way] = key;
    const Place& place = places_[index];
    if (place.size == 1) return nullptr;
    const bool as_given = way == Way::kAsGiven;
    if (!as_given && !of_all.contains(way)) of_all[way] = &rank_.join_also(way);
    const Group& group = scenario_.groups[index];
    if (group.size == 0 && group.stride == 0) return as_given ? rank_.comm() : of_all[way]->all();
    return as_given ? rank_.split(place.first) : of_all[way]->split(place.first);
  }
  size_t bytes_of(const Operation& operation) const {
    constexpr size_t kLeast = 256;
    const int ranks = place(operation).size;
    if (operation.vary > 0) return largest_piece_bytes(operation, ranks) * static_cast<size_t>(ranks);
    if (operation.act != Act::kCollective) return std::max(kLeast, operation.bytes);
    const Shape shape = shape_of(operation.pattern, operation.bytes, kScenarioType, ranks);
    return std::max(kLeast, std::max(shape.send_count, shape.recv_count) * info(kScenarioType).bytes);
  }

  Rank& rank_;
  const Scenario& scenario_;
  std::vector<Place> places_;  // by group
  std::map<Key, NcclComm> comms_;
  std::map<Key, std::unique_ptr<Windows>> windows_;
};

constexpr double kUnknownMs = -1;

uint64_t to_ns(double ms) {
  return static_cast<uint64_t>(std::llround(std::max(ms, 0.0) * 1e6));
}

// Which stretches of its streams an iteration computed and communicated in, from CUDA events between them.
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
  IterationTimes times() const {
    std::vector<Stretch> stretches;
    stretches.reserve(marked_.size());
    for (const Marked& each : marked_) {
      stretches.push_back(
          {to_ns(elapsed_ms(each.begin)), to_ns(elapsed_ms(each.end)), each.doing == Doing::kComputing});
    }
    IterationTimes times = times_of(stretches);
    if (unseen_) times.compute_ms = times.communication_ms = times.exposed_ms = kUnknownMs;
    return times;
  }

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

class Replay {
 public:
  Replay(const Options& options, const Scenario& scenario, Rank& rank)
      : options_(options), scenario_(scenario), rank_(rank), board_(rank.board()) {}

  void run() {
    rank_.set_deadline();
    prepare();
    timeline_ = std::make_unique<Timeline>(rank_, streams_);
    if (rank_.rank() == 0) tell_start();
    for (int i = -options_.scenario_warmup; i < 0; ++i) {
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

  // With --seconds, rank 0's quickest warm-up tells: others had connections to make, kernels to load or a late host.
  int agree_on_iterations() {
    int iterations = iterations_of(options_, scenario_);
    if (options_.seconds) {
      const double wanted = rank_.rank() == 0 ? iterations_in(*options_.seconds, quickest_s_) : 0;
      iterations = static_cast<int>(board_.max(rank_.rank(), wanted));
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
    quickest_s_ = std::min(quickest_s_, static_cast<double>(monotonic_ns() - start_ns) * 1e-9);
    board_.times[number & 1][rank_.rank()] = timeline_->times();
  }

  // Rank 0 reports the iteration before this one, whose times all ranks left behind by the barrier.
  void tell_last() {
    if (rank_.rank() != 0 || last_.start_ns == 0) return;
    IterationNews& news = board_.iteration;
    news.iteration = last_.number < 0 ? last_.number + options_.scenario_warmup : last_.number;
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
    const size_t recv_count =
        piece_bytes(scenario_, operation, iteration, place, place.rank) / info(kScenarioType).bytes;
    nccl.check(nccl.group_start(), "ncclGroupStart");
    for (int peer = 0; peer < place.size; ++peer) {
      const size_t send_count = piece_bytes(scenario_, operation, iteration, place, peer) / info(kScenarioType).bytes;
      const size_t offset = static_cast<size_t>(peer) * room;
      nccl.check(nccl.send(pointer(buffers.send + offset), send_count, type, peer, comm, stream), "ncclSend", comm);
      nccl.check(nccl.recv(pointer(buffers.recv + offset), recv_count, type, peer, comm, stream), "ncclRecv", comm);
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
  double quickest_s_ = std::numeric_limits<double>::infinity();  // of the iterations so far on this rank
};

}  // namespace

uint64_t union_ns(std::vector<std::pair<uint64_t, uint64_t>> stretches) {
  std::sort(stretches.begin(), stretches.end());
  uint64_t total = 0, covered_to = 0;
  for (const auto& [begin, end] : stretches) {
    const uint64_t from = std::max(begin, covered_to);
    if (end > from) total += end - from;
    covered_to = std::max(covered_to, end);
  }
  return total;
}

IterationTimes times_of(const std::vector<Stretch>& stretches) {
  std::vector<std::pair<uint64_t, uint64_t>> computing, communicating, either;
  uint64_t end = 0;
  for (const Stretch& each : stretches) {
    (each.computes ? computing : communicating).emplace_back(each.begin, each.end);
    either.emplace_back(each.begin, each.end);
    end = std::max(end, each.end);
  }
  const auto ms = [](uint64_t ns) { return static_cast<double>(ns) * 1e-6; };
  const uint64_t compute_ns = union_ns(computing);
  return {ms(end), ms(compute_ns), ms(union_ns(communicating)), ms(union_ns(either) - compute_ns)};
}

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
