// SPDX-License-Identifier: Apache-2.0
#include "bench/board.h"

#include <fcntl.h>
#include <linux/futex.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "abi/host_clock.h"
#include "bench/values.h"

namespace powerccl::bench {
namespace {

constexpr char kMagic[8] = {'P', 'W', 'C', 'B', 'N', 'C', 'H', '1'};
constexpr uint64_t kGlanceNs = 20'000'000;       // how long a waiter may overlook a failure
constexpr uint64_t kIdleGlanceNs = 500'000'000;  // the same of one that waits for requests, perhaps for hours

void futex_wait(std::atomic<uint32_t>& word, uint32_t seen, uint64_t ns) {
  const timespec limit{static_cast<time_t>(ns / 1'000'000'000), static_cast<long>(ns % 1'000'000'000)};
  syscall(SYS_futex, reinterpret_cast<uint32_t*>(&word), FUTEX_WAIT, seen, &limit, nullptr, 0);
}
void futex_wake(std::atomic<uint32_t>& word) {
  syscall(SYS_futex, reinterpret_cast<uint32_t*>(&word), FUTEX_WAKE, INT32_MAX, nullptr, nullptr, 0);
}
void copy_text(char* to, size_t size, const std::string& text) {
  std::strncpy(to, text.c_str(), size - 1);
  to[size - 1] = '\0';
}
const char* const kMeetHint =
    "all ranks must run on one host and share the folder (--rendezvous DIR); -g N starts ranks of its own instead";
Failure cannot(const std::string& doing, const std::string& path) {
  return Failure(kExitMissing, doing + " " + path + ": " + std::strerror(errno),
                 "--rendezvous DIR names another folder");
}
Board* map(int descriptor) {
  const int flags = descriptor < 0 ? MAP_SHARED | MAP_ANONYMOUS : MAP_SHARED;
  void* page = mmap(nullptr, sizeof(Board), PROT_READ | PROT_WRITE, flags, descriptor, 0);
  if (page == MAP_FAILED) throw Failure(kExitMissing, std::string("mmap: ") + std::strerror(errno));
  return static_cast<Board*>(page);  // zeroed pages are a Board with nothing said yet
}

}  // namespace

uint64_t monotonic_ns() {
  return static_cast<uint64_t>(host_now_ns());
}

Board* Board::create(int ranks) {
  Board* board = map(-1);
  board->ranks_ = static_cast<uint32_t>(ranks);
  return board;
}

Board* Board::meet(const std::string& folder, const std::string& key, int ranks, bool creator, double timeout_s) {
  const std::string path = folder + "/powerccl-bench-" + key;
  const uint64_t deadline = monotonic_ns() + static_cast<uint64_t>(timeout_s * 1e9);
  Board* board = nullptr;
  if (creator) {
    const std::string fresh = path + "." + std::to_string(getpid());
    const int file = open(fresh.c_str(), O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
    if (file < 0) throw cannot("cannot create", fresh);
    if (ftruncate(file, sizeof(Board)) != 0) throw cannot("cannot extend", fresh);
    board = map(file);
    close(file);
    std::memcpy(board->magic_, kMagic, sizeof kMagic);
    board->ranks_ = static_cast<uint32_t>(ranks);
    board->creator_pid_ = static_cast<uint32_t>(getpid());
    board->ready_.store(1, std::memory_order_release);
    // Replaces what an interrupted run may have left.
    if (rename(fresh.c_str(), path.c_str()) != 0) throw cannot("cannot name", path);
  }
  while (board == nullptr) {
    const int file = open(path.c_str(), O_RDWR | O_CLOEXEC);
    struct stat about{};
    if (file >= 0 && fstat(file, &about) == 0 && about.st_size == sizeof(Board) && about.st_uid == getuid()) {
      board = map(file);
      const bool good = board->ready_.load(std::memory_order_acquire) == 1 &&
                        std::memcmp(board->magic_, kMagic, sizeof kMagic) == 0 &&
                        kill(static_cast<pid_t>(board->creator_pid_), 0) == 0;
      if (!good) {
        munmap(board, sizeof(Board));
        board = nullptr;
      }
    }
    if (file >= 0) close(file);
    if (board == nullptr && monotonic_ns() > deadline) {
      throw Failure(kExitTimeout, "rank 0 has not shown up at " + path, kMeetHint);
    }
    if (board == nullptr) usleep(10'000);
  }
  if (board->ranks() != ranks) {
    throw Failure(kExitUsage, "ranks disagree about their number: " + std::to_string(board->ranks()) + " and " +
                                  std::to_string(ranks));
  }
  board->attached_.fetch_add(1);
  while (creator && board->attached_.load() < static_cast<uint32_t>(ranks)) {
    if (monotonic_ns() > deadline) {
      unlink(path.c_str());
      throw Failure(kExitTimeout,
                    "only " + std::to_string(board->attached_.load()) + " of " + std::to_string(ranks) +
                        " ranks have shown up at " + path,
                    kMeetHint);
    }
    usleep(5'000);
  }
  if (creator) unlink(path.c_str());
  return board;
}

void Board::fail(int exit_code, const std::string& reason, const std::string& hint) {
  uint32_t no_failure = 0;
  if (!failing_.compare_exchange_strong(no_failure, 1)) return;
  exit_code_ = exit_code;
  copy_text(reason_, sizeof reason_, reason);
  copy_text(hint_, sizeof hint_, hint);
  failed_.store(1, std::memory_order_release);
  for (auto* word : {&failed_, &barrier_.generation, &refusal_.generation, &answered_, &news_, &asked_})
    futex_wake(*word);
}

bool Board::sleep_unless_failed(uint64_t ns) {
  if (!failed()) futex_wait(failed_, 0, ns);
  return failed();
}

void Board::wake_sleepers() {
  futex_wake(failed_);
}

bool Board::wait_at(Barrier& barrier, uint64_t ns) {
  if (failed()) throw Aborted();
  const uint32_t generation = barrier.generation.load(std::memory_order_acquire);
  if (barrier.arrived.fetch_add(1, std::memory_order_acq_rel) + 1 == ranks_) {
    barrier.arrived.store(0, std::memory_order_relaxed);
    barrier.generation.fetch_add(1, std::memory_order_acq_rel);
    futex_wake(barrier.generation);
    return true;
  }
  const uint64_t begin = monotonic_ns();
  while (barrier.generation.load(std::memory_order_acquire) == generation) {
    futex_wait(barrier.generation, generation, kGlanceNs);
    if (failed()) throw Aborted();
    if (monotonic_ns() - begin > ns) return false;
  }
  return true;
}

void Board::barrier() {
  wait_at(barrier_, UINT64_MAX);
}

bool Board::all_refused(uint64_t ns) {
  return wait_at(refusal_, ns);
}

double Board::reduce(int rank, double value, double (*combine)(double, double)) {
  values_[rank] = value;
  barrier();
  double result = values_[0];
  for (int other = 1; other < ranks(); ++other) result = combine(result, values_[other]);
  barrier();  // no rank overwrites a value that another still reads
  return result;
}

double Board::max(int rank, double value) {
  return reduce(rank, value, [](double a, double b) { return std::max(a, b); });
}
double Board::sum(int rank, double value) {
  return reduce(rank, value, [](double a, double b) { return a + b; });
}

std::optional<NcclUniqueId> Board::exchange_id(int rank, const NcclUniqueId* rank_0s) {
  if (rank == 0) {
    id_known_ = rank_0s != nullptr;
    if (id_known_) id_ = *rank_0s;
  }
  barrier();
  const auto id = id_known_ ? std::optional<NcclUniqueId>(id_) : std::nullopt;
  barrier();  // as in reduce
  return id;
}

void Board::ask(const Request& request) {
  request_ = request;
  asked_.fetch_add(1, std::memory_order_acq_rel);
  futex_wake(asked_);
}

Request Board::next_request(uint32_t& seen) {
  while (asked_.load(std::memory_order_acquire) == seen) {
    if (failed()) throw Aborted();
    futex_wait(asked_, seen, kIdleGlanceNs);
  }
  ++seen;
  return request_;
}

int32_t Board::tell(Tell what) {
  news_kind_ = what;
  const uint32_t number = news_.fetch_add(1, std::memory_order_acq_rel) + 1;
  futex_wake(news_);
  for (;;) {
    const uint32_t answered = answered_.load(std::memory_order_acquire);
    if (answered == number) return answer_;
    if (failed()) throw Aborted();
    futex_wait(answered_, answered, kGlanceNs);
  }
}

Tell Board::wait_for_news(uint64_t ns) {
  const uint32_t answered = answered_.load(std::memory_order_relaxed);
  if (news_.load(std::memory_order_acquire) == answered) futex_wait(news_, answered, ns);
  return news_.load(std::memory_order_acquire) == answered ? Tell::kNothing : news_kind_;
}

void Board::answer(int32_t value) {
  answer_ = value;
  answered_.fetch_add(1, std::memory_order_acq_rel);
  futex_wake(answered_);
}

}  // namespace powerccl::bench
