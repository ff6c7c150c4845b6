// SPDX-License-Identifier: Apache-2.0
#include "daemon/messages.h"

#include <algorithm>
#include <cstring>

namespace powerccl::daemon {
namespace {

// A text in a fixed field: NUL-terminated, and nothing in it that could disturb a terminal or a log.
bool get_text(const char* field, size_t size, std::string* text) {
  const void* end = std::memchr(field, '\0', size);
  if (end == nullptr) return false;
  text->assign(field, static_cast<const char*>(end));
  return std::all_of(text->begin(), text->end(), [](char c) { return c >= ' ' && c < '\x7f'; });
}

template <typename Message>
bool copy(const void* bytes, size_t length, Message* message) {
  if (length != sizeof *message) return false;
  std::memcpy(message, bytes, sizeof *message);
  return true;
}

template <typename Message>
Bytes encode(uint16_t type, uint64_t serial, Message message) {
  message.header = {};
  message.header.magic = POWERCCL_LEASE_MAGIC;
  message.header.version = POWERCCL_LEASE_VERSION;
  message.header.type = type;
  message.header.size = sizeof message;
  message.header.serial = serial;
  Bytes bytes(sizeof message);
  std::memcpy(bytes.data(), &message, sizeof message);
  return bytes;
}

}  // namespace

void put_text(char* target, size_t size, const std::string& text) {
  const size_t length = std::min(text.size(), size - 1);
  std::fill_n(std::copy_n(text.data(), length, target), size - length, '\0');
}

bool decode(const void* bytes, size_t length, Request* request) {
  powerccl_lease_header header;
  if (length < sizeof header) return false;
  std::memcpy(&header, bytes, sizeof header);
  if (header.magic != POWERCCL_LEASE_MAGIC || header.version != POWERCCL_LEASE_VERSION || header.size != length ||
      header.serial == 0)
    return false;
  *request = {};
  request->type = header.type;
  request->serial = header.serial;
  switch (header.type) {
    case POWERCCL_LEASE_HELLO: {
      powerccl_lease_hello hello;
      return copy(bytes, length, &hello) && get_text(hello.run, sizeof hello.run, &request->run);
    }
    case POWERCCL_LEASE_ACQUIRE:
    case POWERCCL_LEASE_REVOKE:
    case POWERCCL_LEASE_RESTORE: {
      powerccl_lease_acquire acquire;
      if (!copy(bytes, length, &acquire) || (acquire.flags & ~POWERCCL_LEASE_SHARED) != 0) return false;
      request->shares = acquire.flags != 0;
      return get_text(acquire.device, sizeof acquire.device, &request->device);
    }
    case POWERCCL_LEASE_SET:
    case POWERCCL_LEASE_READ:
    case POWERCCL_LEASE_RELEASE: {
      powerccl_lease_set set;
      if (!copy(bytes, length, &set)) return false;
      request->lease = set.lease;
      request->min_mhz = set.min_mhz;
      request->max_mhz = set.max_mhz;
      return true;
    }
    case POWERCCL_LEASE_DRAIN: {
      powerccl_lease_drain drain;
      if (!copy(bytes, length, &drain) || drain.on > 1) return false;
      request->on = drain.on != 0;
      return true;
    }
    case POWERCCL_LEASE_HEARTBEAT:
    case POWERCCL_LEASE_STATUS:
      return length == sizeof header;
    default:
      return false;
  }
}

Bytes encode_reply(uint16_t type, uint64_t serial, const Answer& answer) {
  powerccl_lease_reply reply{};
  reply.status = answer.status;
  reply.flags = answer.flags;
  reply.lease = answer.lease;
  reply.min_mhz = answer.min_mhz;
  reply.max_mhz = answer.max_mhz;
  reply.now_mhz = answer.outcome.now_mhz;
  reply.driver_us = answer.outcome.driver_us;
  reply.reasons = answer.outcome.reasons;
  reply.holder_pid = answer.holder_pid;
  reply.holder_uid = answer.holder_uid;
  put_text(reply.text, sizeof reply.text, answer.text);
  reply.interval_ms = answer.interval_ms;
  reply.limit_mw = answer.outcome.limit_mw;
  return encode(type, serial, reply);
}

Bytes encode_welcome(uint64_t serial, const powerccl_lease_welcome& welcome) {
  return encode(POWERCCL_LEASE_WELCOME, serial, welcome);
}

Bytes encode_device(uint64_t serial, const powerccl_lease_device& device) {
  return encode(POWERCCL_LEASE_DEVICE, serial, device);
}

Bytes encode_totals(uint64_t serial, const powerccl_lease_totals& totals) {
  return encode(POWERCCL_LEASE_TOTALS, serial, totals);
}

}  // namespace powerccl::daemon
