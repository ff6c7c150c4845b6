// SPDX-License-Identifier: Apache-2.0
// Every pattern, datatype and operator against a reference, in place and out of place.
#include <cmath>

#include "physics/collective_types.h"
#include "rank.h"

namespace {

using powerccl::physics::DataType;
using powerccl::physics::element_bytes;

constexpr ncclDataType_t kTypes[] = {ncclInt8,   ncclUint8,   ncclInt32,   ncclUint32,  ncclInt64,
                                     ncclUint64, ncclFloat16, ncclFloat32, ncclFloat64, ncclBfloat16};
constexpr size_t kCount = 1003;
constexpr int kRoot = 1;

// Calls `use` with a value of the type in C++; not of the 16-bit floats, which have none.
template <typename F>
bool with_type(ncclDataType_t type, F&& use) {
  switch (type) {
    case ncclInt8:
      return use(int8_t{}), true;
    case ncclUint8:
      return use(uint8_t{}), true;
    case ncclInt32:
      return use(int32_t{}), true;
    case ncclUint32:
      return use(uint32_t{}), true;
    case ncclInt64:
      return use(int64_t{}), true;
    case ncclUint64:
      return use(uint64_t{}), true;
    case ncclFloat32:
      return use(float{}), true;
    case ncclFloat64:
      return use(double{}), true;
    default:
      return false;
  }
}

void encode(std::byte* to, double value, ncclDataType_t type) {
  const auto put = [&](auto typed) {
    typed = static_cast<decltype(typed)>(value);
    memcpy(to, &typed, sizeof typed);
  };
  if (with_type(type, put)) return;
  const auto narrow = static_cast<float>(value);
  const uint16_t bits =
      type == ncclFloat16 ? powerccl::physics::float_to_half(narrow) : powerccl::physics::float_to_bfloat16(narrow);
  memcpy(to, &bits, sizeof bits);
}

double decode(const std::byte* from, ncclDataType_t type) {
  double value = 0;
  const auto get = [&](auto typed) {
    memcpy(&typed, from, sizeof typed);
    value = static_cast<double>(typed);
  };
  if (with_type(type, get)) return value;
  uint16_t bits;
  memcpy(&bits, from, sizeof bits);
  return type == ncclFloat16 ? powerccl::physics::half_to_float(bits) : powerccl::physics::bfloat16_to_float(bits);
}

// Small enough that every result is exact in every type.
double input(int rank, size_t index) {
  const size_t at = index + static_cast<size_t>(rank);
  return 1 + (at % 4 == 0) + (at % 5 == 0);
}

double reduced(int ranks, size_t index, int op, ncclDataType_t type) {
  double value = input(0, index);
  for (int rank = 1; rank < ranks; ++rank) {
    const double next = input(rank, index);
    if (op == ncclSum || op == ncclAvg) value += next;
    if (op == ncclProd) value *= next;
    if (op == ncclMax) value = std::max(value, next);
    if (op == ncclMin) value = std::min(value, next);
  }
  if (op == ncclAvg) value /= ranks;
  const bool whole = type <= ncclUint64;
  return whole ? std::trunc(value) : value;
}

class Typed {
 public:
  Typed(ncclDataType_t type, size_t count)
      : type_(type), width_(element_bytes(static_cast<DataType>(type))), buffer_(count * width_), count_(count) {}
  template <typename F>
  void fill(F&& value) {
    std::vector<std::byte> host(count_ * width_);
    for (size_t i = 0; i < count_; ++i) encode(&host[i * width_], value(i), type_);
    buffer_.set(host);
  }
  template <typename F>
  void expect(const char* what, F&& value) const {
    const std::vector<std::byte> host = buffer_.get();
    for (size_t i = 0; i < count_; ++i) {
      const double got = decode(&host[i * width_], type_), wanted = value(i);
      if (got == wanted) continue;
      fprintf(stderr, "rank %d: %s type %d: element %zu is %g, not %g\n", test_rank(), what, type_, i, got, wanted);
      _Exit(1);
    }
  }
  std::byte* at(size_t index = 0) const { return buffer_.at(index * width_); }

