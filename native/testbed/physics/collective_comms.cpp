// SPDX-License-Identifier: Apache-2.0
// Communicators: joining, splitting, leaving, aborting, and telling ranks what happened to the others.
#include <algorithm>
#include <cstdio>
#include <cstring>
#include <utility>

#include "physics/collective_engine.h"

namespace powerccl::physics {
namespace {

template <typename T>
bool read(std::span<const std::byte> body, T& into) {
  if (body.size() != sizeof(T)) return false;
  memcpy(&into, body.data(), sizeof(T));
  return true;
}

template <typename T>
std::span<const std::byte> bytes_of(const T& value) {
  return std::as_bytes(std::span(&value, 1));
}

uint64_t mix(uint64_t hash, std::span<const std::byte> bytes) {  // FNV-1a
  for (const std::byte byte : bytes) hash = (hash ^ static_cast<uint64_t>(byte)) * 0x100000001b3ull;
  return hash;
}

constexpr uint64_t kHashSeed = 0xcbf29ce484222325ull;

}  // namespace

void CollectiveEngine::message(ClientId client, uint64_t request, uint32_t type, std::span<const std::byte> body,
                               Time) {
  const auto kind = static_cast<CollectiveMessage>(type);
  Join join_body;
  if ((kind == CollectiveMessage::kJoin || kind == CollectiveMessage::kCancelJoin) && read(body, join_body)) {
    return kind == CollectiveMessage::kJoin ? join(client, request, join_body) : cancel_join(join_body, client);
  }
  Split split_body;
  if (kind == CollectiveMessage::kSplit && read(body, split_body)) return split(client, request, split_body);
  Member member;
  Comm* comm = read(body, member) ? find(member.comm) : nullptr;
  if (!comm || member.rank >= comm->size() || comm->ranks[member.rank].client != client) {
    if (request) engine_.reply(client, request, kCollectiveInvalidArgument, {});
    return;
  }
  switch (kind) {
    case CollectiveMessage::kLeave:
      return leave(*comm, member.rank);
    case CollectiveMessage::kPoll:
      return poll(*comm, member.rank, request);
    case CollectiveMessage::kAbort:
      abort_rank(*comm, member.rank);
      if (request) engine_.reply(client, request, kCollectiveOk, {});
      return;
    default:
      if (request) engine_.reply(client, request, kCollectiveInvalidArgument, {});
  }
}

Comm* CollectiveEngine::find(uint64_t id) {
  const auto entry = comms_.find(id);
  return entry == comms_.end() ? nullptr : entry->second.get();
}

void CollectiveEngine::refuse(ClientId client, uint64_t request, int32_t error, const std::string& text) {
  Joined answer{};
  text.copy(answer.text, sizeof answer.text - 1);
  engine_.reply(client, request, error, bytes_of(answer));
}

void CollectiveEngine::answer_joined(const Comm& comm, uint32_t rank, ClientId client, uint64_t request) {
  Joined answer{};
  answer.comm = comm.id;
  answer.hash = comm.hash;
  answer.ranks = comm.size();
  answer.rank = rank;
  answer.channels = engine_.platform().nccl_channels;
  answer.warps = engine_.platform().nccl_warps;
  answer.multiprocessors = engine_.platform().multiprocessors;
  answer.has_nvls = engine_.platform().tune.nvls_bandwidth > 0;
  answer.has_ll128 = engine_.platform().tune.ll128;
  engine_.reply(client, request, kCollectiveOk, bytes_of(answer));
}

Comm& CollectiveEngine::create(std::vector<RankState> ranks, bool move_data, uint64_t hash,
                               const NcclSettings& settings) {
  auto comm = std::make_unique<Comm>();
  comm->id = next_comm_++;
  comm->hash = hash;
  comm->move_data = move_data;
  comm->ranks = std::move(ranks);
  comm->splits.resize(comm->ranks.size());
  comm->settings = settings;
  // With a seed the same jobs, one after the other, see the same noise.
  comm->noise.seed(settings.seed != 0 ? settings.seed * 0x9e3779b97f4a7c15ull + comm->id : hash);
  const TuningModel& model = engine_.platform().tune;
  if ((settings.flags & NcclSettings::kTuned) || model.noise_always)
    comm->run_factor = std::max(0.5, std::normal_distribution<double>(1, model.run_noise)(comm->noise));
  return *(comms_[comm->id] = std::move(comm));
}

void CollectiveEngine::join(ClientId client, uint64_t request, const Join& asked) {
  if (asked.ranks == 0 || asked.rank >= asked.ranks || asked.gpu >= engine_.platform().gpus)
    return refuse(client, request, kCollectiveInvalidArgument, "invalid rank or number of ranks");
  JoinKey key;
  memcpy(key.data(), asked.key, key.size());
  PendingJoin& pending = joins_[key];
  if (pending.seats.empty()) {
    pending.ranks = asked.ranks;
    pending.seats.resize(asked.ranks);
  }
  if (pending.ranks != asked.ranks || pending.seats[asked.rank].request != 0) {
    const std::string text = pending.ranks != asked.ranks
                                 ? "ranks disagree on the number of ranks: " + std::to_string(pending.ranks) + " and " +
                                       std::to_string(asked.ranks)
                                 : "rank " + std::to_string(asked.rank) + " joins twice";
    refuse(client, request, kCollectiveInvalidUsage, text);
    return fail_join(key, kCollectiveInvalidUsage, text);
  }
  pending.seats[asked.rank] = {client, request, asked.gpu, asked.settings};
  pending.move_data &= asked.move_data != 0;
  if (++pending.taken < pending.ranks) return;

  for (uint32_t rank = 0; rank < pending.ranks; ++rank) {
    for (uint32_t other = 0; other < rank; ++other) {
      if (pending.seats[rank].gpu != pending.seats[other].gpu) continue;
      return fail_join(key, kCollectiveInvalidUsage,
                       "Duplicate GPU detected : rank " + std::to_string(rank) + " and rank " + std::to_string(other) +
                           " both on GPU " + std::to_string(pending.seats[rank].gpu));
    }
  }
  const PendingJoin complete = std::move(pending);
  joins_.erase(key);
  std::vector<RankState> ranks(complete.ranks);
  for (uint32_t rank = 0; rank < complete.ranks; ++rank) {
    ranks[rank].client = complete.seats[rank].client;
    ranks[rank].gpu = complete.seats[rank].gpu;
  }
  const NcclSettings& settings = complete.seats[0].settings;
  const uint64_t hash = mix(kHashSeed, bytes_of(asked.key));
  for (uint32_t rank = 1; rank < complete.ranks; ++rank) {
    if (memcmp(&complete.seats[rank].settings, &settings, sizeof settings) == 0) continue;
    fprintf(stderr,
            "powerccl-emulator: ranks disagree: NCCL's variables of rank %u of communicator %016llx are not those of "
            "rank 0, which count\n",
            rank, static_cast<unsigned long long>(hash));
  }
  const Comm& comm = create(std::move(ranks), complete.move_data, hash, settings);
  for (uint32_t rank = 0; rank < complete.ranks; ++rank)
    answer_joined(comm, rank, complete.seats[rank].client, complete.seats[rank].request);
}

void CollectiveEngine::cancel_join(const Join& asked, ClientId client) {
  JoinKey key;
  memcpy(key.data(), asked.key, key.size());
  const auto entry = joins_.find(key);
  if (entry == joins_.end() || asked.rank >= entry->second.ranks || entry->second.seats[asked.rank].client != client)
    return;
  fail_join(key, kCollectiveRemoteError, "rank " + std::to_string(asked.rank) + " aborted its initialisation");
}

void CollectiveEngine::fail_join(const JoinKey& key, int32_t error, const std::string& text) {
  const auto entry = joins_.find(key);
  const PendingJoin pending = std::move(entry->second);
  joins_.erase(entry);
  for (const auto& seat : pending.seats)
    if (seat.request) refuse(seat.client, seat.request, error, text);
}

void CollectiveEngine::split(ClientId client, uint64_t request, const Split& asked) {
  Comm* comm = find(asked.comm);
  if (!comm || asked.rank >= comm->size() || comm->ranks[asked.rank].client != client)
    return refuse(client, request, kCollectiveInvalidArgument, "unknown communicator");
  comm->splits[asked.rank].push_back({request, client, asked.color, asked.key});
  match_split(*comm);
}

void CollectiveEngine::match_split(Comm& comm) {
  const auto waiting = [](const auto& calls) { return !calls.empty(); };
  if (std::none_of(comm.splits.begin(), comm.splits.end(), waiting)) return;
  for (uint32_t rank = 0; rank < comm.size(); ++rank) {
    if (!comm.splits[rank].empty()) continue;
    const auto life = comm.ranks[rank].life;
    // An aborted communicator may still be split only if all remaining ranks ask; a dead rank never will.
    if (life != RankState::Life::kLost && life != RankState::Life::kLeft) return;
    for (auto& calls : comm.splits) {
      for (const auto& call : calls)
        refuse(call.client, call.request, kCollectiveRemoteError, "rank " + std::to_string(rank) + " is gone");
      calls.clear();
    }
    return;
  }
  std::vector<Comm::SplitCall> calls;
  for (auto& queue : comm.splits) {
    calls.push_back(queue.front());
    queue.pop_front();
  }
  const uint64_t count = comm.split_count++;
  std::map<int32_t, std::vector<uint32_t>> colors;
  for (uint32_t rank = 0; rank < comm.size(); ++rank) {
    if (calls[rank].color >= 0)
      colors[calls[rank].color].push_back(rank);
    else
      engine_.reply(calls[rank].client, calls[rank].request, kCollectiveOk, bytes_of(Joined{}));
  }
  for (auto& [color, members] : colors) {
    std::stable_sort(members.begin(), members.end(),
                     [&](uint32_t a, uint32_t b) { return calls[a].key < calls[b].key; });
    std::vector<RankState> ranks(members.size());
    for (size_t i = 0; i < members.size(); ++i) {
      ranks[i].client = comm.ranks[members[i]].client;
      ranks[i].gpu = comm.ranks[members[i]].gpu;
    }
    const uint64_t hash = mix(mix(mix(kHashSeed, bytes_of(comm.hash)), bytes_of(count)), bytes_of(color));
    const Comm& child = create(std::move(ranks), comm.move_data, hash, comm.settings);
    for (size_t i = 0; i < members.size(); ++i)
      answer_joined(child, static_cast<uint32_t>(i), calls[members[i]].client, calls[members[i]].request);
  }
}

void CollectiveEngine::leave(Comm& comm, uint32_t rank) {
  RankState& state = comm.ranks[rank];
  while (!state.kernels.empty()) cancel(*state.kernels.back(), kCollectiveRemoteError);
  CommEvent closed{};
  closed.kind = static_cast<uint32_t>(CommEventKind::kClosed);
  tell(comm, rank, closed);
  state.life = RankState::Life::kLeft;
  tell_of_missing(comm);
  match_split(comm);
  forget_if_empty(comm);
}

void CollectiveEngine::abort_rank(Comm& comm, uint32_t rank) {
  RankState& state = comm.ranks[rank];
  if (state.life == RankState::Life::kAlive) state.life = RankState::Life::kAborted;
  while (!state.kernels.empty()) cancel(*state.kernels.back(), kCollectiveRemoteError);
  tell_of_missing(comm);
}

void CollectiveEngine::client_gone(ClientId client, Time) {
  std::vector<JoinKey> failed;
  for (auto& [key, pending] : joins_) {
    bool involved = false;
    for (auto& seat : pending.seats) {
      if (!seat.request || seat.client != client) continue;
      seat.request = 0;
      involved = true;
    }
    if (involved) failed.push_back(key);
  }
  for (const JoinKey& key : failed) fail_join(key, kCollectiveRemoteError, "a rank's process ended while joining");

  std::vector<uint64_t> ids;
  ids.reserve(comms_.size());
  for (const auto& [id, comm] : comms_) ids.push_back(id);
  for (const uint64_t id : ids) {
    Comm& comm = *comms_.at(id);
    bool involved = false;
    for (uint32_t rank = 0; rank < comm.size(); ++rank) {
      RankState& state = comm.ranks[rank];
      if (state.client != client) continue;
      involved = true;
      comm.splits[rank].clear();
      state.poll_request = 0;
      state.events.clear();
      if (state.life != RankState::Life::kLeft) state.life = RankState::Life::kLost;
    }
    if (!involved) continue;
    tell_of_missing(comm);
    match_split(comm);
    forget_if_empty(comm);
  }
}

// A rank that left is still owed what happened before.
void CollectiveEngine::forget_if_empty(Comm& comm) {
  const bool empty = std::all_of(comm.ranks.begin(), comm.ranks.end(), [](const RankState& rank) {
    return rank.life == RankState::Life::kLost || (rank.life == RankState::Life::kLeft && rank.events.empty());
  });
  if (empty) comms_.erase(comm.id);
}

void CollectiveEngine::poll(Comm& comm, uint32_t rank, uint64_t request) {
  RankState& state = comm.ranks[rank];
  if (!request) return;
  if (state.poll_request) engine_.reply(state.client, state.poll_request, kCollectiveInvalidUsage, {});
  state.poll_request = request;
  deliver(comm, rank);
}

void CollectiveEngine::tell(Comm& comm, uint32_t rank, const CommEvent& event) {
  RankState& state = comm.ranks[rank];
  if (state.life == RankState::Life::kLeft || state.life == RankState::Life::kLost) return;
  state.events.push_back(event);
  deliver(comm, rank);
}

void CollectiveEngine::deliver(Comm& comm, uint32_t rank) {
  RankState& state = comm.ranks[rank];
  if (!state.poll_request || state.events.empty()) return;
  const size_t count = std::min(state.events.size(), kMaxEventsPerReply);
  const std::vector<CommEvent> events(state.events.begin(), state.events.begin() + static_cast<std::ptrdiff_t>(count));
  state.events.erase(state.events.begin(), state.events.begin() + static_cast<std::ptrdiff_t>(count));
  engine_.reply(state.client, std::exchange(state.poll_request, 0), kCollectiveOk, std::as_bytes(std::span(events)));
  if (state.life == RankState::Life::kLeft) forget_if_empty(comm);
}

void CollectiveEngine::tell_error(Comm& comm, uint32_t rank, int32_t result, const std::string& text) {
  CommEvent event{};
  event.kind = static_cast<uint32_t>(CommEventKind::kError);
  event.result = result;
  event.time_ns = static_cast<uint64_t>(engine_.now());
  text.copy(event.text, sizeof event.text - 1);
  tell(comm, rank, event);
}

// A rank that went away is an error only to those whose operations wait for it. Processes may well exit without
// destroying communicators that are no longer in use.
void CollectiveEngine::tell_of_missing(Comm& comm) {
  for (uint32_t gone = 0; gone < comm.size(); ++gone) {
    if (comm.ranks[gone].life == RankState::Life::kAlive) continue;
    std::set<uint32_t> waiting;
    for (const auto& [index, step] : comm.steps) {
      if (step->kernels[gone]) continue;
      for (const RankKernel* kernel : step->kernels)
        if (kernel) waiting.insert(kernel->rank);
    }
    for (const auto& [ends, channel] : comm.channels) {
      if (ends.first == gone && !channel.receives.empty()) waiting.insert(ends.second);
      if (ends.second == gone && !channel.sends.empty()) waiting.insert(ends.first);
    }
    const char* how = comm.ranks[gone].life == RankState::Life::kAborted ? " aborted the communicator"
                      : comm.ranks[gone].life == RankState::Life::kLeft  ? " destroyed the communicator"
                                                                         : "'s process ended";
    for (const uint32_t rank : waiting) {
      if (comm.ranks[rank].loss_reported || comm.ranks[rank].life != RankState::Life::kAlive) continue;
      comm.ranks[rank].loss_reported = true;
      tell_error(comm, rank, kCollectiveRemoteError,
                 "rank " + std::to_string(gone) + how + " while rank " + std::to_string(rank) + " waits for it");
    }
  }
}

void CollectiveEngine::break_comm(Comm& comm, int32_t result, const std::string& text) {
  comm.broken = result;
  for (uint32_t rank = 0; rank < comm.size(); ++rank) {
    if (comm.ranks[rank].life == RankState::Life::kAlive) tell_error(comm, rank, result, text);
    while (!comm.ranks[rank].kernels.empty()) cancel(*comm.ranks[rank].kernels.back(), result);
  }
}

}  // namespace powerccl::physics
