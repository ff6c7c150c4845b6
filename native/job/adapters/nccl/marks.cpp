// SPDX-License-Identifier: Apache-2.0
#include "adapters/nccl/marks.h"

#include "base/own_time.h"

namespace powerccl::nccl {

struct MarkPair {
  MarkContext* context = nullptr;
  void* before = nullptr;
  void* after = nullptr;
  MarkOf of;
};

// A CUDA context's events, and the offset of their clock to the host's.
struct MarkContext {
  std::atomic<void*> handle{nullptr};
  SpinLock lock;  // over the lists
  std::atomic<bool> failed{false};
  uint32_t made = 0;  // pairs that have their events
  uint32_t free_count = 0, pending_count = 0;
  uint16_t free[Marks::kPairs], pending[Marks::kPairs];  // pending: in the order of their ends
  MarkPair pairs[Marks::kPairs];
  // Only the thread that looks at marks uses what follows.
  void* stream = nullptr;
  void* references[2] = {};
  uint32_t reference = 0;
  uint64_t reference_ns = 0;  // host time of references[reference]; 0: not known
  uint64_t patience_ns = 0, try_again_ns = 0;
  uint64_t apart_ns = 0;  // time between two events of a pair without a wait; 0: not known
};

namespace {

constexpr uint64_t kLookEveryNs = 4000000;      // whether pairs have passed; there are kPairs until then
constexpr uint64_t kReferenceNs = 2000000000u;  // the clocks drift by microseconds a second at most
constexpr int kReferenceTries = 4;
constexpr uint64_t kGoodReferenceNs = 25000;  // the host time of a reference is known to half of it
// For an event of ours to pass on a GPU that has other work; doubled after each time in vain. The last is at the
// job's end, where a try comes only once.
constexpr uint64_t kLeastPatienceNs = 1000000, kMostPatienceNs = 4000000;
constexpr uint64_t kLastPatienceNs = 50000000;
constexpr uint64_t kSpinNs = 50000;        // then sleeping, lest the GPU's driver wait for this core
constexpr uint64_t kTryAgainAfter = 1000;  // times the patience that was lost: a job may lose 0.1 % so
constexpr uint64_t kMostApartNs = 5000;    // what is longer was a wait, not the pair's own time
constexpr uint32_t kMostUnready = 2;       // pairs; the others were put into streams later and are not asked
constexpr int kTimed = 0;                  // CU_EVENT_DEFAULT
constexpr unsigned kNonBlocking = 1;       // CU_STREAM_NON_BLOCKING
constexpr int kRelaxed = 2;                // CU_STREAM_CAPTURE_MODE_RELAXED

MarkContext g_contexts[Marks::kContexts];
Marks g_marks;

// While some thread captures a graph, asking an event would end that capture, unless this thread declares itself apart.
class ApartFromCaptures {
 public:
  ApartFromCaptures() {
    if (g_cuda.exchange_capture_mode != nullptr) g_cuda.exchange_capture_mode(&mode_);
  }
  ~ApartFromCaptures() {
    if (g_cuda.exchange_capture_mode != nullptr) g_cuda.exchange_capture_mode(&mode_);
  }
  ApartFromCaptures(const ApartFromCaptures&) = delete;
  ApartFromCaptures& operator=(const ApartFromCaptures&) = delete;

 private:
  int mode_ = kRelaxed;
};

class InContext {
 public:
  explicit InContext(void* context) {
    void* current = nullptr;
    if (g_cuda.ctx_get_current(&current) == 0 && current == context) return;
    pushed_ = g_cuda.ctx_push_current(context) == 0;
    there_ = pushed_;
  }
  ~InContext() {
    void* popped = nullptr;
    if (pushed_) g_cuda.ctx_pop_current(&popped);
  }
  InContext(const InContext&) = delete;
  InContext& operator=(const InContext&) = delete;
  bool there() const { return there_; }

