// SPDX-License-Identifier: Apache-2.0
// What was enqueued once, launched again and again: a CUDA graph.
#ifndef POWERCCL_BENCH_GRAPH_H
#define POWERCCL_BENCH_GRAPH_H
#include "bench/cuda_api.h"
#include "bench/failure.h"

namespace powerccl::bench {

class Graph {
 public:
  // Captures what `enqueue` puts into `stream`, and into streams that it makes wait for it.
  template <typename Enqueue>
  Graph(const CudaApi& cuda, CUstream stream, Enqueue enqueue) : cuda_(cuda) {
    if (cuda.stream_begin_capture == nullptr || cuda.stream_end_capture == nullptr ||
        cuda.graph_instantiate_with_flags == nullptr || cuda.graph_launch == nullptr) {
      throw Failure(kExitMissing, "this driver has no CUDA graphs", "leave --graph, or the scenario's `capture`, out");
    }
    cuda.check(cuda.stream_begin_capture(stream, CU_STREAM_CAPTURE_MODE_THREAD_LOCAL), "cuStreamBeginCapture");
    enqueue();
    cuda.check(cuda.stream_end_capture(stream, &graph_), "cuStreamEndCapture");
    cuda.check(cuda.graph_instantiate_with_flags(&executable_, graph_, 0), "cuGraphInstantiate");
  }
  ~Graph() {
    if (executable_ != nullptr) cuda_.graph_exec_destroy(executable_);
    if (graph_ != nullptr) cuda_.graph_destroy(graph_);
  }
  Graph(const Graph&) = delete;
  Graph& operator=(const Graph&) = delete;
  void launch(CUstream stream) { cuda_.check(cuda_.graph_launch(executable_, stream), "cuGraphLaunch"); }

 private:
  const CudaApi& cuda_;
  CUgraph graph_ = nullptr;
  CUgraphExec executable_ = nullptr;
};

}  // namespace powerccl::bench
#endif
