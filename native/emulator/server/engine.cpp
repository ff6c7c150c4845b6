// SPDX-License-Identifier: Apache-2.0
#include "emulator/server/engine.h"

#include <linux/futex.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <map>
#include <unordered_map>
#include <utility>

#include "emulator/server/streams.h"

namespace powerccl::emulator {
namespace {

constexpr double kNsPerUs = 1e3;
constexpr Time kNever = std::numeric_limits<Time>::max();

Time after_us(Time from, double us) {
  return from + static_cast<Time>(std::llround(us * kNsPerUs));
}

void futex_wake(std::atomic<uint32_t>& word) {
  syscall(SYS_futex, reinterpret_cast<uint32_t*>(&word), FUTEX_WAKE, std::numeric_limits<int>::max(), nullptr, nullptr,
          0);
}

// How long a message of this type must be; 0: not one that a stream takes.
size_t least_bytes(Message type) {
  switch (type) {
    case Message::kContext:
      return sizeof(Context);
    case Message::kStreamDestroy:
      return sizeof(StreamHeader);
    case Message::kKernel:
      return sizeof(Kernel);
    case Message::kEventRecord:
      return sizeof(EventRecord);
    case Message::kWait:
      return sizeof(Wait);
    case Message::kCallback:
      return sizeof(Callback);
    case Message::kWriteValue:
      return sizeof(WriteValue);
    case Message::kCollective:
      return sizeof(Collective);
    case Message::kCallbackDone:
      return sizeof(CallbackDone);
    default:
      return 0;
  }
}

template <typename T>
const T& as(std::span<const std::byte> message) {
  return *reinterpret_cast<const T*>(message.data());
}

}  // namespace

Memory::~Memory() {
  if (data != nullptr) munmap(data, bytes);
}

struct Timer {
  std::function<void(Time)> action;
  bool precise;  // somebody outside sees when it happens
};

struct Work {
  std::vector<uint32_t> gpus;
  double remaining;
  double rate = 0;  // per ns
  Time since;
  std::function<double(std::span<const double>)> rate_of;
  std::function<void(Time)> done;
  TimerId timer = 0;
  bool kernel;  // a kernel's rate also depends on what else runs on its GPU
};

struct RunningCollective {
  uint64_t stream;
  std::vector<std::byte> message;
  double bytes = 0;
  bool started = false;
};

struct Engine::Impl {
  Impl(Engine& engine, Outside& to) : e(engine), outside(to) {}

  Engine& e;
  Outside& outside;
  BoardPage* board = nullptr;
  std::map<std::pair<Time, TimerId>, Timer> timers;
  std::unordered_map<TimerId, Time> timer_times;
  uint64_t next_id = 1;
  std::unordered_map<WorkId, Work> works;
  std::unordered_map<ClientId, ClientPage*> clients;
  std::unordered_map<uint64_t, Stream> streams;
  std::map<OpId, RunningCollective> collectives;
  Time clock_calls_until = 0;  // the driver carries out one clock call at a time
  std::vector<Time> gpu_calls_until;
  bool ticking = false;

  TimerId add_timer(Time when, std::function<void(Time)> action, bool precise) {
    when = std::max(when, e.now_);
    const TimerId id = next_id++;
    timers.emplace(std::make_pair(when, id), Timer{std::move(action), precise});
    timer_times.emplace(id, when);
    return id;
  }
  void drop_timer(TimerId id) {
    const auto found = timer_times.find(id);
    if (found == timer_times.end()) return;
    timers.erase({found->second, id});
    timer_times.erase(found);
  }

  // ---- GPUs

  // Runs `change` on a GPU at now, with power integrated up to it and every rate that depends on it re-evaluated after
  // it.
  template <typename F>
  void change_gpu(uint32_t index, F change) {
    Gpu& gpu = e.gpus_[index];
    gpu.settle(e.now_);
    change(gpu);
    gpu.update();
    rerate(index);
    if (board != nullptr) gpu.write(board->gpu[index].state);
    if (!gpu.asleep()) start_ticking();
  }