 private:
  bool pushed_ = false, there_ = true;
};

bool is_over(void* event, bool* failed) {
  const int result = g_cuda.event_query(event);
  if (result != 0 && result != kCudaNotReady) *failed = true;
  return result == 0;
}

// Host time of an event of this context: the reference's, and the GPU's time between the two.
bool host_time(const MarkContext* context, void* event, uint64_t* ns) {
  float ms = 0;
  if (g_cuda.event_elapsed_ms(&ms, context->references[context->reference], event) != 0) return false;
  *ns = context->reference_ns + static_cast<uint64_t>(static_cast<int64_t>(static_cast<double>(ms) * 1e6));
  return true;
}

// Records an event in a stream with nothing else in it and looks immediately. Its time is between the two looks at the
// host's clock. If the GPU is busy, the reference is renewed later; how long to wait is learnt. `last`: there is no
// later opportunity.
void renew_reference(MarkContext* context, bool last) {
  if (monotonic_ns() < context->try_again_ns && !last) return;
  for (void*& event : context->references) {
    if (event == nullptr && g_cuda.event_create(&event, kTimed) != 0) event = nullptr;
    if (event == nullptr) return;
  }
  if (context->stream == nullptr && g_cuda.stream_create(&context->stream, kNonBlocking) != 0) {
    context->stream = nullptr;
    return;
  }
  if (context->patience_ns == 0) context->patience_ns = kLeastPatienceNs;
  const uint64_t patience_ns = last ? kLastPatienceNs : context->patience_ns;
  const uint32_t next = context->reference ^ 1;
  uint64_t before = 0, now = 0;
  bool failed = false;
  for (int i = 0; i < kReferenceTries; ++i) {
    before = now = monotonic_ns();
    bool over = false;
    if (g_cuda.event_record(context->references[next], context->stream) != 0) return;
    while (!over && !failed && now - before < patience_ns) {
      if (now - before > kSpinNs) sleep_ns(kSpinNs / 2);
      over = is_over(context->references[next], &failed);
      now = monotonic_ns();
    }
    if (!over) {
      context->try_again_ns = now + kTryAgainAfter * patience_ns;
      if (context->patience_ns < kMostPatienceNs) context->patience_ns *= 2;
      return;
    }
    // The event holds the last try's time, good or not.
    if (now - before < kGoodReferenceNs) break;
  }
  context->reference = next;
  context->reference_ns = before + (now - before) / 2;
  context->patience_ns = kLeastPatienceNs;
}

}  // namespace

Marks& marks() {
  return g_marks;
}

bool Marks::capturing(void* stream) const {
  int status = 0;
  return g_cuda.stream_is_capturing == nullptr || g_cuda.stream_is_capturing(stream, &status) != 0 || status != 0;
}

MarkContext* Marks::context_of(void* stream) {
  void* handle = nullptr;
  if (g_cuda.stream_get_ctx(stream, &handle) != 0 || handle == nullptr) return nullptr;
  for (MarkContext& context : g_contexts) {
    void* known = context.handle.load(std::memory_order_acquire);
    if (known == nullptr && context.handle.compare_exchange_strong(known, handle, std::memory_order_acq_rel))
      return &context;
    if (known == handle) return &context;
  }
  return nullptr;
}

MarkPair* Marks::begin(void* stream) {
  const OwnTime takes(&host_ns_);
  if (given_up_.load(std::memory_order_acquire) || !g_cuda.can_mark() || capturing(stream)) return nullptr;
  MarkContext* context = context_of(stream);
  if (context == nullptr || context->failed) return nullptr;
  MarkPair* pair = nullptr;
  bool fresh = false;
  {
    SpinGuard guard(context->lock);
    if (context->free_count > 0) {
      pair = &context->pairs[context->free[--context->free_count]];
    } else if (context->made < kPairs) {
      pair = &context->pairs[context->made++];
      fresh = true;
    }
  }
  if (pair == nullptr) return nullptr;
  if (fresh) {
    const ApartFromCaptures apart;
    const InContext in(context->handle.load(std::memory_order_relaxed));
    pair->context = context;
    if (!in.there() || g_cuda.event_create(&pair->before, kTimed) != 0 ||
        g_cuda.event_create(&pair->after, kTimed) != 0) {
      context->failed = true;
      return nullptr;
    }
  }
  if (g_cuda.event_record(pair->before, stream) == 0) return pair;
  drop(pair);
  return nullptr;
}

void Marks::end(MarkPair* pair, void* stream, const MarkOf& of) {
  if (pair == nullptr) return;
  const OwnTime takes(&host_ns_);
  if (g_cuda.event_record(pair->after, stream) != 0) return drop(pair);
  pair->of = of;
  MarkContext* context = pair->context;
  SpinGuard guard(context->lock);
  context->pending[context->pending_count++] = static_cast<uint16_t>(pair - context->pairs);
}

void Marks::drop(MarkPair* pair) {
  if (pair == nullptr) return;
  MarkContext* context = pair->context;
  SpinGuard guard(context->lock);
  context->free[context->free_count++] = static_cast<uint16_t>(pair - context->pairs);
}

bool Marks::affordable(uint32_t* burst) {
  const auto now = static_cast<int64_t>(monotonic_ns());
  MarkAllowance::Answer answer;
  {
    SpinGuard guard(spending_);
    answer = allowance_.ask(now);
    if (answer.wants_cost) {
      const uint64_t taken_ns = host_ns_.exchange(0, std::memory_order_relaxed);
      allowance_.costs(static_cast<int64_t>(taken_ns / MarkAllowance::kCosted));
    }
  }
  *burst = answer.burst;
  Runtime* active = answer.pauses ? runtime() : nullptr;
  if (active != nullptr) active->waits_paused(answer.burst, answer.marked, answer.unmarked);
  return answer.granted;
}

void Marks::tell(MarkContext* context, MarkPair* pair) {
  const MarkOf& of = pair->of;
  uint64_t begin_ns = 0, end_ns = 0;
  if (!host_time(context, pair->before, &begin_ns) || !host_time(context, pair->after, &end_ns)) return;
  if (end_ns < begin_ns) end_ns = begin_ns;
  const uint64_t span_ns = end_ns - begin_ns;
  if (of.waited && !of.ran) {
    const bool least = context->apart_ns == 0 || span_ns < context->apart_ns;
    if (least && span_ns < kMostApartNs) context->apart_ns = span_ns;
    // Subtracts the time of the pair itself. It is at the end: a wait begins when its stream is notified.
    end_ns -= context->apart_ns < span_ns ? context->apart_ns : span_ns;
  }
  Communicator* communicator = of.call.communicator;
  if (communicator == nullptr || communicator->index != of.call.communicator_index) return;
  if (of.ran) {
    KernelRan ran = of.kernel;
    ran.start_ns = begin_ns;
    ran.stop_ns = end_ns;
    runtime()->kernel_ran(communicator, of.call.call, ran);
  }
  if (of.graph) runtime()->graph_ran(communicator, of.call.call, begin_ns, end_ns);
  if (of.waited) runtime()->computation_waited(communicator, of.call.call, of.stream, begin_ns, end_ns, of.burst);
}

// Others only put pairs behind those that are there, so that the list may be read without its lock.
void Marks::look_at(MarkContext* context, bool last) {
  const uint32_t most_unready = last ? kPairs : kMostUnready;
  uint32_t count = 0;
  uint16_t pending[kPairs];
  {
    SpinGuard guard(context->lock);
    count = context->pending_count;
    memcpy(pending, context->pending, count * sizeof(pending[0]));
  }
  if (count == 0) return;
  const ApartFromCaptures apart;
  const InContext in(context->handle.load(std::memory_order_relaxed));
  if (!in.there()) return;
  bool failed = false;
  uint32_t unready = 0, kept = 0, seen = 0;
  // Looked at first: what ended before the reference is renewed, ended shortly before it.
  if (const uint64_t began_ns = monotonic_ns(); began_ns - context->reference_ns > kReferenceNs) {
    renew_reference(context, last && context->reference_ns == 0);
    const uint64_t took_ns = monotonic_ns() - began_ns;
    if (took_ns > OwnTime::kMostNs) add_own_ns(OwnWork::kWaits, took_ns);  // the job waited indeed
  }
  if (context->reference_ns == 0) return;
  uint16_t done[kPairs];
  uint32_t done_count = 0;
  for (; seen < count && unready < most_unready && !failed; ++seen) {
    MarkPair* pair = &context->pairs[pending[seen]];
    if (!is_over(pair->after, &failed)) {
      ++unready;
      pending[kept++] = pending[seen];
      continue;
    }
    tell(context, pair);
    done[done_count++] = pending[seen];
  }
  if (failed) context->failed = true;
  SpinGuard guard(context->lock);
  memcpy(pending + kept, context->pending + seen, (context->pending_count - seen) * sizeof(pending[0]));
  context->pending_count = kept + context->pending_count - seen;
  memcpy(context->pending, pending, context->pending_count * sizeof(pending[0]));
  for (uint32_t i = 0; i < done_count; ++i) context->free[context->free_count++] = done[i];
}

void Marks::give_up() {
  SpinGuard only(looking_);
  given_up_.store(true, std::memory_order_release);
}

void Marks::look() {
  const uint64_t now = monotonic_ns();
  if (now - looked_ns_.load(std::memory_order_relaxed) < kLookEveryNs || !looking_.try_lock()) return;
  looked_ns_.store(now, std::memory_order_relaxed);
  if (given_up_.load(std::memory_order_relaxed)) return looking_.unlock();
  for (MarkContext& context : g_contexts) {
    if (context.handle.load(std::memory_order_acquire) == nullptr) break;
    if (context.failed) continue;
    const OwnTime takes(&host_ns_);
    look_at(&context, false);
  }
  looking_.unlock();
}

void Marks::finish(Communicator* communicator) {
  SpinGuard only(looking_);
  for (MarkContext& context : g_contexts) {
    if (context.handle.load(std::memory_order_acquire) == nullptr || given_up_.load(std::memory_order_relaxed)) break;
    if (!context.failed) look_at(&context, true);
    SpinGuard guard(context.lock);
    uint32_t kept = 0;
    for (uint32_t i = 0; i < context.pending_count; ++i) {
      const uint16_t each = context.pending[i];
      if (context.pairs[each].of.call.communicator == communicator) {
        context.free[context.free_count++] = each;
      } else {
        context.pending[kept++] = each;
      }
    }
    context.pending_count = kept;
  }
}

}  // namespace powerccl::nccl
