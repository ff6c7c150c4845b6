// SPDX-License-Identifier: Apache-2.0
// A table from numbers to rows, of fixed size: eight places for each number. Looked up
// without a lock; what finds all eight taken has no row.
#pragma once
#include <stdint.h>

#include <atomic>

namespace powerccl {

// Key 0 is none. A removed key's row keeps its contents until another key takes its place: the thread that adds one
// makes it new (`added`).
template <typename Row, uint32_t kRows>
class KeyTable {
  static_assert((kRows & (kRows - 1)) == 0 && kRows >= 8);

 public:
  Row* find(uint64_t key) {
    const uint32_t first = place_of(key);
    for (uint32_t i = first; i < first + kWays; ++i) {
      if (keys_[i].load(std::memory_order_acquire) == key) return &rows_[i];
    }
    return nullptr;
  }

  // The row of `key`, taken if need be.
  Row* find_or_add(uint64_t key, bool* added) {
    *added = false;
    if (Row* row = find(key)) return row;
    const uint32_t first = place_of(key);
    for (uint32_t i = first; i < first + kWays; ++i) {
      uint64_t free = 0;
      if (keys_[i].compare_exchange_strong(free, key, std::memory_order_acq_rel)) {
        *added = true;
        return &rows_[i];
      }
      if (free == key) return &rows_[i];  // another thread was as quick
    }
    return nullptr;
  }

  void remove(uint64_t key) {
    const uint32_t first = place_of(key);
    for (uint32_t i = first; i < first + kWays; ++i) {
      uint64_t is = key;
      keys_[i].compare_exchange_strong(is, 0, std::memory_order_acq_rel);
    }
  }

  // The row at a place of `key`, and its key: for a caller that makes room.
  static constexpr uint32_t kWays = 8;
  Row* at(uint64_t key, uint32_t way, uint64_t* holds) {
    const uint32_t place = place_of(key) + way;
    *holds = keys_[place].load(std::memory_order_relaxed);
    return &rows_[place];
  }

 private:
  static uint32_t place_of(uint64_t key) {
    return static_cast<uint32_t>((key * 0x9e3779b97f4a7c15u) >> 40) & (kRows - 1) & ~(kWays - 1);
  }

  std::atomic<uint64_t> keys_[kRows] = {};
  Row rows_[kRows] = {};
};

}  // namespace powerccl
