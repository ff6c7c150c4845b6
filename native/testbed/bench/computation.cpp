// SPDX-License-Identifier: Apache-2.0
#include "bench/computation.h"

#include <algorithm>
#include <cmath>
#include <string>

#include "bench/scenario.h"
#include "bench/values.h"

namespace powerccl::bench {
namespace {

// Two blocks of 256 threads keep an SM's multipliers busy and leave room for NCCL's kernel beside them.
constexpr unsigned kBlocksPerSm = 2;

// A loop has sixteen fused multiply-adds in four independent chains. The store at the end keeps the driver's compiler
// from dropping them. x = x * 0.999 + 1 stays finite.
#define FOUR                                 \
  "    fma.rn.f32 %a, %a, %m, 0f3F800000;\n" \
  "    fma.rn.f32 %b, %b, %m, 0f3F800000;\n" \
  "    fma.rn.f32 %c, %c, %m, 0f3F800000;\n" \
  "    fma.rn.f32 %d, %d, %m, 0f3F800000;\n"
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
)" FOUR FOUR FOUR FOUR R"(    sub.u64 %left, %left, 1;
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

#undef FOUR

constexpr uint64_t kFirstTry = 20'000;
constexpr double kTrustedMs = 20;

CUfunction load_kernel(const CudaApi& cuda, const char* ptx, const char* name) {
  if (cuda.module_load_data == nullptr || cuda.module_get_function == nullptr || cuda.launch_kernel == nullptr) {
    throw Failure(kExitMissing, "this driver cannot load kernels");
  }
  CUmodule module = nullptr;
  CUfunction function = nullptr;
  cuda.check(cuda.module_load_data(&module, ptx), "cuModuleLoadData");
  cuda.check(cuda.module_get_function(&function, module, name), "cuModuleGetFunction");
  return function;
}

void launch_kernel(const CudaApi& cuda, CUfunction function, unsigned blocks, unsigned threads, CUstream stream,
                   void** parameters) {
  cuda.check(cuda.launch_kernel(function, blocks, 1, 1, threads, 1, 1, 0, stream, parameters, nullptr),
             "cuLaunchKernel");
}

}  // namespace

ComputeKernel::ComputeKernel(Rank& rank, bool declared)
    : rank_(rank),
      function_(load_kernel(rank.cuda(), kPtx, "powerccl_bench_compute")),
      blocks_(static_cast<unsigned>(rank.sm_count()) * kBlocksPerSm) {
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
  launch_kernel(rank_.cuda(), function_, blocks_, kThreads, stream, parameters);
}

// Products of bfloat16 matrices by cuBLAS, as a transformer's layers make them: there and back in turn. Emulated GPUs
// have no cuBLAS: there a kernel takes the declared time.
class MatrixProduct {
 public:
  MatrixProduct(Rank& rank, const Products& shape, const char* option, CUstream stream)
      : rank_(rank), shape_(shape), option_(option), stream_(stream) {
    if (rank.cuda().emulated()) {
      emulated_ = std::make_unique<ComputeKernel>(rank, true);
    } else {
      load_cublas();
    }
  }
  ~MatrixProduct() {
    if (handle_ != nullptr) destroy_(handle_);
    for (const CUdeviceptr matrix : {weights_, narrow_, wide_, out_}) rank_.cuda().mem_free(matrix);
  }
  MatrixProduct(const MatrixProduct&) = delete;
  MatrixProduct& operator=(const MatrixProduct&) = delete;

  void enqueue(double emulated_ms, double memory) {
    if (emulated_ != nullptr) return emulated_->enqueue(emulated_ms, stream_, memory);
    // Rows of tokens are cuBLAS's columns. Outputs are never inputs, whose values would grow without end.
    const float one = 1, zero = 0;
    const int from = back_ ? shape_.hidden : shape_.width, to = back_ ? shape_.width : shape_.hidden;
    check(gemm_(handle_, kNoTranspose, kNoTranspose, to, shape_.tokens, from, &one, pointer(weights_), kBfloat16, to,
                pointer(back_ ? wide_ : narrow_), kBfloat16, from, &zero, pointer(out_), kBfloat16, to, kComputeFloat32,
                kDefault),
          "cublasGemmEx");
    back_ = !back_;
  }

