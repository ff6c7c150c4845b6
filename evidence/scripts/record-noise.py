#!/usr/bin/env python3
"""How long each iteration of a real job takes: what `figures-noise.py` compares with.

record-noise.py OUT.npz, under torchrun. `--models` and what follows are of step-worker.py. OUT has `ms`, ranks by
iterations. Nothing is set. Under `powerccl run`, the run folder has the GPUs' clocks, power and temperatures too.
"""

import argparse
import importlib.util
import itertools
import os
import time
from pathlib import Path

import numpy as np
import torch
import torch.distributed as dist

FIRST = 10  # iterations that are not recorded: compilers, caches and communicators
AT_ONCE_S = 10.0  # of iterations, until the ranks agree whether to go on


def main() -> None:
    """Run the job, and write."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("out", type=Path)
    parser.add_argument("--seconds", type=float, default=480.0, help="of the job, about")
    parser.add_argument("--models", default="eager")
    parser.add_argument("--layers", type=int, default=6)
    parser.add_argument("--tokens", type=int, default=2048)
    parser.add_argument("--width", type=int, default=4096)
    parser.add_argument("--hidden", type=int, default=14336)
    options = parser.parse_args()
    options.way = "alone"
    spec = importlib.util.spec_from_file_location("step_worker", Path(__file__).with_name("step-worker.py"))
    assert spec and spec.loader
    worker = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(worker)
    rank, local = int(os.environ["RANK"]), int(os.environ["LOCAL_RANK"])
    torch.cuda.set_device(local)
    dist.init_process_group("nccl", device_id=torch.device("cuda", local))
    step = worker.MODELS[options.models](options)

    def run(count: int) -> list[float]:
        """Milliseconds of each iteration, between events of the GPU."""
        marks = [torch.cuda.Event(enable_timing=True) for _ in range(count + 1)]
        torch.cuda.synchronize()
        dist.barrier()
        marks[0].record()
        for mark in marks[1:]:
            step()
            mark.record()
        torch.cuda.synchronize()
        return [before.elapsed_time(after) for before, after in itertools.pairwise(marks)]

    each_ms = sum(run(FIRST)) / FIRST
    until, mine = time.monotonic() + options.seconds, []
    count = torch.tensor([max(1, int(1e3 * AT_ONCE_S / each_ms))], device="cuda")
    dist.broadcast(count, 0)
    while count.item():
        mine += run(int(count.item()))
        if rank == 0 and time.monotonic() > until:
            count.zero_()
        dist.broadcast(count, 0)
    gathered = [torch.empty(len(mine), device="cuda") for _ in range(dist.get_world_size())]
    dist.all_gather(gathered, torch.tensor(mine, device="cuda"))
    if rank == 0:
        ms = np.array([each.cpu().numpy() for each in gathered])
        np.savez_compressed(options.out, ms=ms)
        print(f"{ms.shape[1]} iterations of {ms.mean():.2f} ms (deviation {100 * ms[0].std() / ms.mean():.2f} %)")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