 private:
  ncclDataType_t type_;
  size_t width_;
  Buffer<std::byte> buffer_;
  size_t count_;
};

struct Bench {
  const Rank& job;
  ncclComm_t comm;
  CUstream stream;
  void sync() const { CUDA(cuStreamSynchronize(stream)); }
};

void reductions(const Bench& b, ncclDataType_t type, ncclRedOp_t op, bool in_place) {
  const auto ranks = static_cast<size_t>(b.job.ranks);
  const auto mine = [&](size_t i) { return input(b.job.rank, i); };
  Typed send(type, kCount * ranks), receive(type, kCount * ranks);
  send.fill(mine);
  receive.fill([](size_t) { return 77; });
  Typed& out = in_place ? send : receive;
  NCCL(ncclAllReduce(send.at(), out.at(), kCount * ranks, type, op, b.comm, b.stream));
  b.sync();
  out.expect("all-reduce", [&](size_t i) { return reduced(b.job.ranks, i, op, type); });

  send.fill(mine);
  receive.fill([](size_t) { return 77; });
  NCCL(ncclReduce(send.at(), out.at(), kCount * ranks, type, op, kRoot, b.comm, b.stream));
  b.sync();
  if (b.job.rank == kRoot)
    out.expect("reduce", [&](size_t i) { return reduced(b.job.ranks, i, op, type); });
  else
    receive.expect("reduce elsewhere", [](size_t) { return 77; });

  send.fill(mine);
  const size_t first = kCount * static_cast<size_t>(b.job.rank);
  Typed part(type, kCount);
  NCCL(ncclReduceScatter(send.at(), in_place ? send.at(first) : part.at(), kCount, type, op, b.comm, b.stream));
  b.sync();
  const auto wanted = [&](size_t i) { return reduced(b.job.ranks, first + i, op, type); };
  if (!in_place) return part.expect("reduce-scatter", wanted);
  send.expect("reduce-scatter in place",
              [&](size_t i) { return i >= first && i < first + kCount ? wanted(i - first) : mine(i); });
}

void moves(const Bench& b, ncclDataType_t type, bool in_place) {
  const auto ranks = static_cast<size_t>(b.job.ranks);
  const auto me = static_cast<size_t>(b.job.rank);
  const auto value = [](size_t rank, size_t i) { return static_cast<double>((rank * 31 + i * 5) % 100); };
  Typed all(type, kCount * ranks), one(type, kCount), other(type, kCount * ranks);

  one.fill([&](size_t i) { return value(me, i); });
  if (in_place)
    NCCL(ncclBcast(one.at(), kCount, type, kRoot, b.comm, b.stream));
  else
    NCCL(ncclBroadcast(one.at(), all.at(), kCount, type, kRoot, b.comm, b.stream));
  b.sync();
  if (in_place) {
    one.expect("broadcast in place", [&](size_t i) { return value(kRoot, i); });
  } else {
    Typed copy(type, kCount);
    CUDA(cuMemcpyDtoD(reinterpret_cast<CUdeviceptr>(copy.at()), reinterpret_cast<CUdeviceptr>(all.at()),
                      kCount * element_bytes(static_cast<DataType>(type))));
    copy.expect("broadcast", [&](size_t i) { return value(kRoot, i); });
  }

  all.fill([&](size_t i) { return i / kCount == me ? value(me, i % kCount) : 9; });
  one.fill([&](size_t i) { return value(me, i); });
  NCCL(ncclAllGather(in_place ? all.at(me * kCount) : one.at(), all.at(), kCount, type, b.comm, b.stream));
  b.sync();
  all.expect("all-gather", [&](size_t i) { return value(i / kCount, i % kCount); });

  const auto pair = [&](size_t from, size_t to, size_t i) {
    return static_cast<double>((from * 13 + to * 29 + i) % 100);
  };
  all.fill([&](size_t i) { return pair(me, i / kCount, i % kCount); });
  NCCL(ncclAlltoAll(all.at(), other.at(), kCount, type, b.comm, b.stream));
  b.sync();
  other.expect("all-to-all", [&](size_t i) { return pair(i / kCount, me, i % kCount); });

  one.fill([&](size_t i) { return value(me, i); });
  other.fill([](size_t) { return 9; });
  NCCL(ncclGather(one.at(), other.at(), kCount, type, kRoot, b.comm, b.stream));
  b.sync();
  other.expect("gather", [&](size_t i) { return me == kRoot ? value(i / kCount, i % kCount) : 9; });

  all.fill([&](size_t i) { return pair(me, i / kCount, i % kCount); });
  NCCL(ncclScatter(all.at(), one.at(), kCount, type, kRoot, b.comm, b.stream));
  b.sync();
  one.expect("scatter", [&](size_t i) { return pair(kRoot, me, i); });

  const size_t next = (me + 1) % ranks, before = (me + ranks - 1) % ranks;
  one.fill([&](size_t i) { return value(me, i); });
  Typed got(type, kCount);
  NCCL(ncclGroupStart());
  NCCL(ncclSend(one.at(), kCount, type, static_cast<int>(next), b.comm, b.stream));
  NCCL(ncclRecv(got.at(), kCount, type, static_cast<int>(before), b.comm, b.stream));
  NCCL(ncclGroupEnd());
  b.sync();
  got.expect("send-receive", [&](size_t i) { return value(before, i); });
}

SCENARIO(data) {
  const CUstream stream = take_device(job.rank);
  const Bench bench{job, init(job), stream};
  // Many ranks are about ranks: three types will do.
  const bool few = job.ranks > 4;
  for (const ncclDataType_t type : kTypes) {
    if (few && type != ncclInt64 && type != ncclFloat32 && type != ncclBfloat16) continue;
    for (const bool in_place : {false, true}) {
      for (const ncclRedOp_t op : {ncclSum, ncclProd, ncclMax, ncclMin, ncclAvg}) reductions(bench, type, op, in_place);
      moves(bench, type, in_place);
    }
  }
  NCCL(ncclCommDestroy(bench.comm));
}

// With POWERCCL_EMULATOR_MOVE_DATA=0 operations take place and change nothing.
SCENARIO(unmoved) {
  const auto [stream, comm] = join(job);
  Buffer<float> buffer(std::vector<float>(64, 1));
  NCCL(ncclAllReduce(buffer.at(), buffer.at(), 64, ncclFloat32, ncclSum, comm, stream));
  CUDA(cuStreamSynchronize(stream));
  CHECK(buffer.get() == std::vector<float>(64, 1));
  NCCL(ncclCommDestroy(comm));
}

SCENARIO(pre_mul_sum) {
  const auto [stream, comm] = join(job);
  float scalar = static_cast<float>(job.rank + 1);
  ncclRedOp_t on_host, on_device;
  Buffer<float> device_scalar(std::vector<float>{0.5f});
  NCCL(ncclRedOpCreatePreMulSum(&on_host, &scalar, ncclFloat32, ncclScalarHostImmediate, comm));
  NCCL(ncclRedOpCreatePreMulSum(&on_device, device_scalar.at(), ncclFloat32, ncclScalarDevice, comm));
  CHECK(on_host >= ncclNumOps && on_device != on_host);
  Buffer<float> in(std::vector<float>(8, 2)), out(8);
  NCCL(ncclAllReduce(in.at(), out.at(), 8, ncclFloat32, on_host, comm, stream));
  CUDA(cuStreamSynchronize(stream));
  const auto n = static_cast<float>(job.ranks);
  CHECK(out.get() == std::vector<float>(8, n * (n + 1)));
  NCCL(ncclAllReduce(in.at(), out.at(), 8, ncclFloat32, on_device, comm, stream));
  CUDA(cuStreamSynchronize(stream));
  CHECK(out.get() == std::vector<float>(8, n));
  CHECK_IS(ncclAllReduce(in.at(), out.at(), 8, ncclFloat16, on_host, comm, stream), ncclInvalidArgument);
  NCCL(ncclRedOpDestroy(on_host, comm));
  CHECK_IS(ncclRedOpDestroy(on_host, comm), ncclInvalidArgument);
  CHECK_IS(ncclRedOpDestroy(ncclSum, comm), ncclInvalidArgument);
  CHECK_IS(ncclAllReduce(in.at(), out.at(), 8, ncclFloat32, on_host, comm, stream), ncclInvalidArgument);
  NCCL(ncclCommDestroy(comm));
}

}  // namespace