 private:
  // Values of cuBLAS's enumerations.
  static constexpr int kNoTranspose = 0, kBfloat16 = 14, kComputeFloat32 = 68, kDefault = -1;

  static void check(int status, const char* doing) {
    if (status != 0) {
      throw Failure(kExitRankFailed, std::string(doing) + " failed with cuBLAS status " + std::to_string(status));
    }
  }
  static void* pointer(CUdeviceptr matrix) {
    return reinterpret_cast<void*>(matrix);  // NOLINT(performance-no-int-to-ptr)
  }

  void load_cublas() {
    std::vector<std::string> names{"libcublas.so.13", "libcublas.so.12", "libcublas.so.11"};
    if (const char* named = std::getenv("CUBLAS_LIBRARY")) names = {named};
    const Library library =
        Library::open(names, std::string(option_) +
                                 " matmul needs cuBLAS: add its folder to LD_LIBRARY_PATH, or name the file in "
                                 "CUBLAS_LIBRARY");
    int (*create)(void**) = library.required("cublasCreate_v2");
    int (*set_stream)(void*, CUstream) = library.required("cublasSetStream_v2");
    destroy_ = library.required("cublasDestroy_v2");
    gemm_ = library.required("cublasGemmEx");
    check(create(&handle_), "cublasCreate");
    check(set_stream(handle_, stream_), "cublasSetStream");
    const size_t tokens = shape_.tokens, width = shape_.width, hidden = shape_.hidden;
    weights_ = filled(width * hidden);
    narrow_ = filled(tokens * width);
    wide_ = filled(tokens * hidden);
    out_ = filled(tokens * std::max(width, hidden));
  }

  // Random values: a product of zeros draws a third less power.
  CUdeviceptr filled(size_t count) {
    const CudaApi& cuda = rank_.cuda();
    std::vector<uint16_t> values(std::min(count, kRandom));
    uint32_t state = 1;
    for (uint16_t& value : values) {
      state = state * 1664525 + 1013904223;  // the usual linear congruential generator
      // bfloat16 with any sign and mantissa and an exponent of -4 to -1: magnitudes from 1/16 to 1.
      value = static_cast<uint16_t>((state >> 16 & 0x807fu) | (123u + (state >> 28 & 3u)) << 7);
    }
    CUdeviceptr matrix = 0;
    cuda.check(cuda.mem_alloc(&matrix, count * 2), "cuMemAlloc");
    for (size_t at = 0; at < count; at += kRandom) {
      cuda.check(cuda.memcpy_to_device(matrix + at * 2, values.data(), std::min(count - at, kRandom) * 2),
                 "cuMemcpyHtoD");
    }
    return matrix;
  }

  static constexpr size_t kRandom = size_t{1} << 20;  // values of which a matrix consists, again and again

