// SPDX-License-Identifier: Apache-2.0
#include "sim/server.h"

#include <cstring>
#include <stdexcept>
#include <string>
#include <utility>

namespace powerccl::sim {

using physics::ClientId;

namespace {

constexpr Time kBegin = 1'000'000'000;  // 0 means "never" in many places

// Rank 0 is client 1: 0 is no client.
ClientId client_of(uint32_t rank) {
  return rank + 1;
}

}  // namespace

Server::Server(const physics::Platform& platform, uint32_t ranks)
    : engine_(platform, kBegin, *this), collectives_(engine_), sequences_(ranks) {
  engine_.set_collective_handler(&collectives_);
  for (uint32_t rank = 0; rank < ranks; ++rank) {
    pages_.push_back(std::make_unique<physics::ClientPage>());
    engine_.add_client(client_of(rank), pages_.back().get());
    physics::Context context{};
    context.header = {static_cast<uint32_t>(physics::Message::kContext), sizeof context, static_cast<uint64_t>(kBegin),
                      0};
    context.gpu = rank;
    context.alive = 1;
    engine_.submit(client_of(rank), std::as_bytes(std::span(&context, 1)));
  }
}

Server::~Server() {
  engine_.set_collective_handler(nullptr);
}

bool Server::step() {
  const Time next = engine_.next_event();
  if (next == INT64_MAX) return false;
  engine_.advance(next);
  return true;
}

void Server::after(Time ns, std::function<void()> action) {
  engine_.at(now() + ns, [action = std::move(action)](Time) { action(); });
}

template <typename Message>
void Server::send(uint32_t rank, uint32_t stream, physics::Message type, Message& message,
                  std::span<const std::byte> more) {
  message.to.header = {static_cast<uint32_t>(type), static_cast<uint32_t>(sizeof message + more.size()),
                       static_cast<uint64_t>(now()), 0};
  message.to.gpu = rank;
  message.to.stream = stream;
  message.to.sequence = ++sequences_[rank][stream];
  std::vector<std::byte> bytes(sizeof message + more.size());
  memcpy(bytes.data(), &message, sizeof message);
  if (!more.empty()) memcpy(bytes.data() + sizeof message, more.data(), more.size());
  engine_.submit(client_of(rank), bytes);
}

void Server::kernel(uint32_t rank, uint32_t stream, uint64_t declared) {
  physics::Kernel message{};
  message.declared_ns = declared;
  send(rank, stream, physics::Message::kKernel, message, {});
}

void Server::collective(uint32_t rank, uint32_t stream, std::span<const std::byte> payload, uint32_t slot,
                        uint64_t number) {
  physics::OpSlot& operation = pages_[rank]->ops[slot];  // the client's to prepare
  operation.generation.store(number);
  operation.state.store(static_cast<uint32_t>(physics::OpState::kPending));
  physics::Collective message{};
  message.op = slot;
  message.generation = number;
  message.payload_bytes = static_cast<uint32_t>(payload.size());
  send(rank, stream, physics::Message::kCollective, message, payload);
}

void Server::record(uint32_t rank, uint32_t stream, uint32_t event, uint64_t number) {
  physics::EventRecord message{};
  message.event = event;
  message.generation = number;
  send(rank, stream, physics::Message::kEventRecord, message, {});
}

void Server::wait(uint32_t rank, uint32_t stream, uint32_t on) {
  physics::Wait message{};
  message.on_stream = on;
  message.on_sequence = sequences_[rank][on];
  if (message.on_sequence == 0) return;  // nothing was ever in it
  send(rank, stream, physics::Message::kWait, message, {});
}

bool Server::done(uint32_t rank, uint32_t stream) const {
  const auto sequence = sequences_[rank].find(stream);
  return sequence == sequences_[rank].end() || pages_[rank]->streams[stream].completed.load() >= sequence->second;
}

uint64_t Server::communicator(const std::vector<uint32_t>& members) {
  joined_ = 0;
  ++keys_;
  for (uint32_t i = 0; i < members.size(); ++i) {
    physics::Join join{};
    memcpy(join.key, &keys_, sizeof keys_);
    join.ranks = static_cast<uint32_t>(members.size());
    join.rank = i;
    join.gpu = members[i];
    const auto type = static_cast<uint32_t>(physics::CollectiveMessage::kJoin);
    collectives_.message(client_of(members[i]), i + 1, type, std::as_bytes(std::span(&join, 1)), now());
  }
  if (joined_ == 0) throw std::runtime_error("the ranks of a communicator did not come together");
  return joined_;
}

ClockPolicy::Reading Server::reading(uint32_t rank) {
  const physics::Gpu& gpu = engine_.gpu(rank);
  return {static_cast<uint32_t>(gpu.clock_mhz()), gpu.power_limit_mw(), 0};
}

double Server::joules(uint32_t rank) {
  engine_.settle();
  return engine_.gpu(rank).energy_uj() * 1e-6;
}

void Server::reply(ClientId, uint64_t, int32_t error, std::span<const std::byte> body) {
  physics::Joined joined{};
  if (body.size() != sizeof joined) return;
  memcpy(&joined, body.data(), sizeof joined);
  if (error != 0) throw std::runtime_error(std::string("a communicator was refused: ") + joined.text);
  joined_ = joined.comm;
}

void Server::run_in_worker(std::function<void()> job, std::function<void(Time)> done) {
  job();
  engine_.from_outside(std::move(done), now());
}

namespace {

constexpr Time kWakeNs = 15'000;  // a sleeping thread's way to a processor, on a host with one to spare

}  // namespace

ClockDriver::ClockDriver(Server& server, uint32_t gpu, ClockPolicy& policy, const Lease& lease, Trace& trace)
    : server_(server), gpu_(gpu), policy_(policy), interval_ns_(static_cast<uint64_t>(lease.interval_ns)) {
  follower_.begin(this, &policy, &trace, false);
  for (const Lease::Absence& absence : lease.absences) {
    server.engine().at(absence.begin, [this](Time) {
      granted_ = false;
      lock(0);  // the daemon undoes what was set
      look();
    });
    server.engine().at(absence.end, [this](Time) {
      granted_ = true;
      ++grants_;
      look();
    });
  }
}

void ClockDriver::look() {
  wake_at(server_.now() < busy_until_ ? busy_until_ : server_.now() + kWakeNs);
}

void ClockDriver::settle() {
  policy_.rest(now_ns());
  follower_.reset(true);
  if (policy_.learns()) follower_.record_policy();
  follower_.end();
}

// The earlier of this and what was planned.
void ClockDriver::wake_at(Time at) {
  if (timer_ != 0 && wakes_at_ <= at) return;
  server_.engine().cancel_timer(timer_);
  wakes_at_ = at;
  timer_ = server_.engine().at(at, [this](Time) {
    timer_ = 0;
    run();
  });
}

void ClockDriver::run() {
  const uint64_t idle_ns = follower_.follow();
  // What has nothing to do until something happens plans no time: ranks that wait for ever are found out.
  if (idle_ns < ClockPolicy::kFarNs / 2) wake_at(static_cast<Time>(now_ns() + idle_ns));
}

void ClockDriver::lock(uint32_t mhz) {
  if (mhz != 0 && !first_set_) first_set_ = server_.now();
  busy_until_ = server_.engine().set_locked_clocks(gpu_, mhz, mhz, true, server_.now(), [](Time) {});
}

int ClockDriver::set(uint32_t mhz) {
  if (!granted_) return kClockNotNow;
  limit_.asked(mhz, now_ns());
  lock(mhz);
  return 0;
}

int ClockDriver::reset() {
  return granted_ ? set(0) : 0;  // else undone with the lease
}

int ClockDriver::read(ClockPolicy::Reading* reading) {
  *reading = server_.reading(gpu_);
  return 0;
}

}  // namespace powerccl::sim