  void rerate(uint32_t index) {
    for (auto& [id, work] : works) {
      if (std::find(work.gpus.begin(), work.gpus.end(), index) != work.gpus.end()) rate_work(id, work);
    }
  }

  void rate_work(WorkId id, Work& work) {
    work.remaining = std::max(0.0, work.remaining - work.rate * static_cast<double>(e.now_ - work.since));
    work.since = e.now_;
    std::vector<double> clocks;
    clocks.reserve(work.gpus.size());
    for (const uint32_t gpu : work.gpus) clocks.push_back(e.gpus_[gpu].clock_mhz());
    double rate = work.rate_of(clocks);
    if (work.kernel) {
      const Gpu& gpu = e.gpus_[work.gpus.front()];
      rate /= std::max(1u, gpu.kernels());
      if (gpu.communicating()) rate *= e.platform_.overlap_compute_rate;
    }
    if (work.timer != 0 && rate == work.rate) return;
    work.rate = rate;
    drop_timer(work.timer);
    work.timer = 0;
    if (!(rate > 0)) return;
    const double left_ns = std::ceil(work.remaining / rate);
    if (left_ns > 1e17) return;  // three years: it waits for a clock that makes it move
    work.timer = add_timer(e.now_ + static_cast<Time>(left_ns), [this, id](Time now) { complete_work(id, now); }, true);
  }

  void complete_work(WorkId id, Time now) {
    const auto found = works.find(id);
    if (found == works.end()) return;
    auto done = std::move(found->second.done);
    works.erase(found);
    done(now);
  }

  WorkId add_work(std::vector<uint32_t> gpus, double total, std::function<double(std::span<const double>)> rate_of,
                  std::function<void(Time)> done, bool kernel) {
    const WorkId id = next_id++;
    auto [at, fresh] =
        works.emplace(id, Work{std::move(gpus), total, 0, e.now_, std::move(rate_of), std::move(done), 0, kernel});
    rate_work(id, at->second);
    return id;
  }

  void start_ticking() {
    if (ticking) return;
    ticking = true;
    schedule_tick();
  }
  void schedule_tick() {
    const Time period = std::max<Time>(1, std::llround(e.platform_.governor_period_ms * 1e6));
    add_timer(e.now_ - e.now_ % period + period, [this](Time now) { tick(now); }, false);
  }
  void tick(Time now) {
    bool again = false;
    for (uint32_t i = 0; i < e.gpus_.size(); ++i) {
      Gpu& gpu = e.gpus_[i];
      if (gpu.asleep()) continue;
      again |= gpu.tick(now);
      if (gpu.update()) rerate(i);
      if (board != nullptr) gpu.write(board->gpu[i].state);
    }
    ticking = again;
    if (again) schedule_tick();
  }

  // ---- Streams

  static uint64_t key_of(ClientId client, uint32_t stream) { return static_cast<uint64_t>(client) << 32 | stream; }

  void process(ClientId client, std::vector<std::byte> message) {
    if (clients.find(client) == clients.end()) return;
    const Header& header = as<Header>(message);
    if (header.type >= static_cast<uint32_t>(Message::kCollectiveFirst)) {
      if (e.collectives_ != nullptr) {
        e.collectives_->message(client, header.request, header.type, std::span(message).subspan(sizeof(Header)),
                                e.now_);
      } else if (header.request != 0) {
        outside.reply(client, header.request, -1, {});
      }
      return;
    }
    const size_t least = least_bytes(static_cast<Message>(header.type));
    if (least == 0 || message.size() < least) return;
    if (header.type == static_cast<uint32_t>(Message::kContext)) {
      const uint32_t gpu = as<Context>(message).gpu;
      if (gpu < e.gpus_.size() && as<Context>(message).alive != 0) change_gpu(gpu, [](Gpu& g) { g.wake(); });
      return;
    }
    if (header.type == static_cast<uint32_t>(Message::kCallbackDone)) {
      const CallbackDone& body = as<CallbackDone>(message);
      callback_done(key_of(client, body.stream), body.sequence);
      return;
    }
    const StreamHeader& to = as<StreamHeader>(message);
    if (header.type == static_cast<uint32_t>(Message::kStreamDestroy)) {
      const auto found = streams.find(key_of(client, to.stream));
      if (found == streams.end()) return;
      found->second.doomed = true;
      drop_if_done(found->first);
      return;
    }
    if (to.gpu >= e.gpus_.size() || to.stream >= kMaxStreams) return;
    const uint64_t key = key_of(client, to.stream);
    auto [at, fresh] = streams.try_emplace(key);
    Stream& stream = at->second;
    stream.client = client;
    stream.gpu = to.gpu;
    stream.slot = to.stream;
    stream.queue.push_back(std::move(message));
    if (stream.stage == Stage::kIdle) step(key);
  }

