// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size);

// An assertion that every build has.
#define REQUIRE(condition)                                                               \
  do {                                                                                   \
    if (!(condition)) {                                                                  \
      std::fprintf(stderr, "%s:%d: %s does not hold\n", __FILE__, __LINE__, #condition); \
      std::abort();                                                                      \
    }                                                                                    \
  } while (0)

// A message ends within its field, and does nothing to a terminal. It may have several lines.
inline void require_printable(const char* text, size_t size) {
  size_t length = 0;
  while (length < size && text[length] != '\0') {
    REQUIRE((text[length] >= ' ' && text[length] <= '~') || text[length] == '\n');
    ++length;
  }
  REQUIRE(length < size);
}

// Takes the input apart; zeros behind its end.
class Input {
 public:
  Input(const uint8_t* data, size_t size) : data_(data), left_(size) {}
  bool empty() const { return left_ == 0; }
  uint8_t byte() { return left_ == 0 ? 0 : (--left_, *data_++); }
  uint16_t word() {
    const uint8_t low = byte();
    return static_cast<uint16_t>(low | byte() << 8);
  }
  // The next `length` bytes, or as many as there are.
  const uint8_t* bytes(size_t* length) {
    if (*length > left_) *length = left_;
    const uint8_t* begin = data_;
    data_ += *length;
    left_ -= *length;
    return begin;
  }

 private:
  const uint8_t* data_;
  size_t left_;
};
