// SPDX-License-Identifier: Apache-2.0
// Interposed functions of CUDA: which streams compute, and where they wait for an event of NCCL's streams.
#include "adapters/nccl/marks.h"
#include "adapters/nccl/originals.h"
#include "adapters/nccl/preload_abi.h"
#include "adapters/nccl/thread.h"

namespace powerccl::nccl {

constinit thread_local Thread t_thread;

StreamOfCall stream_of_present_call() {
  return t_thread.stream;
}

namespace {

// Stream 0 of code that is built with per-thread default streams.
void* own(void* stream) {
  return stream == nullptr ? reinterpret_cast<void*>(2) : stream;  // NOLINT(performance-no-int-to-ptr): CUDA's number
}
void* stream_in(const LaunchConfig* config) {
  return config != nullptr ? config->stream : nullptr;
}

// After the call between a pair of marks, with the call's result.
int close_marks(MarkPair* pair, int result, void* stream, const MarkOf& of) {
  if (result == 0) {
    marks().end(pair, stream, of);
  } else {
    marks().drop(pair);
  }
  marks().look();
  return result;
}

template <typename Real>
int around_wait(Streams* streams, void* stream, void* event, const Real& real) {
  MarkPair* pair = nullptr;
  MarkOf of;
  {
    const AtOwnWork own_work(OwnWork::kWaits);
    tell_launches(streams);
    bool stalls = false;
    of.call = streams->waits(key_of(stream), reinterpret_cast<uint64_t>(event), &stalls);
    if (stalls && marks().affordable(&of.burst)) pair = marks().begin(stream);
  }
  if (pair == nullptr) return real();
  const int result = real();
  const AtOwnWork own_work(OwnWork::kWaits);
  of.stream = reinterpret_cast<uint64_t>(stream);
  of.waited = true;
  return close_marks(pair, result, stream, of);
}

// The calls captured in a graph are not made when it is launched, so that the launch stands for all of them.
template <typename Real>
int around_graph(Streams* streams, void* stream, void* graph, const Real& real) {
  MarkPair* pair = nullptr;
  MarkOf of;
  {
    const AtOwnWork own_work(OwnWork::kWaits);
    tell_launches(streams);
    streams->launched(key_of(stream));
    of.call = runtime()->graph_launches(reinterpret_cast<uint64_t>(graph));
    if (of.call.call != 0 && marks().affordable(&of.burst)) pair = marks().begin(stream);
  }
  const int result = real();
  if (pair == nullptr) return result;
  const AtOwnWork own_work(OwnWork::kWaits);
  of.graph = true;
  return close_marks(pair, result, stream, of);
}

void kernel_launched(Streams* streams, void* stream, uint64_t kernel) {
  constexpr uint32_t kTold = 64;  // launches at a time: telling costs more than counting
  Thread& thread = t_thread;
  // Of several GPUs the default stream is another one on each.
  if (thread.launches_in != stream || thread.launches == kTold || runtime()->only_device() < 0) tell_launches(streams);
  thread.launches_in = stream;
  ++thread.launches;
  thread.kinds |= Streams::kind_of(kernel);
}

// Launches are many and cost little, so that the time of one in many stands for all.
void count_launch(Streams* streams, void* stream, uint64_t kernel) {
  constexpr uint32_t kTimedOneIn = 61;  // and not always one that tells
  if (t_thread.until_timed-- != 0) return kernel_launched(streams, stream, kernel);
  t_thread.until_timed = kTimedOneIn - 1;
  const uint64_t began_ns = monotonic_ns();
  kernel_launched(streams, stream, kernel);
  add_own_ns(OwnWork::kLaunches, kTimedOneIn * (monotonic_ns() - began_ns));
}

void record_done(Streams* streams, void* event, void* stream) {
  const AtOwnWork own_work(OwnWork::kWaits);
  tell_launches(streams);
  const uint64_t key = key_of(stream);
  // In a capture it is a node of the graph, and stands for nothing that runs.
  if (streams->last_call(key).call != 0 && marks().capturing(stream)) {
    streams->event_gone(reinterpret_cast<uint64_t>(event));
  } else {
    streams->recorded(reinterpret_cast<uint64_t>(event), key);
  }
  marks().look();
}

}  // namespace
}  // namespace powerccl::nccl

using namespace powerccl;
using namespace powerccl::nccl;

#define POWERCCL_EXPORT extern "C" __attribute__((visibility("default")))
// NOLINTBEGIN(bugprone-macro-parentheses): parameter lists and argument lists come with theirs
#define POWERCCL_REAL(library, name, parameters)                                                      \
  POWERCCL_ORIGINAL(name, Library::library);                                                          \
  auto* const real = reinterpret_cast<int(*) parameters>(original.find(__builtin_return_address(0))); \
  if (real == nullptr) return kErrorNotSupported

#define POWERCCL_STREAM_WAIT(library, name, parameters, arguments, stream_, event_) \
  POWERCCL_EXPORT int name parameters {                                             \
    POWERCCL_REAL(library, name, parameters);                                       \
    Streams* const streams = watched();                                             \
    if (streams == nullptr) return real arguments;                                  \
    return around_wait(streams, stream_, event_, [&] { return real arguments; });   \
  }

#define POWERCCL_EVENT_RECORD(library, name, parameters, arguments, event_, stream_) \
  POWERCCL_EXPORT int name parameters {                                              \
    POWERCCL_REAL(library, name, parameters);                                        \
    const int result = real arguments;                                               \
    Streams* const streams = watched();                                              \
    if (streams != nullptr && result == 0) record_done(streams, event_, stream_);    \
    return result;                                                                   \
  }

#define POWERCCL_STREAM_WORK(library, name, parameters, arguments, stream_)                     \
  POWERCCL_EXPORT int name parameters {                                                         \
    POWERCCL_REAL(library, name, parameters);                                                   \
    Streams* const streams = watched();                                                         \
    if (streams != nullptr) count_launch(streams, stream_, reinterpret_cast<uint64_t>(kernel)); \
    return real arguments;                                                                      \
  }

#define POWERCCL_GRAPH_LAUNCH(library, name, parameters, arguments, stream_)      \
  POWERCCL_EXPORT int name parameters {                                           \
    POWERCCL_REAL(library, name, parameters);                                     \
    Streams* const streams = watched();                                           \
    if (streams == nullptr) return real arguments;                                \
    return around_graph(streams, stream_, graph, [&] { return real arguments; }); \
  }

#define POWERCCL_END(library, name, gone)              \
  POWERCCL_EXPORT int name(void* what) {               \
    POWERCCL_REAL(library, name, (void*));             \
    Streams* const streams = watched();                \
    if (streams != nullptr) {                          \
      tell_launches(streams);                          \
      streams->gone(reinterpret_cast<uint64_t>(what)); \
    }                                                  \
    return real(what);                                 \
  }
#define POWERCCL_CONTEXT_END(library, name, parameters, arguments) \
  POWERCCL_EXPORT int name parameters {                            \
    POWERCCL_REAL(library, name, parameters);                      \
    if (watched() != nullptr) marks().give_up();                   \
    return real arguments;                                         \
  }
#define POWERCCL_EVENT_END(library, name) POWERCCL_END(library, name, event_gone)
#define POWERCCL_STREAM_END(library, name) POWERCCL_END(library, name, stream_gone)

// NOLINTEND(bugprone-macro-parentheses)

#include "adapters/nccl/preload_functions.def"
