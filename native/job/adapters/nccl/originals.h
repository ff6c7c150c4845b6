// SPDX-License-Identifier: Apache-2.0
// The function that a call would have reached without us.
//
// A process can have only one NCCL and one CUDA driver, but several CUDA runtimes (libcudart.so.11.0, .12, .13). Each
// of these knows only the kernels that were registered with it. So a caller gets the one that it is linked with.
#pragma once
#include <stdint.h>

#include <atomic>

namespace powerccl::nccl {

enum class Library { kDriver, kRuntime, kNccl };

// One interposed function. Constant-initialised, one a function in static storage.
class Original {
 public:
  constexpr Original(const char* name, Library library) : name_(name), library_(library) {}

  // Null: there is none. `caller`: an address in the code that calls.
  void* find(const void* caller) {
    if (library_ == Library::kRuntime) return find_for(caller);
    void* original = found_.load(std::memory_order_relaxed);
    return original != nullptr ? original : look_up();
  }
  // Finds it ahead of its first call, where it does not depend on who calls.
  void find_ahead() {
    if (library_ != Library::kRuntime) find(nullptr);
  }
  // Objects were unloaded: what was found may be gone.
  void forget() {
    found_.store(nullptr, std::memory_order_relaxed);
    for (Caller& each : callers_) each.end.store(0, std::memory_order_release);
    next_caller_.store(0, std::memory_order_relaxed);
  }

 private:
  static constexpr uint32_t kCallers = 32;
  struct Caller {
    std::atomic<uintptr_t> begin{0}, end{0};
    std::atomic<void*> function{nullptr};
  };

  void* find_for(const void* caller) {
    const uintptr_t at = reinterpret_cast<uintptr_t>(caller);
    for (const Caller& each : callers_) {
      if (at >= each.end.load(std::memory_order_acquire) || at < each.begin.load(std::memory_order_relaxed)) continue;
      return each.function.load(std::memory_order_relaxed);
    }
    return look_up_for(caller);
  }
  void* look_up();
  void* look_up_for(const void* caller);

  const char* name_;
  Library library_;
  std::atomic<void*> found_{nullptr};
  std::atomic<uint32_t> next_caller_{0};
  Caller callers_[kCallers];
};

// The original of the function that this interposes, as an entry in a list of all originals; the linker names the
// list's begin and end. The first communicator looks all of them up ahead of their first calls. A second lookup makes
// libc allocate, and nothing here allocates once the runtime is armed.
#define POWERCCL_ORIGINAL(name, library)    \
  static Original original{#name, library}; \
  __attribute__((section("powerccl_originals"), used)) static Original* const listed = &original

// The same for a function that is not interposed; null if it does not exist.
void* find_original(const char* name, Library library);

}  // namespace powerccl::nccl
