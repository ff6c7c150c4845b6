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

// Constructed when the first communicator comes, so that a process that loads the library and never communicates pays
// nothing; never destroyed, because NCCL's threads may outlive everything.
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
  if (Runtime* its = runtime()) its->forked_child();
}

__attribute__((destructor)) void library_ends() {
  if (Runtime* its = runtime()) its->shut_down();
}

}  // namespace

constinit std::atomic<Runtime*> g_runtime{nullptr};
constinit Cuda g_cuda;
constinit pthread_mutex_t g_mutex = PTHREAD_MUTEX_INITIALIZER;

Runtime* open_runtime() {
  Runtime* its = g_runtime.load(std::memory_order_acquire);
  if (its != nullptr) return its;
  its = new (g_storage) Runtime();
  g_cuda = find_cuda();
  call_in_forked_child(forked_child);
  g_process = getpid();
  its->refuse(g_refusal);
  g_runtime.store(its, std::memory_order_release);
  return its;
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
  Runtime* its = runtime();
  Refusal refusal{filter.refuses(kRecordingCalls), true};
  if (!refusal && (its == nullptr || its->changes_clocks())) refusal.call = filter.refuses(kClockCalls);
  if (!refusal && its == nullptr) refusal.call = filter.refuses(kBeginningCalls);
  if (!refusal) return;
  if (its == nullptr) {
    g_refusal = {refusal.call, filter.allows_saying()};
    g_refusal.leave_word();
  } else if (getpid() == g_process) {  // else a child after vfork(), whose filter is not its parent's
    live().stop();
    its->withdraw(refusal);
  }
}
