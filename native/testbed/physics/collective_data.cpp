// SPDX-License-Identifier: Apache-2.0
// Moves the data of a flow: a worker does it while the flow takes its time. All ranks are at the operation then. Their
// inputs are complete and their outputs are not in use; the operation's end waits for the worker.
#include <algorithm>
#include <cstring>

#include "physics/collective_engine.h"
#include "physics/collective_types.h"

namespace powerccl::physics {

namespace {

struct Buffer {
  std::shared_ptr<Memory> memory;  // null: the rank has no such buffer
  std::byte* data = nullptr;
};

struct RankData {
  Buffer input, output;
  uint64_t scalar = 0;
};

std::string outside(const char* what, uint32_t rank) {
  return std::string("the ") + what + " buffer of rank " + std::to_string(rank) + " is outside its allocation";
}

void move_collective(const CollectiveTask& task, std::vector<RankData>& ranks) {
  const auto type = static_cast<DataType>(task.type);
  const size_t bytes = task.count * element_bytes(type);
  const size_t n = ranks.size();
  std::vector<const void*> inputs;
  std::vector<void*> outputs;
  std::vector<uint64_t> scalars;
  scalars.reserve(ranks.size());
  for (const RankData& rank : ranks) scalars.push_back(rank.scalar);
  const auto reduce_chunk = [&](size_t offset) {
    inputs.clear();
    for (const RankData& rank : ranks) inputs.push_back(rank.input.data + offset);
    reduce_elements(inputs, outputs, task.count, type, static_cast<Reduction>(task.reduction), scalars);
  };
  switch (static_cast<TaskKind>(task.kind)) {
    case TaskKind::kAllReduce:
      for (const RankData& rank : ranks) outputs.push_back(rank.output.data);
      return reduce_chunk(0);
    case TaskKind::kReduce:
      outputs.push_back(ranks[static_cast<size_t>(task.peer)].output.data);
      return reduce_chunk(0);
    case TaskKind::kReduceScatter:
      // In place, chunk r of rank r's input is its output: no other rank's chunk is touched by it.
      for (size_t r = 0; r < n; ++r) {
        outputs.assign(1, ranks[r].output.data);
        reduce_chunk(r * bytes);
      }
      return;
    case TaskKind::kBroadcast:
      for (const RankData& rank : ranks)
        memmove(rank.output.data, ranks[static_cast<size_t>(task.peer)].input.data, bytes);
      return;
    case TaskKind::kAllGather:
      for (size_t r = 0; r < n; ++r)
        for (const RankData& rank : ranks) memmove(rank.output.data + r * bytes, ranks[r].input.data, bytes);
      return;
    default:
      return;
  }
}

}  // namespace

bool CollectiveEngine::start_moving(Flow& flow, std::string& error) {
  const Comm& comm = *flow.comm;
  if (!comm.move_data) return false;
  const auto wants = [](const RankKernel* kernel) { return kernel->plan.moves_data != 0; };
  const Transfer& ends = flow.transfer;
  if (flow.step ? std::ranges::none_of(flow.step->kernels, wants) : !wants(ends.sender) && !wants(ends.receiver))
    return false;
  const auto find_buffer = [&](uint32_t rank, const BufferRef& ref, double bytes, const char* what) -> Buffer {
    if (ref.allocation == kNoAllocation) return {};
    Buffer buffer{engine_.memory(comm.ranks[rank].client, ref.allocation), nullptr};
    if (!buffer.memory || ref.offset > buffer.memory->bytes ||
        static_cast<double>(buffer.memory->bytes - ref.offset) < bytes) {
      error = outside(what, rank);
      return {};
    }
    buffer.data = buffer.memory->data + ref.offset;
    return buffer;
  };
  const uint64_t id = flow.id;
  const auto done = [this, id](Time) { data_done(id); };

  if (!flow.step) {
    const Transfer& transfer = flow.transfer;
    const CollectiveTask& send = transfer.sender->tasks[transfer.send_task];
    const double bytes = task_bytes(send);
    if (bytes == 0) return false;
    const Buffer from = find_buffer(transfer.sender->rank, send.input, bytes, "send");
    const Buffer to =
        find_buffer(transfer.receiver->rank, transfer.receiver->tasks[transfer.receive_task].output, bytes, "receive");
    if (!from.data || !to.data) return false;
    engine_.run_in_worker([from, to, bytes] { memmove(to.data, from.data, static_cast<size_t>(bytes)); }, done);
    return true;
  }

  std::vector<RankData> ranks(comm.size());
  const CollectiveTask first = flow.step->kernels[0]->tasks[flow.step->kernels[0]->next_task];
  const auto kind = static_cast<TaskKind>(first.kind);
  const double bytes = task_bytes(first);
  const double input_bytes = kind == TaskKind::kReduceScatter ? bytes * comm.size() : bytes;
  const double output_bytes = kind == TaskKind::kAllGather ? bytes * comm.size() : bytes;
  for (uint32_t rank = 0; rank < comm.size(); ++rank) {
    const CollectiveTask& task = flow.step->kernels[rank]->tasks[flow.step->kernels[rank]->next_task];
    const bool root = static_cast<uint32_t>(task.peer) == rank;
    if (kind != TaskKind::kBroadcast || root) {
      ranks[rank].input = find_buffer(rank, task.input, input_bytes, "send");
      if (!ranks[rank].input.data && error.empty()) error = outside("send", rank);
    }
    if (kind != TaskKind::kReduce || root) {
      ranks[rank].output = find_buffer(rank, task.output, output_bytes, "receive");
      if (!ranks[rank].output.data && error.empty()) error = outside("receive", rank);
    }
    ranks[rank].scalar = task.scalar.offset;
    if (task.scalar.allocation != kNoAllocation) {
      const size_t width = element_bytes(static_cast<DataType>(task.type));
      const Buffer scalar = find_buffer(rank, task.scalar, static_cast<double>(width), "scalar");
      if (scalar.data) memcpy(&ranks[rank].scalar, scalar.data, width);
    }
  }
  if (!error.empty()) return false;
  engine_.run_in_worker([first, moved = std::move(ranks)]() mutable { move_collective(first, moved); }, done);
  return true;
}

}  // namespace powerccl::physics
