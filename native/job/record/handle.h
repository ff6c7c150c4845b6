// SPDX-License-Identifier: Apache-2.0
// What an adapter hands to foreign code to name an event by: a number, never an address. Libraries keep such names
// longer than the things named (a captured call's for as long as its graph). So each name carries what is needed to
// notice that.
#pragma once
#include <stdint.h>

namespace powerccl {

using Handle = uint64_t;  // 0: nothing

enum class HandleKind : uint32_t { kNone = 0, kGroup, kCall, kLaunch, kKernel, kTask, kChannel };

constexpr Handle kCapturedBit = 1u << 4;  // a call's
constexpr int kSerialBits = 44;

// kind 4 bits, flag 1, spare 3, slot 12, serial 44.
constexpr Handle make_handle(HandleKind kind, uint32_t slot, uint64_t serial, Handle flag = 0) {
  return static_cast<Handle>(kind) | flag | uint64_t{slot & 0xfffu} << 8 | serial << (64 - kSerialBits);
}
constexpr HandleKind kind_of(Handle handle) {
  return static_cast<HandleKind>(handle & 0xf);
}
constexpr uint32_t slot_of(Handle handle) {
  return handle >> 8 & 0xfff;
}
constexpr uint64_t serial_of(Handle handle) {
  return handle >> (64 - kSerialBits);
}
constexpr Handle retyped(Handle handle, HandleKind kind) {
  return (handle & ~Handle{0x1f}) | static_cast<Handle>(kind);
}

}  // namespace powerccl
