// SPDX-License-Identifier: Apache-2.0
#include "bench/verify.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>

namespace powerccl::bench {
namespace {

uint32_t mix(uint32_t value) {
  value ^= value >> 16U;
  value *= 0x7feb352dU;
  value ^= value >> 15U;
  value *= 0x846ca68bU;
  return value ^ (value >> 16U);
}

// One whole period of elements, from which any stretch is copied or compared.
class Cycle {
 public:
  template <typename Element>
  Cycle(Type type, Element element) : width_(info(type).bytes), bytes_(kPeriod * width_) {
    for (size_t i = 0; i < kPeriod; ++i) store(type, bytes_.data() + i * width_, element(i));
  }
  void copy(uint8_t* to, size_t first, size_t count) const {
    each_stretch(first, count, [&](size_t done, size_t offset, size_t length) {
      std::memcpy(to + done * width_, at(offset), length * width_);
      return true;
    });
  }
  bool equal(const uint8_t* data, size_t first, size_t count) const {
    return each_stretch(first, count, [&](size_t done, size_t offset, size_t length) {
      return std::memcmp(data + done * width_, at(offset), length * width_) == 0;
    });
  }
  const uint8_t* at(size_t index) const { return bytes_.data() + index % kPeriod * width_; }

 private:
  template <typename Visit>
  bool each_stretch(size_t first, size_t count, Visit visit) const {
    for (size_t done = 0; done < count;) {
      const size_t offset = (first + done) % kPeriod;
      const size_t length = std::min(kPeriod - offset, count - done);
      if (!visit(done, offset, length)) return false;
      done += length;
    }
    return true;
  }
  size_t width_;
  std::vector<uint8_t> bytes_;
};

size_t wrong_in(Type type, const Cycle& expected, const uint8_t* data, size_t first, size_t count, int ranks,
                const Op* op) {
  if (expected.equal(data, first, count)) return 0;
  const size_t width = info(type).bytes;
  size_t wrong = 0;
  for (size_t i = 0; i < count; ++i) {
    const uint8_t* want_bytes = expected.at(first + i);
    if (std::memcmp(data + i * width, want_bytes, width) == 0) continue;
    const double want = load(type, want_bytes);
    const double allowed = op != nullptr ? tolerance(type, *op, ranks, want) : 0;
    // Negated, so that NaN counts as wrong.
    if (!(std::fabs(load(type, data + i * width) - want) <= allowed)) ++wrong;
  }
  return wrong;
}

Cycle values_of(const Call& call, int rank) {
  return Cycle(call.type, [&](size_t i) { return value_at(call.type, call.op, rank, i); });
}

}  // namespace

double value_at(Type type, Op op, int rank, size_t index) {
  const uint32_t bits =
      mix(static_cast<uint32_t>(index % kPeriod) * 2654435761U + static_cast<uint32_t>(rank) * 40503U);
  if (op == Op::kProd) {
    // Powers of two multiply exactly; only the first ranks contribute, so that no type overflows.
    if (rank >= 8) return 1;
    if (!is_float(type)) return 1 + static_cast<double>(bits % 3);
    static const double factors[] = {0.5, 1, 2, -1};
    return factors[bits % 4];
  }
  // How libraries round a negative integer quotient is not part of NCCL's contract: averages of integers stay positive.
  if (op == Op::kAvg && !is_float(type)) return static_cast<double>(bits % 17);
  // 8 ranks' sums of values up to 16 stay below 2^8 and are exact even in bfloat16.
  return static_cast<double>(bits % 33) - 16;
}

double reduced_at(Type type, Op op, int ranks, size_t index) {
  double result = value_at(type, op, 0, index);
  for (int rank = 1; rank < ranks; ++rank) {
    const double value = value_at(type, op, rank, index);
    switch (op) {
      case Op::kSum:
      case Op::kAvg:
        result += value;
        break;
      case Op::kProd:
        result *= value;
        break;
      case Op::kMax:
        result = std::max(result, value);
        break;
      case Op::kMin:
        result = std::min(result, value);
        break;
    }
  }
  if (op == Op::kAvg) {
    result /= ranks;
    if (!is_float(type)) result = std::trunc(result);  // NCCL divides integers as C does
  }
  return result;
}

double tolerance(Type type, Op op, int ranks, double expected) {
  const int mantissa = info(type).mantissa_bits;
  if (mantissa == 0 || op == Op::kMax || op == Op::kMin || op == Op::kProd) return 0;
  const bool power_of_two = std::has_single_bit(static_cast<unsigned>(ranks));
  const double largest = 16.0 * ranks;
  if (std::ldexp(1.0, mantissa) >= largest && (op == Op::kSum || power_of_two)) return 0;
  const double step = std::ldexp(op == Op::kAvg ? 16.0 : largest, -mantissa);
  return step * ranks + std::ldexp(std::fabs(expected), -mantissa);
}

std::vector<uint8_t> send_data(const Call& call) {
  const bool gives =
      call.rank == call.root || (call.pattern != Pattern::kBroadcast && call.pattern != Pattern::kScatter);
  std::vector<uint8_t> data((gives ? call.shape.send_count : 0) * info(call.type).bytes);
  if (gives) values_of(call, call.rank).copy(data.data(), 0, call.shape.send_count);
  return data;
}

size_t received_count(const Call& call) {
  const bool root_alone = call.pattern == Pattern::kReduce || call.pattern == Pattern::kGather;
  return root_alone && call.rank != call.root ? 0 : call.shape.recv_count;
}

size_t count_wrong(const Call& call, const std::vector<uint8_t>& received) {
  if (received_count(call) == 0) return 0;
  const size_t count = call.shape.count;
  const size_t width = info(call.type).bytes;
  const auto own = static_cast<size_t>(call.rank);
  const uint8_t* data = received.data();
  if (info(call.pattern).reduces) {
    const Cycle expected(call.type, [&](size_t i) { return reduced_at(call.type, call.op, call.ranks, i); });
    const size_t first = call.pattern == Pattern::kReduceScatter ? own * count : 0;
    return wrong_in(call.type, expected, data, first, count, call.ranks, &call.op);
  }
  const auto from = [&](int rank, size_t chunk, size_t first) {
    return wrong_in(call.type, values_of(call, rank), data + chunk * count * width, first, count, call.ranks, nullptr);
  };
  switch (call.pattern) {
    case Pattern::kBroadcast:
      return from(call.root, 0, 0);
    case Pattern::kScatter:
      return from(call.root, 0, own * count);
    case Pattern::kSendReceive:
      return from((call.rank + call.ranks - 1) % call.ranks, 0, 0);
    default:
      break;
  }
  size_t wrong = 0;
  for (int rank = 0; rank < call.ranks; ++rank) {
    wrong += from(rank, static_cast<size_t>(rank), call.pattern == Pattern::kAllToAll ? own * count : 0);
  }
  return wrong;
}

}  // namespace powerccl::bench
