#!/usr/bin/env python3
"""Every iteration of a real job, with each GPU's clock, power and temperature: what `figures-noise.py` compares with.

record-noise.py OUT.npz, under torchrun. `--models` and what follows are of step-worker.py. OUT has `ms`, ranks by
iterations, and `samples`: GPU, seconds, MHz, W, degrees Celsius, NVML's throttle reasons. Nothing is set.
"""

import argparse
import contextlib
import importlib.util
import itertools
import os
import subprocess
import sys
import time
from pathlib import Path

import numpy as np

EACH_S = 0.02  # between samples of a GPU
FIRST = 10  # iterations that are not recorded: compilers, caches and communicators
AT_ONCE_S = 10.0  # of iterations, until the ranks agree whether to go on


def sample(out: Path) -> None:
    """Read all GPUs until the job closes our standard input."""
    import pynvml as nvml

    nvml.nvmlInit()
    gpus = [nvml.nvmlDeviceGetHandleByIndex(index) for index in range(nvml.nvmlDeviceGetCount())]
    rows: list[tuple[float, ...]] = []
    began = time.monotonic()
    os.set_blocking(sys.stdin.fileno(), False)
    while sys.stdin.buffer.read(1) is None:
        for index, gpu in enumerate(gpus):
            rows.append(
                (
                    index,
                    time.monotonic() - began,
                    nvml.nvmlDeviceGetClockInfo(gpu, nvml.NVML_CLOCK_SM),
                    nvml.nvmlDeviceGetPowerUsage(gpu) / 1e3,
                    nvml.nvmlDeviceGetTemperature(gpu, nvml.NVML_TEMPERATURE_GPU),
                    nvml.nvmlDeviceGetCurrentClocksEventReasons(gpu),
                )
            )
        time.sleep(EACH_S)
    np.save(out, np.array(rows, np.float32))


def main() -> None:
    """Run the job, and write."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("out", type=Path)
    parser.add_argument("--sample", action="store_true", help="be the process that samples; the job starts it")
    parser.add_argument("--seconds", type=float, default=480.0, help="of the job, about")
    parser.add_argument("--models", default="eager")
    parser.add_argument("--layers", type=int, default=6)
    parser.add_argument("--tokens", type=int, default=2048)
    parser.add_argument("--width", type=int, default=4096)
    parser.add_argument("--hidden", type=int, default=14336)
    options = parser.parse_args()
    options.way = "alone"
    if options.sample:
        sample(options.out)
        return
    import torch
    import torch.distributed as dist

    spec = importlib.util.spec_from_file_location("step_worker", Path(__file__).with_name("step-worker.py"))
    assert spec and spec.loader
    worker = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(worker)
    rank, local = int(os.environ["RANK"]), int(os.environ["LOCAL_RANK"])
    torch.cuda.set_device(local)
    dist.init_process_group("nccl", device_id=torch.device("cuda", local))
    step = worker.MODELS[options.models](options)
    samples = options.out.with_suffix(".samples.npy")

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
    with contextlib.ExitStack() as stack:
        if rank == 0:
            command = [sys.executable, __file__, str(samples), "--sample"]
            sampler = stack.enter_context(subprocess.Popen(command, stdin=subprocess.PIPE))
            time.sleep(0.5)  # it samples from the first iteration on
        until, mine = time.monotonic() + options.seconds, []
        count = torch.tensor([max(1, int(1e3 * AT_ONCE_S / each_ms))], device="cuda")
        dist.broadcast(count, 0)
        while count.item():
            mine += run(int(count.item()))
            if rank == 0 and time.monotonic() > until:
                count.zero_()
            dist.broadcast(count, 0)
        if rank == 0:
            assert sampler.stdin
            sampler.stdin.close()
            sampler.wait()
    gathered = [torch.empty(len(mine), device="cuda") for _ in range(dist.get_world_size())]
    dist.all_gather(gathered, torch.tensor(mine, device="cuda"))
    if rank == 0:
        ms = np.array([each.cpu().numpy() for each in gathered])
        np.savez_compressed(options.out, ms=ms, samples=np.load(samples))
        samples.unlink()
        print(f"{ms.shape[1]} iterations of {ms.mean():.2f} ms (deviation {100 * ms[0].std() / ms.mean():.2f} %)")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
