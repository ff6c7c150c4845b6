// SPDX-License-Identifier: Apache-2.0
// What every rank sends, and what every rank must receive: computed on the host, without NCCL.
//
// Values repeat with a prime period, which shows a chunk in the wrong place or from the wrong rank. Filling costs a
// memcpy, comparing a memcmp. Reductions are exact in any order wherever the type allows it. Averages
// over a number of ranks that is no power of two, and sums beyond the mantissa, may differ by one rounding per rank.
#pragma once
#include <cstddef>
#include <cstdint>
#include <vector>

#include "bench/pattern.h"

namespace powerccl::bench {

// One element, written to or read from memory of the type's width. Rounds to nearest even; integers must be whole.
void store(Type type, void* where, double value);
double load(Type type, const void* where);

inline constexpr size_t kPeriod = 8191;

// Element `index` of what `rank` sends.
double value_at(Type type, Op op, int rank, size_t index);

// The reduction of that element over all ranks, as the type represents it.
double reduced_at(Type type, Op op, int ranks, size_t index);

// How far a received element may be from `expected`; 0 where the result is exact.
double tolerance(Type type, Op op, int ranks, double expected);

// The send data of `call.rank`: `call.shape.send_count` elements (none if a rooted pattern takes nothing from it).
std::vector<uint8_t> send_data(const Call& call);
// Elements that `call.rank` must find in its receive buffer; 0 if it receives nothing.
size_t received_count(const Call& call);
// How many of the received elements are wrong. `received` holds received_count(call) elements.
size_t count_wrong(const Call& call, const std::vector<uint8_t>& received);
// The same where the rank's part of what each sender has begins at `first`, since parts differ.
size_t count_wrong(const Call& call, const std::vector<uint8_t>& received, size_t first);

}  // namespace powerccl::bench
