// SPDX-License-Identifier: Apache-2.0
// Which policy a GPU gets: the one asked for, or `observe` with a reason.
#include <stdio.h>
#include <sys/mman.h>

#include <new>

#include "base/log.h"
#include "clock/node_memory.h"
#include "libc/calls.h"
#include "policy/learning_policy.h"
#include "runtime/runtime.h"

namespace powerccl {
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
  learning->begin({environment_.budget_percent / 100, dry, open_node_state(environment_.run_folder)});
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
    snprintf(reason, sizeof(reason), "this is a MIG slice, which shares the clock of chosen GPU with other slices");
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

}  // namespace powerccl
