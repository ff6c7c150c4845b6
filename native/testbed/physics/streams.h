// SPDX-License-Identifier: Apache-2.0
// Clients' streams: submissions in their order, each begun when what is before it is complete.
#pragma once
#include <cstddef>
#include <cstdint>
#include <deque>
#include <map>
#include <unordered_map>
#include <utility>
#include <vector>

#include "physics/clockwork.h"
#include "physics/interfaces.h"
#include "physics/messages.h"

namespace powerccl::physics {

class Streams {
 public:
  Streams(Clockwork& clockwork, Outside& outside) : clockwork_(clockwork), outside_(outside) {}

  void set_collective_handler(CollectiveHandler* handler) { collective_handler_ = handler; }
  void add_client(ClientId client, ClientPage* page);
  void remove_client(ClientId client);
  // A message at its place in model time. Unsound ones are dropped.
  void process(ClientId client, std::vector<std::byte> message);

  // Model time stands still until start_time with the same numbers, or for `patience` of driven time. False: the client
  // has used the number before, or there is no such client.
  bool stop_time(ClientId client, uint64_t stop, Time patience);
  bool start_time(ClientId client, uint64_t stop);  // false: it went on before
  void start_all(ClientId client);

  void start_collective(OpId op, const Communication& communication);
  void finish_collective(OpId op, int32_t result);

 private:
  using Key = uint64_t;  // client and slot

  enum class Stage : uint8_t {
    kIdle,       // nothing in it, or its front has not been looked at
    kLaunching,  // the front waits for its launch latency
    kRunning,
  };
  struct Stream {
    ClientId client = 0;
    uint32_t gpu = 0, slot = 0;
    Stage stage = Stage::kIdle;
    bool doomed = false;                       // goes when it is empty
    std::deque<std::vector<std::byte>> queue;  // messages as they were sent
    TimerId timer = 0;                         // of the launch, or of the front's end
    WorkId work = 0;
    Activity activity;  // of the kernel that runs
    OpId collective = 0;
    Time due = 0;  // a callback's end, if the client is not much slower
    Clockwork::HoldId hold = 0;
  };
  struct RunningCollective {
    Key stream = 0;
    std::vector<std::byte> message;
    Communication communication;
    bool started = false;
  };
  struct Waiter {
    uint64_t sequence;
    Key stream;
  };

  static Key key_of(ClientId client, uint32_t slot) { return static_cast<Key>(client) << 32u | slot; }
  double launch_latency_us(const std::vector<std::byte>& message) const;
  void step(Key key);
  void run_front(Key key);
  bool begin_front(Key key, Stream& stream);
  void begin_kernel(Key key, Stream& stream, uint64_t declared);
  bool begin_wait(Key key, Stream& stream);
  void begin_callback(Stream& stream);
  void begin_collective(Key key, Stream& stream);
  void write_value(Key key);
  void callback_done(Key key, uint64_t sequence, Time stamp);
  void complete_and_step(Key key);
  void complete_front(Key key, Stream& stream);
  void drop_if_done(Key key);
  OpSlot* op_slot(const Stream& stream, const std::vector<std::byte>& message);

  Clockwork& clockwork_;
  Outside& outside_;
  CollectiveHandler* collective_handler_ = nullptr;
  std::unordered_map<ClientId, ClientPage*> clients_;
  std::unordered_map<Key, Stream> streams_;
  std::unordered_map<Key, std::vector<Waiter>> waiters_;  // by the stream waited for
  std::map<OpId, RunningCollective> collectives_;
  std::map<std::pair<ClientId, uint64_t>, Clockwork::HoldId> stops_;  // of model time, by the client and its number
};

}  // namespace powerccl::physics
