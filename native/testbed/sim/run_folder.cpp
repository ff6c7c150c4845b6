// SPDX-License-Identifier: Apache-2.0
#include "sim/run_folder.h"

#include <algorithm>
#include <cinttypes>
#include <cstring>
#include <filesystem>
#include <string_view>
#include <utility>

#include "bench/json.h"
#include "bench/values.h"
#include "physics/readings.h"

namespace powerccl::sim {
namespace {

namespace json = bench::json;

constexpr size_t kAtOnce = 4096;  // records: 256 KiB, as a job's trace writer writes
// As `powerccl run` samples: no multiple of it is a common length of iterations.
constexpr Time kSampleNs = 19'000'000;

[[noreturn]] void fail(const std::string& path, const std::string& why) {
  throw bench::Failure(bench::kExitUsage, path + ": " + why, "--run-folder takes a folder that is new or empty");
}

template <size_t size>
void set_text(char (&field)[size], const std::string& text) {
  std::memcpy(field, text.data(), std::min(text.size(), size - 1));
}

// FNV-1a, 64 bits.
uint64_t hash_of(std::string_view text, uint64_t hash) {
  for (const char c : text) hash = (hash ^ static_cast<uint8_t>(c)) * 0x100000001b3u;
  return hash;
}

std::string host_name(uint32_t host) {
  return "simulated-" + std::to_string(host);
}

}  // namespace

void write_json(const json::Object& object, const std::string& file_name) {
  FILE* file = std::fopen(file_name.c_str(), "we");
  const bool written = file != nullptr && std::fprintf(file, "%s\n", object.text().c_str()) > 0;
  if (file == nullptr || std::fclose(file) != 0 || !written) {
    throw bench::Failure(bench::kExitUsage, "cannot write " + file_name + ": " + std::strerror(errno));
  }
}

TraceFile::TraceFile(std::string path, const powerccl_trace_header& header) : path_(std::move(path)) {
  fault_ = file_.create(path_.c_str(), header);
  check();
}

bool TraceFile::append(const powerccl_trace_record& record) {
  records_.push_back(record);
  if (records_.size() == kAtOnce) write();
  return fault_ == 0;
}

void TraceFile::write() {
  uint64_t written = 0;
  if (fault_ == 0) fault_ = file_.append(records_.data(), records_.size(), &written);
  records_.clear();
}

void TraceFile::finish() {
  write();
  check();
}

void TraceFile::check() const {
  if (fault_ == 0) return;
  char reason[128];
  throw bench::Failure(bench::kExitUsage, "cannot write " + path_ + ": " + fault_text(fault_, reason, sizeof reason),
                       "name a new folder on a file system with some space");
}

RunFolder::RunFolder(std::string path, const physics::Platform& platform, About about)
    : path_(std::move(path)), platform_(platform), about_(std::move(about)), board_(new physics::BoardPage()) {
  std::error_code error;
  std::filesystem::create_directories(path_, error);
  if (error) fail(path_, "cannot be made: " + error.message());
  const bool empty = std::filesystem::is_empty(path_, error);
  if (error || !empty) fail(path_, error ? error.message() : "has files already");
}

// 128 bits in hexadecimal digits.
std::string RunFolder::run_id() const {
  char text[33];
  std::snprintf(text, sizeof text, "%016" PRIx64 "%016" PRIx64, hash_of(about_.contents, 0xcbf29ce484222325u),
                hash_of(about_.contents, 0x84222325cbf29ce4u));
  return text;
}

void RunFolder::begin(Time start) {
  start_ = next_sample_ = start;
  fill_board(platform_, "", start, *board_);
  for (uint32_t host = 0; host < platform_.hosts; ++host) begin_samples(host, start);
  const std::string id = run_id();
  for (uint32_t rank = 0; rank < platform_.gpus; ++rank) {
    powerccl_trace_header header = {};
    std::memcpy(header.magic, POWERCCL_TRACE_MAGIC, sizeof header.magic);
    header.version = POWERCCL_TRACE_VERSION;
    header.header_bytes = POWERCCL_TRACE_HEADER_BYTES;
    header.record_bytes = POWERCCL_TRACE_RECORD_BYTES;
    header.flags = POWERCCL_HEADER_FLAG_EMULATED | POWERCCL_HEADER_FLAG_SIMULATED;
    header.rank = static_cast<int32_t>(rank);
    header.local_rank = static_cast<int32_t>(platform_.index_on_host(rank));
    header.nranks = static_cast<int32_t>(platform_.gpus);
    header.pid = rank + 1;  // processes of one host differ in it
    header.start_ns = header.start_realtime_ns = static_cast<uint64_t>(start);
    header.limit_records = UINT64_MAX;
    set_text(header.host, host_name(platform_.host_of(rank)));
    set_text(header.gpu_uuid, board_->gpu[rank].uuid);
    set_text(header.gpu_pci, board_->gpu[rank].pci);
    set_text(header.policy, about_.policy);
    set_text(header.clock_client, about_.clocks);
    set_text(header.library, "powerccl-sim " POWERCCL_VERSION);
    for (size_t i = 0; i < sizeof header.run_id; ++i) {
      header.run_id[i] = static_cast<uint8_t>(std::stoul(id.substr(2 * i, 2), nullptr, 16));
    }
    traces_.push_back(std::make_unique<TraceFile>(path_ + "/rank-" + std::to_string(rank) + ".trace", header));
  }
}

void RunFolder::begin_samples(uint32_t host, Time start) {
  const std::string name = path_ + "/power-" + host_name(host) + ".csv";
  FILE* file = std::fopen(name.c_str(), "wxe");
  if (file == nullptr) fail(name, std::strerror(errno));
  samples_.emplace_back(file);
  std::fprintf(file,
               "# host: %s\n# start_ns: %" PRId64 "\n# start_realtime_ns: %" PRId64 "\n# interval_ns: %" PRId64
               "\n# driver: %s\n# emulated: 1\n# simulated: 1\n# gpu_count: %u\n",
               host_name(host).c_str(), start, start, kSampleNs, platform_.driver_version.c_str(),
               platform_.gpus / platform_.hosts);
  const auto limit_mw = static_cast<uint64_t>(platform_.power_limit_w * 1000);
  for (uint32_t gpu = 0; gpu < platform_.gpus; ++gpu) {
    if (platform_.host_of(gpu) != host) continue;
    const uint32_t i = platform_.index_on_host(gpu);
    std::fprintf(file,
                 "# gpu%u_name: %s\n# gpu%u_uuid: %s\n# gpu%u_pci: %s\n# gpu%u_power: instant\n"
                 "# gpu%u_power_limit_mw: %" PRIu64 "\n# gpu%u_power_limit_max_mw: %" PRIu64 "\n",
                 i, platform_.gpu_name.c_str(), i, board_->gpu[gpu].uuid, i, board_->gpu[gpu].pci, i, i, limit_mw, i,
                 limit_mw);
  }
  std::fprintf(file,
               "time_ns,gpu,uuid,power_mw,energy_uj,sm_clock_mhz,mem_clock_mhz,temperature_c,throttle_reasons,"
               "utilization_pct\n");
}

void RunFolder::sample(Server& server, Time until) {
  for (; next_sample_ <= until; next_sample_ += kSampleNs) write_samples(server, next_sample_);
}

void RunFolder::write_samples(Server& server, Time at) {
  for (uint32_t i = 0; i < platform_.gpus; ++i) {
    server.engine().gpu(i).write(board_->gpu[i].state);
    const physics::Readings now = read_gpu(*board_, i, static_cast<uint64_t>(at));
    std::fprintf(samples_[platform_.host_of(i)].get(), "%" PRId64 ",%u,%s,%u,%" PRIu64 ",%u,%u,%u,0x%x,%u\n", at,
                 platform_.index_on_host(i), board_->gpu[i].uuid, now.power_mw, now.energy_mj * 1000, now.clock_mhz,
                 now.memory_clock_mhz, now.temperature_c, now.throttle_reasons, now.utilization_pct);
  }
}

void RunFolder::finish(Server& server, Time end) {
  for (const auto& trace : traces_) trace->finish();
  if (next_sample_ - kSampleNs < end) write_samples(server, end);  // an agent reads once more when its job ends
  for (const auto& file : samples_) {
    if (std::fflush(file.get()) != 0 || std::ferror(file.get()) != 0) fail(path_, "power samples cannot be written");
  }
  json::Object simulated;
  char fingerprint[9];
  std::snprintf(fingerprint, sizeof fingerprint, "%08x", platform_.fingerprint);
  simulated.add("platform", platform_.name)
      .add("fingerprint", fingerprint)
      .add("scenarios", about_.scenarios)
      .add("seed", about_.seed)
      .add("seconds", about_.seconds)
      .add("warm_up_s", about_.warm_up_s);
  json::Object versions;
  versions.add("powerccl", POWERCCL_VERSION);
  json::Object run;
  run.add("command", about_.command)
      .add("schema", 1)
      .add("run_id", run_id())
      .add("name", std::filesystem::path(about_.scenarios.front()).stem().string())
      .add("host", host_name(0))
      .add("start_ns", start_)
      .add("end_ns", end)
      .add("exit_code", 0)
      .add("policy", about_.policy)
      .add("clocks", about_.clocks)
      .add("platform", platform_.name)
      .add("emulated", platform_.name)
      .add("simulated", simulated.raw())
      .add("slowdown_pct", about_.budget_pct)
      .add("interval_ms", kSampleNs / 1'000'000)
      .add("versions", versions.raw());
  write_json(run, path_ + "/run.json");
}

}  // namespace powerccl::sim
