// SPDX-License-Identifier: Apache-2.0
// A libcuda.so.1 for the door's tests: one GPU whose host functions run when the test says so, in order, on the test's
// thread of choice. Devices are a per-thread "current context".
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

// For the test.
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
