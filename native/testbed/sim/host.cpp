// SPDX-License-Identifier: Apache-2.0
#include "sim/host.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <set>
#include <utility>

#include "abi/trace.h"
#include "bench/pattern.h"
#include "physics/collective_types.h"
#include "record/patterns.h"

namespace powerccl::sim {
namespace {

using bench::Act;
using bench::Operation;
using physics::CollectivePlan;
using physics::CollectiveTask;
using physics::TaskKind;

// What calls take of a host's time, as real-time runs of the emulator on two cores show; NCCL's own is longer.
constexpr Time kLaunchNs = 6'000, kCallNs = 20'000, kCrossNs = 5'000, kWakeNs = 20'000;
constexpr Time kKernelSeenNs = 30'000;    // NCCL's proxy looks all the time
constexpr Time kLookEveryNs = 4'000'000;  // marks are read while the job makes other calls
constexpr Time kMarkNs = 8'000;           // a mark, of an H200's host that is not disturbed
constexpr double kKernelMs = 10;          // computation comes in kernels of at most this length
constexpr uint32_t kNoStream = UINT32_MAX;
constexpr size_t kElement = 2;  // bytes

TaskKind kind_of(bench::Pattern pattern) {
  switch (pattern) {
    case bench::Pattern::kBroadcast:
      return TaskKind::kBroadcast;
    case bench::Pattern::kReduce:
      return TaskKind::kReduce;
    case bench::Pattern::kAllGather:
      return TaskKind::kAllGather;
    case bench::Pattern::kReduceScatter:
      return TaskKind::kReduceScatter;
    default:
      return TaskKind::kAllReduce;
  }
}

// The trace's and the emulator's patterns are in the order of bench's.
uint8_t number_of(bench::Pattern pattern) {
  return static_cast<uint8_t>(pattern);
}

}  // namespace

Host::Host(Server& server, const bench::Scenario& scenario, uint32_t rank, uint32_t ranks, uint64_t seed,
           std::vector<uint64_t> comms, const Rules& rules, ClockPolicy& policy, const Lease& lease, Trace& trace,
           std::function<void()> at_barrier)
    : server_(server),
      scenario_(scenario),
      rank_(rank),
      comms_(std::move(comms)),
      rules_(rules),
      policy_(policy),
      trace_(trace),
      clock_(server, rank, policy, lease, trace),
      at_barrier_(std::move(at_barrier)),
      random_(seed * 1000003 + rank),
      computes_(scenario.streams.size()),
      last_call_(scenario.streams.size()),
      last_stream_(scenario.groups.size(), kNoStream) {
  for (const bench::Group& group : scenario.groups) {
    places_.push_back(bench::place_of(group, static_cast<int>(rank), static_cast<int>(ranks)));
  }
  for (const bench::Section& section : scenario.sections) {
    for (const Operation& operation : section.operations) {
      if (operation.act == Act::kCompute) computes_[operation.stream] = true;
    }
  }
  record_communicators(false);
}

// Host times vary: a tenth less to, rarely, three times as much.
Time Host::some(Time usual) {
  const double tail = std::exponential_distribution<double>(5)(random_);
  return static_cast<Time>(static_cast<double>(usual) * (0.9 + std::min(tail, 2.0)));
}

void Host::begin(int iteration, const bench::Section& section) {
  iteration_ = iteration;
  section_ = &section;
  at_ = 0;
  ends_ = false;
  next();
}

// Enqueues operation by operation, each behind what the one before it took.
void Host::next() {
  if (at_ == section_->operations.size()) {
    ends_ = true;
    for (uint32_t stream = 0; stream < scenario_.streams.size(); ++stream) waits_for_.push_back(stream);
    return poll();
  }
  if (server_.now() - looked_ >= kLookEveryNs) {
    looked_ = server_.now();
    look_at_marks();
  }
  const Operation& operation = section_->operations[at_++];
  if (operation.act == Act::kCapture) {
    launch_graph(operation.line);
    server_.after(some(kLaunchNs), [this] { next(); });
    return;
  }
  if (operation.act == Act::kSync) {
    waits_for_.push_back(static_cast<uint32_t>(operation.stream));
    return poll();
  }
  server_.after(some(enqueue(operation)), [this] { next(); });
}

Time Host::enqueue(const Operation& operation) {
  switch (operation.act) {
    case Act::kCompute:
      return compute(operation, static_cast<uint32_t>(operation.stream)) * kLaunchNs;
    case Act::kCollective:
    case Act::kSend:
    case Act::kReceive:
      return bench::takes_part(operation, places_[operation.group]) ? communicate(operation) : 0;
    case Act::kWait:
      return cross(operation);
    default:
      return 0;
  }
}

// Returns the number of kernels.
int Host::compute(const Operation& operation, uint32_t stream) {
  const double ms = bench::compute_ms(scenario_, operation, iteration_, static_cast<int>(rank_));
  if (ms <= 0) return 0;
  const int kernels = std::max(1, static_cast<int>(std::ceil(ms / kKernelMs)));
  const uint64_t declared = bench::declared_time(ms / kernels, operation.memory);
  for (int i = 0; i < kernels; ++i) server_.kernel(rank_, stream, declared);
  return kernels;
}

// All nodes go to `compute`, one behind the other, as on the emulator. The runtime sees the launch, and from events
// around it when it ran.
void Host::launch_graph(int line) {
  const uint64_t call = ++calls_;
  if (tells()) policy_.graph_called(call, static_cast<uint32_t>(line));
  Mark around = events_around(0, call, [this] {
    for (; section_->operations[at_].act != Act::kEndCapture; ++at_) captured(section_->operations[at_]);
    ++at_;
  });
  around.graph = true;
  marks_.push_back(around);
}

void Host::captured(const Operation& operation) {
  const bool transfer = operation.act == Act::kSend || operation.act == Act::kReceive;
  if (operation.act == Act::kCompute) {
    compute(operation, 0);
  } else if ((transfer || operation.act == Act::kCollective) &&
             bench::takes_part(operation, places_[operation.group])) {
    Call& call = captured_[&operation];
    if (call.id == 0) {
      call = call_of(operation);
      call.id = ++calls_;
      call.captured = true;
      record_call(call, 0, false);
    }
    const Flight flight = next_flight(call);
    server_.collective(rank_, 0, plan_of(operation), flight.slot, flight.number);
    flights_.push_back(flight);
  }
}

Call Host::call_of(const Operation& operation) const {
  const bench::Place& place = places_[operation.group];
  Call call;
  call.comm = static_cast<uint32_t>(operation.group);
  call.pattern = number_of(operation.act == Act::kCollective ? operation.pattern : bench::Pattern::kSendReceive);
  call.bytes = operation.bytes;
  if (operation.act != Act::kCollective) {
    const bool sends = operation.act == Act::kSend;
    (sends ? call.to : call.from).add((place.rank + operation.towards + place.size) % place.size);
    (sends ? call.sends : call.receives) = 1;
  } else if (operation.vary > 0) {
    call.sends = call.receives = place.size;
    call.received_bytes = piece_bytes(operation, place.rank) * static_cast<uint64_t>(place.size);
    call.bytes = 0;
    for (int to = 0; to < place.size; ++to) call.bytes += piece_bytes(operation, to);
  } else {
    call.bytes = bench::shape_of(operation.pattern, operation.bytes, bench::Type::kFloat16, place.size).size_bytes;
  }
  return call;
}

// Of an all-to-all that varies: what each rank sends to that one.
uint64_t Host::piece_bytes(const Operation& operation, int to) const {
  const bench::Place& place = places_[operation.group];
  return bench::piece_bytes(scenario_, operation, iteration_, place, to) / kElement * kElement;
}

Host::Flight Host::next_flight(const Call& call) {
  const uint64_t number = ++numbers_;
  return {call, static_cast<uint32_t>(number % physics::kMaxOps), number};
}

// Operations of a communicator run in the order of their calls, whatever streams they are in.
Time Host::communicate(const Operation& operation) {
  const auto stream = static_cast<uint32_t>(operation.stream);
  uint32_t& last = last_stream_[operation.group];
  if (last != kNoStream && last != stream) server_.wait(rank_, stream, last);
  last = stream;
  Call call = call_of(operation);
  call.id = ++calls_;
  Flight flight = next_flight(call);
  // What is exchanged between pairs may be of another size each time.
  const bool pairs = operation.act != Act::kCollective || operation.vary > 0;
  if (tells()) policy_.called(call.id, call_kind(comms_[operation.group], call.pattern, pairs ? 0 : call.bytes));
  if (rules_.table != nullptr) {
    const uint32_t mhz = rules_.table->lookup(call.pattern, operation.vary > 0 ? operation.bytes : call.bytes);
    flight.held = mhz != 0;
    if (flight.held) {
      rules_.per_call->hold(mhz, call.id, now_ns());
      clock_.look();
    }
  }
  record_call(call, stream, flight.held);
  const auto launch = [&] { server_.collective(rank_, stream, plan_of(operation), flight.slot, flight.number); };
  if (computes_[stream]) {
    mark(operation, call, launch);
  } else {
    launch();
  }
  last_call_[stream] = call;
  flights_.push_back(flight);
  return kCallNs;
}

// A stream waits for another, or for a collective of its own.
Time Host::cross(const Operation& operation) {
  const auto stream = static_cast<uint32_t>(operation.stream), on = static_cast<uint32_t>(operation.awaited);
  const auto wait = [&] { server_.wait(rank_, stream, on); };
  if (computes_[stream] && last_call_[on].id != 0) {
    mark(operation, last_call_[on], wait);
  } else {
    wait();
  }
  return kCrossNs;
}

// Where a stream that computes waits for communication, the runtime marks when that began and ended.
void Host::mark(const Operation& operation, const Call& call, const std::function<void()>& wait) {
  const auto stream = static_cast<uint32_t>(operation.stream);
  std::optional<uint32_t> burst;
  if (rules_.marks) burst = next_burst();
  if (!burst) {
    ++waits_[operation.line].unmarked;
    return wait();
  }
  Mark around = events_around(stream, call.id, wait);
  around.line = operation.line;
  around.comm = call.comm;
  around.stream = stream;
  around.burst = *burst;
  marks_.push_back(around);
}

Host::Mark Host::events_around(uint32_t stream, uint64_t call, const std::function<void()>& what) {
  Mark mark{call, {}, ++numbers_};
  for (uint32_t i = 0; i < 2; ++i) {
    mark.events[i] = static_cast<uint32_t>((2 * mark.number + i) % physics::kMaxEvents);
  }
  server_.record(rank_, stream, mark.events[0], mark.number);
  what();
  server_.record(rank_, stream, mark.events[1], mark.number);
  return mark;
}

// Of the next mark; none: it costs too much.
std::optional<uint32_t> Host::next_burst() {
  const Time now = server_.now();
  const MarkAllowance::Answer answer = allowance_.ask(now);
  if (answer.wants_cost) allowance_.costs(kMarkNs);
  if (answer.pauses) trace_.append(pause_record(answer.burst, answer.marked, answer.unmarked, now_ns()));
  return answer.granted ? std::optional(answer.burst) : std::nullopt;
}

std::vector<std::byte> Host::plan_of(const Operation& operation) const {
  const bench::Place& place = places_[operation.group];
  std::vector<CollectiveTask> tasks;
  const auto add = [&](TaskKind kind, int peer, uint64_t count, uint8_t pattern) {
    CollectiveTask task{};
    task.kind = static_cast<uint8_t>(kind);
    task.type = static_cast<uint8_t>(physics::DataType::kFloat16);
    task.pattern = pattern;
    task.peer = static_cast<int16_t>(peer);
    task.count = count;
    task.input = task.output = task.scalar = {physics::kNoAllocation, 0};
    tasks.push_back(task);
  };
  constexpr auto kUnnamed = static_cast<uint8_t>(physics::kNoPattern);
  if (operation.act != Act::kCollective) {
    add(operation.act == Act::kSend ? TaskKind::kSend : TaskKind::kReceive,
        (place.rank + operation.towards + place.size) % place.size, operation.bytes / kElement, kUnnamed);
  } else if (operation.pattern == bench::Pattern::kAllToAll) {
    const bool varies = operation.vary > 0;
    const size_t even = bench::shape_of(operation.pattern, operation.bytes, bench::Type::kFloat16, place.size).count;
    for (int peer = 0; peer < place.size; ++peer) {
      const auto piece = [&](int to) { return varies ? piece_bytes(operation, to) / kElement : even; };
      add(TaskKind::kSend, peer, piece(peer), number_of(operation.pattern));
      add(TaskKind::kReceive, peer, piece(place.rank), number_of(operation.pattern));
    }
  } else {
    const bench::Shape shape = bench::shape_of(operation.pattern, operation.bytes, bench::Type::kFloat16, place.size);
    add(kind_of(operation.pattern), 0, shape.count, kUnnamed);
  }
  CollectivePlan plan{};
  plan.comm = comms_[operation.group];
  plan.rank = static_cast<uint32_t>(place.rank);
  plan.tasks = static_cast<uint32_t>(tasks.size());
  plan.plan = calls_;
  std::vector<std::byte> bytes(sizeof plan + tasks.size() * sizeof(CollectiveTask));
  memcpy(bytes.data(), &plan, sizeof plan);
  memcpy(bytes.data() + sizeof plan, tasks.data(), tasks.size() * sizeof(CollectiveTask));
  return bytes;
}

bool Host::has_all() const {
  return std::all_of(waits_for_.begin(), waits_for_.end(),
                     [this](uint32_t stream) { return server_.done(rank_, stream); });
}

void Host::poll() {
  look_at_kernels();
  if (waits_for_.empty() || !has_all()) return;
  waits_for_.clear();
  server_.after(some(kWakeNs), [this] { ends_ ? at_barrier_() : next(); });
}

void Host::look_at_kernels() {
  size_t looked = 0;
  for (Flight& flight : flights_) {
    if (++looked > 2 * comms_.size()) break;  // of one communicator they run one after the other
    const physics::OpSlot& slot = server_.operation(rank_, flight.slot);
    if (slot.generation.load() != flight.number) continue;
    const auto state = static_cast<physics::OpState>(slot.state.load());
    if (!flight.started && state != physics::OpState::kPending) {
      flight.started = true;
      const uint64_t at = slot.started_ns.load();
      if (policy_.learns() && !flight.call.captured) {
        server_.after(some(kKernelSeenNs), [this, call = flight.call.id, at] {
          if (policy_.started(call, at)) clock_.look();
        });
      }
    }
  }
  for (auto flight = flights_.begin(); flight != flights_.end();) {
    const physics::OpSlot& slot = server_.operation(rank_, flight->slot);
    const bool stopped = flight->started && slot.generation.load() == flight->number &&
                         static_cast<physics::OpState>(slot.state.load()) == physics::OpState::kStopped;
    if (!stopped) {
      if (!flight->started) break;
      ++flight;
      continue;
    }
    const uint64_t at = slot.stopped_ns.load();
    const Call& call = flight->call;
    powerccl_trace_record ran =
        kernel_record(call.comm, call.id, slot.started_ns.load(), at, call.captured ? POWERCCL_FLAG_CAPTURED : 0u);
    ran.kernel.bytes = call.bytes;
    ran.kernel.pattern = call.pattern;
    set_peers(&ran, call.to, call.from);
    trace_.append(ran);
    if (policy_.learns() && !flight->call.captured) {
      server_.after(some(kKernelSeenNs), [this, call = flight->call.id, at] {
        if (policy_.stopped(call, at)) clock_.look();
      });
    }
    if (flight->held) {
      const auto callback_ns = static_cast<Time>(server_.engine().platform().hostfunc_us * 1e3);
      server_.after(some(callback_ns), [this, call = flight->call] {
        trace_.append(callback_record(call.comm, call.id, now_ns()));
        if (rules_.per_call->release(1, call.id, now_ns())) clock_.look();
      });
    }
    flight = flights_.erase(flight);
  }
}

std::optional<Host::Span> Host::span_of(const Mark& mark) const {
  const physics::EventSlot& begin = server_.event(rank_, mark.events[0]);
  const physics::EventSlot& end = server_.event(rank_, mark.events[1]);
  if (begin.generation.load() != mark.number || end.generation.load() != mark.number) return std::nullopt;
  return Span{begin.time_ns.load(), end.time_ns.load()};
}

void Host::look_at_marks() {
  while (!marks_.empty()) {
    const Mark& mark = marks_.front();
    const std::optional<Span> span = span_of(mark);
    if (!span) return;
    if (mark.graph) {
      const bool look = policy_.started(mark.call, span->begin_ns);
      if (policy_.stopped(mark.call, span->end_ns) || look) clock_.look();
    } else {
      waits_[mark.line].add(*span);
      trace_.append(wait_record(mark.comm, {mark.call, span->begin_ns, span->end_ns, mark.stream + 1, mark.burst}));
      policy_.waited(mark.call, span->begin_ns);
    }
    marks_.pop_front();
  }
}

double Host::exposed_ms() const {
  std::map<int, Waits> waits = waits_;
  for (const Mark& mark : marks_) {
    if (mark.graph) continue;
    if (const std::optional<Span> span = span_of(mark)) waits[mark.line].add(*span);
  }
  double sum = 0;
  for (const auto& [line, wait] : waits) {
    if (wait.marked == 0) continue;
    sum += wait.marked_ms * static_cast<double>(wait.marked + wait.unmarked) / static_cast<double>(wait.marked);
  }
  return sum;
}

void Host::finish() {
  look_at_marks();
  record_communicators(true);
  clock_.settle();
}

void Host::record_call(const Call& call, uint32_t stream, bool managed) {
  constexpr auto kType = static_cast<uint8_t>(physics::DataType::kFloat16);
  // Stream 0 would be CUDA's default stream.
  powerccl_trace_record record =
      call_record(call.comm, {call.id, now_ns(), stream + 1, -1, call.pattern, kType},
                  POWERCCL_FLAG_KERNEL_ASKED | (call.captured ? POWERCCL_FLAG_CAPTURED : 0u) |
                      (managed ? POWERCCL_FLAG_MANAGED : 0u));
  record.call.stop_ns = now_ns() + static_cast<uint64_t>(kCallNs);
  record.call.bytes = call.bytes;
  record.call.sends = static_cast<uint8_t>(call.sends);
  record.call.receives = static_cast<uint8_t>(call.receives);
  record.call.received_kib = static_cast<uint32_t>(call.received_bytes >> 10);
  trace_.append(record);
}

void Host::record_communicators(bool ended) {
  const physics::Platform& platform = server_.engine().platform();
  for (size_t i = 0; i < comms_.size(); ++i) {
    if (comms_[i] == 0) continue;
    const bench::Place& place = places_[i];
    std::set<uint32_t> hosts;
    for (int member = 0; member < place.size; ++member) {
      hosts.insert(platform.host_of(static_cast<uint32_t>(place.member(member))));
    }
    const CommunicatorMade made{comms_[i],
                                place.size,
                                place.rank,
                                static_cast<int>(hosts.size()),
                                static_cast<int>(platform.index_on_host(rank_)),
                                ""};
    trace_.append(communicator_record(static_cast<uint32_t>(i), made, now_ns(), ended));
  }
}

}  // namespace powerccl::sim
