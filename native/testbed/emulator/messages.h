// SPDX-License-Identifier: Apache-2.0
// What emulated GPUs receive and publish (native/testbed/physics), by the emulator's own name as well.
#pragma once
#include "physics/collective_messages.h"
#include "physics/messages.h"

namespace powerccl::emulator {
using namespace physics;
}