  Rank& rank_;
  Products shape_;
  const char* option_;
  CUstream stream_;
  std::unique_ptr<ComputeKernel> emulated_;
  void* handle_ = nullptr;
  CUdeviceptr weights_ = 0, narrow_ = 0, wide_ = 0, out_ = 0;
  bool back_ = false;
  int (*destroy_)(void*) = nullptr;
  int (*gemm_)(void*, int, int, int, int, int, const void*, const void*, int, int, const void*, int, int, const void*,
               void*, int, int, int, int) = nullptr;
};

namespace {

// Reads one buffer and writes another, 16 bytes a thread and turn.
const char kCopyPtx[] = R"(
.version 6.3
.target sm_70
.address_size 64

.visible .entry powerccl_bench_copy(
    .param .u64 from,
    .param .u64 to,
    .param .u64 bytes,
    .param .u64 declared_ns
)
{
    .reg .pred %again;
    .reg .u32 %x, %y, %z, %a, %b, %c, %d;
    .reg .u64 %at, %end, %step, %from, %to, %here;

    ld.param.u64 %from, [from];
    ld.param.u64 %to, [to];
    ld.param.u64 %end, [bytes];
    mov.u32 %x, %ctaid.x;
    mov.u32 %y, %ntid.x;
    mov.u32 %z, %tid.x;
    mad.lo.u32 %x, %x, %y, %z;
    mul.wide.u32 %at, %x, 16;
    mov.u32 %z, %nctaid.x;
    mul.lo.u32 %y, %y, %z;
    mul.wide.u32 %step, %y, 16;
loop:
    setp.ge.u64 %again, %at, %end;
    @%again bra done;
    add.u64 %here, %from, %at;
    ld.global.v4.u32 {%a, %b, %c, %d}, [%here];
    add.u64 %here, %to, %at;
    st.global.v4.u32 [%here], {%a, %b, %c, %d};
    add.u64 %at, %at, %step;
    bra loop;
done:
    ret;
}
)";

}  // namespace

// A copy within the GPU's memory by its multiprocessors, bound by memory as normalisation and activations are.
class MemoryCopy {
 public:
  MemoryCopy(Rank& rank, CUstream stream)
      : rank_(rank), stream_(stream), function_(load_kernel(rank.cuda(), kCopyPtx, "powerccl_bench_copy")) {
    for (CUdeviceptr& buffer : buffers_) rank.cuda().check(rank.cuda().mem_alloc(&buffer, kCopyBytes), "cuMemAlloc");
  }
  ~MemoryCopy() {
    for (const CUdeviceptr buffer : buffers_) rank_.cuda().mem_free(buffer);
  }
  MemoryCopy(const MemoryCopy&) = delete;
  MemoryCopy& operator=(const MemoryCopy&) = delete;

  void enqueue(double emulated_ms, double memory) {
    uint64_t bytes = kCopyBytes, declared_ns = declared_time(emulated_ms, memory);
    void* parameters[] = {&buffers_[0], &buffers_[1], &bytes, &declared_ns};
    const auto blocks = static_cast<unsigned>(rank_.sm_count()) * kBlocksPerSm;
    launch_kernel(rank_.cuda(), function_, blocks, kThreads, stream_, parameters);
  }

 private:
  // Threads enough to have all of the memory's bandwidth under way; more add nothing.
  static constexpr unsigned kBlocksPerSm = 4, kThreads = 512;

  Rank& rank_;
  CUstream stream_;
  CUfunction function_;
  CUdeviceptr buffers_[2] = {};
};

Units::Units(Rank& rank, Beside kind, const Products& products, const char* option, CUstream stream)
    : rank_(rank), stream_(stream), owns_(stream == nullptr) {
  if (owns_) rank.cuda().check(rank.cuda().stream_create(&stream_, CU_STREAM_NON_BLOCKING), "cuStreamCreate");
  if (kind != Beside::kMemory) product_ = std::make_unique<MatrixProduct>(rank, products, option, stream_);
  if (kind != Beside::kMatmul) copy_ = std::make_unique<MemoryCopy>(rank, stream_);
}

Units::~Units() {
  product_.reset();  // before its stream
  if (owns_) rank_.cuda().stream_destroy(stream_);
}

void Units::enqueue() {
  enqueue_emulated(product_ != nullptr && copy_ != nullptr ? 2 * kEmulatedMs : kEmulatedMs);
}

void Units::enqueue_emulated(double ms, double memory) {
  if (product_ != nullptr && copy_ != nullptr) ms /= 2;
  if (product_ != nullptr) product_->enqueue(ms, memory);
  if (copy_ != nullptr) copy_->enqueue(ms, memory);
}

