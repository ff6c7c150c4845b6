// SPDX-License-Identifier: Apache-2.0
#include "bench/rank.h"

#include <sched.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <bit>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <utility>

#include "bench/values.h"

namespace powerccl::bench {

Communicator::Communicator(std::shared_ptr<const NcclApi> nccl, Board& board, int rank, int cta_policy)
    : nccl_(std::move(nccl)), board_(board), rank_(rank), cta_policy_(cta_policy) {
  NcclUniqueId made_id{};
  int result = kNcclSuccess;
  if (rank == 0) result = nccl_->get_unique_id(&made_id);
  const auto id = board_.exchange_id(rank, rank == 0 && result == kNcclSuccess ? &made_id : nullptr);
  nccl_->check(result, "ncclGetUniqueId");
  if (!id) throw NcclFailure("rank 0 could not make an id for the communicator");
  if (cta_policy < 0) {
    nccl_->check(nccl_->comm_init_rank(&all_, board_.ranks(), *id, rank), "ncclCommInitRank");
  } else if (nccl_->comm_init_rank_config != nullptr) {
    NcclConfig config;
    config.cta_policy = cta_policy;
    const int refused = nccl_->comm_init_rank_config(&all_, board_.ranks(), *id, rank, &config);
    if (refused == kNcclInvalidArgument) {
      throw Failure(kExitMissing, "this NCCL refuses the CTA policy " + std::to_string(cta_policy),
                    "NCCL 2.28.9 has no zero-CTA policy for a communicator: take 2.29 or newer (--nccl FILE), or leave "
                    "copy-engine out of --way or the scenario");
    }
    nccl_->check(refused, "ncclCommInitRankConfig");
  } else {
    throw Failure(kExitMissing, "this NCCL has no CTA policy",
                  "--way and a scenario's `by` take NCCL 2.27 or newer (--nccl FILE)");
  }
  standing_.push_back(all_);
}

NcclComm Communicator::split(int color) {
  if (nccl_->comm_split == nullptr) {
    throw Failure(kExitMissing, "this NCCL cannot split communicators", "groups take NCCL 2.18 or newer (--nccl FILE)");
  }
  NcclComm part = nullptr;
  NcclConfig config;
  config.cta_policy = cta_policy_;
  nccl_->check(nccl_->comm_split(all_, color, rank_, &part, cta_policy_ < 0 ? nullptr : &config), "ncclCommSplit",
               all_);
  const std::lock_guard lock(mutex_);
  standing_.push_back(part);
  return part;
}

std::vector<NcclComm> Communicator::take() {
  const std::lock_guard lock(mutex_);
  return std::exchange(standing_, {});
}

void Communicator::destroy() {
  std::vector<NcclComm> comms = take();
  if (comms.empty()) throw Aborted();
  for (; !comms.empty(); comms.pop_back()) nccl_->check(nccl_->comm_destroy(comms.back()), "ncclCommDestroy");
}

void Communicator::poll_async_error() {
  const std::lock_guard lock(mutex_);
  for (const NcclComm comm : standing_) report_async_error(comm);
}

void Communicator::report_async_error(NcclComm comm) {
  int state = kNcclSuccess;
  int result = nccl_->comm_get_async_error(comm, &state);
  if (result == kNcclSuccess) result = state;
  if (result == kNcclSuccess || result == kNcclInProgress) return;
  const char* last = nccl_->get_last_error != nullptr ? nccl_->get_last_error(comm) : nullptr;
  board_.fail(kExitRankFailed,
              "rank " + std::to_string(rank_) + ": NCCL reports " + nccl_->get_error_string(result) +
                  (last != nullptr && *last != '\0' ? std::string(": ") + last : ""),
              "NCCL_DEBUG=WARN shows NCCL's own messages");
}

void Communicator::abort() {
  std::vector<NcclComm> comms = take();
  for (; !comms.empty(); comms.pop_back()) nccl_->comm_abort(comms.back());
}

Windows::Windows(std::shared_ptr<const NcclApi> nccl, NcclComm comm, size_t bytes)
    : nccl_(std::move(nccl)), comm_(comm) {
  if (nccl_->window_register == nullptr) {
    throw Failure(kExitUsage, "this NCCL has no windows: -R 2, --way and a scenario's `by` need 2.27");
  }
  for (int i = 0; i < 2; ++i) {
    void* buffer = nullptr;
    nccl_->check(nccl_->mem_alloc(&buffer, bytes), "ncclMemAlloc", comm_);
    buffers_[i] = std::bit_cast<CUdeviceptr>(buffer);
    constexpr int kSymmetric = 1;
    nccl_->check(nccl_->window_register(comm_, buffer, bytes, &windows_[i], kSymmetric), "ncclCommWindowRegister",
                 comm_);
  }
}

void Windows::release() {
  for (int i = 0; i < 2; ++i) {
    nccl_->window_deregister(comm_, windows_[i]);
    nccl_->mem_free(std::bit_cast<void*>(buffers_[i]));
  }
}

namespace {

constexpr uint64_t kWatchNs = 20'000'000;
constexpr uint64_t kIdleWatchNs = 100'000'000;  // without a communicator nothing can go wrong unseen
constexpr int kAbortGraceMs = 3000;

std::string uuid_text(const CUuuid& uuid) {
  std::string text = "GPU-";
  for (int i = 0; i < 16; ++i) {
    char hex[4];
    std::snprintf(hex, sizeof hex, "%02x", static_cast<unsigned char>(uuid.bytes[i]));
    text += (i == 4 || i == 6 || i == 8 || i == 10) ? std::string("-") + hex : hex;
  }
  return text;
}

void copy(char* to, size_t size, const std::string& text) {
  std::strncpy(to, text.c_str(), size - 1);
  to[size - 1] = '\0';
}

CUdevice open_device(const CudaApi& cuda, const Board& board, int ordinal) {
  int count = 0;
  cuda.check(cuda.device_get_count(&count), "cuDeviceGetCount");
  // A launcher may show each process its own GPU alone.
  if (ordinal >= count && count == 1 && std::getenv("LOCAL_RANK") != nullptr) ordinal = 0;
  if (ordinal >= count) {
    throw Failure(
        kExitMissing,
        "more ranks than GPUs: " + std::to_string(board.ranks()) + " ranks, " + std::to_string(count) + " GPUs",
        "ask for at most " + std::to_string(count) + " ranks (-g " + std::to_string(count) +
            "), or look at CUDA_VISIBLE_DEVICES");
  }
  CUdevice device = 0;
  cuda.check(cuda.device_get(&device, ordinal), "cuDeviceGet");
  return device;
}

}  // namespace

Rank::Rank(const Options& options, Board& board, int rank, int device, bool spin)
    : options_(options), board_(board), rank_(rank), spin_(spin), cuda_(CudaApi::instance()) {
  const CUdevice cu_device = open_device(cuda_, board, device);
  CUcontext context = nullptr;
  cuda_.check(cuda_.primary_context_retain(&context, cu_device), "cuDevicePrimaryCtxRetain");
  cuda_.check(cuda_.context_set_current(context), "cuCtxSetCurrent");
  cuda_.check(cuda_.stream_create(&stream_, CU_STREAM_NON_BLOCKING), "cuStreamCreate");
  cuda_.check(cuda_.event_create(&done_, CU_EVENT_BLOCKING_SYNC | CU_EVENT_DISABLE_TIMING), "cuEventCreate");

  if (rank < 0 || rank >= kMaxRanks) throw Failure(kExitUsage, "rank " + std::to_string(rank) + " is out of range");
  RankAbout& about = board.about[rank];
  about.device = device;
  CUuuid uuid{};
  cuda_.check(cuda_.device_get_name(about.name, sizeof about.name, cu_device), "cuDeviceGetName");
  cuda_.check(cuda_.device_get_uuid(&uuid, cu_device), "cuDeviceGetUuid");
  copy(about.uuid, sizeof about.uuid, uuid_text(uuid));
  cuda_.check(cuda_.device_get_pci_bus_id(about.pci, sizeof about.pci, cu_device), "cuDeviceGetPCIBusId");
  cuda_.check(cuda_.device_get_attribute(&about.sm_count, CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT, cu_device),
              "cuDeviceGetAttribute");
  board.barrier();
  for (int other = 0; other < rank; ++other) {
    if (std::strcmp(board.about[other].uuid, about.uuid) == 0) {
      throw Failure(kExitMissing,
                    "more ranks than GPUs: ranks " + std::to_string(other) + " and " + std::to_string(rank) +
                        " have the same one (" + about.uuid + ")",
                    "start at most one rank for each GPU");
    }
  }
}

void Rank::join(const std::shared_ptr<const NcclApi>& nccl, Way way) {
  const bool given = way == Way::kAsGiven;
  auto joined = std::make_shared<Communicator>(nccl, board_, rank_, given ? -1 : info(way).cta_policy);
  windows_wanted_ = given ? options_.registration == 2 : info(way).windows;
  const std::lock_guard lock(communicator_mutex_);
  communicator_ = std::move(joined);
}

Communicator& Rank::join_also(Way way) {
  auto joined = std::make_shared<Communicator>(shared_nccl(), board_, rank_, info(way).cta_policy);
  const std::lock_guard lock(communicator_mutex_);
  more_.push_back(std::move(joined));
  return *more_.back();
}

std::shared_ptr<Communicator> Rank::communicator() {
  const std::lock_guard lock(communicator_mutex_);
  return communicator_;
}

// In the order in which they were joined.
std::vector<std::shared_ptr<Communicator>> Rank::communicators() {
  const std::lock_guard lock(communicator_mutex_);
  std::vector<std::shared_ptr<Communicator>> all;
  if (communicator_ != nullptr) all.push_back(communicator_);
  all.insert(all.end(), more_.begin(), more_.end());
  return all;
}

void Rank::leave() {
  auto left = communicators();
  if (!left.empty()) forget_buffers();
  for (; !left.empty(); left.pop_back()) left.back()->destroy();
  const std::lock_guard lock(communicator_mutex_);
  more_.clear();
  communicator_ = nullptr;
}

void Rank::change_way(Way way) {
  const auto nccl = NcclApi::instance(options_.nccl);
  leave();
  for (const CUdeviceptr buffer : {has_.send, has_.recv}) {
    if (buffer != 0) cuda_.check(cuda_.mem_free(buffer), "cuMemFree");
  }
  has_ = {};
  join(nccl, way);
}

void Rank::abandon() {
  abort();
  wait(stream_);
  if (windows_wanted_) {  // the windows went with it, and their memory stays NCCL's
    has_ = {};
    windows_ = nullptr;
  }
  const std::lock_guard lock(communicator_mutex_);
  more_.clear();
  communicator_ = nullptr;
}

void Rank::close() {
  for (const CUevent event : events_) cuda_.event_destroy(event);
  if (has_.send != 0) cuda_.mem_free(has_.send);
  if (has_.recv != 0) cuda_.mem_free(has_.recv);
  cuda_.event_destroy(done_);
  cuda_.stream_destroy(stream_);
}

// All ranks together, with the same size.
void Rank::reserve_windows(size_t bytes) {
  if (has_.send_bytes >= bytes) return;
  forget_buffers();
  windows_ = std::make_unique<Windows>(shared_nccl(), comm(), bytes);
  has_ = {windows_->send(), windows_->recv(), bytes, bytes};
}

// Windows are the communicator's; other buffers may stay.
void Rank::forget_buffers() {
  if (!windows_wanted_) return;
  if (windows_ != nullptr) windows_->release();
  windows_ = nullptr;
  has_ = {};
}

void Rank::reserve(size_t send_bytes, size_t recv_bytes) {
  if (windows_wanted_) return reserve_windows(std::max<size_t>({send_bytes, recv_bytes, 256}));
  const auto grow = [&](CUdeviceptr& buffer, size_t& has, size_t wanted) {
    wanted = std::max<size_t>(wanted, 256);
    if (has >= wanted) return;
    if (buffer != 0) cuda_.check(cuda_.mem_free(buffer), "cuMemFree");
    cuda_.check(cuda_.mem_alloc(&buffer, wanted), "cuMemAlloc");
    has = wanted;
  };
  grow(has_.send, has_.send_bytes, send_bytes);
  grow(has_.recv, has_.recv_bytes, recv_bytes);
}

CUevent Rank::event(size_t index) {
  while (events_.size() <= index) {
    CUevent event = nullptr;
    cuda_.check(cuda_.event_create(&event, CU_EVENT_DEFAULT), "cuEventCreate");
    events_.push_back(event);
  }
  return events_[index];
}

double Rank::elapsed_ms(CUevent from, CUevent to) const {
  float ms = 0;
  cuda_.check(cuda_.event_elapsed_time(&ms, from, to), "cuEventElapsedTime");
  return ms;
}

void Rank::wait(CUstream stream) {
  throw_if_failed();
  CUresult result = CUDA_SUCCESS;
  if (spin_) {
    while ((result = cuda_.stream_query(stream)) == CUDA_ERROR_NOT_READY) {
      throw_if_failed();
      sched_yield();
    }
  } else {
    record(done_, stream);
    result = cuda_.event_synchronize(done_);
  }
  throw_if_failed();
  cuda_.check(result, "waiting for the GPU");
}

void Rank::set_deadline() {
  if (rank_ != 0 || options_.timeout_s == 0) return;
  board_.deadline_ns = monotonic_ns() + static_cast<uint64_t>(options_.timeout_s) * 1'000'000'000;
}

bool Rank::poll_async_error() {
  const auto watched = communicators();
  for (const auto& each : watched) each->poll_async_error();
  return !watched.empty();
}

void Rank::abort() {
  for (auto aborted = communicators(); !aborted.empty(); aborted.pop_back()) aborted.back()->abort();
}

namespace {

// The ranks of this process as the watchdog sees them: there from the end of their construction until they close.
class WatchedRanks {
 public:
  void add(const std::shared_ptr<Rank>& rank) {
    const std::lock_guard lock(mutex_);
    ranks_.push_back(rank);
  }
  void remove(const std::shared_ptr<Rank>& rank) {
    const std::lock_guard lock(mutex_);
    std::erase(ranks_, rank);
  }
  template <typename Visit>
  void each(Visit visit) {
    const std::lock_guard lock(mutex_);
    for (const auto& rank : ranks_) visit(rank);
  }

