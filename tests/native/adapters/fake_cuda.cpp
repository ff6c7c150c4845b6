// SPDX-License-Identifier: Apache-2.0
// A libcuda.so.1 for the adapter's tests: one GPU whose host functions run when the test says so, in order, on the
// test's thread of choice. Devices are a per-thread "current context". Streams are through at once, so events have the
// host's time, but for waits, which take as long as the test says.
#include <atomic>
#include <chrono>
#include <cstring>
#include <deque>
#include <mutex>

#define EXPORT extern "C" __attribute__((visibility("default")))

namespace {
struct HostFunction {
  void (*function)(void*);
  void* data;
};
std::mutex g_mutex;
std::deque<HostFunction> g_queue;
void* g_last_stream = nullptr;
int g_launch_result = 0;
std::atomic<int> g_wait_result{0}, g_wait_ms{0}, g_kernels{0}, g_events{0}, g_record_us{0};
std::atomic<bool> g_unready{false};
std::atomic<const void*> g_capturing{nullptr};
struct Event {
  std::atomic<double> ms{0};
};
std::deque<Event> g_made_events;  // kept: nobody has to destroy what a test made
double now_ms() {
  return std::chrono::duration<double, std::milli>(std::chrono::steady_clock::now().time_since_epoch()).count();
}
thread_local int t_device = 0;
}  // namespace

EXPORT int cuCtxGetDevice(int* device) {
  *device = t_device;
  return 0;
}
EXPORT int cuDeviceGetUuid_v2(unsigned char (*uuid)[16], int device) {
  for (int i = 0; i < 16; ++i) (*uuid)[i] = static_cast<unsigned char>(i + device);
  return 0;
}
EXPORT int cuDeviceGetPCIBusId(char* text, int size, int device) {
  std::strncpy(text, device == 0 ? "0000:65:00.0" : "0000:e5:00.0", static_cast<size_t>(size));
  return 0;
}
EXPORT int cuDeviceGetName(char* text, int size, int) {
  std::strncpy(text, "Tesla T4", static_cast<size_t>(size));
  return 0;
}
EXPORT int cuLaunchHostFunc(void* stream, void (*function)(void*), void* data) {
  std::lock_guard guard(g_mutex);
  g_last_stream = stream;
  if (g_launch_result != 0) return g_launch_result;
  g_queue.push_back({function, data});
  return 0;
}

EXPORT int cuCtxGetCurrent(void** context) {
  *context = &g_queue;
  return 0;
}
EXPORT int cuStreamCreate(void** stream, unsigned) {
  std::lock_guard guard(g_mutex);
  *stream = &g_made_events.emplace_back();
  return 0;
}
EXPORT int cuStreamGetCtx(void*, void** context) {
  *context = &g_queue;
  return 0;
}
EXPORT int cuStreamIsCapturing(void* stream, int* status) {
  *status = stream != nullptr && stream == g_capturing ? 1 : 0;
  return 0;
}
EXPORT int cuEventCreate(void** event, unsigned) {
  std::lock_guard guard(g_mutex);
  *event = &g_made_events.emplace_back();
  return 0;
}
EXPORT int cuEventRecord(void* event, void*) {
  ++g_events;
  const double until = now_ms() + g_record_us / 1e3;
  do static_cast<Event*>(event)->ms = now_ms();
  while (now_ms() < until);
  return 0;
}
EXPORT int cuEventQuery(void*) {
  return g_unready ? 600 : 0;
}
EXPORT int cuEventElapsedTime(float* ms, void* start, void* end) {
  *ms = static_cast<float>(static_cast<Event*>(end)->ms - static_cast<Event*>(start)->ms);
  return 0;
}
EXPORT int cuStreamWaitEvent(void*, void*, unsigned) {
  const double until = now_ms() + g_wait_ms;
  while (now_ms() < until) {
  }
  return g_wait_result;
}
EXPORT int cuLaunchKernel(void*, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, void*, void**,
                          void**) {
  ++g_kernels;
  return 0;
}

// What has nothing to do here.
#define SUCCEEDS(name, ...)      \
  EXPORT int name(__VA_ARGS__) { \
    return 0;                    \
  }
SUCCEEDS(cuCtxPushCurrent_v2, void*)
SUCCEEDS(cuCtxPopCurrent_v2, void**)
SUCCEEDS(cuEventDestroy_v2, void*)
SUCCEEDS(cuStreamDestroy_v2, void*)
SUCCEEDS(cuCtxDestroy_v2, void*)

// For the test.
EXPORT void fake_set_wait(int ms, int result) {
  g_wait_ms = ms;
  g_wait_result = result;
}
EXPORT void fake_set_record_us(int us) {
  g_record_us = us;
}
EXPORT void fake_set_unready(bool unready) {
  g_unready = unready;
}
EXPORT void fake_set_capturing(const void* stream) {
  g_capturing = stream;
}
EXPORT int fake_kernels() {
  return g_kernels;
}
EXPORT int fake_events() {
  return g_events;
}
EXPORT void fake_set_device(int device) {
  t_device = device;
}
EXPORT void fake_set_launch_result(int result) {
  g_launch_result = result;
}
EXPORT void* fake_last_stream() {
  return g_last_stream;
}
EXPORT int fake_pending() {
  std::lock_guard guard(g_mutex);
  return static_cast<int>(g_queue.size());
}
// Runs the oldest host function; false: there is none.
EXPORT bool fake_run_one() {
  HostFunction next;
  {
    std::lock_guard guard(g_mutex);
    if (g_queue.empty()) return false;
    next = g_queue.front();
    g_queue.pop_front();
  }
  next.function(next.data);
  return true;
}
