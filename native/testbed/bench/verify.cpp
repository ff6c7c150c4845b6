// SPDX-License-Identifier: Apache-2.0
#include "bench/verify.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>

namespace powerccl::bench {
namespace {

template <typename T>
void put(void* where, T value) {
  std::memcpy(where, &value, sizeof value);
}
template <typename T>
T get(const void* where) {
  T value;
  std::memcpy(&value, where, sizeof value);
  return value;
}

constexpr uint32_t kHalfSign = 0x8000, kHalfInfinity = 0x7c00, kHalfNan = 0x7e00, kHalfFractions = 1024;

uint16_t to_half(double value) {
  const uint32_t sign = std::signbit(value) ? kHalfSign : 0;
  const double size = std::fabs(value);
  if (std::isnan(value)) return kHalfNan;
  if (size == 0) return static_cast<uint16_t>(sign);
  if (size >= 65520) return static_cast<uint16_t>(sign + kHalfInfinity);
  int exponent = 0;
  std::frexp(size, &exponent);
  exponent = std::max(exponent - 1, -14);  // subnormals share the least exponent
  const double ulp = std::ldexp(1.0, exponent - 10);
  const auto steps = static_cast<uint32_t>(std::nearbyint(size / ulp));  // 1024..2048 where normal
  // The leading one of a normal number is not stored: it adds one to the exponent, as does rounding up to 2048.
  return static_cast<uint16_t>(sign + static_cast<uint32_t>(exponent + 14) * kHalfFractions + steps);
}

double from_half(uint16_t stored) {
  const uint32_t bits = stored;
  const auto exponent = static_cast<int>(bits % kHalfSign / kHalfFractions);
  const uint32_t fraction = bits % kHalfFractions;
  double size = 0;
  if (exponent == 31) {
    size = fraction != 0 ? NAN : INFINITY;
  } else if (exponent == 0) {
    size = std::ldexp(fraction, -24);
  } else {
    size = std::ldexp(fraction + kHalfFractions, exponent - 25);
  }
  return bits >= kHalfSign ? -size : size;
}

uint16_t to_bfloat(double value) {
  if (std::isnan(value)) return 0x7fc0;
  const auto bits = std::bit_cast<uint32_t>(static_cast<float>(value));
  return static_cast<uint16_t>((bits + 0x7fffU + ((bits >> 16U) & 1U)) >> 16U);
}

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

void store(Type type, void* where, double value) {
  switch (type) {
    case Type::kFloat32:
      return put(where, static_cast<float>(value));
    case Type::kFloat16:
      return put(where, to_half(value));
    case Type::kBfloat16:
      return put(where, to_bfloat(value));
    case Type::kFloat64:
      return put(where, value);
    case Type::kInt32:
      return put(where, static_cast<int32_t>(value));
    case Type::kInt64:
      return put(where, static_cast<int64_t>(value));
    case Type::kByte:
      return put(where, static_cast<int8_t>(value));
  }
}

double load(Type type, const void* where) {
  switch (type) {
    case Type::kFloat32:
      return get<float>(where);
    case Type::kFloat16:
      return from_half(get<uint16_t>(where));
    case Type::kBfloat16:
      return std::bit_cast<float>(static_cast<uint32_t>(get<uint16_t>(where)) << 16U);
    case Type::kFloat64:
      return get<double>(where);
    case Type::kInt32:
      return get<int32_t>(where);
    case Type::kInt64:
      return static_cast<double>(get<int64_t>(where));
    case Type::kByte:
      return get<int8_t>(where);
  }
  return 0;
}

double value_at(Type type, Op op, int rank, size_t index) {
  const uint32_t bits =
      mix(static_cast<uint32_t>(index % kPeriod) * 2654435761U + static_cast<uint32_t>(rank) * 40503U);
  if (op == Op::kProd) {
    // Powers of two multiply exactly; only the first ranks contribute, so that no type overflows.
    if (rank >= 8) return 1;
    if (info(type).mantissa_bits == 0) return 1 + static_cast<double>(bits % 3);
    static const double factors[] = {0.5, 1, 2, -1};
    return factors[bits % 4];
  }
  // How libraries round a negative integer quotient is not part of NCCL's contract: averages of integers stay positive.
  if (op == Op::kAvg && info(type).mantissa_bits == 0) return static_cast<double>(bits % 17);
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
    if (info(type).mantissa_bits == 0) result = std::trunc(result);  // NCCL divides integers as C does
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
  const bool gives = call.rank == call.root || info(call.pattern).from != Who::kRoot;
  std::vector<uint8_t> data((gives ? call.shape.send_count : 0) * info(call.type).bytes);
  if (gives) values_of(call, call.rank).copy(data.data(), 0, call.shape.send_count);
  return data;
}

size_t received_count(const Call& call) {
  return info(call.pattern).to == Who::kRoot && call.rank != call.root ? 0 : call.shape.recv_count;
}

size_t count_wrong(const Call& call, const std::vector<uint8_t>& received) {
  return count_wrong(call, received,
                     info(call.pattern).sends_all ? static_cast<size_t>(call.rank) * call.shape.count : 0);
}

size_t count_wrong(const Call& call, const std::vector<uint8_t>& received, size_t first) {
  if (received_count(call) == 0) return 0;
  const PatternInfo& about = info(call.pattern);
  const size_t count = call.shape.count;
  if (about.reduces) {
    const Cycle expected(call.type, [&](size_t i) { return reduced_at(call.type, call.op, call.ranks, i); });
    return wrong_in(call.type, expected, received.data(), first, count, call.ranks, &call.op);
  }
  const auto from = [&](int rank, size_t chunk) {
    const uint8_t* data = received.data() + chunk * count * info(call.type).bytes;
    return wrong_in(call.type, values_of(call, rank), data, first, count, call.ranks, nullptr);
  };
  if (about.from == Who::kRoot) return from(call.root, 0);
  if (about.from == Who::kNeighbour) return from((call.rank + call.ranks - 1) % call.ranks, 0);
  size_t wrong = 0;
  for (int rank = 0; rank < call.ranks; ++rank) wrong += from(rank, static_cast<size_t>(rank));
  return wrong;
}

}  // namespace powerccl::bench
