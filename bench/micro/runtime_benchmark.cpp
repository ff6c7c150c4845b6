// SPDX-License-Identifier: Apache-2.0
// What the in-job code costs: [runtime.trace_append_ns], [runtime.lookup_ns], and all callbacks of one call through the
// plugin's function table, as NCCL makes them.
#include <benchmark/benchmark.h>
#include <dlfcn.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <memory>
#include <string>

#include "abi/nccl_profiler.h"
#include "base/log.h"
#include "clock/policy_table.h"
#include "record/trace_writer.h"

namespace {

using namespace powerccl;

std::filesystem::path g_folder;

// A trace as a job has it. Between batches the recorder has time to write: a job does more than record.
constexpr int64_t kBatch = 8192;
std::unique_ptr<TraceWriter> g_writer;
int g_traces = 0;

void open_trace(const benchmark::State&) {
  g_writer = std::make_unique<TraceWriter>();
  const std::filesystem::path path = g_folder / ("append-" + std::to_string(g_traces++) + ".trace");
  if (g_writer->open(path.c_str(), powerccl_trace_header(), uint64_t{1} << 30) != 0) std::abort();
}

void close_trace(const benchmark::State&) {
  g_writer->flush();
  if (g_writer->dropped() > 0) std::fprintf(stderr, "the trace was full: the figure is of no use\n");
  g_writer->close();
  for (const auto& entry : std::filesystem::directory_iterator(g_folder)) {
    if (entry.path().filename().string().starts_with("append-")) std::filesystem::remove(entry.path());
  }
}

void trace_append_ns(benchmark::State& state) {
  powerccl_trace_record record = {};
  record.kind = POWERCCL_REC_CALL;
  while (state.KeepRunningBatch(kBatch)) {
    for (int64_t i = 0; i < kBatch; ++i) {
      ++record.call.call_id;
      benchmark::DoNotOptimize(g_writer->append(record));
    }
    state.PauseTiming();
    while (!g_writer->flush()) {
    }
    state.ResumeTiming();
  }
}
// 8 million records: 512 MiB.
BENCHMARK(trace_append_ns)->Setup(open_trace)->Teardown(close_trace)->Iterations(1000 * kBatch);
BENCHMARK(trace_append_ns)->Setup(open_trace)->Teardown(close_trace)->Threads(2)->Iterations(500 * kBatch);

// A table as large as one may be.
void lookup_ns(benchmark::State& state) {
  std::string text = "powerccl-policy-table 1\nplatform p\ngpu g\nclock_max_mhz 1590\n";
  int lines = 3;
  for (const char* pattern : {"all_reduce", "broadcast", "reduce", "all_gather", "reduce_scatter", "send_receive",
                              "scatter", "gather", "all_to_all"}) {
    text += std::string("overhead_bytes ") + pattern + " 1048576\n";
    ++lines;
    for (int i = 0; i < 27; ++i, ++lines) {
      text += std::string("min_clock_mhz ") + pattern + " " + std::to_string(1048576 * (i + 1)) + " " +
              std::to_string(1048576 * (i + 2)) + " " + std::to_string(300 + i) + "\n";
    }
  }
  text += "end " + std::to_string(lines) + "\n";
  PolicyTable table;
  PolicyTable::Refusal refusal;
  if (!table.parse(text, &refusal)) {
    state.SkipWithError(refusal.reason);
    return;
  }
  uint64_t bytes = 0;
  uint32_t found = 0;
  for (auto _ : state) {
    bytes = (bytes * 6364136223846793005u + 1442695040888963407u) >> 1;
    found += table.lookup(bytes % 9, bytes % (29u << 20)) != 0;
    benchmark::DoNotOptimize(found);
  }
}
BENCHMARK(lookup_ns);

// Everything that NCCL calls for one collective by itself; argument 0: without kernel events, 1: with those of 4
// channels.
void plugin_call_ns(benchmark::State& state) {
  const bool kernel_events = state.range(0) != 0;
  static auto* library = dlopen(POWERCCL_PLUGIN_PATH, RTLD_NOW | RTLD_LOCAL);
  static auto* plugin = static_cast<nccl::ProfilerV5*>(dlsym(library, "ncclProfiler_v5"));
  static void* context = nullptr;
  static int mask = 0;
  if (context == nullptr) plugin->init(&context, 1, &mask, "benchmark", 1, 8, 0, nullptr);
  if (context == nullptr) {
    state.SkipWithError("the plugin stayed passive");
    return;
  }
  using namespace nccl;
  int64_t calls = 0;
  for (auto _ : state) {
    if (++calls % kBatch == 0) {
      state.PauseTiming();
      usleep(20000);
      state.ResumeTiming();
    }
    void *group = nullptr, *call = nullptr, *plan = nullptr, *task = nullptr;
    EventDescriptor event = {};
    event.type = kEventGroupApi;
    plugin->start_event(context, &group, &event);
    event = {};
    event.type = kEventCollApi;
    event.parent = group;
    event.coll_api = {"AllReduce", 1024, "ncclFloat32", 0, nullptr, false, 0};
    plugin->start_event(context, &call, &event);
    plugin->stop_event(call);
    plugin->record_event_state(group, kStateGroupEndApiStart, nullptr);
    event = {};
    event.type = kEventGroup;
    plugin->start_event(context, &plan, &event);
    if (kernel_events) {
      event = {};
      event.type = kEventColl;
      event.parent = call;
      event.coll = {1,      "AllReduce", nullptr, nullptr, 1024,  0, "ncclFloat32", 4, 16,
                    "RING", "LL",        plan,    nullptr, false, 0};
      plugin->start_event(context, &task, &event);
      plugin->stop_event(task);
    }
    plugin->stop_event(plan);
    plugin->stop_event(group);
    for (int channel = 0; kernel_events && channel < 4; ++channel) {
      void* running = nullptr;
      event = {};
      event.type = kEventKernelCh;
      event.parent = task;
      event.kernel_channel.gpu_timer = 1000;
      plugin->start_event(context, &running, &event);
      StateArguments stop = {20000};
      plugin->record_event_state(running, kStateKernelChStop, &stop);
      plugin->stop_event(running);
    }
  }
}
BENCHMARK(plugin_call_ns)->Arg(0)->Arg(1)->Iterations(1000000);

}  // namespace

int main(int argc, char** argv) {
  std::string name = (std::filesystem::temp_directory_path() / "powerccl-benchmark-XXXXXX").string();
  g_folder = mkdtemp(name.data());
  setenv("POWERCCL_RUN_FOLDER", g_folder.c_str(), 1);
  setenv("POWERCCL_TRACE_LIMIT_MB", "1024", 1);
  setenv("POWERCCL_KERNEL_EVENTS", "all", 1);
  benchmark::Initialize(&argc, argv);
  if (benchmark::ReportUnrecognizedArguments(argc, argv)) return 2;
  benchmark::RunSpecifiedBenchmarks();
  benchmark::Shutdown();
  std::error_code ignored;
  std::filesystem::remove_all(g_folder, ignored);
  return 0;
}
