// SPDX-License-Identifier: Apache-2.0
// What a change of clock takes of a core, with all the looks that lead to it: measured on the clock thread itself, for
// a rank may take only so much of one, and hosts differ.
#ifndef POWERCCL_POLICY_CHANGE_COST_H
#define POWERCCL_POLICY_CHANGE_COST_H
#include <stdint.h>

namespace powerccl {

// The clock thread's own.
class ChangeCost {
 public:
  static constexpr double kAssumedNs = 27000;  // as on emulated servers, whose daemon is another process, too

  // The thread has used so much processor time by now, for so many changes.
  void looked(uint64_t processor_ns, uint64_t changes) {
    const uint64_t more = changes - changes_, took_ns = processor_ns - processor_ns_;
    changes_ = changes;
    processor_ns_ = processor_ns;
    // Where there are few, it is looking for them that takes time.
    if (more < kOften) return;
    counted_ += more;
    all_ns_ += took_ns;
  }
  double ns() const { return counted_ > 0 ? static_cast<double>(all_ns_) / static_cast<double>(counted_) : kAssumedNs; }

 private:
  static constexpr uint64_t kOften = 200;  // changes between two looks
  uint64_t changes_ = 0, processor_ns_ = 0;
  uint64_t counted_ = 0, all_ns_ = 0;
};

}  // namespace powerccl
#endif
