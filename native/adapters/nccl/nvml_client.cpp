// SPDX-License-Identifier: Apache-2.0
#include "adapters/nccl/nvml_client.h"

#include <atomic>

#include "device/clock_journal.h"
#include "device/error.h"
#include "device/nvml_clock.h"

namespace powerccl::nccl {
namespace {

struct NvmlClient {
  device::ClockDevice device;
  device::Journal journal;
  device::JournalClaim claim;
  device::Error error;
};

NvmlClient g_clients[Runtime::kGpus];
std::atomic<uint32_t> g_count{0};

int set(void* self, uint32_t min_mhz, uint32_t max_mhz) {
  NvmlClient* client = static_cast<NvmlClient*>(self);
  const bool marked = client->claim.slot.state != POWERCCL_CLOCK_DEFAULT;
  int code = device::journal_mark(&client->claim, &client->error);
  if (code != 0) return code;  // nobody could undo it
  code = device::clock_lock(&client->device, min_mhz, max_mhz, &client->error);
  // A mark for a lock that never came about would have the agent try to undo what this user may not undo either.
  if (!marked && device::clock_refused(code)) device::journal_clear(&client->claim, nullptr);
  return code;
}

int reset(void* self) {
  NvmlClient* client = static_cast<NvmlClient*>(self);
  const int code = device::clock_reset(&client->device, &client->error);
  if (code == 0) device::journal_clear(&client->claim, nullptr);
  return code;
}

int read(void* self, uint32_t* mhz) {
  return device::clock_read_sm_mhz(&static_cast<NvmlClient*>(self)->device, mhz, nullptr);
}

const char* explain(void* self, int code, const char** hint) {
  *hint = device::hint(code);
  return static_cast<NvmlClient*>(self)->error.text;
}

}  // namespace

void forget_nvml_clocks() {
  for (NvmlClient& client : g_clients) device::journal_close(&client.journal);
}

void open_nvml_reader(void*, const GpuIdentity& gpu, ClockClient* result) {
  const uint32_t index = g_count.fetch_add(1, std::memory_order_relaxed);
  if (index >= Runtime::kGpus) return;
  NvmlClient* client = &g_clients[index];
  if (device::clock_open(&client->device, gpu.id(), nullptr) != 0) return;
  result->self = client;
  result->read = read;
}

int open_nvml_clock(void*, const GpuIdentity& gpu, const char* run_folder, ClockClient* result, char* text,
                    uint32_t text_size, const char** hint) {
  const uint32_t index = g_count.fetch_add(1, std::memory_order_relaxed);
  if (index >= Runtime::kGpus) return device::kBadArgument;
  NvmlClient* client = &g_clients[index];
  device::Error error;
  int code = device::clock_open(&client->device, gpu.id(), &error);
  // Of an old driver a slice's UUID is its GPU's.
  if (code == 0 && device::clock_mig_enabled(&client->device)) {
    code = device::fail(&error, device::kBadArgument, "it is divided into MIG slices, which share its clock");
  }
  if (code == 0 && !device::clock_may_lock(&client->device, &error)) code = error.code;
  if (code == 0) code = device::journal_open(&client->journal, run_folder, &error);
  if (code == 0) code = device::journal_claim(&client->journal, client->device.uuid, &client->claim, &error);
  if (code != 0) {
    copy_text(text, text_size, error.text);
    *hint = device::hint(code);
    return code;
  }
  result->self = client;
  result->set = set;
  result->reset = reset;
  result->read = read;
  result->explain = explain;
  result->dry = false;
  return 0;
}

}  // namespace powerccl::nccl