namespace {

// Computation comes in kernels of about this length at most. A GPU's processors are free for a collective's kernel only
// where one of these ends, as between the matrix products of a model. Emulated kernels leave them free at any time.
constexpr double kKernelMs = 0.5, kEmulatedKernelMs = 10;
// Some 0.1 s of products each: the first bring clock and power to where they stay.
constexpr int kWarmUnits = 500, kTimedUnits = 500;

int kernels_for(double ms, double longest_ms) {
  return std::max(1, static_cast<int>(std::ceil(ms / longest_ms)));
}

}  // namespace

int WholeUnits::take(double ms) {
  const int units = std::max(0, static_cast<int>(std::lround((ms + carry_ms_) / unit_ms_)));
  carry_ms_ += ms - units * unit_ms_;
  return units;
}

Computation::Computation(Rank& rank, Beside kind, const Products& products, const std::vector<CUstream>& streams,
                         const std::set<size_t>& computing)
    : rank_(rank), streams_(streams), units_(streams.size()) {
  const bool emulated = rank.cuda().emulated();
  if (kind == Beside::kNothing) {
    kernel_ = std::make_unique<ComputeKernel>(rank, emulated);
    return;
  }
  // One of its own for each stream: products of two streams must not share cuBLAS's workspace.
  for (const size_t stream : computing) {
    units_[stream] = std::make_unique<Units>(rank, kind, products, "--compute", streams[stream]);
  }
  if (!emulated && !computing.empty()) calibrate(computing);
}

void Computation::calibrate(const std::set<size_t>& computing) {
  // The first loads its kernels, which takes long and is not allowed while a graph is captured.
  for (const size_t stream : computing) time_units(*units_[stream], streams_[stream], 1);
  Board& board = rank_.board();
  board.barrier();
  const size_t first = *computing.begin();
  time_units(*units_[first], streams_[first], kWarmUnits);
  const double ms = time_units(*units_[first], streams_[first], kTimedUnits);
  // The mean of all GPUs: as in a job, all have the same work, and a slow one needs longer for it.
  unit_ms_ = board.sum(rank_.rank(), ms) / rank_.ranks();
  whole_.assign(streams_.size(), WholeUnits(unit_ms_));
}

double Computation::time_units(Units& units, CUstream stream, int count) {
  rank_.record(rank_.event(0), stream);
  for (int i = 0; i < count; ++i) units.enqueue();
  rank_.record(rank_.event(1), stream);
  rank_.wait(stream);
  return rank_.elapsed_ms(rank_.event(0), rank_.event(1)) / count;
}

void Computation::enqueue(double ms, size_t stream, double memory) {
  if (ms <= 0) return;
  if (unit_ms_ > 0) {
    for (int left = whole_[stream].take(ms); left > 0; --left) units_[stream]->enqueue();
    return;
  }
  const bool declared = kernel_ == nullptr || kernel_->iterations_per_ms() <= 0;
  const int kernels = kernels_for(ms, declared ? kEmulatedKernelMs : kKernelMs);
  for (int i = 0; i < kernels; ++i) {
    if (kernel_ != nullptr) {
      kernel_->enqueue(ms / kernels, streams_[stream], memory);
    } else {
      units_[stream]->enqueue_emulated(ms / kernels, memory);
    }
  }
}

void Computation::begin_graph() {
  outside_ = whole_;
  whole_.assign(whole_.size(), WholeUnits(unit_ms_));
}

void Computation::end_graph() {
  whole_ = outside_;
}

void Computation::tell(StartNews& start) const {
  start.compute_unit_ms = unit_ms_;
  if (kernel_ == nullptr) return;
  start.compute_iterations_per_ms = kernel_->iterations_per_ms();
  start.blocks = static_cast<int32_t>(kernel_->blocks());
  start.threads = ComputeKernel::kThreads;
}

}  // namespace powerccl::bench