 private:
  std::mutex mutex_;
  std::vector<std::shared_ptr<Rank>> ranks_;
};

// Ends the process if aborting the communicators does not bring its ranks home.
void watch(Board& board, WatchedRanks& watched, const std::atomic<bool>& over) {
  bool busy = false;
  while (!over) {
    if (!board.sleep_unless_failed(busy ? kWatchNs : kIdleWatchNs)) {
      busy = false;
      watched.each([&](const std::shared_ptr<Rank>& rank) { busy = rank->poll_async_error() || busy; });
      continue;
    }
    // NCCL's abort waits for the others' in one process: one thread each, which is not joined.
    watched.each([](const std::shared_ptr<Rank>& rank) { std::thread([rank] { rank->abort(); }).detach(); });
    for (int waited = 0; waited < kAbortGraceMs && !over; waited += 10) {
      std::this_thread::sleep_for(std::chrono::milliseconds(10));
    }
    if (!over) _exit(kExitRankFailed);
  }
}

void run_rank(const Options& options, Board& board, WatchedRanks& watched, int rank, int device, bool spin,
              const std::function<void(Rank&)>& work) {
  const std::string who = "rank " + std::to_string(rank) + ": ";
  try {
    const auto self = std::make_shared<Rank>(options, board, rank, device, spin);
    watched.add(self);
    work(*self);
    board.barrier();
    watched.remove(self);
    self->close();
  } catch (const Aborted&) {
    return;  // the rank that failed has reported it
  } catch (const Failure& failure) {
    board.fail(failure.code(), who + failure.what(), failure.hint());
  } catch (const std::exception& error) {
    board.fail(kExitRankFailed, who + error.what());
  }
}

}  // namespace

int run_ranks(const Options& options, Board& board, int first, int count, int first_device,
              const std::function<void(Rank&)>& work) {
  // Polling is exact but takes a core a rank; emulated GPUs need those cores themselves.
  const bool emulated = std::getenv("POWERCCL_EMULATOR_SOCKET") != nullptr;
  const bool spin = !emulated && sysconf(_SC_NPROCESSORS_ONLN) >= 2 * board.ranks();
  WatchedRanks watched;
  std::atomic<bool> over{false};
  std::thread watchdog([&] { watch(board, watched, over); });
  std::vector<std::thread> threads;
  for (int i = 1; i < count; ++i) {
    threads.emplace_back([&, i] { run_rank(options, board, watched, first + i, first_device + i, spin, work); });
  }
  run_rank(options, board, watched, first, first_device, spin, work);
  for (std::thread& thread : threads) thread.join();
  over = true;
  board.wake_sleepers();
  watchdog.join();
  return board.failed() ? kExitRankFailed : kExitOk;
}

}  // namespace powerccl::bench
