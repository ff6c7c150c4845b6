// SPDX-License-Identifier: Apache-2.0
// Collectives of emulated NCCL in the server: who belongs together, what moves where, and how long it takes.
//
// A rank's kernel (a group of tasks launched as one) occupies its stream from the moment it is at the front. It goes
// through its collectives in order and then through its point-to-point tasks together. A collective runs from the
// arrival of its last rank; a transfer from the arrival of both ends. Each is a *flow* on the GPUs it touches. Its
// bandwidth is the platform's for the lowest of their clocks, shared with the other flows there. Nothing here depends
// on wall time.
#pragma once
#include <array>
#include <deque>
#include <map>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "physics/collective_messages.h"
#include "physics/collective_types.h"
#include "physics/engine.h"

namespace powerccl::physics {

struct Comm;
struct Step;
struct Flow;

// A rank's launched group of tasks, from its turn in the stream to its end.
struct RankKernel {
  OpId op = 0;
  Comm* comm = nullptr;
  uint32_t rank = 0;
  CollectivePlan plan{};
  std::vector<CollectiveTask> tasks;
  size_t next_task = 0;       // the collective it is at, or the first point-to-point task
  size_t open_transfers = 0;  // of its point-to-point phase
  bool in_transfers = false;
  double send_bytes = 0, receive_bytes = 0;  // of the point-to-point phase, to itself included
  uint32_t sends = 0, receives = 0;          // to and from others
};

// One collective of a communicator: the n-th on every rank.
struct Step {
  uint64_t index = 0;
  std::vector<RankKernel*> kernels;  // by rank; null: not arrived
  size_t arrived = 0;
  Flow* flow = nullptr;
  bool stuck = false;  // it never starts: the ranks run different algorithms, or it was asked to hang
};

struct Transfer {
  RankKernel* sender;
  size_t send_task;
  RankKernel* receiver;
  size_t receive_task;
};

// Bytes on their way: the work on the GPUs, the data moved beside it, the shortest time it may take.
struct Flow {
  uint64_t id = 0;
  Comm* comm = nullptr;
  Step* step = nullptr;  // a collective's, else `transfer`
  Transfer transfer{};
  std::vector<uint32_t> gpus;
  bool exclusive = true;  // a collective; a transfer shares by direction
  bool crosses = false;   // from host to host
  uint32_t source_gpu = 0, target_gpu = 0;
  WorkId work = 0;
  TimerId timer = 0;
  uint32_t open_parts = 0;  // of work, timer, data
  Time part_done_at = 0;    // the last one that is done
};

struct RankState {
  enum class Life : uint8_t { kAlive, kLeft, kAborted, kLost };
  ClientId client = 0;
  uint32_t gpu = 0;
  Life life = Life::kAlive;
  uint64_t poll_request = 0;
  std::deque<CommEvent> events;
  uint64_t collectives = 0;  // come to so far
  std::vector<RankKernel*> kernels;
  bool loss_reported = false;
};

struct Comm {
  uint64_t id = 0, hash = 0;
  bool move_data = true;
  NcclSettings settings{};
  double run_factor = 1;  // of time, drawn once
  std::mt19937_64 noise;
  int32_t broken = 0;  // a kCollective* code: every operation ends immediately with it
  std::vector<RankState> ranks;
  std::map<uint64_t, std::unique_ptr<Step>> steps;
  struct Waiting {
    RankKernel* kernel;
    size_t task;
  };
  struct Channel {  // from one rank to another
    std::deque<Waiting> sends, receives;
  };
  std::map<std::pair<uint32_t, uint32_t>, Channel> channels;
  struct SplitCall {
    uint64_t request = 0;
    ClientId client = 0;
    int32_t color = 0, key = 0;
  };
  std::vector<std::deque<SplitCall>> splits;  // by rank, calls not yet matched
  uint64_t split_count = 0;
  uint32_t size() const { return static_cast<uint32_t>(ranks.size()); }
};

double task_bytes(const CollectiveTask& task);
double operation_bytes(const CollectiveTask& task, uint32_t ranks);  // NCCL tests' size of a collective
Pattern step_pattern(const CollectiveTask& task);
Pattern transfer_pattern(const RankKernel& kernel, size_t task);  // of a rank's sends and receives, unless it is named

class CollectiveEngine : public CollectiveHandler {
 public:
  explicit CollectiveEngine(Engine& engine);
  ~CollectiveEngine() override;
  CollectiveEngine(const CollectiveEngine&) = delete;
  CollectiveEngine& operator=(const CollectiveEngine&) = delete;

