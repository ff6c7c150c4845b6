// SPDX-License-Identifier: Apache-2.0
#include "physics/streams.h"

#include <linux/futex.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <limits>
#include <utility>

namespace powerccl::physics {
namespace {

constexpr Time kCallbackPatienceNs = 20'000'000;

void futex_wake(std::atomic<uint32_t>& word) {
  syscall(SYS_futex, reinterpret_cast<uint32_t*>(&word), FUTEX_WAKE, std::numeric_limits<int>::max(), nullptr, nullptr,
          0);
}

// How long a message of this type must be; 0: not one for a stream.
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
const T& as(const std::vector<std::byte>& message) {
  return *reinterpret_cast<const T*>(message.data());
}

Message type_of(const std::vector<std::byte>& message) {
  return static_cast<Message>(as<Header>(message).type);
}

}  // namespace

void Streams::add_client(ClientId client, ClientPage* page) {
  clients_[client] = page;
  for (StreamSlot& slot : page->streams) {
    slot.wake_at.store(std::numeric_limits<uint64_t>::max(), std::memory_order_relaxed);
  }
}

void Streams::process(ClientId client, std::vector<std::byte> message) {
  if (clients_.find(client) == clients_.end()) return;
  const Header& header = as<Header>(message);
  if (header.type >= static_cast<uint32_t>(Message::kCollectiveFirst)) {
    const auto body = std::span<const std::byte>(message).subspan(sizeof(Header));
    if (collective_handler_ != nullptr) {
      collective_handler_->message(client, header.request, header.type, body, clockwork_.now());
    } else {
      outside_.reply(client, header.request, -1, {});
    }
    return;
  }
  const size_t least = least_bytes(type_of(message));
  if (least == 0 || message.size() < least) return;
  if (type_of(message) == Message::kContext) {
    const Context& context = as<Context>(message);
    if (context.gpu < clockwork_.gpus() && context.alive != 0) {
      clockwork_.change_gpu(context.gpu, [](Gpu& gpu) { gpu.wake(); });
    }
    return;
  }
  if (type_of(message) == Message::kCallbackDone) {
    callback_done(key_of(client, as<CallbackDone>(message).stream), as<CallbackDone>(message).sequence,
                  static_cast<Time>(header.stamp_ns));
    return;
  }
  const StreamHeader& to = as<StreamHeader>(message);
  const Key key = key_of(client, to.stream);
  if (type_of(message) == Message::kStreamDestroy) {
    const auto entry = streams_.find(key);
    if (entry == streams_.end()) return;
    entry->second.doomed = true;
    drop_if_done(key);
    return;
  }
  if (to.gpu >= clockwork_.gpus() || to.stream >= kMaxStreams) return;
  Stream& stream = streams_[key];
  stream.client = client;
  stream.gpu = to.gpu;
  stream.slot = to.stream;
  stream.queue.push_back(std::move(message));
  if (stream.stage == Stage::kIdle) step(key);
}

void Streams::drop_if_done(Key key) {
  const auto entry = streams_.find(key);
  if (entry != streams_.end() && entry->second.doomed && entry->second.queue.empty()) streams_.erase(entry);
}

double Streams::launch_latency_us(const std::vector<std::byte>& message) const {
  switch (type_of(message)) {
    case Message::kKernel:
    case Message::kCollective:
      return clockwork_.platform().kernel_launch_us;
    case Message::kCallback:
      return as<Callback>(message).is_copy != 0 ? clockwork_.platform().copy_launch_us : 0;
    default:
      return 0;
  }
}

// The front moves on: it begins as soon as its launch latency is over, which it may be already.
void Streams::step(Key key) {
  while (true) {
    const auto entry = streams_.find(key);
    if (entry == streams_.end()) return;
    Stream& stream = entry->second;
    if (stream.queue.empty()) {
      stream.stage = Stage::kIdle;
      drop_if_done(key);
      return;
    }
    const std::vector<std::byte>& front = stream.queue.front();
    const Time ready = after_us(static_cast<Time>(as<Header>(front).stamp_ns), launch_latency_us(front));
    stream.stage = Stage::kLaunching;
    if (ready > clockwork_.now()) {
      stream.timer = clockwork_.at(ready, [this, key](Time) { run_front(key); });
      return;
    }
    if (!begin_front(key, stream)) return;
  }
}

void Streams::run_front(Key key) {
  const auto entry = streams_.find(key);
  if (entry == streams_.end()) return;
  entry->second.timer = 0;
  if (begin_front(key, entry->second)) step(key);
}

// True: it is complete already and the stream may go on immediately.
bool Streams::begin_front(Key key, Stream& stream) {
  const std::vector<std::byte>& message = stream.queue.front();
  stream.stage = Stage::kRunning;
  switch (type_of(message)) {
    case Message::kKernel:
      begin_kernel(key, stream, as<Kernel>(message).declared_ns);
      return false;
    case Message::kEventRecord: {
      const EventRecord& record = as<EventRecord>(message);
      EventSlot& slot = clients_[stream.client]->events[record.event % kMaxEvents];
      Gpu& gpu = clockwork_.gpu(stream.gpu);
      gpu.settle(clockwork_.now());
      slot.time_ns.store(static_cast<uint64_t>(clockwork_.now()), std::memory_order_relaxed);
      slot.energy_uj.store(gpu.energy_uj(), std::memory_order_relaxed);
      slot.generation.store(record.generation, std::memory_order_release);
      complete_front(key, stream);
      return true;
    }
    case Message::kWait:
      return begin_wait(key, stream);
    case Message::kCallback:
      begin_callback(stream);
      return false;
    case Message::kWriteValue: {
      const Time due = after_us(clockwork_.now(), clockwork_.platform().memop_us);
      stream.timer = clockwork_.at(due, [this, key](Time) { write_value(key); });
      return false;
    }
    case Message::kCollective:
      begin_collective(key, stream);
      return false;
    default:
      complete_front(key, stream);
      return true;
  }
}

void Streams::begin_kernel(Key key, Stream& stream, uint64_t declared) {
  const uint32_t gpu = stream.gpu;
  const Platform& platform = clockwork_.platform();
  const uint64_t declared_ns = declared & ((uint64_t{1} << kMemoryShareBit) - 1),
                 share_code = declared >> kMemoryShareBit;
  const double memory_share =
      share_code == 0 ? platform.memory_bound_share : std::min(static_cast<double>(share_code - 1) / 1000, 1.0);
  const Activity activity = share_code == 0 ? platform.kernel : Activity{1 - memory_share, memory_share};
  clockwork_.change_gpu(gpu, [activity](Gpu& changed) { changed.kernel_started(activity); });
  const double reference_mhz = platform.reference_clock_mhz;
  auto rate = [memory_share, reference_mhz](std::span<const double> clocks) {
    return 1 / (memory_share + (1 - memory_share) * reference_mhz / clocks[0]);
  };
  stream.activity = activity;
  auto done = [this, key, gpu, activity](Time) {
    clockwork_.change_gpu(gpu, [activity](Gpu& changed) { changed.kernel_stopped(activity); });
    const auto entry = streams_.find(key);
    if (entry == streams_.end()) return;
    entry->second.work = 0;
    complete_and_step(key);
  };
  stream.work = clockwork_.add_work({gpu}, static_cast<double>(declared_ns), rate, done, true);
}

bool Streams::begin_wait(Key key, Stream& stream) {
  const Wait& wait = as<Wait>(stream.queue.front());
  const StreamSlot& slot = clients_[stream.client]->streams[wait.on_stream % kMaxStreams];
  if (slot.completed.load(std::memory_order_relaxed) >= wait.on_sequence) {
    complete_front(key, stream);
    return true;
  }
  waiters_[key_of(stream.client, wait.on_stream)].push_back({wait.on_sequence, key});
  return false;
}

bool Streams::stop_time(ClientId client, uint64_t stop, Time patience) {
  if (clients_.find(client) == clients_.end()) return false;
  const auto [place, fresh] = stops_.try_emplace({client, stop}, 0);
  if (fresh) place->second = clockwork_.hold(clockwork_.now(), patience);
  return fresh;
}

bool Streams::start_time(ClientId client, uint64_t stop) {
  const auto entry = stops_.find({client, stop});
  if (entry == stops_.end()) return false;
  const bool stood = clockwork_.release(entry->second);
  stops_.erase(entry);
  return stood;
}

void Streams::start_all(ClientId client) {
  const auto first = stops_.lower_bound({client, 0});
  const auto last = stops_.lower_bound({client + 1, 0});
  for (auto stop = first; stop != last; ++stop) clockwork_.release(stop->second);
  stops_.erase(first, last);
}

void Streams::begin_callback(Stream& stream) {
  const Callback& call = as<Callback>(stream.queue.front());
  const Platform& platform = clockwork_.platform();
  const double gbs = call.to_host != 0 ? platform.copy_host_gbs : platform.copy_device_gbs;
  const double us = call.is_copy != 0 ? static_cast<double>(call.bytes) / (gbs * 1e3) : platform.hostfunc_us;
  stream.due = after_us(clockwork_.now(), us);
  // The client's thread may get a core only long after a real driver's would: that is this machine's lateness, not the
  // model's.
  stream.hold = clockwork_.hold(stream.due, kCallbackPatienceNs);
  outside_.run_callback(stream.client, call.callback, stream.slot, call.to.sequence);
}

void Streams::callback_done(Key key, uint64_t sequence, Time stamp) {
  const auto entry = streams_.find(key);
  if (entry == streams_.end() || entry->second.queue.empty()) return;
  Stream& stream = entry->second;
  const std::vector<std::byte>& front = stream.queue.front();
  if (stream.stage != Stage::kRunning || type_of(front) != Message::kCallback) return;
  if (as<StreamHeader>(front).sequence != sequence || stream.timer != 0) return;
  const bool slow = !clockwork_.release(stream.hold);
  const Time end = slow ? std::max(stream.due, stamp) : stream.due;
  stream.timer = clockwork_.at(end, [this, key](Time) { complete_and_step(key); });
}

void Streams::write_value(Key key) {
  const auto entry = streams_.find(key);
  if (entry == streams_.end()) return;
  const WriteValue& write = as<WriteValue>(entry->second.queue.front());
  const std::shared_ptr<Memory> target = outside_.memory(entry->second.client, write.allocation);
  if (target != nullptr && write.offset % 4 == 0 && write.offset < target->bytes) {
    auto* word = reinterpret_cast<uint32_t*>(target->data + write.offset);
    std::atomic_ref<uint32_t>(*word).store(write.value);
  }
  complete_and_step(key);
}

void Streams::complete_and_step(Key key) {
  const auto entry = streams_.find(key);
  if (entry == streams_.end()) return;
  entry->second.timer = 0;
  complete_front(key, entry->second);
  step(key);
}

void Streams::complete_front(Key key, Stream& stream) {
  const uint64_t sequence = as<StreamHeader>(stream.queue.front()).sequence;
  stream.queue.pop_front();
  stream.stage = Stage::kIdle;
  StreamSlot& slot = clients_[stream.client]->streams[stream.slot];
  slot.completed.store(sequence);
  if (sequence >= slot.wake_at.load()) {
    slot.wake_at.store(std::numeric_limits<uint64_t>::max());
    slot.wake.fetch_add(1);
    futex_wake(slot.wake);
  }
  const auto entry = waiters_.find(key);
  if (entry == waiters_.end()) return;
  auto& waiting = entry->second;
  const auto ready =
      std::stable_partition(waiting.begin(), waiting.end(), [&](const Waiter& w) { return w.sequence > sequence; });
  // Not immediately: the caller still holds references into the tables.
  for (auto waiter = ready; waiter != waiting.end(); ++waiter) {
    clockwork_.at(clockwork_.now(), [this, waiter_key = waiter->stream](Time) { complete_and_step(waiter_key); });
  }
  waiting.erase(ready, waiting.end());
  if (waiting.empty()) waiters_.erase(entry);
}

void Streams::begin_collective(Key key, Stream& stream) {
  const OpId op = clockwork_.new_id();
  RunningCollective& running = collectives_[op];
  running.stream = key;
  running.message = stream.queue.front();
  stream.collective = op;
  if (collective_handler_ == nullptr) {
    finish_collective(op, -1);
    return;
  }
  const auto payload = std::span<const std::byte>(running.message).subspan(sizeof(Collective));
  const size_t bytes = std::min<size_t>(payload.size(), as<Collective>(running.message).payload_bytes);
  collective_handler_->arrived({op, stream.client, stream.gpu, payload.first(bytes)}, clockwork_.now());
}

OpSlot* Streams::op_slot(const Stream& stream, const std::vector<std::byte>& message) {
  const uint32_t op = as<Collective>(message).op;
  return op < kMaxOps ? &clients_[stream.client]->ops[op] : nullptr;
}

void Streams::start_collective(OpId op, const Communication& communication) {
  const auto entry = collectives_.find(op);
  if (entry == collectives_.end() || entry->second.started) return;
  RunningCollective& running = entry->second;
  running.started = true;
  running.communication = communication;
  const Stream& stream = streams_.at(running.stream);
  clockwork_.change_gpu(stream.gpu, [=](Gpu& gpu) { gpu.communication_started(communication); });
  OpSlot* slot = op_slot(stream, running.message);
  if (slot == nullptr) return;
  slot->started_ns.store(static_cast<uint64_t>(clockwork_.now()));
  slot->result.store(0);
  slot->state.store(static_cast<uint32_t>(OpState::kStarted));
  if (slot->waiters.load() != 0) futex_wake(slot->state);
}

void Streams::finish_collective(OpId op, int32_t result) {
  start_collective(op, {});
  const auto entry = collectives_.find(op);
  if (entry == collectives_.end()) return;
  const RunningCollective running = std::move(entry->second);
  collectives_.erase(entry);
  const Key key = running.stream;
  Stream& stream = streams_.at(key);
  clockwork_.change_gpu(stream.gpu, [&](Gpu& gpu) { gpu.communication_stopped(running.communication); });
  stream.collective = 0;
  if (OpSlot* slot = op_slot(stream, running.message)) {
    slot->stopped_ns.store(static_cast<uint64_t>(clockwork_.now()));
    slot->result.store(result);
    slot->state.store(static_cast<uint32_t>(OpState::kStopped));
    if (slot->waiters.load() != 0) futex_wake(slot->state);
  }
  complete_front(key, stream);
  // The handler may be in the middle of its own tables; what is behind this op begins when it has returned.
  stream.stage = Stage::kLaunching;
  clockwork_.at(clockwork_.now(), [this, key](Time) { step(key); });
}

void Streams::remove_client(ClientId client) {
  if (clients_.find(client) == clients_.end()) return;
  std::vector<std::pair<OpId, RunningCollective>> withdrawn;
  for (auto at = streams_.begin(); at != streams_.end();) {
    Stream& stream = at->second;
    if (stream.client != client) {
      ++at;
      continue;
    }
    clockwork_.cancel_timer(stream.timer);
    clockwork_.release(stream.hold);
    waiters_.erase(at->first);
    if (stream.work != 0) {
      clockwork_.cancel_work(stream.work);
      clockwork_.change_gpu(stream.gpu, [activity = stream.activity](Gpu& gpu) { gpu.kernel_stopped(activity); });
    }
    const auto entry = collectives_.find(stream.collective);
    if (entry != collectives_.end()) {
      const Communication communication = entry->second.communication;
      if (entry->second.started) {
        clockwork_.change_gpu(stream.gpu, [=](Gpu& gpu) { gpu.communication_stopped(communication); });
      }
      withdrawn.emplace_back(entry->first, std::move(entry->second));
      collectives_.erase(entry);
    }
    at = streams_.erase(at);
  }
  start_all(client);
  clients_.erase(client);
  if (collective_handler_ == nullptr) return;
  for (const auto& [op, running] : withdrawn) collective_handler_->withdrawn(op, clockwork_.now());
  collective_handler_->client_gone(client, clockwork_.now());
}

}  // namespace powerccl::physics
