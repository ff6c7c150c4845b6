// SPDX-License-Identifier: Apache-2.0
#include "agent/job_processes.h"

#include <dirent.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <system_error>
#include <vector>

#include "abi/host_clock.h"
#include "agent/cadence.h"
#include "device/process.h"

namespace powerccl::agent {
namespace {

// The first look. MPI_Init and the creation of a communicator take longer than twice this. At half, the agent would
// cost twice as much during a job's start; at double, it would miss ranks that fail immediately.
constexpr int64_t kFirstNs = 10'000'000;
// Each wait is longer than the one before by this part, so that a look misses what lasts a fifth of the job's age. At
// half, it costs half as many looks again, some thirty in the first minute; at double, it sees less.
constexpr int64_t kGrowth = 4;
// The longest time between two looks. It costs 0.01 % of a core if a look takes a millisecond.
constexpr int64_t kLongestNs = 10'000'000'000;
// A look may take this share of the time until the next: a hundredth of a core where there are very many processes.
constexpr int64_t kWaitPerCost = 100;
// Processes that are looked at together. A job may start many thousands; so many tell as much.
constexpr size_t kMostProcesses = 4096;
// What a pipe takes while its reader waits for this process to end is 64 KiB.
constexpr size_t kMostBytes = 32 * 1024;

struct File {
  explicit File(const char* path) : stream(std::fopen(path, "re")) {}
  ~File() {
    if (stream != nullptr) std::fclose(stream);
    std::free(line);
  }
  File(const File&) = delete;
  File& operator=(const File&) = delete;

  // The next part up to `delimiter`; nullptr at the end.
  const char* next(int delimiter) {
    return stream != nullptr && getdelim(&line, &size, delimiter, stream) > 0 ? line : nullptr;
  }

