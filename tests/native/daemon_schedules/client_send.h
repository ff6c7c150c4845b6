// SPDX-License-Identifier: Apache-2.0
#pragma once
#include "client.h"
#include "machine.h"

namespace powerccl::leases {

// Numbers the message, notes that its answer is awaited, and sends it.
template <typename Message>
void Client::send(Message message, uint16_t gpu, bool of_others) {
  if (socket_ < 0) return;
  auto& header = reinterpret_cast<powerccl_lease_header&>(message);
  header.serial = ++serial_;
  Asked asked;
  asked.type = header.type;
  asked.gpu = gpu;
  asked.of_others = of_others;
  asked.sent_ns = now_ns();
  if constexpr (requires { message.lease; }) asked.lease = message.lease;
  if constexpr (requires { message.flags; }) asked.shares = message.flags != 0;
  asked_[header.serial] = asked;
  const auto* bytes = reinterpret_cast<const char*>(&message);
  last_.assign(bytes, bytes + sizeof message);
  slot_->requests.fetch_add(1);
  log(What::kSpoke, gpu);
  send_bytes(bytes, sizeof message);
}

}  // namespace powerccl::leases
