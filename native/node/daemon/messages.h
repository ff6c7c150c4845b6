// SPDX-License-Identifier: Apache-2.0
// Bytes of a client into a request that can be believed as far as its form goes, and answers into bytes.
#pragma once
#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "abi/lease.h"
#include "daemon/lease_table.h"

namespace powerccl::daemon {

inline uint32_t flag_if(bool given, uint32_t flag) {
  return given ? flag : 0;
}

struct Request {
  uint16_t type = 0;
  uint64_t serial = 0;
  std::string run;     // of HELLO
  std::string device;  // of ACQUIRE, REVOKE, RESTORE
  bool shares = false;
  uint64_t lease = 0;  // of SET, READ, RELEASE
  uint32_t min_mhz = 0, max_mhz = 0;
  bool on = false;  // of DRAIN
};

// False: not a message of this protocol and version.
bool decode(const void* bytes, size_t length, Request* request);

using Bytes = std::vector<char>;
Bytes encode_reply(uint16_t type, uint64_t serial, const Answer& answer);
Bytes encode_welcome(uint64_t serial, const powerccl_lease_welcome& welcome);
Bytes encode_device(uint64_t serial, const powerccl_lease_device& device);
Bytes encode_totals(uint64_t serial, const powerccl_lease_totals& totals);

// Copies with a NUL at the end; what does not fit is cut.
void put_text(char* target, size_t size, const std::string& text);

}  // namespace powerccl::daemon