  void drop_if_done(uint64_t key) {
    const auto found = streams.find(key);
    if (found != streams.end() && found->second.doomed && found->second.queue.empty()) streams.erase(found);
  }

  // The front of the stream moves on: it is launched as soon as its launch latency is over.
  void step(uint64_t key) {
    while (true) {
      const auto found = streams.find(key);
      if (found == streams.end()) return;
      Stream& stream = found->second;
      if (stream.queue.empty()) {
        stream.stage = Stage::kIdle;
        drop_if_done(key);
        return;
      }
      const Header& header = as<Header>(stream.queue.front());
      double latency_us = 0;
      switch (static_cast<Message>(header.type)) {
        case Message::kKernel:
        case Message::kCollective:
          latency_us = e.platform_.kernel_launch_us;
          break;
        case Message::kCallback:
          latency_us = as<Callback>(stream.queue.front()).is_copy != 0 ? e.platform_.copy_launch_us : 0;
          break;
        default:
          break;
      }
      const Time ready = after_us(static_cast<Time>(header.stamp_ns), latency_us);
      stream.stage = Stage::kLaunching;
      if (ready > e.now_) {
        stream.timer = add_timer(ready, [this, key](Time) { run_front(key); }, true);
        return;
      }
      if (!begin_front(key, stream)) return;
    }
  }

  void run_front(uint64_t key) {
    const auto found = streams.find(key);
    if (found == streams.end()) return;
    found->second.timer = 0;
    if (begin_front(key, found->second)) step(key);
  }

  // True: it is complete already and the stream may go on at once.
  bool begin_front(uint64_t key, Stream& stream) {
    const std::vector<std::byte>& message = stream.queue.front();
    stream.stage = Stage::kRunning;
    switch (static_cast<Message>(as<Header>(message).type)) {
      case Message::kKernel:
        begin_kernel(key, stream, as<Kernel>(message));
        return false;
      case Message::kEventRecord: {
        const EventRecord& record = as<EventRecord>(message);
        EventSlot& slot = clients[stream.client]->events[record.event % kMaxEvents];
        slot.time_ns.store(static_cast<uint64_t>(e.now_), std::memory_order_relaxed);
        slot.generation.store(record.generation, std::memory_order_release);
        complete_front(key, stream);
        return true;
      }
      case Message::kWait: {
        const Wait& wait = as<Wait>(message);
        StreamSlot& slot = clients[stream.client]->streams[wait.on_stream % kMaxStreams];
        if (slot.completed.load(std::memory_order_relaxed) >= wait.on_sequence) {
          complete_front(key, stream);
          return true;
        }
        waiting[key_of(stream.client, wait.on_stream)].push_back({wait.on_sequence, key});
        return false;
      }
      case Message::kCallback: {
        const Callback& call = as<Callback>(message);
        const double gbs = call.to_host != 0 ? e.platform_.copy_host_gbs : e.platform_.copy_device_gbs;
        const double us = call.is_copy != 0 ? static_cast<double>(call.bytes) / (gbs * 1e3) : e.platform_.hostfunc_us;
        stream.due = after_us(e.now_, us);
        outside.run_callback(stream.client, call.callback, stream.slot, call.to.sequence);
        return false;
      }
      case Message::kWriteValue:
        stream.timer = add_timer(after_us(e.now_, e.platform_.memop_us), [this, key](Time) { write_value(key); }, true);
        return false;
      case Message::kCollective: {
        const OpId op = next_id++;
        RunningCollective& running = collectives[op];
        running.stream = key;
        running.message = message;
        stream.collective = op;
        const Collective& head = as<Collective>(running.message);
        const auto payload = std::span<const std::byte>(running.message).subspan(sizeof(Collective));
        if (e.collectives_ != nullptr) {
          e.collectives_->arrived(
              {op, stream.client, stream.gpu, payload.first(std::min<size_t>(payload.size(), head.payload_bytes))},
              e.now_);
        } else {
          e.finish(op, -1);
        }
        return false;
      }
      default:
        complete_front(key, stream);
        return true;
    }
  }

