// SPDX-License-Identifier: Apache-2.0
// What is measured: communication patterns, element types and operators, the ways in which NCCL carries a collective
// out, and what the GPU computes meanwhile. How NCCL tests' `size` becomes counts and buffers, bus bandwidth, and the
// NCCL calls.
#pragma once
#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>

#include "bench/nccl_api.h"

namespace powerccl::bench {

// ---- Tables of what can be named: rows in the order of their enums.
enum class Type : uint8_t { kFloat32, kFloat16, kBfloat16, kFloat64, kInt32, kInt64, kByte };
struct TypeInfo {
  Type value;
  const char* name;        // ours, in options and JSON
  const char* nccl_tests;  // NCCL tests' name, in options
  int nccl;                // ncclDataType_t
  size_t bytes;
  int mantissa_bits;  // integers up to 2^bits are exact; 0: an integer type
};
inline constexpr std::array<TypeInfo, 6> kTypes{{
    {Type::kFloat32, "float32", "float", 7, 4, 24},
    {Type::kFloat16, "float16", "half", 6, 2, 11},
    {Type::kBfloat16, "bfloat16", "bfloat16", 9, 2, 8},
    {Type::kFloat64, "float64", "double", 8, 8, 53},
    {Type::kInt32, "int32", "int32", 2, 4, 0},
    {Type::kInt64, "int64", "int64", 4, 8, 0},
}};
inline constexpr TypeInfo kByte{Type::kByte, "byte", "byte", 0, 1, 0};  // of MPI's tests alone

enum class Op : uint8_t { kSum, kProd, kMax, kMin, kAvg };  // as ncclRedOp_t
struct OpInfo {
  Op value;
  const char* name;
};
inline constexpr std::array<OpInfo, 5> kOperators{
    {{Op::kSum, "sum"}, {Op::kProd, "prod"}, {Op::kMax, "max"}, {Op::kMin, "min"}, {Op::kAvg, "avg"}}};

enum class Pattern : uint8_t {
  kAllReduce,
  kBroadcast,
  kReduce,
  kAllGather,
  kReduceScatter,
  kSendReceive,
  kScatter,
  kGather,
  kAllToAll,
};
enum class Who : uint8_t { kAll, kRoot, kNeighbour };
struct PatternInfo {
  Pattern value;
  const char* name;
  bool reduces;
  Who from, to;              // who gives data, and who has a result
  bool split;                // size covers one chunk per rank; `count` is one chunk's
  bool sends_all, recv_all;  // of split patterns: chunks for or from all ranks; else one
  bool in_place;             // an in-place form exists
  bool has_root() const { return from == Who::kRoot || to == Who::kRoot; }
};
inline constexpr std::array<PatternInfo, 9> kPatterns{{
    {Pattern::kAllReduce, "all_reduce", true, Who::kAll, Who::kAll, false, false, false, true},
    {Pattern::kBroadcast, "broadcast", false, Who::kRoot, Who::kAll, false, false, false, true},
    {Pattern::kReduce, "reduce", true, Who::kAll, Who::kRoot, false, false, false, true},
    {Pattern::kAllGather, "all_gather", false, Who::kAll, Who::kAll, true, false, true, true},
    {Pattern::kReduceScatter, "reduce_scatter", true, Who::kAll, Who::kAll, true, true, false, true},
    {Pattern::kSendReceive, "send_receive", false, Who::kNeighbour, Who::kNeighbour, false, false, false, false},
    {Pattern::kScatter, "scatter", false, Who::kRoot, Who::kAll, true, true, false, true},
    {Pattern::kGather, "gather", false, Who::kAll, Who::kRoot, true, false, true, true},
    {Pattern::kAllToAll, "all_to_all", false, Who::kAll, Who::kAll, true, true, true, false},
}};

// How NCCL carries a collective out: rings and trees on ordinary buffers. In symmetric windows: kernels of their own,
// copy engines (the zero-CTA policy), or few thread blocks (the efficiency policy).
enum class Way : uint8_t {
  kAsGiven,  // by -R and NCCL's own variables
  kPlain,
  kSymmetric,
  kCopyEngine,
  kEfficiency,
};
struct WayInfo {
  Way value;
  const char* name;
  bool windows;    // buffers are in symmetric windows
  int cta_policy;  // of the communicator: NCCL_CTA_POLICY_*; negative: NCCL's default
};
inline constexpr std::array<WayInfo, 4> kWays{{
    {Way::kPlain, "plain", false, -1},
    {Way::kSymmetric, "symmetric", true, 0},
    {Way::kCopyEngine, "copy-engine", true, 2},
    {Way::kEfficiency, "efficiency", true, 1},
}};
// Whether NCCL can carry the pattern out that way; else it takes another.
bool carries_out(Way way, Pattern pattern);

enum class Beside : uint8_t { kNothing, kMatmul, kMemory, kBoth };
struct BesideInfo {
  Beside value;
  const char* name;
};
inline constexpr std::array<BesideInfo, 4> kBesides{
    {{Beside::kNothing, "nothing"}, {Beside::kMatmul, "matmul"}, {Beside::kMemory, "memory"}, {Beside::kBoth, "both"}}};
// What `matmul` multiplies: a perceptron's two products in turn, of so many tokens from a width to a hidden width and
// back. How much a collective costs beside them depends on their shapes, since they share the multiprocessors.
struct Products {
  int tokens = 4096, width = 4096, hidden = 4096;
};

constexpr const TypeInfo& info(Type type) {
  return type == Type::kByte ? kByte : kTypes[static_cast<size_t>(type)];
}
constexpr const OpInfo& info(Op op) {
  return kOperators[static_cast<size_t>(op)];
}
constexpr const PatternInfo& info(Pattern pattern) {
  return kPatterns[static_cast<size_t>(pattern)];
}
constexpr const WayInfo& info(Way way) {  // not of kAsGiven
  return kWays[static_cast<size_t>(way) - 1];
}
constexpr const BesideInfo& info(Beside beside) {
  return kBesides[static_cast<size_t>(beside)];
}
// What a scenario computes with --compute: "fma" where nothing else was said.
constexpr const char* compute_name_of(Beside kind) {
  return kind == Beside::kNothing ? "fma" : info(kind).name;
}

// The row with this name.
template <typename Infos>
std::optional<decltype(Infos::value_type::value)> named(const Infos& infos, const std::string& name) {
  for (const auto& each : infos) {
    if (name == each.name) return each.value;
  }
  return std::nullopt;
}
std::optional<Type> type_named(const std::string& name);
// Ours, and NCCL tests' own spellings (sendrecv, alltoall, all_reduce_perf, ...).
std::optional<Pattern> pattern_named(std::string name);
// "a, b, c": names of rows, or names themselves.
template <typename Infos>
std::string names_of(const Infos& infos) {
  std::string names;
  for (const auto& each : infos) {
    if (!names.empty()) names += ", ";
    if constexpr (requires { each.name; }) {
      names += each.name;
    } else {
      names += each;
    }
  }
  return names;
}

// ---- Sizes and calls.
struct Shape {
  size_t count;       // NCCL tests' `count`: elements of one chunk for split patterns, of the message otherwise
  size_t size_bytes;  // NCCL tests' `size`, rounded down to whole, 16-byte aligned chunks
  size_t send_count;  // elements of a rank's send buffer (of the root's, for rooted patterns)
  size_t recv_count;
};
Shape shape_of(Pattern pattern, size_t size_bytes, Type type, int ranks);

// Multiply algorithm bandwidth by this for bus bandwidth (NCCL tests, <doc/PERFORMANCE.md>).
double bus_factor(Pattern pattern, int ranks);

struct Call {
  Pattern pattern;
  Type type;
  Op op;
  int root, ranks, rank;
  Shape shape;
  bool in_place;
  bool grouped;  // all-to-all, gather, scatter from send/recv even where NCCL has the call
};
// Where a rank's send and receive data begin inside its two buffers; in place both are in `recv_buffer`.
struct Buffers {
  CUdeviceptr send, recv;
};
Buffers place(const Call& call, CUdeviceptr send_buffer, CUdeviceptr recv_buffer);

// Makes the call(s) of one operation on `stream`. Failure as NCCL reports it.
void enqueue(const NcclApi& nccl, const Call& call, Buffers buffers, NcclComm comm, CUstream stream);

}  // namespace powerccl::bench
