// SPDX-License-Identifier: Apache-2.0
// systemd's notification protocol (sd_notify(3)): a datagram to the socket in NOTIFY_SOCKET.
#pragma once
#include <cstdint>

namespace powerccl::daemon {

// "READY=1", "STOPPING=1", "WATCHDOG=1". Does nothing without systemd.
void notify(const char* state);

// How often systemd wants to hear WATCHDOG=1, halved so as to be in time; 0: never.
int64_t watchdog_interval_ns();

}  // namespace powerccl::daemon
