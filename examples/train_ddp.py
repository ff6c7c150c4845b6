"""A small data-parallel training job in plain PyTorch: nothing in it knows of PowerCCL.

torchrun --nproc-per-node 2 examples/train_ddp.py
powerccl run -- torchrun --nproc-per-node 2 examples/train_ddp.py
"""

import argparse
import hashlib
import os
import time

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel


def main() -> None:
    """Train for a few steps and print the loss and a digest of the weights, the same for every run."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=30)
    parser.add_argument("--width", type=int, default=4096)
    parser.add_argument("--layers", type=int, default=8)
    parser.add_argument("--batch", type=int, default=2048)
    options = parser.parse_args()

    torch.use_deterministic_algorithms(True, warn_only=True)
    torch.manual_seed(7)
    local = int(os.environ["LOCAL_RANK"])
    torch.cuda.set_device(local)
    dist.init_process_group("nccl", device_id=torch.device("cuda", local))
    blocks = [layer for _ in range(options.layers) for layer in (nn.Linear(options.width, options.width), nn.GELU())]
    model = DistributedDataParallel(nn.Sequential(*blocks).cuda(), device_ids=[local])
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    data = torch.randn(
        options.batch, options.width, device="cuda", generator=torch.Generator("cuda").manual_seed(local)
    )

    started = time.perf_counter()
    for _ in range(options.steps):
        optimizer.zero_grad(set_to_none=True)
        loss = (model(data) - data).square().mean()
        loss.backward()
        optimizer.step()
    torch.cuda.synchronize()
    seconds = time.perf_counter() - started
    if dist.get_rank() == 0:
        digest = hashlib.sha256()
        for parameter in model.parameters():
            digest.update(parameter.detach().float().cpu().numpy().tobytes())
        print(f"steps {options.steps} seconds {seconds:.3f} loss {loss.item():.6f} weights {digest.hexdigest()[:16]}")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