  void arrived(const Arrival& arrival, Time now) override;
  void withdrawn(OpId op, Time now) override;
  void message(ClientId client, uint64_t request, uint32_t type, std::span<const std::byte> body, Time now) override;
  void client_gone(ClientId client, Time now) override;

 private:
  struct PendingJoin {
    uint32_t ranks = 0;
    bool move_data = true;
    struct Seat {
      ClientId client = 0;
      uint64_t request = 0;  // 0: free
      uint32_t gpu = 0;
      NcclSettings settings{};
    };
    std::vector<Seat> seats;
    uint32_t taken = 0;
  };
  using JoinKey = std::array<uint8_t, sizeof(Join::key)>;

  // collective_comms.cpp: membership
  void join(ClientId client, uint64_t request, const Join& join);
  void cancel_join(const Join& join, ClientId client);
  void fail_join(const JoinKey& key, int32_t error, const std::string& text);
  void split(ClientId client, uint64_t request, const Split& split);
  void match_split(Comm& comm);
  void leave(Comm& comm, uint32_t rank);
  void abort_rank(Comm& comm, uint32_t rank);
  void poll(Comm& comm, uint32_t rank, uint64_t request);
  Comm& create(std::vector<RankState> ranks, bool move_data, uint64_t hash, const NcclSettings& settings);
  void answer_joined(const Comm& comm, uint32_t rank, ClientId client, uint64_t request);
  void refuse(ClientId client, uint64_t request, int32_t error, const std::string& text);
  Comm* find(uint64_t id);
  void forget_if_empty(Comm& comm);
  void tell(Comm& comm, uint32_t rank, const CommEvent& event);
  void deliver(Comm& comm, uint32_t rank);  // may forget the communicator
  void tell_error(Comm& comm, uint32_t rank, int32_t result, const std::string& text);
  void tell_of_missing(Comm& comm);
  void break_comm(Comm& comm, int32_t result, const std::string& text);

  // collective_engine.cpp: kernels
  void advance(RankKernel& kernel);
  void enter_step(RankKernel& kernel);
  void enter_transfers(RankKernel& kernel);
  void finish(RankKernel& kernel, int32_t result);
  void cancel(RankKernel& kernel, int32_t result);
  void drop(RankKernel& kernel);  // takes it out of steps, channels and flows
  std::string disagreement(const Step& step, const RankKernel& kernel) const;
  void check_method(Step& step, const RankKernel& kernel) const;  // may make the step stick
  void step_done(Step& step);
  void transfer_done(const Transfer& transfer);
  void match(Comm& comm, uint32_t source, uint32_t target);
  void task_event(RankKernel& kernel, CommEventKind kind, size_t task);

  // collective_flows.cpp: time
  void start_step_flow(Comm& comm, Step& step);
  void start_transfer_flow(Comm& comm, const Transfer& transfer);
  void work_done(uint64_t flow);
  void part_done(uint64_t flow);
  void data_done(uint64_t flow);
  void cancel_flow(Flow& flow);
  struct Load {
    int collectives = 0, sends = 0, receives = 0;
  };
  struct GpuLoad {
    Load links, network;  // links: of all flows
  };
  double share(const Flow& flow, Load GpuLoad::* of) const;
  double noise(Comm& comm) const;  // a factor of time for the next flow
  void load_changed(const Flow& flow, int by);
  void rerate_flows();

  // collective_data.cpp: bytes
  // Starts moving; data_done(flow) is called behind it. False: there is nothing to move, or `error` says why it cannot.
  bool start_moving(Flow& flow, std::string& error);

  Engine& engine_;
  uint64_t next_comm_ = 1, next_flow_ = 1;
  std::map<JoinKey, PendingJoin> joins_;
  std::map<uint64_t, std::unique_ptr<Comm>> comms_;
  std::map<OpId, std::unique_ptr<RankKernel>> kernels_;
  std::map<uint64_t, std::unique_ptr<Flow>> flows_;
  uint64_t loads_changed_ = 0;  // GPUs whose flows have other shares now, a bit for each
  bool looks_at_loads_ = false;
  std::vector<GpuLoad> load_;
};

}  // namespace powerccl::physics
