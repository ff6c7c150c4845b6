// SPDX-License-Identifier: Apache-2.0
#include "adapters/nccl/enum_names.h"

#include <string.h>

#include "abi/trace.h"

namespace powerccl::nccl {
namespace {

struct Word {
  const char* text;
  uint8_t value;
};

template <int kCount>
uint8_t find(const Word (&words)[kCount], const char* text, uint8_t otherwise) {
  if (text == nullptr) return otherwise;
  for (const Word& word : words) {
    // Most words differ in their first letters, and this is on every call's path.
    if (word.text[0] == text[0] && strcmp(word.text, text) == 0) return word.value;
  }
  return otherwise;
}

constexpr Word kFunctions[] = {
    {"AllReduce", POWERCCL_ALL_REDUCE}, {"AllGather", POWERCCL_ALL_GATHER},  {"ReduceScatter", POWERCCL_REDUCE_SCATTER},
    {"Broadcast", POWERCCL_BROADCAST},  {"Reduce", POWERCCL_REDUCE},         {"Send", POWERCCL_SEND_RECEIVE},
    {"Recv", POWERCCL_SEND_RECEIVE},    {"SendRecv", POWERCCL_SEND_RECEIVE}, {"AlltoAll", POWERCCL_ALL_TO_ALL},
    {"Scatter", POWERCCL_SCATTER},      {"Gather", POWERCCL_GATHER},
};

constexpr struct {
  const char* text;
  Datatype type;
} kDatatypes[] = {
    {"ncclFloat32", {7, 4}}, {"ncclBfloat16", {9, 2}}, {"ncclFloat16", {6, 2}},     {"ncclInt8", {0, 1}},
    {"ncclUint8", {1, 1}},   {"ncclInt32", {2, 4}},    {"ncclUint32", {3, 4}},      {"ncclInt64", {4, 8}},
    {"ncclUint64", {5, 8}},  {"ncclFloat64", {8, 8}},  {"ncclFloat8e4m3", {10, 1}}, {"ncclFloat8e5m2", {11, 1}},
};

constexpr Word kAlgorithms[] = {
    {"RING", POWERCCL_ALGO_RING},
    {"TREE", POWERCCL_ALGO_TREE},
    {"NVLS", POWERCCL_ALGO_NVLS},
    {"NVLS_TREE", POWERCCL_ALGO_NVLS_TREE},
    {"COLLNET_DIRECT", POWERCCL_ALGO_COLLNET_DIRECT},
    {"COLLNET_CHAIN", POWERCCL_ALGO_COLLNET_CHAIN},
    {"PAT", POWERCCL_ALGO_PAT},
};

constexpr Word kProtocols[] = {
    {"SIMPLE", POWERCCL_PROTO_SIMPLE}, {"LL", POWERCCL_PROTO_LL}, {"LL128", POWERCCL_PROTO_LL128}};

}  // namespace

uint8_t pattern_of(const char* function) {
  return find(kFunctions, function, POWERCCL_PATTERN_UNKNOWN);
}
uint8_t algorithm_of(const char* name) {
  return find(kAlgorithms, name, POWERCCL_ALGO_UNKNOWN);
}
uint8_t protocol_of(const char* name) {
  return find(kProtocols, name, POWERCCL_PROTO_UNKNOWN);
}

Datatype datatype_of(const char* name) {
  if (name != nullptr) {
    for (const auto& known : kDatatypes) {
      if (strcmp(known.text, name) == 0) return known.type;
    }
  }
  return {255, 1};
}

}  // namespace powerccl::nccl
