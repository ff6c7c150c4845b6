// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include <cstring>
#include <set>

#include "bench/mpi/mpi_api.h"

namespace powerccl::bench::mpi {
namespace {

TEST(Abi, IsToldFromWhatALibraryExports) {
  EXPECT_EQ(abi_of_library(false, -1), AbiKind::kMpich);
  EXPECT_EQ(abi_of_library(false, 0), AbiKind::kMpich);
  EXPECT_EQ(abi_of_library(true, -1), AbiKind::kOpenMpi);
  EXPECT_EQ(abi_of_library(false, 1), AbiKind::kStandard);
  EXPECT_EQ(abi_of_library(true, 1), AbiKind::kStandard);
}

TEST(Abi, HandlesDifferFromEachOther) {
  for (const AbiKind kind : {AbiKind::kMpich, AbiKind::kStandard}) {
    const Handles& h = abi_of(kind).handles;
    const std::set<Handle> all{h.world, h.byte, h.float32, h.float64, h.sum};
    EXPECT_EQ(all.size(), 5u);
    EXPECT_FALSE(all.contains(0));
  }
}

// In MPICH's ABI the size of a datatype stands in its handle: byte 1.
TEST(Abi, MpichDatatypesSayTheirSize) {
  const Handles& h = abi_of(AbiKind::kMpich).handles;
  const auto size = [](Handle type) { return (type >> 8) & 0xff; };
  EXPECT_EQ(size(h.byte), 1u);
  EXPECT_EQ(size(h.float32), sizeof(float));
  EXPECT_EQ(size(h.float64), sizeof(double));
}

// In the standard's, those whose size the platform does not choose have its logarithm in bits 3 to 5.
TEST(Abi, StandardDatatypesSayTheirSize) {
  const Handles& h = abi_of(AbiKind::kStandard).handles;
  const auto size = [](Handle type) { return Handle{1} << ((type >> 3) & 7); };
  EXPECT_EQ(size(h.byte), 1u);
}

TEST(Abi, EveryHandleOfOpenMpiHasASymbol) {
  Handles handles{};
  Handle next = 1;
  for (const HandleSymbol& each : kOpenMpiSymbols) handles.*each.handle = next++;
  for (const Handle handle : {handles.world, handles.byte, handles.float32, handles.float64, handles.sum}) {
    EXPECT_NE(handle, 0u);
  }
  EXPECT_EQ(abi_of(AbiKind::kOpenMpi).handles.world, 0u);
}

TEST(Requests, LieAsCloseAsTheAbiHasThem) {
  Requests ints(abi_of(AbiKind::kMpich), 4);
  EXPECT_EQ(static_cast<char*>(ints.at(3)) - static_cast<char*>(ints.data()), 12);
  Requests pointers(abi_of(AbiKind::kOpenMpi), 4);
  EXPECT_EQ(static_cast<char*>(pointers.at(3)) - static_cast<char*>(pointers.data()), 24);
}

// Handles are passed as words to functions that take ints.
int takes_int(int handle) {
  return handle;
}
TEST(Handles, PassAsInts) {
  const auto as_word = reinterpret_cast<int (*)(Handle)>(reinterpret_cast<void*>(&takes_int));
  EXPECT_EQ(as_word(abi_of(AbiKind::kMpich).handles.world), 0x44000000);
}

}  // namespace
}  // namespace powerccl::bench::mpi
