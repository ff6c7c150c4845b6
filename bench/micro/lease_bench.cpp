// SPDX-License-Identifier: Apache-2.0
// What powerccld costs: how long a clock takes through it beside the driver's own call, and how much processor it uses.
//
//   powerccl-lease-bench latency SOCKET CHANGES GAP_MS    interleaved: through the daemon, and straight to NVML
//   powerccl-lease-bench load SOCKET CLIENTS SECONDS      all at their rate limit; those without a lease ask as a job
//   does
//   powerccl-lease-bench share SOCKET CLIENTS SECONDS     the same, and each has a lease: they share the GPUs
//   powerccl-lease-bench echo TIMES GAP_MS                a message and its answer between two cores, without a daemon
//
// Prints one JSON object. Times are in microseconds, one number a change.
#include <dlfcn.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <thread>
#include <vector>

#include "lease_client.h"

namespace {

using powerccl::leases::Client;
using Clock = std::chrono::steady_clock;
constexpr uint32_t kLowMhz = 600;

[[noreturn]] void fail(const char* what) {
  std::fprintf(stderr, "powerccl-lease-bench: %s\n", what);
  std::exit(1);
}

double us_since(Clock::time_point begin) {
  return std::chrono::duration<double, std::micro>(Clock::now() - begin).count();
}

std::vector<std::string> devices_of(const char* path) {
  std::vector<powerccl_lease_device> devices;
  if (!Client(path).status(&devices)) fail("no daemon there");
  std::vector<std::string> names;
  for (const powerccl_lease_device& device : devices) names.emplace_back(device.device);
  return names;
}

powerccl_lease_reply answered(const powerccl_lease_reply& reply) {
  if (reply.status == Client::kNoAnswer) fail("the daemon has gone");
  return reply;
}

// The few functions of NVML that are needed, by their stable names.
class Nvml {
 public:
  explicit Nvml(const std::string& uuid) {
    void* library = dlopen("libnvidia-ml.so.1", RTLD_NOW);
    if (library == nullptr) fail("no NVML");
    const auto init = reinterpret_cast<int (*)()>(dlsym(library, "nvmlInit_v2"));
    const auto by_uuid = reinterpret_cast<int (*)(const char*, void**)>(dlsym(library, "nvmlDeviceGetHandleByUUID"));
    lock_ = reinterpret_cast<decltype(lock_)>(dlsym(library, "nvmlDeviceSetGpuLockedClocks"));
    reset_ = reinterpret_cast<decltype(reset_)>(dlsym(library, "nvmlDeviceResetGpuLockedClocks"));
    if (dlsym(library, "powerccl_emulator_version") == nullptr) fail("only emulated GPUs are set directly");
    if (init() != 0 || by_uuid(uuid.c_str(), &device_) != 0) fail("NVML does not find the GPU");
  }
  bool set(uint32_t mhz) { return (mhz != 0 ? lock_(device_, mhz, mhz) : reset_(device_)) == 0; }