  std::FILE* stream;
  char* line = nullptr;
  size_t size = 0;
};

bool begins_with(const char* text, const char* prefix) {
  return std::strncmp(text, prefix, std::strlen(prefix)) == 0;
}

std::string path_of(pid_t pid, const char* name) {
  return "/proc/" + std::to_string(pid) + "/" + name;
}

// Of a file that a process has mapped.
unsigned traits_of_file(const char* name) {
  if (begins_with(name, "libmpi.") || begins_with(name, "libmpi_abi.") || begins_with(name, "libmpich.") ||
      begins_with(name, "libmpi_cray.")) {
    return kMpi;
  }
  if (begins_with(name, "libnccl.") || begins_with(name, "libtorch_cuda.")) return kNccl;
  if (begins_with(name, "libcuda.")) return kCuda;
  if (begins_with(name, "libpowerccl-nccl.") || begins_with(name, "libpowerccl-mpi.")) return kOurs;
  if (begins_with(name, "ld-linux") || begins_with(name, "ld-musl") || begins_with(name, "ld-2.")) return kDynamic;
  return 0;
}

template <typename Each>
void for_each_number(const std::string& folder, const Each& each) {
  DIR* all = opendir(folder.c_str());
  if (all == nullptr) return;
  while (const dirent* entry = readdir(all)) {
    if (const long number = std::strtol(entry->d_name, nullptr, 10); number > 0) each(static_cast<pid_t>(number));
  }
  closedir(all);
}

std::string first_line(const std::string& path) {
  File file(path.c_str());
  const char* line = file.next('\n');
  std::string text = line != nullptr ? line : "";
  text.erase(std::min(text.find('\n'), text.size()));
  return text;
}

// This project's own helpers beside the job; `powerccl-bench` is a job.
bool is_helper(const std::string& name) {
  for (const char* each : {"powerccl-agent", "powerccld", "powerccl-signal", "powerccl-emulat"}) {
    if (begins_with(name.c_str(), each)) return true;
  }
  return false;
}

}  // namespace

unsigned traits_of(pid_t pid) {
  unsigned traits = 0;
  File maps(path_of(pid, "maps").c_str());
  if (maps.stream == nullptr) return errno == EACCES || errno == EPERM ? unsigned{kDynamic} : 0u;
  bool mapped = false;
  while (const char* line = maps.next('\n')) {
    mapped = true;
    if (const char* slash = std::strrchr(line, '/')) traits |= traits_of_file(slash + 1);
  }
  File environment(path_of(pid, "environ").c_str());
  if (environment.stream == nullptr && (errno == EACCES || errno == EPERM)) return traits | kDynamic;
  if (!mapped) return 0;
  traits |= kReadable;
  while (const char* variable = environment.next('\0')) {
    if (begins_with(variable, "LD_PRELOAD=") && std::strstr(variable, "libpowerccl-") != nullptr) traits |= kPreload;
  }
  for_each_number(path_of(pid, "task"), [&](pid_t thread) {
    const std::string name = first_line(path_of(pid, "task") + "/" + std::to_string(thread) + "/comm");
    if (begins_with(name.c_str(), "pt_gloo") || begins_with(name.c_str(), "gloo")) traits |= kGloo;
  });
  return traits;
}

int JobProcesses::start() {
  if (const int number = stop_.open(); number != 0) return number;
  try {
    thread_ = std::thread([this] {
      run();
      end_.set_value();
    });
  } catch (const std::system_error& error) {  // a limit on processes
    return error.code().value();
  }
  return 0;
}

void JobProcesses::run() {
  for (int64_t wait_ns = kFirstNs; !stop_.wait(wait_ns) && !recorded();) {
    const int64_t begin_ns = host_now_ns();
    look();
    const int64_t cost_ns = host_now_ns() - begin_ns;
    wait_ns = std::clamp(std::max(wait_ns + wait_ns / kGrowth, kWaitPerCost * cost_ns), kFirstNs, kLongestNs);
  }
}

bool JobProcesses::stop() {
  if (!thread_.joinable()) return true;
  ask_to_stop();
  if (end_.get_future().wait_for(std::chrono::nanoseconds(kStopPatienceNs)) != std::future_status::ready) return false;
  thread_.join();
  return true;
}

// Whether a rank has begun a trace.
bool JobProcesses::recorded() const {
  DIR* all = opendir(folder_.c_str());
  if (all == nullptr) return false;
  bool has_trace = false;
  while (const dirent* entry = readdir(all)) {
    const size_t length = std::strlen(entry->d_name);
    has_trace = has_trace || (length > 6 && std::strcmp(entry->d_name + length - 6, ".trace") == 0);
  }
  closedir(all);
  return has_trace;
}

void JobProcesses::look() {
  std::vector<pid_t> known{launcher_};
  for (const auto& [pid, process] : alive_) known.push_back(pid);
  for (const pid_t pid : known) visit(pid);
}

// A process whose parent has ended is still known by its number and start.
void JobProcesses::visit(pid_t pid) {
  const auto place = alive_.find(pid);
  const uint64_t start_ticks = device::process_start_ticks(pid);
  if (place != alive_.end() && place->second.start_ticks != start_ticks) {
    ++ended_[{place->second.program, place->second.traits}];
    alive_.erase(place);
    return;
  }
  if (start_ticks == 0) return;
  if (pid != launcher_) {
    const std::string name = first_line(path_of(pid, "comm"));
    if (pid == getpid() || is_helper(name)) return;
    if (place == alive_.end() && alive_.size() >= kMostProcesses) return;
    if (const unsigned traits = traits_of(pid)) alive_[pid] = {start_ticks, name, traits};
  }
  std::vector<pid_t> children;
  for_each_number(path_of(pid, "task"), [&](pid_t thread) {
    File file((path_of(pid, "task") + "/" + std::to_string(thread) + "/children").c_str());
    while (const char* number = file.next(' '))
      children.push_back(static_cast<pid_t>(std::strtol(number, nullptr, 10)));
  });
  for (const pid_t child : children) {
    if (child > 0 && !alive_.contains(child)) visit(child);
  }
}

std::string JobProcesses::rows() const {
  if (recorded()) return "";
  auto all = ended_;
  for (const auto& [pid, process] : alive_) ++all[{process.program, process.traits}];
  std::string text;
  for (const auto& [kind, processes] : all) {
    if (text.size() > kMostBytes) break;
    std::string program = kind.first;  // at most 15 bytes of anything
    std::replace(program.begin(), program.end(), ',', '_');
    text += "process," + program + "," + std::to_string(processes);
    for (unsigned trait = kMpi; trait <= kReadable; trait <<= 1) text += (kind.second & trait) != 0 ? ",1" : ",0";
    text += '\n';
  }
  return text;
}

}  // namespace powerccl::agent