  void begin_kernel(uint64_t key, Stream& stream, const Kernel& kernel) {
    const Platform& p = e.platform_;
    const uint32_t gpu = stream.gpu;
    change_gpu(gpu, [](Gpu& g) { g.kernel_started(); });
    const double memory_share = p.memory_bound_share;
    const double reference_mhz = p.reference_clock_mhz;
    stream.work = add_work(
        {gpu}, static_cast<double>(kernel.declared_ns),
        [memory_share, reference_mhz](std::span<const double> clocks) {
          return 1 / (memory_share + (1 - memory_share) * reference_mhz / clocks[0]);
        },
        [this, key, gpu](Time) {
          change_gpu(gpu, [](Gpu& g) { g.kernel_stopped(); });
          const auto found = streams.find(key);
          if (found == streams.end()) return;
          found->second.work = 0;
          complete_front(key, found->second);
          step(key);
        },
        true);
  }

  void write_value(uint64_t key) {
    const auto found = streams.find(key);
    if (found == streams.end()) return;
    Stream& stream = found->second;
    stream.timer = 0;
    const WriteValue& write = as<WriteValue>(stream.queue.front());
    const std::shared_ptr<Memory> target = outside.memory(stream.client, write.allocation);
    if (target != nullptr && write.offset % 4 == 0 && write.offset + 4 <= target->bytes) {
      std::atomic_ref<uint32_t>(*reinterpret_cast<uint32_t*>(target->data + write.offset)).store(write.value);
    }
    complete_front(key, stream);
    step(key);
  }

  void callback_done(uint64_t key, uint64_t sequence) {
    const auto found = streams.find(key);
    if (found == streams.end() || found->second.queue.empty()) return;
    Stream& stream = found->second;
    const Header& header = as<Header>(stream.queue.front());
    if (stream.stage != Stage::kRunning || header.type != static_cast<uint32_t>(Message::kCallback)) return;
    if (as<Callback>(stream.queue.front()).to.sequence != sequence) return;
    auto finish = [this, key](Time) {
      const auto again = streams.find(key);
      if (again == streams.end()) return;
      again->second.timer = 0;
      complete_front(key, again->second);
      step(key);
    };
    if (stream.due <= e.now_) {
      finish(e.now_);
    } else {
      stream.timer = add_timer(stream.due, finish, true);
    }
  }

  void complete_front(uint64_t key, Stream& stream) {
    const uint64_t sequence = as<StreamHeader>(stream.queue.front()).sequence;
    stream.queue.pop_front();
    stream.stage = Stage::kIdle;
    StreamSlot& slot = clients[stream.client]->streams[stream.slot];
    slot.completed.store(sequence);
    if (sequence >= slot.wake_at.load()) {
      slot.wake_at.store(std::numeric_limits<uint64_t>::max());
      slot.wake.fetch_add(1);
      futex_wake(slot.wake);
    }
    const auto found = waiting.find(key);
    if (found == waiting.end()) return;
    std::vector<Waiter> ready;
    auto& list = found->second;
    for (size_t i = 0; i < list.size();) {
      if (list[i].sequence <= sequence) {
        ready.push_back(list[i]);
        list.erase(list.begin() + static_cast<std::ptrdiff_t>(i));
      } else {
        ++i;
      }
    }
    if (list.empty()) waiting.erase(found);
    // Not at once: the caller still holds references into the tables.
    for (const Waiter& waiter : ready) {
      add_timer(
          e.now_,
          [this, waiter](Time) {
            const auto waiter_stream = streams.find(waiter.stream);
            if (waiter_stream == streams.end()) return;
            complete_front(waiter.stream, waiter_stream->second);
            step(waiter.stream);
          },
          true);
    }
  }

