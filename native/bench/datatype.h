// SPDX-License-Identifier: Apache-2.0
// Element types and reduction operators: names, NCCL's numbers, and conversion of elements to and from double.
#ifndef POWERCCL_BENCH_DATATYPE_H
#define POWERCCL_BENCH_DATATYPE_H
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace powerccl::bench {

enum class Type : uint8_t { kFloat32, kFloat16, kBfloat16, kFloat64, kInt32, kInt64 };
enum class Op : uint8_t { kSum, kProd, kMax, kMin, kAvg };

struct TypeInfo {
  Type type;
  const char* name;        // ours, in options and JSON
  const char* nccl_tests;  // NCCL tests' name, in options and in the text table
  int nccl;                // ncclDataType_t
  size_t bytes;
  int mantissa_bits;  // integers up to 2^bits are exact; 0: an integer type
};
struct OpInfo {
  Op op;
  const char* name;
  int nccl;  // ncclRedOp_t
};

const std::vector<TypeInfo>& types();
const std::vector<OpInfo>& operators();
const TypeInfo& info(Type type);
const OpInfo& info(Op op);
std::optional<Type> type_named(const std::string& name);
std::optional<Op> op_named(const std::string& name);

inline bool is_float(Type type) {
  return info(type).mantissa_bits != 0;
}

// One element, written to or read from memory of the type's width. Rounds to nearest even; integers must be whole.
void store(Type type, void* where, double value);
double load(Type type, const void* where);

}  // namespace powerccl::bench
#endif
