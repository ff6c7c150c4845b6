// SPDX-License-Identifier: Apache-2.0
// The emulated GPU server: sockets, shared pages and real time around the engine.
#pragma once
#include <condition_variable>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <thread>
#include <unordered_map>
#include <utility>
#include <vector>

#include "emulator/messages.h"
#include "physics/engine.h"
#include "physics/interfaces.h"
#include "physics/platform.h"

namespace powerccl::emulator {

// A thread for what would keep the server from its clients, as moving a collective's data does.
class Worker {
 public:
  using Done = std::function<void(Time)>;

  Worker() = default;
  ~Worker();  // behind the job that it is at
  Worker(const Worker&) = delete;
  Worker& operator=(const Worker&) = delete;

  // Starts the thread with the first job. `wake` is an eventfd that is written when a job has ended.
  void add(std::function<void()> job, Done done, int wake);
  // What is to be called for jobs that have ended since the last time, and when they did.
  std::vector<std::pair<Done, Time>> take_ended();

 private:
  void work(int wake);

  std::thread thread_;
  std::mutex mutex_;
  std::condition_variable ready_;
  bool stops_ = false;
  std::deque<std::pair<std::function<void()>, Done>> jobs_;
  std::vector<std::pair<Done, Time>> ended_;
};

// One connection of a client: messages and descriptors both ways, never waiting.
template <typename T>
std::vector<std::byte> bytes_of(const T& value) {
  const auto* data = reinterpret_cast<const std::byte*>(&value);
  return {data, data + sizeof(T)};
}

// Null: it is too short for that.
template <typename T>
const T* read_as(const std::vector<std::byte>& message) {
  return message.size() >= sizeof(T) ? reinterpret_cast<const T*>(message.data()) : nullptr;
}

class Peer {
 public:
  // Owns the socket, which `epoll` watches.
  Peer(int fd, int epoll) : fd_(fd), epoll_(epoll) {}
  ~Peer();
  Peer(const Peer&) = delete;
  Peer& operator=(const Peer&) = delete;

  enum class Got { kMessage, kNothing, kEnd };
  // The next message, read through `buffer` of kMaxMessageBytes, and the first descriptor that came with it, the
  // caller's own; -1: none. Whatever is no message of ours counts as the peer's end.
  Got receive(std::span<std::byte> buffer, std::vector<std::byte>* message, int* attached);
  // Sends immediately, or when the socket has room again. The descriptors are closed once they are sent.
  void send(std::vector<std::byte> message, std::vector<int> descriptors = {});
  void flush();

  int fd() const { return fd_; }
  Role role = Role::kCuda;
  ClientId client = 0;  // 0: has not said hello

 private:
  int fd_, epoll_;
  std::deque<std::pair<std::vector<std::byte>, std::vector<int>>> unsent_;
};

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
    int callbacks = -1, page_fd = -1;
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
