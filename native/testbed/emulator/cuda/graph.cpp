// SPDX-License-Identifier: Apache-2.0
// Stream capture and graphs. A graph is the list of its nodes in the order they were captured in.
#include "emulator/cuda/state.h"

namespace powerccl::emulator {
namespace {

GraphState* graph_of(State& state, void* handle) {
  auto* graph = static_cast<GraphState*>(handle);
  return state.graphs.count(graph) != 0 ? graph : nullptr;
}

CUresult capture_info(CUstream handle, CUstreamCaptureStatus* status, cuuint64_t* id, CUgraph* graph,
                      size_t* dependencies) {
  POWERCCL_READY(state);
  if (status == nullptr) return CUDA_ERROR_INVALID_VALUE;
  const std::lock_guard lock(state.mutex);
  const StreamState* stream = state.stream_of(handle);
  if (stream == nullptr) return CUDA_ERROR_INVALID_HANDLE;
  *status = stream->capture != nullptr ? CU_STREAM_CAPTURE_STATUS_ACTIVE : CU_STREAM_CAPTURE_STATUS_NONE;
  if (dependencies != nullptr) *dependencies = 0;
  if (stream->capture == nullptr) return CUDA_SUCCESS;
  if (id != nullptr) *id = stream->capture->id;
  if (graph != nullptr) *graph = reinterpret_cast<CUgraph>(stream->capture);
  return CUDA_SUCCESS;
}

CUresult instantiate(CUgraphExec* executable, CUgraph handle) {
  POWERCCL_READY(state);
  if (executable == nullptr) return CUDA_ERROR_INVALID_VALUE;
  const std::lock_guard lock(state.mutex);
  const GraphState* graph = graph_of(state, handle);
  if (graph == nullptr || !graph->capturing.empty()) return CUDA_ERROR_INVALID_VALUE;
  auto* copy = new GraphState{state.next_graph++, graph->nodes, {}};
  state.graphs.insert(copy);
  *executable = reinterpret_cast<CUgraphExec>(copy);
  return CUDA_SUCCESS;
}

CUresult destroy(void* handle) {
  POWERCCL_READY(state);
  const std::lock_guard lock(state.mutex);
  GraphState* graph = graph_of(state, handle);
  if (graph == nullptr || !graph->capturing.empty()) return CUDA_ERROR_INVALID_VALUE;
  for (EventState* event : state.events)
    if (event->captured == graph) event->captured = nullptr;
  state.graphs.erase(graph);
  delete graph;
  return CUDA_SUCCESS;
}

}  // namespace
}  // namespace powerccl::emulator

using namespace powerccl::emulator;

PWE_EXPORT CUresult cuStreamBeginCapture_v2(CUstream handle, CUstreamCaptureMode) {
  POWERCCL_READY(state);
  const std::lock_guard lock(state.mutex);
  StreamState* stream = state.stream_of(handle);
  if (stream == nullptr) return CUDA_ERROR_INVALID_HANDLE;
  if (stream == stream->context->legacy || stream->capture != nullptr) return CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
  stream->capture = new GraphState{state.next_graph++, {}, {stream}};
  stream->capture_origin = true;
  state.graphs.insert(stream->capture);
  return CUDA_SUCCESS;
}

PWE_EXPORT CUresult cuStreamEndCapture(CUstream handle, CUgraph* graph) {
  POWERCCL_READY(state);
  if (graph == nullptr) return CUDA_ERROR_INVALID_VALUE;
  const std::lock_guard lock(state.mutex);
  StreamState* stream = state.stream_of(handle);
  if (stream == nullptr) return CUDA_ERROR_INVALID_HANDLE;
  if (stream->capture == nullptr || !stream->capture_origin) return CUDA_ERROR_ILLEGAL_STATE;
  GraphState* captured = stream->capture;
  for (StreamState* member : captured->capturing) {
    member->capture = nullptr;
    member->capture_origin = false;
  }
  captured->capturing.clear();
  *graph = reinterpret_cast<CUgraph>(captured);
  return CUDA_SUCCESS;
}

PWE_EXPORT CUresult cuStreamIsCapturing(CUstream handle, CUstreamCaptureStatus* status) {
  return capture_info(handle, status, nullptr, nullptr, nullptr);
}

PWE_EXPORT CUresult cuStreamGetCaptureInfo_v2(CUstream handle, CUstreamCaptureStatus* status, cuuint64_t* id,
                                              CUgraph* graph, const CUgraphNode** dependencies, size_t* count) {
  if (dependencies != nullptr) *dependencies = nullptr;
  return capture_info(handle, status, id, graph, count);
}

PWE_EXPORT CUresult cuStreamGetCaptureInfo_v3(CUstream handle, CUstreamCaptureStatus* status, cuuint64_t* id,
                                              CUgraph* graph, const CUgraphNode** dependencies,
                                              const CUgraphEdgeData** edges, size_t* count) {
  if (dependencies != nullptr) *dependencies = nullptr;
  if (edges != nullptr) *edges = nullptr;
  return capture_info(handle, status, id, graph, count);
}

PWE_EXPORT CUresult cuThreadExchangeStreamCaptureMode(CUstreamCaptureMode* mode) {
  thread_local CUstreamCaptureMode current = CU_STREAM_CAPTURE_MODE_GLOBAL;
  if (mode == nullptr) return CUDA_ERROR_INVALID_VALUE;
  std::swap(current, *mode);
  return CUDA_SUCCESS;
}

PWE_EXPORT CUresult cuGraphInstantiateWithFlags(CUgraphExec* executable, CUgraph graph, unsigned long long) {
  return instantiate(executable, graph);
}

PWE_EXPORT CUresult cuGraphUpload(CUgraphExec, CUstream) {
  return CUDA_SUCCESS;
}

PWE_EXPORT CUresult cuGraphLaunch(CUgraphExec handle, CUstream stream_handle) {
  POWERCCL_READY(state);
  const std::lock_guard lock(state.mutex);
  GraphState* executable = graph_of(state, handle);
  StreamState* stream = state.stream_of(stream_handle);
  if (executable == nullptr || stream == nullptr) return CUDA_ERROR_INVALID_HANDLE;
  if (stream->capture != nullptr) return CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
  for (Node& node : executable->nodes)
    if (const CUresult result = state.send(*stream, node); result != CUDA_SUCCESS) return result;
  return CUDA_SUCCESS;
}

PWE_EXPORT CUresult cuGraphGetNodes(CUgraph handle, CUgraphNode* nodes, size_t* count) {
  POWERCCL_READY(state);
  if (count == nullptr) return CUDA_ERROR_INVALID_VALUE;
  const std::lock_guard lock(state.mutex);
  GraphState* graph = graph_of(state, handle);
  if (graph == nullptr) return CUDA_ERROR_INVALID_VALUE;
  for (size_t i = 0; nodes != nullptr && i < *count; ++i)
    nodes[i] = i < graph->nodes.size() ? reinterpret_cast<CUgraphNode>(&graph->nodes[i]) : nullptr;
  *count = graph->nodes.size();
  return CUDA_SUCCESS;
}

PWE_EXPORT CUresult cuGraphDestroy(CUgraph graph) {
  return destroy(graph);
}
PWE_EXPORT CUresult cuGraphExecDestroy(CUgraphExec executable) {
  return destroy(executable);
}
