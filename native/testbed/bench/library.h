// SPDX-License-Identifier: Apache-2.0
// A shared library loaded at run time. Handles are closed only where that is asked for: drivers do not survive it.
#pragma once
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <string>
#include <type_traits>
#include <vector>

#include "bench/values.h"

namespace powerccl::bench {

// A function found in a library, of whatever type it is assigned to.
struct Symbol {
  void* address;
  template <typename Function>
  operator Function*() const {  // NOLINT(google-explicit-constructor)
    return reinterpret_cast<Function*>(address);
  }
};

class Library {
 public:
  // Tries each name in turn. `hint` says how to get the library when none loads (Failure kExitMissing). `alone`: only
  // its own symbols count; else a preloaded library's come first, as for a linked program.
  static Library open(const std::vector<std::string>& names, const std::string& hint, bool alone = false);

  void* handle() const { return handle_; }
  // True if the library has left the process; some never do. Either way it must not be called any more.
  bool close();
  Symbol required(const char* symbol) const;  // Failure kExitMissing where there is none
  Symbol optional(const char* symbol) const;  // null where there is none
  // The file that this library was loaded from; its name where that is not known. `symbol`: one of its own.
  std::string path(const char* symbol) const;

 private:
  void* handle_ = nullptr;
  bool alone_ = false;
  std::string name_;
};

// Asks a library that this process must not load itself, since it is going to fork. Runs `ask` in a child process and
// returns what it returned, or throws the Failure it threw. `died`: what to say, with a hint, if neither comes back.
// Answers are copied byte by byte.
template <typename Ask>
auto in_child(Ask ask, const char* died, const char* hint) {
  using Answer = decltype(ask());
  static_assert(std::is_trivially_copyable_v<Answer>);
  struct Message {
    Answer answer;
    int code;
    char what[600];
    char hint[300];
  };
  int ends[2];
  if (pipe(ends) != 0) throw Failure(kExitMissing, std::string("pipe: ") + std::strerror(errno));
  const pid_t child = fork();
  if (child < 0) throw Failure(kExitMissing, std::string("fork: ") + std::strerror(errno));
  if (child == 0) {
    ::close(ends[0]);
    Message message{};
    try {
      message.answer = ask();
    } catch (const Failure& failure) {
      message.code = failure.code();
      std::strncpy(message.what, failure.what(), sizeof message.what - 1);
      std::strncpy(message.hint, failure.hint().c_str(), sizeof message.hint - 1);
    }
    _exit(write(ends[1], &message, sizeof message) == sizeof message ? 0 : 1);
  }
  ::close(ends[1]);
  Message message{};
  size_t has = 0;
  while (has < sizeof message) {
    const ssize_t got = read(ends[0], reinterpret_cast<char*>(&message) + has, sizeof message - has);
    if (got < 0 && errno == EINTR) continue;
    if (got <= 0) break;
    has += static_cast<size_t>(got);
  }
  ::close(ends[0]);
  while (waitpid(child, nullptr, 0) < 0 && errno == EINTR) {
  }
  if (has != sizeof message) throw Failure(kExitMissing, died, hint);
  if (message.code != 0) throw Failure(message.code, message.what, message.hint);
  return message.answer;
}

}  // namespace powerccl::bench
