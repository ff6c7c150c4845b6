// SPDX-License-Identifier: Apache-2.0
// Arming and disarming: communicators come and go, and with the first one everything else.
#include <stdio.h>
#include <sys/stat.h>

#include "base/log.h"
#include "libc/calls.h"
#include "record/trace_name.h"
#include "runtime/runtime.h"

namespace powerccl {
namespace {

constexpr uint64_t kSettleNs = 2000000000u;  // a reset takes milliseconds; a GPU that hangs must not hang the job

class MutexGuard {
 public:
  explicit MutexGuard(pthread_mutex_t* mutex) : mutex_(mutex) { pthread_mutex_lock(mutex_); }
  ~MutexGuard() { pthread_mutex_unlock(mutex_); }
  MutexGuard(const MutexGuard&) = delete;
  MutexGuard& operator=(const MutexGuard&) = delete;

 private:
  pthread_mutex_t* mutex_;
};

void record_communicator(Communicator* communicator, const char* name, int nnodes, bool ended) {
  const CommunicatorMade made{
      communicator->id,           communicator->nranks, communicator->rank, nnodes, communicator->gpu->identity.device,
      name != nullptr ? name : ""};
  communicator->gpu->trace.append(communicator_record(communicator->index, made, monotonic_ns(), ended));
}

}  // namespace

void Runtime::arm(const Adapter& adapter) {
  read_environment(&environment_);
  adapter_ = adapter;
  if (environment_.disabled || environment_.run_folder[0] == '\0') {
    state_.store(State::kPassive, std::memory_order_release);
    return;
  }
  if (refusal_) {
    if (environment_.speaks()) refusal_.say_so();
    state_.store(State::kPassive, std::memory_order_release);
    return;
  }
  struct stat folder;
  if (status_of_path(environment_.run_folder, &folder) != 0 || !S_ISDIR(folder.st_mode)) {
    if (environment_.speaks()) {
      say("start the job with `powerccl run`, which creates the folder, or create it on every node",
          "the run folder %s does not exist; nothing is recorded", environment_.run_folder);
    }
    state_.store(State::kPassive, std::memory_order_release);
    return;
  }
  selection_.begin(environment_.kernel_events, adapter_.sees_calls, adapter_.ask_kernel_events, adapter_.context);
  state_.store(State::kArmed, std::memory_order_release);
}

Communicator* Runtime::communicator_up(const CommunicatorSeen& seen, const GpuIdentity& identity,
                                       const Adapter& adapter) {
  // Before the lock: a forked child's lock may be held by a thread that it does not have.
  if (state_.load(std::memory_order_acquire) == State::kPassive) return nullptr;
  MutexGuard guard(&mutex_);
  if (state_.load(std::memory_order_relaxed) == State::kCold) arm(adapter);
  if (!armed()) return nullptr;
  Gpu* gpu = gpu_of(identity, seen);
  if (gpu == nullptr || !gpu->usable) return nullptr;

  Communicator* communicator = nullptr;
  for (uint32_t tried = 0; tried < kCommunicators && communicator == nullptr; ++tried) {
    Communicator& candidate = communicators_[(next_communicator_ + tried) % kCommunicators];
    if (!candidate.alive.load(std::memory_order_relaxed)) communicator = &candidate;
  }
  if (communicator == nullptr) {
    left_out_.fetch_add(1, std::memory_order_relaxed);
    return nullptr;
  }
  communicator->gpu = gpu;
  communicator->index = next_communicator_++;
  communicator->id = seen.id;
  communicator->nranks = seen.nranks;
  communicator->rank = seen.rank;
  communicator->held.store(0, std::memory_order_relaxed);
  communicator->held_group.store(0, std::memory_order_relaxed);
  communicator->alive.store(true, std::memory_order_release);
  ++gpu->communicators;
  record_communicator(communicator, seen.name, seen.nnodes, false);
  return communicator;
}

void Runtime::calls_given_up(Communicator* communicator) {
  if (!armed() || communicator == nullptr) return;
  cancel_callbacks(communicator);
  drop_holds(communicator);
}

Communicator* Runtime::only_communicator(int nranks, int rank, const GpuIdentity& gpu) {
  if (!armed()) return nullptr;
  MutexGuard guard(&mutex_);
  Communicator* only = nullptr;
  for (Communicator& each : communicators_) {
    if (!each.alive.load(std::memory_order_relaxed) || each.nranks != nranks || each.rank != rank) continue;
    if (each.gpu->identity.device != gpu.device) continue;
    if (only != nullptr) return nullptr;
    only = &each;
  }
  return only;
}

void Runtime::communicator_down(Communicator* communicator) {
  if (!armed() || communicator == nullptr) return;
  MutexGuard guard(&mutex_);
  if (!communicator->alive.exchange(false, std::memory_order_acq_rel)) return;
  Gpu* gpu = communicator->gpu;
  Communicator* captured = communicator;
  gpu->captured.compare_exchange_strong(captured, nullptr);
  flush_kernels(communicator, UINT64_MAX);
  cancel_callbacks(communicator);
  drop_holds(communicator);
  record_communicator(communicator, nullptr, 0, true);
  if (--gpu->communicators > 0) return;
  gpu->actuator.settle(kSettleNs);
  if (gpu->clock_policy->learns()) gpu->actuator.record_policy();
  if (gpu->clock.known()) {
    char text[48];
    snprintf(text, sizeof(text), "gpu clock offset_ns %lld",
             static_cast<long long>(gpu->clock.offset_ns(monotonic_ns())));
    gpu->trace.note(text);
  }
  gpu->trace.flush();
  if (environment_.debug >= 1) {
    say(nullptr, "rank %d: last communicator gone; %llu records, %llu dropped, %llu left out, %llu clock switches",
        communicator->rank, static_cast<unsigned long long>(gpu->trace.committed()),
        static_cast<unsigned long long>(gpu->trace.dropped()), static_cast<unsigned long long>(left_out()),
        static_cast<unsigned long long>(gpu->actuator.switches()));
  }
}

Gpu* Runtime::gpu_of(const GpuIdentity& identity, const CommunicatorSeen& seen) {
  const uint32_t count = gpu_count_.load(std::memory_order_relaxed);
  for (uint32_t i = 0; i < count; ++i) {
    if (gpus_[i].identity.device == identity.device && strcmp(gpus_[i].identity.uuid, identity.uuid) == 0) {
      return &gpus_[i];
    }
  }
  if (count == kGpus) {
    left_out_.fetch_add(1, std::memory_order_relaxed);
    return nullptr;
  }
  Gpu* gpu = &gpus_[count];
  gpu->index = count;
  gpu->identity = identity;
  char note[48] = "";
  choose_policy(gpu, note, sizeof(note));
  gpu->usable = open_trace(gpu, seen);
  gpu_count_.store(count + 1, std::memory_order_release);
  if (!gpu->usable) return gpu;
  if (note[0] != '\0') gpu->trace.note(note);
  if (environment_.debug >= 1) {
    say(nullptr, "rank %d armed on %s (%s): policy %s, clocks %s, %s", seen.rank,
        identity.name[0] != '\0' ? identity.name : "an unknown GPU", identity.uuid,
        gpu->managed() ? text_of(environment_.policy) : "observe", text_of(environment_.clocks), adapter_.library);
  }
  return gpu;
}

bool Runtime::open_trace(Gpu* gpu, const CommunicatorSeen& seen) {
  // A launcher's rank is this process's; in a process with several ranks, the communicator gives the rank.
  const bool launched =
      environment_.rank >= 0 && gpu->index == 0 && (environment_.nranks < 0 || seen.nranks <= environment_.nranks);
  powerccl_trace_header header = {};
  header.flags =
      (gpu->dry ? POWERCCL_HEADER_FLAG_DRY : 0u) | (environment_.emulated ? POWERCCL_HEADER_FLAG_EMULATED : 0u);
  header.rank = launched ? environment_.rank : seen.rank;
  header.nranks = launched && environment_.nranks > 0 ? environment_.nranks : seen.nranks;
  header.local_rank = gpu->index == 0 ? environment_.local_rank : -1;
  header.pid = static_cast<uint32_t>(getpid());
  header.start_ns = monotonic_ns();
  header.start_realtime_ns = clock_ns(CLOCK_REALTIME);
  gethostname(header.host, sizeof(header.host) - 1);
  copy_text(header.gpu_uuid, sizeof(header.gpu_uuid), gpu->identity.uuid);
  copy_text(header.gpu_pci, sizeof(header.gpu_pci), gpu->identity.pci);
  copy_text(header.policy, sizeof(header.policy), gpu->managed() ? text_of(environment_.policy) : "observe");
  copy_text(header.clock_client, sizeof(header.clock_client), text_of(environment_.clocks));
  copy_text(header.library, sizeof(header.library), adapter_.library);
  identify(environment_, &header);

  char path[PATH_MAX + 64];
  const int error = open_named_trace(&gpu->trace, environment_.run_folder, "rank", launched, header,
                                     environment_.trace_limit_bytes, path, sizeof(path));
  if (error == 0) return true;
  char reason[64];
  say(trace_hint(error), "cannot create the trace %s (%s); this rank is not recorded", path,
      error_text(error, reason, sizeof(reason)));
  return false;
}

void Runtime::calls_withdrawn() {
  if (!armed()) return;
  const uint32_t count = gpu_count_.load(std::memory_order_acquire);
  for (uint32_t i = 0; i < count; ++i) {
    gpus_[i].withdrawn.store(true, std::memory_order_release);
    gpus_[i].actuator.settle(kSettleNs);
  }
}

void Runtime::shut_down() {
  if (!armed()) return;
  const uint32_t count = gpu_count_.load(std::memory_order_acquire);
  for (uint32_t i = 0; i < count; ++i) {
    gpus_[i].actuator.stop(kSettleNs);
    gpus_[i].trace.flush();
  }
}

void Runtime::withdraw(const Refusal& refusal) {
  if (state_.exchange(State::kPassive, std::memory_order_acq_rel) != State::kArmed) return;
  const uint32_t count = gpu_count_.load(std::memory_order_acquire);
  char text[48];
  refusal.write_note(text, sizeof(text));
  for (uint32_t i = 0; i < count; ++i) {
    gpus_[i].actuator.stop(kSettleNs);
    gpus_[i].trace.end(text);
  }
  if (environment_.speaks()) refusal.say_so();
}

void Runtime::forked_child() {
  // Only this thread is left; whatever another one held is held for ever, so nothing is locked here.
  if (!armed()) return;
  state_.store(State::kPassive, std::memory_order_release);
  const uint32_t count = gpu_count_.load(std::memory_order_acquire);
  for (uint32_t i = 0; i < count; ++i) {
    gpus_[i].trace.close();
    gpus_[i].lease.forget();
  }
}

}  // namespace powerccl
