// SPDX-License-Identifier: Apache-2.0
// What the engine has on its two sides: the collective engine that it feeds, and the outside that it acts upon.
#pragma once
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>

namespace powerccl::physics {

using Time = int64_t;  // ns
using ClientId = uint32_t;
using OpId = uint64_t;     // a collective at the front of its stream; never reused
using WorkId = uint64_t;   // never reused, never 0
using TimerId = uint64_t;  // never reused, never 0

// An allocation mapped into the server; stays valid while held, even when its client is gone.
struct Memory {
  std::byte* data = nullptr;
  size_t bytes = 0;
  uint32_t gpu = 0;
  Memory() = default;
  Memory(const Memory&) = delete;
  Memory& operator=(const Memory&) = delete;
  ~Memory();
};

// A collective whose turn in its stream has come.
struct Arrival {
  OpId op;
  ClientId client;
  uint32_t gpu;
  std::span<const std::byte> payload;  // valid until finish() or withdrawn()
};

// What the collective engine implements (collective_engine.h).
class CollectiveHandler {
 public:
  virtual ~CollectiveHandler() = default;
  // The op is at the front of its stream: its kernel would be launched now. Nothing behind it runs until finish().
  virtual void arrived(const Arrival& arrival, Time now) = 0;
  // The op is gone (its client died): the id is void, finish() on it does nothing.
  virtual void withdrawn(OpId op, Time now) = 0;
  // Message of type [kCollectiveFirst, kCollectiveLast]. If `request` is nonzero answer with Engine::reply(), now or
  // later.
  virtual void message(ClientId client, uint64_t request, uint32_t type, std::span<const std::byte> body, Time now) = 0;
  // After all its ops were withdrawn. Requests of it that were not answered must be forgotten.
  virtual void client_gone(ClientId client, Time now) = 0;
};

// How the engine reaches the outside; the server implements it over sockets, tests as they need.
class Outside {
 public:
  virtual ~Outside() = default;
  virtual void reply(ClientId client, uint64_t request, int32_t error, std::span<const std::byte> body) = 0;
  virtual void run_callback(ClientId client, uint64_t callback, uint32_t stream, uint64_t sequence) = 0;
  virtual std::shared_ptr<Memory> memory(ClientId client, uint64_t allocation) = 0;
  // Runs `job` beside the engine; `done` is called from the engine's thread afterwards, through Engine::from_outside().
  virtual void run_in_worker(std::function<void()> job, std::function<void(Time)> done) = 0;
};

}  // namespace powerccl::physics
