// SPDX-License-Identifier: Apache-2.0
// What the clients' logs say about who held what when.
#pragma once
#include <string>

#include "shared.h"

namespace powerccl::leases {

// Two clients that believed at one moment to hold one GPU from one daemon; empty: there were none. A belief begins when
// the grant is read and ends with whatever the client did to end it, its death, or what should have told it: it was
// silent for half of the heartbeat time, or somebody had it revoked.
std::string find_two_holders(const Shared& shared);

}  // namespace powerccl::leases
