// SPDX-License-Identifier: Apache-2.0
// How native/node/device reports what went wrong: a code to compare and record, and a short English text to print.
#pragma once

namespace powerccl::device {

// Positive codes are NVML's own (nvmlReturn_t); negative ones are ours.
enum Code : int {
  kOk = 0,
  kLibraryMissing = -1,  // libnvidia-ml.so.1 cannot be loaded
  kSymbolMissing = -2,   // this NVML lacks the function
  kBadArgument = -3,     // no such GPU name, impossible clock range
  kNoReading = -4,       // NVML answered with a number that cannot be a reading
  kTooSlow = -5,         // a reading took so long that its moment is not known
};

struct Error {
  int code = kOk;
  char text[160] = "";
};

// Fills `error` (may be null) from a printf format and returns `code`, so that callers can `return fail(...)`.
int fail(Error* error, int code, const char* format, ...) __attribute__((format(printf, 3, 4)));

// What a person can do about `code`: one line without "hint:", or "" where there is nothing better than the text.
const char* hint(int code);

}  // namespace powerccl::device