  void drop_client(ClientId client) {
    const auto page = clients.find(client);
    if (page == clients.end()) return;
    for (auto at = streams.begin(); at != streams.end();) {
      if (at->second.client != client) {
        ++at;
        continue;
      }
      Stream& stream = at->second;
      drop_timer(stream.timer);
      waiting.erase(at->first);
      if (stream.work != 0) {
        e.cancel_work(stream.work);
        change_gpu(stream.gpu, [](Gpu& g) { g.kernel_stopped(); });
      }
      const OpId op = stream.collective;
      at = streams.erase(at);
      const auto found = collectives.find(op);
      if (found == collectives.end()) continue;
      const RunningCollective running = std::move(found->second);  // its payload stays readable in withdrawn()
      collectives.erase(found);
      const uint32_t gpu = as<Collective>(running.message).to.gpu;
      if (running.started) change_gpu(gpu, [&](Gpu& g) { g.communication_stopped(running.bytes); });
      if (e.collectives_ != nullptr) e.collectives_->withdrawn(op, e.now_);
    }
    clients.erase(client);
    if (e.collectives_ != nullptr) e.collectives_->client_gone(client, e.now_);
  }

  struct Waiter {
    uint64_t sequence;
    uint64_t stream;
  };
  std::unordered_map<uint64_t, std::vector<Waiter>> waiting;  // by the stream waited for
};

Engine::Engine(const Platform& platform, Time start, Outside& outside)
    : platform_(platform), now_(start), impl_(std::make_unique<Impl>(*this, outside)) {
  for (uint32_t i = 0; i < platform.gpus; ++i) gpus_.emplace_back(platform, start);
  impl_->gpu_calls_until.assign(platform.gpus, 0);
}

Engine::~Engine() = default;

OpSlot* op_slot(ClientPage* page, const Collective& head) {
  return head.op < kMaxOps && page != nullptr ? &page->ops[head.op] : nullptr;
}

void Engine::start(OpId op, double bytes) {
  const auto found = impl_->collectives.find(op);
  if (found == impl_->collectives.end() || found->second.started) return;
  RunningCollective& running = found->second;
  running.started = true;
  running.bytes = bytes;
  const Collective& head = as<Collective>(running.message);
  impl_->change_gpu(head.to.gpu, [bytes](Gpu& g) { g.communication_started(bytes); });
  const Stream& stream = impl_->streams.at(running.stream);
  if (OpSlot* slot = op_slot(impl_->clients[stream.client], head)) {
    slot->started_ns.store(static_cast<uint64_t>(now_));
    slot->result.store(0);
    slot->state.store(static_cast<uint32_t>(OpState::kStarted));
    slot->generation.store(head.generation);
    if (slot->waiters.load() != 0) futex_wake(slot->state);
  }
}

void Engine::finish(OpId op, int32_t result) {
  start(op, 0);
  const auto found = impl_->collectives.find(op);
  if (found == impl_->collectives.end()) return;
  const RunningCollective running = std::move(found->second);
  impl_->collectives.erase(found);
  const Collective& head = as<Collective>(running.message);
  impl_->change_gpu(head.to.gpu, [&](Gpu& g) { g.communication_stopped(running.bytes); });
  Stream& stream = impl_->streams.at(running.stream);
  stream.collective = 0;
  if (OpSlot* slot = op_slot(impl_->clients[stream.client], head)) {
    slot->stopped_ns.store(static_cast<uint64_t>(now_));
    slot->result.store(result);
    slot->state.store(static_cast<uint32_t>(OpState::kStopped));
    if (slot->waiters.load() != 0) futex_wake(slot->state);
  }
  impl_->complete_front(running.stream, stream);
  // The handler may be in the middle of its own tables; what is behind this op runs when it has returned.
  const uint64_t key = running.stream;
  impl_->streams.at(key).stage = Stage::kLaunching;
  at(now_, [this, key](Time) { impl_->step(key); });
}

WorkId Engine::start_work(std::vector<uint32_t> gpus, double total, std::function<double(std::span<const double>)> rate,
                          std::function<void(Time)> done) {
  return impl_->add_work(std::move(gpus), total, std::move(rate), std::move(done), false);
}

void Engine::cancel_work(WorkId work) {
  const auto found = impl_->works.find(work);
  if (found == impl_->works.end()) return;
  impl_->drop_timer(found->second.timer);
  impl_->works.erase(found);
}

void Engine::refresh_work(WorkId work) {
  const auto found = impl_->works.find(work);
  if (found != impl_->works.end()) impl_->rate_work(work, found->second);
}

TimerId Engine::at(Time when, std::function<void(Time)> action) {
  return impl_->add_timer(when, std::move(action), true);
}

void Engine::cancel_timer(TimerId timer) {
  impl_->drop_timer(timer);
}

void Engine::reply(ClientId client, uint64_t request, int32_t error, std::span<const std::byte> body) {
  impl_->outside.reply(client, request, error, body);
}

std::shared_ptr<Memory> Engine::memory(ClientId client, uint64_t allocation) {
  return impl_->outside.memory(client, allocation);
}

void Engine::run_in_worker(std::function<void()> job, std::function<void(Time)> done) {
  impl_->outside.run_in_worker(std::move(job), std::move(done));
}

void Engine::advance(Time to) {
  auto& timers = impl_->timers;
  while (!timers.empty() && timers.begin()->first.first <= to) {
    const auto first = timers.begin();
    now_ = std::max(now_, first->first.first);
    const auto action = std::move(first->second.action);
    impl_->timer_times.erase(first->first.second);
    timers.erase(first);
    action(now_);
  }
}

Time Engine::next_event() const {
  return impl_->timers.empty() ? kNever : impl_->timers.begin()->first.first;
}

bool Engine::next_is_precise() const {
  return !impl_->timers.empty() && impl_->timers.begin()->second.precise;
}

void Engine::add_client(ClientId client, ClientPage* page) {
  impl_->clients[client] = page;
  for (StreamSlot& slot : page->streams)
    slot.wake_at.store(std::numeric_limits<uint64_t>::max(), std::memory_order_relaxed);
}

void Engine::remove_client(ClientId client) {
  impl_->drop_client(client);
}

void Engine::submit(ClientId client, std::span<const std::byte> message) {
  if (message.size() < sizeof(Header)) return;
  std::vector<std::byte> copy(message.begin(), message.end());
  const Time stamp = static_cast<Time>(as<Header>(message).stamp_ns);
  impl_->add_timer(
      stamp, [this, client, moved = std::move(copy)](Time) mutable { impl_->process(client, std::move(moved)); }, true);
}

void Engine::from_outside(std::function<void(Time)> action, Time stamp) {
  impl_->add_timer(stamp, std::move(action), true);
}

void Engine::set_locked_clocks(uint32_t gpu, uint32_t min_mhz, uint32_t max_mhz, bool change, Time stamp,
                               std::function<void(Time)> done) {
  Time& until = platform_.set_clock_serialised ? impl_->clock_calls_until : impl_->gpu_calls_until[gpu];
  until = after_us(std::max({now_, stamp, until}), platform_.set_clock_call_us);
  impl_->add_timer(
      until,
      [this, gpu, min_mhz, max_mhz, change, moved = std::move(done)](Time now) {
        if (change) {
          impl_->add_timer(
              after_us(now, platform_.clock_transition_us),
              [this, gpu, min_mhz, max_mhz](Time) {
                impl_->change_gpu(gpu, [=](Gpu& g) { g.lock(min_mhz, max_mhz); });
              },
              true);
        }
        moved(now);
      },
      true);
}

void Engine::publish(BoardPage& page) {
  impl_->board = &page;
  for (uint32_t i = 0; i < gpus_.size(); ++i) gpus_[i].write(page.gpu[i].state);
}

}  // namespace powerccl::emulator
