"""A DDP job that times each bucket's all-reduce with CUDA events, to set beside a trace of the same job.

torchrun --nproc-per-node N evidence/scripts/ddp-kernel-times.py --out FILE

Rank 0 writes [{"bytes", "event_us"}] in launch order.
PyTorch records the events itself on the collective's own stream (TORCH_NCCL_ENABLE_TIMING).
"""

import argparse
import json
import os
from pathlib import Path

os.environ["TORCH_NCCL_ENABLE_TIMING"] = "1"

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

Works = list[tuple[int, dist.Work]]


def main() -> None:
    """Train a few steps and write what the events said."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--bucket-mb", type=int, default=128)
    parser.add_argument("--out", type=Path, required=True)
    options = parser.parse_args()
    local = int(os.environ["LOCAL_RANK"])
    torch.cuda.set_device(local)
    dist.init_process_group("nccl", device_id=torch.device("cuda", local))
    blocks = [layer for _ in range(8) for layer in (nn.Linear(4096, 4096), nn.GELU())]
    model = DistributedDataParallel(nn.Sequential(*blocks).cuda(), device_ids=[local], bucket_cap_mb=options.bucket_mb)
    works: Works = []

    def hook(state: Works, bucket: dist.GradBucket) -> torch.futures.Future[torch.Tensor]:
        buffer = bucket.buffer().div_(dist.get_world_size())
        work = dist.all_reduce(buffer, async_op=True)
        state.append((buffer.numel() * buffer.element_size(), work))
        return work.get_future().then(lambda future: future.value()[0])

    model.register_comm_hook(works, hook)
    data = torch.randn(1024, 4096, device="cuda")
    times: list[dict[str, float]] = []
    for _ in range(options.steps):
        model.zero_grad(set_to_none=True)
        model(data).square().mean().backward()
        torch.cuda.synchronize()
        times += [{"bytes": size, "event_us": work._get_duration() * 1e3} for size, work in works]
        works.clear()
    if dist.get_rank() == 0:
        options.out.write_text(json.dumps(times))
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
