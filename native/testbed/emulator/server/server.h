// SPDX-License-Identifier: Apache-2.0
// The emulated GPU server: sockets, shared pages and real time around the engine.
#pragma once
#include <deque>
#include <functional>
#include <memory>
#include <string>
#include <unordered_map>
#include <vector>

#include "emulator/messages.h"
#include "emulator/server/peer.h"
#include "emulator/server/worker.h"
#include "physics/engine.h"
#include "physics/platform.h"

namespace powerccl::emulator {

struct Lateness {
  Time up;           // since the server started
  Time events_late;  // in which something was overdue by more than a millisecond
  Time data_late;    // in which collectives waited for their data alone
};

class Server final : public Outside {
 public:
  // Listens on `socket_path`. On failure `error` says why and run() must not be called.
  Server(const Platform& platform, std::string socket_path, std::string& error);
  ~Server() override;
  Server(const Server&) = delete;
  Server& operator=(const Server&) = delete;

  Engine& engine() { return *engine_; }
  // How well this machine kept up with the platform so far.
  Lateness lateness() const;
  // Until a kStop request, the end of stdin (the launcher's death), or SIGTERM, SIGINT and SIGHUP where the launcher
  // has not blocked them (abi/helper.h). Returns the exit code.
  int run();

  void reply(ClientId client, uint64_t request, int32_t error, std::span<const std::byte> body) override;
  void run_callback(ClientId client, uint64_t callback, uint32_t stream, uint64_t sequence) override;
  std::shared_ptr<Memory> memory(ClientId client, uint64_t allocation) override;
  void run_in_worker(std::function<void()> job, std::function<void(Time)> done) override;

 private:
  struct Allocation {
    int fd = -1;
    uint64_t bytes = 0;
    uint32_t gpu = 0;
    bool on_host = false;
    std::weak_ptr<Memory> mapped;
  };
  struct Client {
    int main = -1;  // the socket of its peer
    int callbacks = -1;
    int page_fd = -1;
    ClientPage* page = nullptr;
    std::deque<std::vector<std::byte>> waiting_callbacks;
    std::unordered_map<uint64_t, Allocation> allocations;
  };

  bool listen_on(const std::string& path, std::string& error);
  bool make_board(std::string& error);
  void accept_all();
  void receive(int fd);
  void handle(Peer& peer, std::vector<std::byte>& message, int attached);
  void hello(Peer& peer, const Hello& message);
  void allocate(Peer& peer, const Allocate& message, int attached);
  void free_allocation(Peer& peer, const Free& message);
  void stop_time(Peer& peer, const StopTime& message);
  void start_time(Peer& peer, const StartTime& message);
  void lock_clocks(Peer& peer, const SetLockedClocks& message);
  void status(Peer& peer, uint64_t request, int32_t error);
  void end_peer(int fd);
  void forget_client(ClientId client);
  bool wait();  // until something may be due; false: the server is to end

  const Platform& platform_;
  std::string path_;
  std::unique_ptr<Engine> engine_;
  BoardPage* board_ = nullptr;
  int board_fd_ = -1, listener_ = -1, epoll_ = -1, timer_ = -1, signals_ = -1, wake_ = -1;
  bool stop_ = false;
  Time started_ = 0, counted_until_ = 0, events_late_ = 0;
  ClientId next_client_ = 1;
  std::unordered_map<int, std::unique_ptr<Peer>> peers_;  // by their sockets
  std::unordered_map<ClientId, Client> clients_;
  std::vector<uint64_t> used_bytes_;  // per GPU
  std::vector<std::byte> buffer_ = std::vector<std::byte>(kMaxMessageBytes);
  std::unique_ptr<Worker> worker_ = std::make_unique<Worker>();
};

}  // namespace powerccl::emulator
