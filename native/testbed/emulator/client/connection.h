// SPDX-License-Identifier: Apache-2.0
// A process's connection to the emulated GPU server: requests, submissions, and the shared pages.
#pragma once
#include <atomic>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <unordered_map>
#include <vector>

#include "emulator/messages.h"

namespace powerccl::emulator {

uint64_t monotonic_ns();

// What this thread sends bears `stamp_ns` instead of the time; 0: the time again.
void stamp_as_of(uint64_t stamp_ns);

struct Reply {
  int32_t error = 0;
  std::vector<std::byte> payload;
};

class Connection {
 public:
  // To the server named by POWERCCL_EMULATOR_SOCKET. Null on failure, said once on stderr (with `library` as its
  // source).
  static std::unique_ptr<Connection> open(Role role, const char* library, uint32_t client = 0);
  ~Connection();
  Connection(const Connection&) = delete;
  Connection& operator=(const Connection&) = delete;

  uint32_t client() const { return client_; }
  const BoardPage& board() const { return *board_; }
  ClientPage* page() const { return page_; }  // kCuda only
  int pid() const { return pid_; }

  // It has been noticed that the server is gone.
  bool lost() const { return lost_.load(); }
  // False: the server is gone. Looks at the socket, so it costs a system call.
  bool alive();
  // One-way; `header` leads `bytes` of message, `payload` follows. Fills in the header. False: the server is gone.
  bool post(Header* header, size_t bytes, const void* payload = nullptr, size_t payload_bytes = 0);
  // Waits for the answer, while other threads' requests go on. False: the server is gone.
  bool request(Header* header, size_t bytes, Reply& reply, const void* payload = nullptr, size_t payload_bytes = 0,
               int descriptor = -1);
  // The next message of a kCallback connection. False: the server is gone, or shut_down() was called.
  bool receive(void* message, size_t bytes);
  void shut_down();

  // Sleeps until the stream is through with `sequence`. False: the server is gone.
  bool wait_stream(uint32_t stream, uint64_t sequence);
  // Sleeps until the operation's slot is at least in `state` or `deadline_ns` (CLOCK_MONOTONIC) is over. False: server
  // gone.
  bool wait_op(uint32_t slot, uint64_t generation, uint32_t state, uint64_t deadline_ns);

 private:
  Connection(int fd, const char* library) : fd_(fd), library_(library) {}
  bool handshake(Role role, uint32_t client);
  bool send(Header* header, size_t bytes, const void* payload, size_t payload_bytes, int descriptor);
  void lose();

  int fd_;
  const char* library_;
  int pid_ = 0;
  uint32_t client_ = 0;
  BoardPage* board_ = nullptr;
  ClientPage* page_ = nullptr;
  std::atomic<bool> lost_{false};

  std::mutex send_mutex_, reply_mutex_;
  std::condition_variable reply_ready_;
  bool reading_ = false;  // one of the waiting threads reads for all
  uint64_t next_request_ = 1;
  std::unordered_map<uint64_t, Reply> replies_;  // arrived, not yet taken
};

}  // namespace powerccl::emulator
