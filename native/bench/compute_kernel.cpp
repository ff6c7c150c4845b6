// SPDX-License-Identifier: Apache-2.0
#include "bench/compute_kernel.h"

#include "bench/failure.h"
#include "bench/scenario_ranks.h"

namespace powerccl::bench {
namespace {

// Two blocks of 256 threads keep an SM's multipliers busy and leave room for NCCL's kernel beside them.
constexpr unsigned kBlocksPerSm = 2;

// Sixteen fused multiply-adds in four independent chains a loop; the store at the end keeps the driver's compiler from
// dropping them. x = x * 0.999 + 1 stays finite.
const char kPtx[] = R"(
.version 6.3
.target sm_70
.address_size 64

.visible .entry powerccl_bench_compute(
    .param .u64 iterations,
    .param .u64 declared_ns,
    .param .u64 out
)
{
    .reg .pred %again;
    .reg .u64 %left, %where;
    .reg .f32 %a, %b, %c, %d, %m;

    ld.param.u64 %left, [iterations];
    ld.param.u64 %where, [out];
    mov.f32 %a, 0f3F800000;
    mov.f32 %b, 0f40000000;
    mov.f32 %c, 0f40400000;
    mov.f32 %d, 0f40800000;
    mov.f32 %m, 0f3F7FBE77;
    setp.eq.u64 %again, %left, 0;
    @%again bra done;
loop:
    fma.rn.f32 %a, %a, %m, 0f3F800000;
    fma.rn.f32 %b, %b, %m, 0f3F800000;
    fma.rn.f32 %c, %c, %m, 0f3F800000;
    fma.rn.f32 %d, %d, %m, 0f3F800000;
    fma.rn.f32 %a, %a, %m, 0f3F800000;
    fma.rn.f32 %b, %b, %m, 0f3F800000;
    fma.rn.f32 %c, %c, %m, 0f3F800000;
    fma.rn.f32 %d, %d, %m, 0f3F800000;
    fma.rn.f32 %a, %a, %m, 0f3F800000;
    fma.rn.f32 %b, %b, %m, 0f3F800000;
    fma.rn.f32 %c, %c, %m, 0f3F800000;
    fma.rn.f32 %d, %d, %m, 0f3F800000;
    fma.rn.f32 %a, %a, %m, 0f3F800000;
    fma.rn.f32 %b, %b, %m, 0f3F800000;
    fma.rn.f32 %c, %c, %m, 0f3F800000;
    fma.rn.f32 %d, %d, %m, 0f3F800000;
    sub.u64 %left, %left, 1;
    setp.ne.u64 %again, %left, 0;
    @%again bra loop;
done:
    add.f32 %a, %a, %b;
    add.f32 %c, %c, %d;
    add.f32 %a, %a, %c;
    st.global.f32 [%where], %a;
    ret;
}
)";

constexpr uint64_t kFirstTry = 20'000;
constexpr double kTrustedMs = 20;

}  // namespace

ComputeKernel::ComputeKernel(Rank& rank, bool declared)
    : rank_(rank), blocks_(static_cast<unsigned>(rank.sm_count()) * kBlocksPerSm) {
  const CudaApi& cuda = rank.cuda();
  if (cuda.module_load_data == nullptr || cuda.module_get_function == nullptr || cuda.launch_kernel == nullptr) {
    throw Failure(kExitMissing, "this driver cannot load kernels");
  }
  CUmodule module = nullptr;
  cuda.check(cuda.module_load_data(&module, kPtx), "cuModuleLoadData");
  cuda.check(cuda.module_get_function(&function_, module, "powerccl_bench_compute"), "cuModuleGetFunction");
  if (declared) return;
  // The first run also brings the clock up; each try is longer until one can be trusted.
  for (uint64_t iterations = kFirstTry;; iterations *= 4) {
    rank.record(rank.event(0), rank.stream());
    launch(iterations, 0, rank.stream());
    rank.record(rank.event(1), rank.stream());
    rank.wait(rank.stream());
    const double ms = rank.elapsed_ms(rank.event(0), rank.event(1));
    iterations_per_ms_ = static_cast<double>(iterations) / ms;
    if (ms >= kTrustedMs) break;
  }
}

void ComputeKernel::enqueue(double ms, CUstream stream, double memory) {
  if (ms <= 0) return;
  launch(static_cast<uint64_t>(ms * iterations_per_ms_), declared_time(ms, memory), stream);
}

void ComputeKernel::launch(uint64_t iterations, uint64_t declared_ns, CUstream stream) {
  uint64_t out = rank_.send_buffer();
  void* parameters[] = {&iterations, &declared_ns, &out};
  rank_.cuda().check(
      rank_.cuda().launch_kernel(function_, blocks_, 1, 1, kThreads, 1, 1, 0, stream, parameters, nullptr),
      "cuLaunchKernel");
}

}  // namespace powerccl::bench
