"""A rank that replays CUDA graphs of products and all-reduces: microseconds from one all-reduce to the next.

torchrun --standalone --nproc-per-node=2 graph-worker.py: alone and behind `powerccl run --policy observe --`,
in turns. Rank 0 prints `RESULT` and JSON: `us` has the median, tenth and ninetieth percentile of each of CASES; `host`
has those of a graph of host functions alone.
"""

import ctypes
import json
import os
import time
from collections.abc import Callable
from pathlib import Path

import torch
import torch.distributed as dist

LAYERS, REPLAYS, SECONDS = 64, 20, 0.7
CASES = ((1 << 14, 1024), (1 << 14, 2048), (1 << 18, 4096), (1 << 18, 6144))  # bytes; N of products of 64 x N by N x N
Times = tuple[float, float, float]


def timed(replay: Callable[[], None]) -> Times:
    """Replay for SECONDS on all ranks; a layer's median, tenth and ninetieth percentile, in microseconds."""
    go = torch.ones(1, device="cuda")
    for _ in range(REPLAYS):
        replay()
    torch.cuda.synchronize()
    dist.barrier()
    times, end = [], time.monotonic() + SECONDS
    while go.item():
        begin = time.monotonic()
        for _ in range(REPLAYS):
            replay()
        torch.cuda.synchronize()
        times.append((time.monotonic() - begin) / REPLAYS / LAYERS * 1e6)
        go.fill_(float(begin < end))
        dist.broadcast(go, 0)
    times.sort()
    return times[len(times) // 2], times[len(times) // 10], times[9 * len(times) // 10]


def replayed(step: Callable[[], None]) -> Times:
    """Times of a graph of the step, captured after three that run."""
    with torch.cuda.stream(torch.cuda.Stream()):
        for _ in range(3):
            step()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        step()
    return timed(graph.replay)


def layers(size: int, n: int) -> Callable[[], None]:
    """A step of products and all-reduces."""
    product = torch.randn(64, n, device="cuda", dtype=torch.bfloat16)
    weights = [torch.randn(n, n, device="cuda", dtype=torch.bfloat16) * n**-0.5 for _ in range(4)]
    reduced = torch.zeros(size // 2, device="cuda", dtype=torch.bfloat16)

    def step() -> None:
        value = product
        for i in range(LAYERS):
            value = value @ weights[i % 4]
            dist.all_reduce(reduced)

    return step


def host_functions() -> Callable[[], None]:
    """A step that only calls the host."""
    runtime = next(line.split()[-1] for line in Path("/proc/self/maps").read_text().splitlines() if "libcudart" in line)
    launch = ctypes.CDLL(runtime).cudaLaunchHostFunc
    function = ctypes.cast(ctypes.CDLL(None).getppid, ctypes.c_void_p)

    def step() -> None:
        for _ in range(LAYERS):
            launch(ctypes.c_void_p(torch.cuda.current_stream().cuda_stream), function, None)

    return step


def main() -> None:
    """Measure all cases."""
    dist.init_process_group("nccl")
    torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    found = {"us": [replayed(layers(size, n)) for size, n in CASES]}
    found["host"] = [replayed(host_functions())]
    if dist.get_rank() == 0:
        print("RESULT " + json.dumps(found), flush=True)
    torch.cuda.synchronize()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
