// SPDX-License-Identifier: Apache-2.0
// Arming and disarming: communicators come and go, and with the first one everything else.
#include <stdio.h>
#include <sys/mman.h>
#include <sys/stat.h>

#include <new>

#include "base/log.h"
#include "clock/node_memory.h"
#include "libc/calls.h"
#include "policy/learning_policy.h"
#include "record/trace_writer.h"
#include "runtime/runtime.h"

namespace powerccl {

// Which policy a GPU gets: the one asked for, or `observe` with a reason.
namespace {

// Mapped rather than part of the Gpu: half a megabyte that only this policy needs. Null: there is no memory.
LearningPolicy* new_learning_policy() {
  void* memory = mmap(nullptr, sizeof(LearningPolicy), PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  return memory != MAP_FAILED ? new (memory) LearningPolicy() : nullptr;
}

}  // namespace

ClockClient* Runtime::open_clock(Gpu* gpu, char* reason, size_t reason_size, const char** hint) {
  if (environment_.clocks == ClockClientName::kDry) {
    ClockClient* reader = nullptr;
    // A policy that learns goes by where the clock is without it.
    if (adapter_.open_reader != nullptr && environment_.policy == PolicyName::kAuto) {
      reader = adapter_.open_reader(adapter_.context, gpu->identity);
    }
    return reader != nullptr ? reader : &gpu->dry_client;
  }
  LeaseTerms terms;
  terms.socket_path = environment_.lease_socket;
  terms.run = file_name(environment_.run_folder);
  terms.device = gpu->identity.id();
  terms.speaks = environment_.speaks() && gpu->index == 0;
  terms.debug = environment_.debug >= 1;
  char text[256] = "";
  const int code = gpu->lease.open(terms, text, sizeof(text), hint);
  if (code == 0) return &gpu->lease;
  snprintf(reason, reason_size, "cannot set the clock of the GPU (code %d: %s)", code, text);
  return nullptr;
}

ClockPolicy* Runtime::make_policy(Gpu* gpu, bool dry) {
  if (environment_.policy == PolicyName::kPerCall) return gpu->per_call.policy();
  LearningPolicy* learning = new_learning_policy();
  if (learning == nullptr) return nullptr;
  learning->begin({environment_.budget_percent / 100, dry, open_node_state(environment_.record_folder)});
  return learning;
}

void Runtime::choose_policy(Gpu* gpu, char* note, size_t note_size) {
  if (environment_.policy == PolicyName::kObserve) return;
  const char* policy = text_of(environment_.policy);
  const bool per_call = environment_.policy == PolicyName::kPerCall;
  const char* path = environment_.policy_table;
  char reason[400] = "";
  const char* hint = "";
  const char* short_reason;
  PolicyTable::Refusal refusal;
  ClockClient* client = nullptr;
  ClockPolicy* chosen = nullptr;
  if (environment_.clocks == ClockClientName::kNone) {
    short_reason = "POWERCCL_CLOCKS=none";
    snprintf(reason, sizeof(reason), "POWERCCL_CLOCKS=none does not allow it to change clocks");
    hint = "use POWERCCL_CLOCKS=dry, or `powerccl run --set-clocks`";
  } else if (strncmp(gpu->identity.uuid, "MIG-", 4) == 0) {
    short_reason = "a MIG slice has no clock";
    snprintf(reason, sizeof(reason), "this is a MIG slice, which shares its GPU's clock with other slices");
    hint = "only whole GPUs have clocks; root can join the slices with `nvidia-smi -mig 0`";
  } else if (per_call && adapter_.sees_calls ? adapter_.call_behind == nullptr
                                             : environment_.kernel_events == KernelEvents::kNone) {
    short_reason = "cannot know when a call has run";
    snprintf(reason, sizeof(reason), "nothing reports when a call has run (%s)",
             environment_.kernel_events != KernelEvents::kNone ? "libcuda.so.1 has no cuLaunchHostFunc"
                                                               : "POWERCCL_KERNEL_EVENTS is none");
    hint = environment_.kernel_events != KernelEvents::kNone ? "run `powerccl doctor`" : "unset POWERCCL_KERNEL_EVENTS";
  } else if (per_call && path[0] == '\0') {
    short_reason = "no policy table";
    snprintf(reason, sizeof(reason), "there is no policy table");
    hint = "`powerccl run --platform NAME`, or `powerccl profile` to measure this machine";
  } else if (per_call && !gpu->table.load(path, &refusal)) {
    short_reason = "policy table refused";
    if (refusal.line > 0) {
      snprintf(reason, sizeof(reason), "policy table %.200s, line %d: %s", path, refusal.line, refusal.reason);
    } else {
      snprintf(reason, sizeof(reason), "policy table %.200s: %s", path, refusal.reason);
    }
    hint = "make it again with `powerccl profile --table`";
  } else if (per_call && strcmp(gpu->table.gpu(), gpu->identity.name) != 0) {
    short_reason = "policy table is for another GPU";
    snprintf(reason, sizeof(reason), "policy table %.200s is for `%s`, this GPU is `%s`", path, gpu->table.gpu(),
             gpu->identity.name[0] != '\0' ? gpu->identity.name : "unknown");
    hint = "choose this machine's platform profile, or make one with `powerccl profile`";
  } else if (client = open_clock(gpu, reason, sizeof(reason), &hint); client == nullptr) {
    short_reason = "clock cannot be set";
  } else if (chosen = make_policy(gpu, client->dry()); chosen == nullptr) {
    short_reason = "no memory";
    snprintf(reason, sizeof(reason), "not enough memory for the policy");
    hint = "raise the limit on address space (ulimit -v)";
  } else if (!gpu->actuator.start(client, chosen, &gpu->trace, environment_.debug >= 2)) {
    short_reason = "no clock thread";
    snprintf(reason, sizeof(reason), "cannot start the policy's clock thread");
    hint = "raise the limit on processes (ulimit -u)";
  } else {
    gpu->clock_policy = chosen;
    gpu->dry = client->dry();
    if (gpu->dry && environment_.speaks() && gpu->index == 0) {
      const bool leased = environment_.clocks == ClockClientName::kLease;
      say(leased ? "the administrator has set powerccld to run dry" : "use `powerccl run --set-clocks` to set clocks",
          "policy %s runs dry: it decides and records clocks, but sets none", policy);
    }
    return;
  }
  snprintf(note, note_size, "observe, not %s: %s", policy, short_reason);
  if (environment_.speaks() && gpu->index == 0) say(hint, "policy %s becomes observe: %s", policy, reason);
}

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
  if (status_of_path(environment_.record_folder, &folder) != 0 || !S_ISDIR(folder.st_mode)) {
    if (environment_.speaks()) {
      say("start the job with `powerccl run`, which creates the folder, or create it on every node",
          "the run folder %s does not exist; nothing is recorded", environment_.record_folder);
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
  const int error = open_named_trace(&gpu->trace, environment_.record_folder, "rank", launched, header,
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
