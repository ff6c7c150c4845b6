"""DDP and FSDP jobs that time their steps, and their own exposed communication with PyTorch's profiler.

python3 evidence/scripts/exposed-time.py --ranks N --jobs ddp:256 fsdp:1024 --out PREFIX [--no-profiler]

A job is KIND:BATCH; all of them run one after the other in the same processes. Each rank writes
PREFIX-KIND-<rank>.json: what a step took, in blocks of steps with one synchronisation behind each, and what the
profiler saw of some more steps: every kernel (when, in which stream, whether it is NCCL's, by which call), every launch
of one (when the host made the call), every wait that a stream was given. What is exposed in it is
evidence/scripts/compare-exposed-time.py's business.
"""

import argparse
import gc
import json
import os
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path


def spawned(ranks: int) -> int:
    """Run the program once a GPU: the worst of their exit codes."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = str(probe.getsockname()[1])
    common = os.environ | {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port, "WORLD_SIZE": str(ranks)}
    command = [sys.executable, *sys.argv]
    started = [
        subprocess.Popen(command, env=common | {"RANK": str(rank), "LOCAL_RANK": str(rank)}) for rank in range(ranks)
    ]
    return max(abs(each.wait()) for each in started)


def options_of() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--ranks", type=int, default=1)
    parser.add_argument("--jobs", nargs="+", required=True)
    parser.add_argument("--seconds", type=float, default=5)
    parser.add_argument("--block", type=int, default=5)
    parser.add_argument("--profiled", type=int, default=10)
    parser.add_argument("--width", type=int, default=12288)
    parser.add_argument("--layers", type=int, default=8)
    parser.add_argument("--no-profiler", action="store_true")
    parser.add_argument("--out", required=True)
    return parser.parse_args()


def profiled(told: dict[str, object]) -> dict[str, object]:
    """What is kept of a chrome trace: times in us since `base_ns` (unix)."""
    kernels, launches, waits = [], [], []
    for event in told["traceEvents"]:  # type: ignore[attr-defined]
        kind, its = event.get("cat"), event.get("args", {})
        name = event.get("name", "")
        span = (event.get("ts"), event.get("dur", 0))
        if kind in ("kernel", "gpu_memcpy", "gpu_memset"):
            kernels.append([*span, its.get("stream"), "nccl" in name.lower(), its.get("correlation"), name[:60]])
        elif kind in ("cuda_runtime", "cuda_driver"):
            launches.append([*span, its.get("correlation"), event.get("tid"), name[:40]])
        elif kind == "cuda_sync":
            waits.append([*span, its.get("stream"), its.get("wait_on_stream"), its.get("correlation"), name])
    base_ns = told.get("baseTimeNanoseconds", 0)
    return {"base_ns": base_ns, "kernels": kernels, "launches": launches, "waits": waits}


def main() -> None:
    """Train each job, profile its last steps, and write what was found."""
    options = options_of()
    if "RANK" not in os.environ:
        sys.exit(spawned(options.ranks))
    import torch
    import torch.distributed as dist
    from torch import nn

    local = int(os.environ["LOCAL_RANK"])
    torch.cuda.set_device(local)
    dist.init_process_group("nccl", device_id=torch.device("cuda", local))
    torch.set_float32_matmul_precision("high")
    for job in options.jobs:
        kind, batch = job.split(":")
        torch.manual_seed(7)
        with torch.device("cuda"):
            blocks = [nn.Sequential(nn.Linear(options.width, options.width), nn.GELU()) for _ in range(options.layers)]
        model: nn.Module = nn.Sequential(*blocks)
        if kind == "ddp":
            model = nn.parallel.DistributedDataParallel(model, device_ids=[local])
        else:
            from torch.distributed.fsdp import fully_shard

            for part in list(model.children()):
                fully_shard(part)
            fully_shard(model)
        optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
        data = torch.randn(int(batch), options.width, device="cuda")

        def steps(count: int, model=model, optimizer=optimizer, data=data) -> tuple[float, float]:  # type: ignore[no-untyped-def]
            """Milliseconds of the host's part, and until all was done, a step."""
            started = time.perf_counter()
            for _ in range(count):
                optimizer.zero_grad(set_to_none=True)
                (model(data) - data).square().mean().backward()
                optimizer.step()
            enqueued = time.perf_counter()
            torch.cuda.synchronize()
            return (enqueued - started) * 1e3 / count, (time.perf_counter() - started) * 1e3 / count

        steps(3)
        warm_ms = torch.tensor([steps(options.block)[1]], device="cuda")
        dist.all_reduce(warm_ms)
        rounds = max(5, int(options.seconds * 1e3 / (warm_ms.item() / dist.get_world_size() * options.block)))
        took = [steps(options.block) for _ in range(rounds)]
        host_ms, step_ms = ([each[part] for each in took] for part in (0, 1))
        written: dict[str, object] = {
            "step_ms": step_ms,
            "median_ms": statistics.median(step_ms),
            "mean_ms": statistics.fmean(step_ms),
            "host_ms": statistics.median(host_ms),
            "block": options.block,
            "job": job,
        }
        if not options.no_profiler:
            dist.barrier()
            torch.cuda.synchronize()
            more = torch._C._profiler._ExperimentalConfig(enable_cuda_sync_events=True)
            activities = [torch.profiler.ProfilerActivity.CUDA]
            with torch.profiler.profile(activities=activities, experimental_config=more) as profile:
                begin_ns = time.time_ns()
                for _ in range(options.profiled // options.block):
                    steps(options.block)
                end_ns = time.time_ns()
            with tempfile.TemporaryDirectory() as folder:
                profile.export_chrome_trace(f"{folder}/trace.json")
                told = json.loads(Path(f"{folder}/trace.json").read_text())
            written |= {"window_ns": [begin_ns, end_ns], "steps": options.profiled, **profiled(told)}
        Path(f"{options.out}-{kind}-{dist.get_rank()}.json").write_text(json.dumps(written))
        if dist.get_rank() == 0:
            print(
                job,
                " ".join(f"{name} {written[name]:.3f}" for name in ("median_ms", "mean_ms", "host_ms")),
                flush=True,
            )
        dist.barrier()
        del model, optimizer, blocks, data, steps
        gc.collect()
        torch.cuda.empty_cache()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
