// SPDX-License-Identifier: Apache-2.0
// What an event of epoll is about.
#pragma once
#include <cstdint>

namespace powerccl::daemon {

enum class Source : uint64_t { kListener, kSignal, kBell, kTimer, kInput, kSession, kPeer };

// Sessions are numbered, never reused, so that an event for one that has just ended finds no session.
inline uint64_t tag_of(Source source, uint64_t number = 0) {
  return number << 3 | static_cast<uint64_t>(source);
}
inline Source source_of(uint64_t tag) {
  return static_cast<Source>(tag & 7);
}
inline uint64_t number_of(uint64_t tag) {
  return tag >> 3;
}

// A session number that no client has: the reader of a clock is a status query.
inline constexpr uint64_t kQuerySession = UINT64_MAX;

}  // namespace powerccl::daemon