 private:
  int (*lock_)(void*, unsigned, unsigned) = nullptr;
  int (*reset_)(void*) = nullptr;
  void* device_ = nullptr;
};

void print(const char* name, const std::vector<double>& values, const char* end) {
  std::printf("\"%s\": [", name);
  for (size_t i = 0; i < values.size(); ++i) std::printf("%s%.1f", i == 0 ? "" : ", ", values[i]);
  std::printf("]%s", end);
}

int latency(const char* path, int changes, int gap_ms) {
  Client client(path);
  const std::vector<std::string> devices = devices_of(path);
  if (devices.size() < 2) fail("takes two GPUs");
  const uint64_t lease = answered(client.acquire(devices[0])).lease;
  if (lease == 0) fail("no lease");
  Nvml direct(devices[1]);
  std::vector<double> leased, straight, driver;
  for (int i = 0; i < changes; ++i) {
    const uint32_t mhz = i % 2 == 0 ? kLowMhz : 0;
    usleep(static_cast<unsigned>(gap_ms) * 1000);
    Clock::time_point begin = Clock::now();
    const powerccl_lease_reply reply = answered(client.set(lease, mhz));
    leased.push_back(us_since(begin));
    if (reply.status != 0) fail("a clock was refused");
    driver.push_back(reply.driver_us);
    usleep(static_cast<unsigned>(gap_ms) * 1000);
    begin = Clock::now();
    if (!direct.set(mhz)) fail("NVML refused a clock");
    straight.push_back(us_since(begin));
  }
  direct.set(0);
  std::printf("{");
  print("leased_us", leased, ", ");
  print("direct_us", straight, ", ");
  print("driver_us", driver, "}\n");
  return 0;
}

void run_on(int cpu) {
  cpu_set_t set;
  CPU_ZERO(&set);
  CPU_SET(cpu, &set);
  sched_setaffinity(0, sizeof set, &set);
}

// What a request and its answer take between two processes on two cores that do nothing else with them.
int echo(int times, int gap_ms) {
  int ends[2];
  if (socketpair(AF_UNIX, SOCK_SEQPACKET, 0, ends) != 0) fail("no socket");
  char bytes[sizeof(powerccl_lease_reply)] = {};
  if (fork() == 0) {
    close(ends[0]);
    run_on(1);
    while (recv(ends[1], bytes, sizeof bytes, 0) > 0)
      if (::send(ends[1], bytes, sizeof bytes, MSG_NOSIGNAL) < 0) break;
    _exit(0);
  }
  close(ends[1]);
  run_on(0);
  std::vector<double> taken;
  for (int i = 0; i < times; ++i) {
    usleep(static_cast<unsigned>(gap_ms) * 1000);
    const Clock::time_point begin = Clock::now();
    if (::send(ends[0], bytes, sizeof(powerccl_lease_set), MSG_NOSIGNAL) < 0 ||
        recv(ends[0], bytes, sizeof bytes, 0) <= 0)
      fail("no echo");
    taken.push_back(us_since(begin));
  }
  std::printf("{");
  print("echo_us", taken, "}\n");
  return 0;
}

int load(const char* path, int clients, double seconds, bool shared) {
  const std::vector<std::string> devices = devices_of(path);
  std::atomic<uint64_t> changes{0}, refusals{0};
  const Clock::time_point end = Clock::now() + std::chrono::microseconds(static_cast<int64_t>(seconds * 1e6));
  const auto work = [&](int number) {
    Client client(path);
    const std::string& device = devices[static_cast<size_t>(number) % devices.size()];
    unsigned back_off_us = 100'000;
    uint64_t lease = 0;
    while (Clock::now() < end) {
      if (lease == 0) {
        lease = answered(client.acquire(device, shared)).lease;
        if (lease != 0) continue;
        ++refusals;
        usleep(back_off_us);
        back_off_us = std::min(2 * back_off_us, 5'000'000u);
        continue;
      }
      // The daemon holds the answer back until its rate limit lets the clock pass; of those who share, each keeps to it
      // by itself, as the client in a job does.
      const powerccl_lease_reply reply = answered(client.set(lease, kLowMhz));
      if (reply.status == 0) ++changes;
      if (shared) usleep(reply.interval_ms * 500);
      if (answered(client.set(lease, 0)).status == 0) ++changes;
      if (shared) usleep(reply.interval_ms * 500);
    }
  };
  std::vector<std::thread> threads;
  for (int i = 0; i < clients; ++i) threads.emplace_back(work, i);
  for (std::thread& thread : threads) thread.join();
  std::printf("{\"changes\": %llu, \"refusals\": %llu, \"gpus\": %zu}\n",
              static_cast<unsigned long long>(changes.load()), static_cast<unsigned long long>(refusals.load()),
              devices.size());
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  const std::string mode = argc > 1 ? argv[1] : "";
  if (argc == 5 && mode == "latency") return latency(argv[2], std::atoi(argv[3]), std::atoi(argv[4]));
  if (argc == 5 && mode == "load") return load(argv[2], std::atoi(argv[3]), std::atof(argv[4]), false);
  if (argc == 5 && mode == "share") return load(argv[2], std::atoi(argv[3]), std::atof(argv[4]), true);
  if (argc == 4 && mode == "echo") return echo(std::atoi(argv[2]), std::atoi(argv[3]));
  std::fprintf(stderr,
               "usage: powerccl-lease-bench latency SOCKET CHANGES GAP_MS | load|share SOCKET CLIENTS SECONDS |\n"
               "       echo TIMES GAP_MS\n");
  return 2;
}
