// SPDX-License-Identifier: Apache-2.0
#include "client.h"

#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "client_send.h"
#include "machine.h"

namespace powerccl::leases {

Client::Client(Shared* shared, uint32_t number, uint64_t seed)
    : shared_(shared), slot_(&shared->client[number]), random_(seed), wanted_(random_.between(1, 4)) {}

void Client::run() {
  while (shared_->phase.load() == Phase::kActing) {
    if (slot_->events.load() + 64 > kMostEvents) break;  // the log is nearly full
    if (socket_ < 0 && !connect()) {
      sleep_us(500);
      continue;
    }
    act();
    if (random_.chance(50)) take_answers();
    take(0);
    if (random_.chance(20)) sleep_us(random_.between(100, 3000));
  }
  settle();
}

void Client::act() {
  const int held = holding();
  if (held == 0 && random_.chance(60)) return acquire();
  const uint32_t choice = random_.between(0, 99);
  if (choice < 15) return held < static_cast<int>(wanted_) ? acquire() : set(any_held());
  if (choice < 55) return held > 0 ? set(any_held()) : acquire();
  if (choice < 60) return held > 0 ? ask(POWERCCL_LEASE_READ, any_held()) : ask(POWERCCL_LEASE_HEARTBEAT, 0);
  if (choice < 70) return held > 0 ? release(any_held()) : acquire();
  if (choice < 74) return ask(POWERCCL_LEASE_HEARTBEAT, 0);
  if (choice < 76) return ask(random_.chance(70) ? POWERCCL_LEASE_STATUS : POWERCCL_LEASE_METRICS, 0);
  if (choice < 80) return meddle();
  if (choice < 86) return repeat();
  if (choice < 88) return babble();
  if (choice < 91) return bequeathed_ ? end(false) : disconnect();  // an heir would keep the connection open
  if (choice < 93) return bequeath();
  if (choice < 94) return revoke();
  if (choice < 95 && random_.chance(50)) return end(random_.chance(30));
  sleep_us(random_.between(500, 5000));
}

void Client::acquire() {
  const auto gpu = static_cast<uint16_t>(random_.between(0, shared_->gpus - 1));
  auto message = make_message<powerccl_lease_acquire>(POWERCCL_LEASE_ACQUIRE, 0);
  std::memcpy(message.device, shared_->uuid[gpu], sizeof message.device);
  if (random_.chance(60)) message.flags = POWERCCL_LEASE_SHARED;
  log(What::kAsking, gpu);
  send(message, gpu);
}

void Client::set(uint16_t gpu) {
  auto message = make_message<powerccl_lease_set>(POWERCCL_LEASE_SET, 0);
  message.lease = slot_->held[gpu].lease.load();
  const uint32_t kind = random_.between(0, 9);
  if (kind < 6) {  // one clock, as a policy asks
    message.min_mhz = message.max_mhz = random_.between(shared_->lowest_mhz, shared_->highest_mhz);
  } else if (kind < 8) {  // whatever, also outside the range, also the wrong way round
    message.min_mhz = random_.between(0, 3000);
    message.max_mhz = random_.between(0, 3000);
  } else if (kind < 9) {
    message.min_mhz = random_.chance(50) ? 1 : UINT32_MAX;
    message.max_mhz = UINT32_MAX;
  }
  send(message, gpu);
}

void Client::ask(uint16_t type, uint16_t gpu) {
  if (type != POWERCCL_LEASE_READ) return send(make_message<powerccl_lease_header>(type, 0), gpu);
  auto message = make_message<powerccl_lease_set>(type, 0);
  message.lease = slot_->held[gpu].lease.load();
  send(message, gpu);
}

void Client::release(uint16_t gpu) {
  auto message = make_message<powerccl_lease_set>(POWERCCL_LEASE_RELEASE, 0);
  message.lease = slot_->held[gpu].lease.load();
  log(What::kLeaving, gpu);
  slot_->held[gpu].lease.store(0);
  given_up_[gpu] = message.lease;
  send(message, gpu);
}

// Uses the number of somebody else's lease, or one that nobody has.
void Client::meddle() {
  const ClientSlot& other = shared_->client[random_.between(0, kMostClients - 1)];
  const auto gpu = static_cast<uint16_t>(random_.between(0, shared_->gpus - 1));
  const uint16_t types[] = {POWERCCL_LEASE_SET, POWERCCL_LEASE_RELEASE, POWERCCL_LEASE_READ};
  auto message = make_message<powerccl_lease_set>(types[random_.between(0, 2)], 0);
  message.lease = &other == slot_ ? random_.next() : other.held[gpu].lease.load();
  if (random_.chance(50)) message.min_mhz = message.max_mhz = random_.between(1, 2000);
  send(message, gpu, true);
}

// The last message again, as somebody would who recorded it: its serial is used up.
void Client::repeat() {
  if (!last_.empty() && asked_.empty()) send_bytes(last_.data(), last_.size());
}

void Client::babble() {
  char bytes[400];
  for (char& byte : bytes) byte = static_cast<char>(random_.next());
  size_t length = random_.between(1, sizeof bytes);
  if (random_.chance(70) && holding() > 0) {  // nearly right
    auto message = make_message<powerccl_lease_set>(POWERCCL_LEASE_SET, ++serial_);
    message.lease = slot_->held[any_held()].lease.load();
    message.min_mhz = message.max_mhz = shared_->lowest_mhz + 15;
    switch (random_.between(0, 4)) {
      case 0:
        message.header.magic ^= 1u << random_.between(0, 31);
        break;
      case 1:
        message.header.version = 2;
        break;
      case 2:
        message.header.size += 1;
        break;
      case 3:
        message.header.type = static_cast<uint16_t>(random_.between(12, 65535));
        break;
      default:
        message.header.serial = 0;
    }
    std::memcpy(bytes, &message, sizeof message);
    length = sizeof message;
  }
  for (uint16_t gpu = 0; gpu < shared_->gpus; ++gpu)
    if (slot_->held[gpu].lease.load() != 0) log(What::kLeaving, gpu);
  doomed_ = true;
  send_bytes(bytes, length);
  // The daemon has to end the connection; an answer that never comes would be a fault.
  Patience patience(kAnswerPatienceMs);
  while (socket_ >= 0 && !patience.over()) {
    const int64_t begin_ns = now_ns();
    take(20);
    patience.spend(20'000, (now_ns() - begin_ns) / 1000);
  }
  if (socket_ >= 0) fault("sent %zu bytes of nonsense, and the connection stays", length);
  disconnect();
}

void Client::revoke() {
  const bool all = random_.chance(10), restore = random_.chance(30);
  const auto gpu = static_cast<uint16_t>(random_.between(0, shared_->gpus - 1));
  auto message = make_message<powerccl_lease_acquire>(restore ? POWERCCL_LEASE_RESTORE : POWERCCL_LEASE_REVOKE, 0);
  if (!all) std::memcpy(message.device, shared_->uuid[gpu], sizeof message.device);
  log(What::kRevoking, all ? kAllGpus : gpu, static_cast<int32_t>(serial_ + 1));
  send(message, all ? kAllGpus : gpu);
}

// Leaves the socket to a child that outlives this process and speaks on it: none of that may count.
void Client::bequeath() {
  if (bequeathed_ || holding() == 0) return;
  bequeathed_ = true;
  const pid_t heir = fork();
  if (heir < 0) return;
  if (heir > 0) {
    slot_->heir_pid.store(heir);
    return;
  }
  // Nothing is taken in or logged here: answers and the log are the parent's. Not for ever, should the schedule be
  // killed.
  const int64_t give_up_ns = now_ns() + 20'000'000'000;
  for (uint64_t serial = serial_ + 1000; shared_->phase.load() != Phase::kOver && now_ns() < give_up_ns; ++serial) {
    auto message = make_message<powerccl_lease_set>(POWERCCL_LEASE_SET, serial);
    message.lease = slot_->held[random_.between(0, shared_->gpus - 1)].lease.load();
    message.min_mhz = message.max_mhz = 333;
    const auto beat = make_message<powerccl_lease_header>(POWERCCL_LEASE_HEARTBEAT, serial);
    const bool set = random_.chance(50);
    if (::send(socket_, set ? static_cast<const void*>(&message) : &beat, set ? sizeof message : sizeof beat,
               MSG_NOSIGNAL | MSG_DONTWAIT) < 0 &&
        errno == EPIPE)
      break;
    sleep_us(3000);
  }
  _exit(0);
}

void Client::settle() {
  take_answers();
  slot_->settled.store(true);
  int64_t spoken_ns = 0;
  while (shared_->phase.load() != Phase::kOver) {
    if (socket_ < 0) {
      sleep_us(2000);
      continue;
    }
    if (holding() > 0 && now_ns() - spoken_ns > int64_t{shared_->heartbeat_ms} * 200'000) {
      spoken_ns = now_ns();
      ask(POWERCCL_LEASE_HEARTBEAT, 0);
    }
    take(2);
  }
  end(random_.chance(50));
}

void Client::end(bool release_first) {
  for (uint16_t gpu = 0; gpu < shared_->gpus; ++gpu) {
    if (slot_->held[gpu].lease.load() == 0) continue;
    if (release_first)
      release(gpu);
    else
      log(What::kLeaving, gpu);
  }
  doomed_ = true;
  if (release_first) take_answers();
  slot_->ended.store(true);
  _exit(0);
}

int Client::holding() const {
  int count = 0;
  for (uint32_t gpu = 0; gpu < shared_->gpus; ++gpu) count += slot_->held[gpu].lease.load() != 0 ? 1 : 0;
  return count;
}

uint16_t Client::any_held() {
  uint32_t skip = random_.between(0, static_cast<uint32_t>(std::max(holding(), 1)) - 1);
  for (uint16_t gpu = 0; gpu < shared_->gpus; ++gpu)
    if (slot_->held[gpu].lease.load() != 0 && skip-- == 0) return gpu;
  return 0;
}

}  // namespace powerccl::leases
