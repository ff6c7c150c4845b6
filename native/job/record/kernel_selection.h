// SPDX-License-Identifier: Apache-2.0
// Which operations the library is asked to time on the GPU.
//
// Such events cost some microseconds on short operations and nothing on long ones. They are asked for if they cost
// under 1 % of the operation's learned duration. They are also asked for between operations so far apart that all of it
// costs a quarter of a per cent of the time. Otherwise they are sampled so rarely that the average stays there.
// NCCL reads the wish for an operation *before* it reports that operation. In 2.28 to 2.30,
// ncclProfilerStartGroupApiEvent loads the mask, then the API events come. So the wish made inside one operation's
// event is for the next one. What comes next is predicted from what followed last time.
//
// Two things must hold for NCCL's own counters to agree, or a communicator's destruction can hang. (2.28.9; NCCL's
// src/proxy.cc and <src/device/common.h>: work counters on host and GPU.)
// - all sends and receives of a group carry the same wish; see PointToPointGroup;
// - once an operation has been captured into a graph, its wish never changes: the GPU counts each replay and the
//   host only the asked-for ones.
//
// Each operation asked for in a graph costs every replay 7 to 10 us on an H200 (docs/concepts/plugin-cost.md). If a
// capture is known before its first operation, all later ones are asked for, or none. They are asked for if that would
// have cost under 1 % of the operations until then.
#pragma once
#include <stdint.h>

#include <atomic>

#include "base/basics.h"
#include "base/environment.h"
#include "record/patterns.h"

namespace powerccl {

class KernelSelection {
 public:
  static constexpr uint64_t kCostNs = 8000;           // of asking, measured at 1 MiB: docs/concepts/hardware.md
  static constexpr uint64_t kFreeNs = 100 * kCostNs;  // from this duration on the cost is under 1 %
  static constexpr uint32_t kFirst = 2;               // of each pattern and size class these are always asked for
  static constexpr uint32_t kSilentAfter = 8;         // asked for so often without an answer: hardly ever again
  static constexpr uint32_t kSilentEvery = 256;
  static constexpr uint32_t kUnknownNext = 64;  // unpredicted successors that are asked for

  // `teller(context, on)` makes the wish known to the library; called now and at each change, never by two threads at
  // once. `selectable`: the library takes the wish per operation; else `auto` means all.
  void begin(KernelEvents mode, bool selectable, void (*teller)(void* context, bool on), void* context);

  // The present wish. The operation being reported was made with it.
  bool asked() const { return asked_.load(std::memory_order_relaxed); }

  struct Operation {
    uint32_t comm;
    uint8_t pattern;
    uint64_t bytes;
    bool captured;
  };
  // Another profiler makes the library report all kernels, or none. Its wish applies until kOurs.
  enum class Others { kOurs, kAll, kNone };
  void others_decide(Others what);

  // An operation is about to be captured. True: none is asked for from here on, so times must come from elsewhere.
  bool capture_begins();

  // An operation was made, with `asked` as its wish. Makes the wish for the next one.
  void made(const Operation& operation, bool asked);

  // A kernel's duration came back.
  void answered(uint8_t pattern, uint64_t bytes, uint64_t duration_ns);

  // Whether asking about such operations has had answers so far.
  bool answers(uint8_t pattern, uint64_t bytes) const;

  // While a group of sends and receives is being put together the wish stays. Another thread may have changed it
  // between the group's first operation and this call. Which of the two values that operation got cannot be known. Only
  // a send asked for beside a receive not asked for does harm, so the rest of the group follows the first's kind.
  void point_to_point_begins(bool with_a_send);
  void point_to_point_ends();

 private:
  struct Class {
    std::atomic<uint32_t> asked{0}, answered{0}, since_asked{0};
    std::atomic<uint64_t> duration_ns{0};
  };
  static constexpr uint32_t kSuccessors = 256;
  static constexpr int64_t kMostCreditNs = 16 * static_cast<int64_t>(kCostNs);
  // Operations are made far ahead of when they run, those of an iteration all together.
  static constexpr int64_t kMostSpareNs = 256 * static_cast<int64_t>(kCostNs);
  static constexpr uint64_t kPartOfTime = 400;
  static constexpr uint64_t kRecentlyNs = 1000000000u;

  Class& class_of(uint8_t pattern, uint64_t bytes) { return classes_[pattern][size_class(bytes)]; }
  bool wanted(uint32_t signature);
  void tell(bool on);
  bool keep(bool on);  // for ever; false: it was fixed, or others decide
  bool free_to_choose() const {
    return !fixed_.load(std::memory_order_relaxed) && !others_.load(std::memory_order_relaxed);
  }

  std::atomic<bool> asked_{false};
  std::atomic<bool> fixed_{true}, others_{false};  // fixed: the wish does not change any more
  bool own_ = false;                               // what was asked for when others came to decide
  void (*tell_)(void*, bool) = nullptr;
  void* context_ = nullptr;

  SpinLock lock_;  // over the wish and what follows
  uint32_t open_groups_ = 0;
  uint64_t changed_ns_ = 0, changed_by_ = 0;

  // What asking may still cost: 1 % of what has run, less what was asked. Keeps wrong predictions from costing more.
  std::atomic<int64_t> credit_ns_{0};
  // The same if all were asked for.
  std::atomic<int64_t> credit_of_all_ns_{0};
  // The same of the time that passes, for operations too short to be asked for otherwise.
  std::atomic<int64_t> spare_ns_{0};
  std::atomic<uint64_t> made_ns_{0};
  std::atomic<uint32_t> previous_{0}, unknown_{0};
  std::atomic<uint64_t> successors_[kSuccessors] = {};  // signature << 32 | the one that followed
  Class classes_[POWERCCL_PATTERNS][kSizeClasses];
};

}  // namespace powerccl
