// SPDX-License-Identifier: Apache-2.0
#include "daemon/messages.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>

namespace powerccl::daemon {
namespace {

template <typename Message>
Message made(uint16_t type) {
  Message message{};
  message.header.magic = POWERCCL_LEASE_MAGIC;
  message.header.version = POWERCCL_LEASE_VERSION;
  message.header.type = type;
  message.header.size = sizeof message;
  message.header.serial = 7;
  return message;
}

struct Bare {
  powerccl_lease_header header;
};

template <typename Message>
bool understood(const Message& message, Request* request, size_t length = sizeof(Message)) {
  return decode(&message, length, request);
}

TEST(Messages, AreReadWhole) {
  Request request;
  auto set = made<powerccl_lease_set>(POWERCCL_LEASE_SET);
  set.lease = 99;
  set.min_mhz = 5;
  set.max_mhz = 6;
  ASSERT_TRUE(understood(set, &request));
  EXPECT_EQ(request.type, POWERCCL_LEASE_SET);
  EXPECT_EQ(request.serial, 7u);
  EXPECT_EQ(request.lease, 99u);
  EXPECT_EQ(request.min_mhz, 5u);
  EXPECT_EQ(request.max_mhz, 6u);
  auto acquire = made<powerccl_lease_acquire>(POWERCCL_LEASE_ACQUIRE);
  std::strcpy(acquire.device, "GPU-1");
  ASSERT_TRUE(understood(acquire, &request));
  EXPECT_EQ(request.device, "GPU-1");
  for (const uint16_t type : {POWERCCL_LEASE_HEARTBEAT, POWERCCL_LEASE_STATUS})
    EXPECT_TRUE(understood(made<Bare>(type), &request));
  auto drain = made<powerccl_lease_drain>(POWERCCL_LEASE_DRAIN);
  drain.on = 1;
  ASSERT_TRUE(understood(drain, &request));
  EXPECT_TRUE(request.on);
}

TEST(Messages, MalformedOnesAreNone) {
  Request request;
  const auto good = made<powerccl_lease_set>(POWERCCL_LEASE_SET);
  for (size_t length = 0; length < sizeof good; ++length) EXPECT_FALSE(understood(good, &request, length)) << length;
  auto bad = good;
  bad.header.magic ^= 1;
  EXPECT_FALSE(understood(bad, &request));
  bad = good;
  bad.header.version = POWERCCL_LEASE_VERSION + 1;
  EXPECT_FALSE(understood(bad, &request));
  bad = good;
  bad.header.serial = 0;
  EXPECT_FALSE(understood(bad, &request));
  bad = good;
  bad.header.size += 1;
  EXPECT_FALSE(understood(bad, &request));
  EXPECT_FALSE(understood(made<powerccl_lease_set>(POWERCCL_LEASE_HELLO), &request)) << "another type's length";
  EXPECT_FALSE(understood(made<Bare>(0), &request));
  EXPECT_FALSE(understood(made<Bare>(POWERCCL_LEASE_REPLY), &request)) << "an answer is no request";
  auto drain = made<powerccl_lease_drain>(POWERCCL_LEASE_DRAIN);
  drain.on = 2;
  EXPECT_FALSE(understood(drain, &request));
}

TEST(Messages, TextsMustEndAndBePrintable) {
  Request request;
  auto hello = made<powerccl_lease_hello>(POWERCCL_LEASE_HELLO);
  std::memset(hello.run, 'x', sizeof hello.run);
  EXPECT_FALSE(understood(hello, &request));
  hello.run[63] = '\0';
  EXPECT_TRUE(understood(hello, &request));
  hello.run[5] = '\x1b';
  EXPECT_FALSE(understood(hello, &request)) << "a terminal would obey it";
}

TEST(Messages, AnswersCarryTheirNumberAndACutText) {
  Answer answer;
  answer.status = POWERCCL_LEASE_HELD;
  answer.text = std::string(500, 'y');
  const Bytes bytes = encode_reply(POWERCCL_LEASE_REPLY, 12, answer);
  powerccl_lease_reply reply;
  ASSERT_EQ(bytes.size(), sizeof reply);
  std::memcpy(&reply, bytes.data(), sizeof reply);
  EXPECT_EQ(reply.header.serial, 12u);
  EXPECT_EQ(reply.status, POWERCCL_LEASE_HELD);
  EXPECT_EQ(std::strlen(reply.text), POWERCCL_LEASE_TEXT - 1);
}

}  // namespace
}  // namespace powerccl::daemon
