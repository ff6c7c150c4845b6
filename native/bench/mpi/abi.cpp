// SPDX-License-Identifier: Apache-2.0
#include "bench/mpi/abi.h"

namespace powerccl::bench::mpi {
namespace {

void* address(intptr_t value) {
  return reinterpret_cast<void*>(value);  // NOLINT(performance-no-int-to-ptr): never looked behind
}

}  // namespace

const Abi& abi_of(AbiKind kind) {
  // MPICH, Intel MPI, MVAPICH: the ABI they have shared since 2014 (libmpi.so.12). Handles are ints with a kind, a size
  // and an index in them.
  static const Abi kMpich{.kind = AbiKind::kMpich,
                          .name = "mpich",
                          .handle_bytes = sizeof(int),
                          .handles = {.world = 0x44000000,
                                      .byte = 0x4c00010d,
                                      .float32 = 0x4c00040a,
                                      .float64 = 0x4c00080b,
                                      .int64 = 0x4c00083a,
                                      .sum = 0x58000003,
                                      .min = 0x58000002,
                                      .max = 0x58000001},
                          .in_place = address(-1),
                          .ignore_status = address(1),
                          .no_process = -1};
  static const Abi kOpenMpi{.kind = AbiKind::kOpenMpi,
                            .name = "open mpi",
                            .handle_bytes = sizeof(void*),
                            .handles = {},
                            .in_place = address(1),
                            .ignore_status = address(0),
                            .no_process = -2};
  // MPI 5.0, chapter 20: Huffman-coded constants, all below a page.
  static const Abi kStandard{.kind = AbiKind::kStandard,
                             .name = "mpi standard",
                             .handle_bytes = sizeof(void*),
                             .handles = {.world = 0x101,
                                         .byte = 0x247,
                                         .float32 = 0x210,
                                         .float64 = 0x214,
                                         .int64 = 0x258,
                                         .sum = 0x21,
                                         .min = 0x22,
                                         .max = 0x23},
                             .in_place = address(1),
                             .ignore_status = address(0),
                             .no_process = -3};
  switch (kind) {
    case AbiKind::kMpich:
      return kMpich;
    case AbiKind::kOpenMpi:
      return kOpenMpi;
    case AbiKind::kStandard:
      break;
  }
  return kStandard;
}

AbiKind abi_of_library(bool has_openmpi_objects, int abi_major) {
  // In this order: a library of the standard ABI made from Open MPI may well keep its old objects.
  if (abi_major >= 1) return AbiKind::kStandard;
  return has_openmpi_objects ? AbiKind::kOpenMpi : AbiKind::kMpich;
}

}  // namespace powerccl::bench::mpi
