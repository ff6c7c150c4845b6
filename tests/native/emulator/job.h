// SPDX-License-Identifier: Apache-2.0
// Programs of the end-to-end tests: linked against libcuda.so.1 and libnvidia-ml.so.1 as a user's program is.
#pragma once
#include <cuda.h>
#include <nvml.h>

#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <map>
#include <string>

namespace job {

struct Self {
  int rank, ranks;
  std::string key;  // a path prefix of this job's own
};

using Scenario = void (*)(const Self&);
std::map<std::string, Scenario>& scenarios();
struct Register {
  Register(const char* name, Scenario scenario) { scenarios()[name] = scenario; }
};

#define SCENARIO(name)                                     \
  static void name(const job::Self& self);                 \
  static const job::Register register_##name(#name, name); \
  static void name([[maybe_unused]] const job::Self& self)

#define CHECK(condition)                                                      \
  do {                                                                        \
    if (!(condition)) {                                                       \
      fprintf(stderr, "%s:%d: not so: %s\n", __FILE__, __LINE__, #condition); \
      exit(1);                                                                \
    }                                                                         \
  } while (0)

#define CHECK_EQ(left, right)                                                                               \
  do {                                                                                                      \
    const long long left_value = static_cast<long long>(left), right_value = static_cast<long long>(right); \
    if (left_value != right_value) {                                                                        \
      fprintf(stderr, "%s:%d: %s is %lld, not %lld\n", __FILE__, __LINE__, #left, left_value, right_value); \
      exit(1);                                                                                              \
    }                                                                                                       \
  } while (0)

#define CHECK_NEAR(value, expected, tolerance)                                                                   \
  do {                                                                                                           \
    const double near_value = static_cast<double>(value), near_expected = static_cast<double>(expected);         \
    if (!(near_value >= near_expected - (tolerance) && near_value <= near_expected + (tolerance))) {             \
      fprintf(stderr, "%s:%d: %s is %g, not about %g\n", __FILE__, __LINE__, #value, near_value, near_expected); \
      exit(1);                                                                                                   \
    }                                                                                                            \
  } while (0)

#define OK(call) CHECK_EQ(call, 0)

inline constexpr char kPtx[] =
    ".version 7.0\n.target sm_70\n.address_size 64\n"
    "// .visible .entry not_a_kernel(.param .u64 x)\n"
    ".visible .entry burn(\n  .param .u32 burn_param_rounds,\n  .param .u64 burn_param_declared_ns\n)\n{ ret; }\n"
    ".visible .entry silent()\n{ ret; }\n";

// A context on a device, with the burn kernel.
struct Gpu {
  explicit Gpu(int ordinal = 0);
  CUresult burn(CUstream stream, double ms) const;
  CUcontext context = nullptr;
  CUmodule module = nullptr;
  CUfunction kernel = nullptr;
};

CUstream new_stream(unsigned flags = CU_STREAM_NON_BLOCKING);
CUevent new_event();
double elapsed_ms(CUevent begin, CUevent end);
uint64_t now_ns();
void sleep_ms(int ms);
// An NVML handle; initialises NVML.
nvmlDevice_t nvml_device(unsigned index);
// Locks the clock and waits for it to have changed, a kernel keeping the GPU awake meanwhile is the caller's business.
void lock_clock(unsigned index, unsigned mhz);

}  // namespace job
