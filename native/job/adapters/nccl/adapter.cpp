// SPDX-License-Identifier: Apache-2.0
#include "adapters/nccl/adapter.h"

#include <sys/syscall.h>
#include <unistd.h>

#include <new>

#include "adapters/filters.h"
#include "adapters/nccl/live.h"
#include "libc/fork.h"

namespace powerccl::nccl {
namespace {

// Constructed with the first communicator, so that a process that loads the library and never communicates pays
// nothing. Never destroyed, because NCCL's threads may outlive everything.
alignas(Runtime) unsigned char g_storage[sizeof(Runtime)];
std::atomic<int> g_plugin_version{0};
std::atomic<bool> g_api_came{false};
Refusal g_refusal;    // by a filter that came before the runtime
pid_t g_process = 0;  // that the runtime is in

// What threads of ours and the job's threads in our code call with a policy that sets clocks.
constexpr OwnCall kClockCalls[] = {
    {"socket", SYS_socket, {}},     {"connect", SYS_connect, {}}, {"sendmsg", SYS_sendmsg, {}},
    {"recvfrom", SYS_recvfrom, {}}, {"ppoll", SYS_ppoll, {}},     {"openat", SYS_openat, {}},
    {"ioctl", SYS_ioctl, {}},       {"close", SYS_close, {}},
};

void forked_child() {
  if (Runtime* active = runtime()) active->forked_child();
}

__attribute__((destructor)) void library_ends() {
  if (Runtime* active = runtime()) active->shut_down();
}

}  // namespace

constinit std::atomic<Runtime*> g_runtime{nullptr};
constinit Cuda g_cuda;
constinit pthread_mutex_t g_mutex = PTHREAD_MUTEX_INITIALIZER;

Runtime* open_runtime() {
  Runtime* active = g_runtime.load(std::memory_order_acquire);
  if (active != nullptr) return active;
  active = new (g_storage) Runtime();
  g_cuda = find_cuda();
  call_in_forked_child(forked_child);
  g_process = getpid();
  active->refuse(g_refusal);
  g_runtime.store(active, std::memory_order_release);
  return active;
}

bool plugin_came() {
  return plugin_version() != 0;
}
void set_plugin_came(int version) {
  g_plugin_version.store(version, std::memory_order_release);
}
int plugin_version() {
  return g_plugin_version.load(std::memory_order_acquire);
}
bool api_came() {
  return g_api_came.load(std::memory_order_acquire);
}
void set_api_came() {
  g_api_came.store(true, std::memory_order_release);
}

int call_behind(void*, void* stream, void (*callback)(void*), void* data) {
  return g_cuda.launch_host_func(stream, callback, data);
}

}  // namespace powerccl::nccl

void powerccl::filters::filter_comes(const SeccompFilter& filter) {
  using namespace powerccl::nccl;
  Runtime* active = runtime();
  Refusal refusal{filter.refuses(kRecordingCalls), true};
  if (!refusal && (active == nullptr || active->changes_clocks())) refusal.call = filter.refuses(kClockCalls);
  if (!refusal && active == nullptr) refusal.call = filter.refuses(kBeginningCalls);
  if (!refusal) return;
  if (active == nullptr) {
    g_refusal = {refusal.call, filter.allows_saying()};
    g_refusal.leave_word();
  } else if (getpid() == g_process) {  // else a child after vfork(), whose filter is not its parent's
    live().stop();
    active->withdraw(refusal);
  }
}
