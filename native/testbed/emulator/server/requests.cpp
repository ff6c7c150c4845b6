// SPDX-License-Identifier: Apache-2.0
// What clients ask of the server, and what the engine asks it to tell them.
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>

#include "abi/host_clock.h"
#include "emulator/server/server.h"

namespace powerccl::emulator {

void Server::handle(Peer& peer, std::vector<std::byte>& message, int attached) {
  const Header& head = *read_as<Header>(message);
  const auto type = static_cast<Message>(head.type);
  if (type == Message::kAllocate && read_as<Allocate>(message) != nullptr && peer.client != 0) {
    allocate(peer, *read_as<Allocate>(message), attached);
    return;
  }
  if (attached >= 0) close(attached);
  if (type == Message::kHello && read_as<Hello>(message) != nullptr && peer.client == 0) {
    hello(peer, *read_as<Hello>(message));
  } else if (peer.client == 0) {
    end_peer(peer.fd());
  } else if (type == Message::kFree && read_as<Free>(message) != nullptr) {
    free_allocation(peer, *read_as<Free>(message));
  } else if (type == Message::kSetLockedClocks && read_as<SetLockedClocks>(message) != nullptr) {
    lock_clocks(peer, *read_as<SetLockedClocks>(message));
  } else if (type == Message::kStopTime && read_as<StopTime>(message) != nullptr) {
    stop_time(peer, *read_as<StopTime>(message));
  } else if (type == Message::kStartTime && read_as<StartTime>(message) != nullptr) {
    start_time(peer, *read_as<StartTime>(message));
  } else if (type == Message::kStop) {
    status(peer, head.request, 0);
    stop_ = true;
  } else {
    engine_->submit(peer.client, message);
  }
}

void Server::hello(Peer& peer, const Hello& message) {
  Welcome welcome{};
  welcome.header = {static_cast<uint32_t>(Message::kReply), sizeof welcome, static_cast<uint64_t>(host_now_ns()),
                    message.header.request};
  welcome.abi = kAbi;
  welcome.gpus = platform_.gpus;
  peer.role = static_cast<Role>(message.role);
  if (message.abi != kAbi) {
    welcome.error = EPROTO;
    peer.send(bytes_of(welcome));
    return;
  }
  if (peer.role == Role::kCallback) {
    const auto known = clients_.find(message.client);
    if (known == clients_.end()) {
      welcome.error = ESRCH;
      peer.send(bytes_of(welcome));
      return;
    }
    peer.client = welcome.client = message.client;
    known->second.callbacks = peer.fd();
    peer.send(bytes_of(welcome), {dup(board_fd_)});
    for (auto& waiting : known->second.waiting_callbacks) peer.send(std::move(waiting));
    known->second.waiting_callbacks.clear();
    return;
  }
  peer.client = welcome.client = next_client_++;
  if (peer.role == Role::kNvml) {
    peer.send(bytes_of(welcome), {dup(board_fd_)});
    return;
  }
  Client client;
  client.main = peer.fd();
  client.page_fd = memfd_create("powerccl-emulator-client", MFD_CLOEXEC);
  void* mapped = MAP_FAILED;
  if (client.page_fd >= 0 && ftruncate(client.page_fd, sizeof(ClientPage)) == 0)
    mapped = mmap(nullptr, sizeof(ClientPage), PROT_READ | PROT_WRITE, MAP_SHARED, client.page_fd, 0);
  if (mapped == MAP_FAILED) {
    welcome.error = errno;
    if (client.page_fd >= 0) close(client.page_fd);
    peer.send(bytes_of(welcome));
    return;
  }
  client.page = static_cast<ClientPage*>(mapped);
  const int page_fd = client.page_fd;
  engine_->add_client(peer.client, client.page);
  clients_.emplace(peer.client, std::move(client));
  peer.send(bytes_of(welcome), {dup(board_fd_), dup(page_fd)});
}

void Server::allocate(Peer& peer, const Allocate& message, int attached) {
  constexpr int32_t kOutOfMemory = 2;  // CUDA_ERROR_OUT_OF_MEMORY
  constexpr int32_t kInvalidValue = 1;
  const auto owner = clients_.find(peer.client);
  struct stat info{};
  const bool sound = owner != clients_.end() && attached >= 0 && message.gpu < platform_.gpus &&
                     fstat(attached, &info) == 0 && static_cast<uint64_t>(info.st_size) >= message.bytes &&
                     message.bytes > 0;
  if (!sound || (message.on_host == 0 && used_bytes_[message.gpu] + message.bytes > platform_.memory_bytes)) {
    if (attached >= 0) close(attached);
    status(peer, message.header.request, sound ? kOutOfMemory : kInvalidValue);
    return;
  }
  if (message.on_host == 0) used_bytes_[message.gpu] += message.bytes;
  owner->second.allocations[message.allocation] = {attached, message.bytes, message.gpu, message.on_host != 0, {}};
  status(peer, message.header.request, 0);
}

void Server::free_allocation(Peer& peer, const Free& message) {
  const auto client = clients_.find(peer.client);
  if (client != clients_.end()) {
    const auto held = client->second.allocations.find(message.allocation);
    if (held != client->second.allocations.end()) {
      if (!held->second.on_host) used_bytes_[held->second.gpu] -= held->second.bytes;
      close(held->second.fd);
      client->second.allocations.erase(held);
    }
  }
  if (message.header.request != 0) status(peer, message.header.request, 0);
}

void Server::lock_clocks(Peer& peer, const SetLockedClocks& message) {
  const uint64_t request = message.header.request;
  const int fd = peer.fd();
  const ClientId client = peer.client;
  if (message.gpu >= platform_.gpus) {
    status(peer, request, ENODEV);
    return;
  }
  const int32_t inject = message.inject;
  engine_->set_locked_clocks(message.gpu, message.min_mhz, message.max_mhz, inject == 0,
                             static_cast<Time>(message.header.stamp_ns), [this, fd, client, request, inject](Time) {
                               const auto asker = peers_.find(fd);
                               if (asker != peers_.end() && asker->second->client == client)
                                 status(*asker->second, request, inject);
                             });
}

// Immediately, not at its model time: that would come only when time goes on.
void Server::stop_time(Peer& peer, const StopTime& message) {
  const auto patience = static_cast<Time>(std::min(message.patience_ns, kLongestPatienceNs));
  const bool stopped = engine_->stop_time(peer.client, message.stop, patience);
  status(peer, message.header.request, stopped ? 0 : EINVAL);
}

void Server::start_time(Peer& peer, const StartTime& message) {
  const bool stood = engine_->start_time(peer.client, message.stop);
  counted_until_ = host_now_ns();
  status(peer, message.header.request, stood ? 0 : ETIME);
}

void Server::status(Peer& peer, uint64_t request, int32_t error) {
  Status reply{};
  reply.header = {static_cast<uint32_t>(Message::kReply), sizeof reply, static_cast<uint64_t>(host_now_ns()), request};
  reply.error = error;
  peer.send(bytes_of(reply));
}

void Server::reply(ClientId client, uint64_t request, int32_t error, std::span<const std::byte> body) {
  const auto owner = clients_.find(client);
  if (owner == clients_.end() || request == 0) return;
  const auto peer = peers_.find(owner->second.main);
  if (peer == peers_.end()) return;
  body = body.first(std::min(body.size(), kMaxPayloadBytes));
  Status head{};
  head.header = {static_cast<uint32_t>(Message::kReply), static_cast<uint32_t>(sizeof head + body.size()),
                 static_cast<uint64_t>(host_now_ns()), request};
  head.error = error;
  head.payload_bytes = static_cast<uint32_t>(body.size());
  std::vector<std::byte> message = bytes_of(head);
  message.insert(message.end(), body.begin(), body.end());
  peer->second->send(std::move(message));
}

void Server::run_callback(ClientId client, uint64_t callback, uint32_t stream, uint64_t sequence) {
  const auto owner = clients_.find(client);
  if (owner == clients_.end()) return;
  RunCallback order{};
  order.header = {static_cast<uint32_t>(Message::kRunCallback), sizeof order, static_cast<uint64_t>(host_now_ns()), 0};
  order.callback = callback;
  order.stream = stream;
  order.sequence = sequence;
  const auto peer = peers_.find(owner->second.callbacks);
  if (peer == peers_.end())
    owner->second.waiting_callbacks.push_back(bytes_of(order));
  else
    peer->second->send(bytes_of(order));
}

std::shared_ptr<Memory> Server::memory(ClientId client, uint64_t allocation) {
  const auto owner = clients_.find(client);
  if (owner == clients_.end()) return nullptr;
  const auto held = owner->second.allocations.find(allocation);
  if (held == owner->second.allocations.end()) return nullptr;
  Allocation& entry = held->second;
  if (auto mapped = entry.mapped.lock()) return mapped;
  void* data = mmap(nullptr, entry.bytes, PROT_READ | PROT_WRITE, MAP_SHARED, entry.fd, 0);
  if (data == MAP_FAILED) return nullptr;
  auto mapped = std::make_shared<Memory>();
  mapped->data = static_cast<std::byte*>(data);
  mapped->bytes = entry.bytes;
  mapped->gpu = entry.gpu;
  entry.mapped = mapped;
  return mapped;
}

void Server::forget_client(ClientId client) {
  const auto owner = clients_.find(client);
  if (owner == clients_.end()) return;
  engine_->remove_client(client);
  for (auto& [id, allocation] : owner->second.allocations) {
    if (!allocation.on_host) used_bytes_[allocation.gpu] -= allocation.bytes;
    close(allocation.fd);
  }
  munmap(owner->second.page, sizeof(ClientPage));
  close(owner->second.page_fd);
  clients_.erase(owner);
}

void Server::run_in_worker(std::function<void()> job, std::function<void(Time)> done) {
  worker_->add(std::move(job), std::move(done), wake_);
}

}  // namespace powerccl::emulator
