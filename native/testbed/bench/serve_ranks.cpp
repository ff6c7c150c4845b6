// SPDX-License-Identifier: Apache-2.0
#include <dirent.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <map>
#include <set>

#include "bench/measurement.h"
#include "bench/serve.h"

namespace powerccl::bench {
namespace {

constexpr uint64_t kRefusedPatienceNs = 5'000'000'000;
constexpr int kThreadsLeaveMs = 50;

using Variables = std::map<std::string, std::string>;

void add(Variables& variables, const char* entry) {
  const char* equals = std::strchr(entry, '=');
  if (equals == nullptr) return;
  const std::string name(entry, equals);
  if (may_set(name)) variables[name] = equals + 1;
}

Variables environment_now() {
  Variables now;
  for (char** entry = environ; *entry != nullptr; ++entry) add(now, *entry);
  return now;
}

void make_environment(const Variables& wanted) {
  for (const auto& [name, value] : environment_now()) {
    if (!wanted.contains(name)) unsetenv(name.c_str());
  }
  for (const auto& [name, value] : wanted) setenv(name.c_str(), value.c_str(), 1);
}

// Threads of NCCL, by their numbers. The RAS thread is not among them: NCCL ends it itself when it is unloaded.
std::set<std::string> nccl_threads() {
  std::set<std::string> threads;
  DIR* tasks = opendir("/proc/self/task");
  if (tasks == nullptr) throw Failure(kExitMissing, std::string("/proc/self/task: ") + std::strerror(errno));
  while (const dirent* entry = readdir(tasks)) {
    std::string name;
    std::getline(std::ifstream(std::string("/proc/self/task/") + entry->d_name + "/comm"), name);
    if (name.starts_with("NCCL") && name != "NCCL RAS") threads.insert(entry->d_name);
  }
  closedir(tasks);
  return threads;
}

class Servant {
 public:
  Servant(const Options& options, Rank& rank) : options_(options), rank_(rank), board_(rank.board()) {
    setenv("NCCL_RAS_ENABLE", "0", 0);  // a thread and a port that serve no trial
    environment_ = environment_now();
  }

  void run() {
    if (rank_.rank() == 0) {
      rank_.cuda().check(rank_.cuda().driver_get_version(&board_.start.cuda_version), "cuDriverGetVersion");
      board_.tell(Tell::kStart);
    }
    for (uint32_t seen = 0;;) {
      const Request request = board_.next_request(seen);
      if (request.ask == Ask::kQuit) break;
      try {
        answer(request);
      } catch (const NcclFailure& failure) {
        give_up(failure);
      }
    }
    if (nccl_ != nullptr) rank_.leave();
    if (rank_.rank() == 0) board_.tell(Tell::kFinish);
  }

 private:
  void answer(const Request& request) {
    switch (request.ask) {
      case Ask::kOpen:
        return open(request);
      case Ask::kMeasure:
        return measure(request);
      default:
        return close();
    }
  }

  void tell(Tell what) {
    if (rank_.rank() == 0) board_.tell(what);
  }
  // Whether it is so on all ranks.
  bool everywhere(bool here) { return board_.max(rank_.rank(), here ? 0 : 1) == 0; }

  void open(const Request& request) {
    Variables wanted = environment_;
    for (const char* entry = request.variables; *entry != '\0'; entry += std::strlen(entry) + 1) add(wanted, entry);
    wanted["NCCL_SET_THREAD_NAME"] = "1";  // nccl_threads knows them by that
    make_environment(wanted);
    nccl_ = NcclApi::own(request.library);
    const bool fresh = std::ranges::find(left_loaded_, nccl_->library.handle()) == left_loaded_.end();
    rank_.join(nccl_);
    const bool all_fresh = everywhere(fresh);
    if (rank_.rank() == 0) {
      board_.opened.fresh = all_fresh;
      nccl_->check(nccl_->get_version(&board_.opened.nccl_version), "ncclGetVersion");
    }
    tell(Tell::kOpened);
  }

  void measure(const Request& request) {
    Options options = options_;
    const Measuring& wanted = request.measuring;
    options.iterations = wanted.iterations;
    options.warmup = wanted.warmup;
    options.check = wanted.check;
    options.repeats = wanted.repeats;
    options.min_time_s = wanted.min_time_s;
    options.blocking = wanted.blocking;
    reserve_for({request.point}, rank_);
    const PointNews news = Measurement(options, request.point, rank_).measure();
    if (rank_.rank() == 0) board_.point = news;
    tell(Tell::kPoint);
  }

  void close() {
    rank_.leave();
    const bool unloaded = everywhere(unload(threads_leave()));
    if (rank_.rank() == 0) board_.unloaded = unloaded;
    tell(Tell::kClosed);
  }

  bool unload(bool may) {
    void* handle = nccl_->library.handle();
    const bool unloaded = may && nccl_->library.close();
    nccl_ = nullptr;
    if (unloaded) return true;
    left_loaded_.push_back(handle);
    left_running_ = nccl_threads();
    return false;
  }

  // False if this trial's NCCL has left a thread, which would run on in a library that is gone.
  bool threads_leave() const {
    for (int waited_ms = 0;; ++waited_ms) {
      const auto running = nccl_threads();
      if (std::ranges::includes(left_running_, running)) return true;
      if (waited_ms == kThreadsLeaveMs) return false;
      usleep(1000);
    }
  }

  // The trial is over, but if all ranks were refused the same, they can go on to the next one.
  void give_up(const NcclFailure& failure) {
    if (!board_.all_refused(kRefusedPatienceNs)) {
      throw Failure(failure.code(), std::string(failure.what()) + " (not on all ranks)", failure.hint());
    }
    rank_.abandon();
    unload(false);  // what an abort has left of its threads and memory is not known
    board_.barrier();
    if (rank_.rank() == 0) {
      board_.refused = {};
      std::strncpy(board_.refused.reason, failure.what(), sizeof board_.refused.reason - 1);
      std::strncpy(board_.refused.hint, failure.hint().c_str(), sizeof board_.refused.hint - 1);
    }
    tell(Tell::kRefused);
  }

  const Options& options_;
  Rank& rank_;
  Board& board_;
  Variables environment_;  // as the server was started with
  std::shared_ptr<NcclApi> nccl_;
  std::vector<void*> left_loaded_;      // instances of trials before,
  std::set<std::string> left_running_;  // and their threads
};

}  // namespace

void serve_requests(const Options& options, Rank& rank) {
  Servant(options, rank).run();
}

}  // namespace powerccl::bench
