#!/usr/bin/env python3
"""Prove on real GPUs that a run's energy is that of the energy counter: prove-energy-on-gpus.py OUT [--rounds N].

The command of each run reads NVML's counters when it begins and when it ends; between them it computes and all-reduces
on the GPUs it can see. What `powerccl run` states is compared with that. Intervals take turns. A run without NCCL on
one of the GPUs must state that GPU alone. Writes OUT/energy.json. No clock is set: POWERCCL_CLOCKS=dry.
"""

import argparse
import ctypes
import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT), str(ROOT / "python"), str(ROOT / "tests")]
os.environ["POWERCCL_CLOCKS"] = "dry"

from support.figures import count, figure, show

INTERVALS_MS = (19, 100, 500, 2000, 5000, 10000)
LIMIT_S = 120

JOB = """
import sys, time
import torch, torch.distributed as dist, torch.multiprocessing as mp

def rank(index, ranks, seconds):
    torch.cuda.set_device(index)
    data = torch.ones(1 << 26, device="cuda")
    work = torch.ones(4096, 4096, device="cuda")
    if ranks > 1:
        dist.init_process_group("nccl", init_method="tcp://127.0.0.1:29512", rank=index, world_size=ranks)
    flag = torch.zeros(1, device="cuda")
    begin = time.monotonic()
    while True:
        for _ in range(20):
            work @ work
        if ranks > 1:
            dist.all_reduce(data)
            flag.fill_(float(time.monotonic() - begin > seconds))
            dist.all_reduce(flag)
            if flag.item():
                break
        else:
            torch.cuda.synchronize()
            if time.monotonic() - begin > seconds:
                break
    if ranks > 1:
        dist.destroy_process_group()

if __name__ == "__main__":
    ranks, seconds = int(sys.argv[1]), float(sys.argv[2])
    if ranks == 1:
        rank(0, 1, seconds)
    else:
        mp.spawn(rank, args=(ranks, seconds), nprocs=ranks)
"""


def counters_joules() -> dict[str, float]:
    """NVML's energy counter of each GPU of the node, by UUID."""
    nvml = ctypes.CDLL("libnvidia-ml.so.1")
    if nvml.nvmlInit_v2():
        raise RuntimeError("NVML does not start")
    found = {}
    gpus = ctypes.c_uint()
    nvml.nvmlDeviceGetCount_v2(ctypes.byref(gpus))
    for index in range(gpus.value):
        device, millijoules, uuid = ctypes.c_void_p(), ctypes.c_ulonglong(), ctypes.create_string_buffer(96)
        nvml.nvmlDeviceGetHandleByIndex_v2(index, ctypes.byref(device))
        nvml.nvmlDeviceGetUUID(device, uuid, 96)
        if nvml.nvmlDeviceGetTotalEnergyConsumption(device, ctypes.byref(millijoules)):
            raise RuntimeError(f"GPU {index} has no energy counter")
        found[uuid.value.decode()] = millijoules.value / 1e3
    return found


def inner(job: str, ranks: str, seconds: str, out: str) -> int:
    """What runs under `powerccl run`."""
    before, begin_s = counters_joules(), time.monotonic()
    done = subprocess.run([sys.executable, job, ranks, seconds], check=False) if float(seconds) else None
    after = counters_joules()
    used = {uuid: after[uuid] - before[uuid] for uuid in after}
    Path(out).write_text(json.dumps({"joules": used, "seconds": time.monotonic() - begin_s}))
    return done.returncode if done else 0


def measured_idle_watts(seconds: float = 2.0) -> dict[str, float]:
    """Power of each GPU while nothing runs."""
    before = counters_joules()
    time.sleep(seconds)
    after = counters_joules()
    return {uuid: (after[uuid] - before[uuid]) / seconds for uuid in after}


def one_run(
    out: Path, idle_watts: dict[str, float], name: str, ranks: int, seconds: float, interval_ms: int, **more: str
) -> dict[str, Any]:
    """A run; its own statement beside the counters'."""
    truth, stated = out / f"{name}.truth.json", out / f"{name}.summary.json"
    powerccl = [sys.executable, "-m", "powerccl", "run", "-q", "--interval-ms", str(interval_ms)]
    inside = [sys.executable, __file__, "--inner", str(out / "job.py"), str(ranks), str(seconds), str(truth)]
    command = [*powerccl, "--runs-dir", str(out / "runs"), "--json", str(stated), "--", *inside]
    done = subprocess.run(command, env={**os.environ, **more}, timeout=LIMIT_S, check=False)
    if done.returncode:
        raise RuntimeError(f"{name} ended with exit code {done.returncode}")
    found = json.loads(truth.read_text())
    summary = json.loads(stated.read_text())
    used = found["joules"]
    seen = list(used)[:1] if more else list(used)
    # The run begins before its command reads the counters, and ends after that, on GPUs that do nothing.
    around_s = max((summary["energy"]["covered_s"] or 0.0) - found["seconds"], 0.0)
    truth = sum(used[uuid] + around_s * idle_watts[uuid] for uuid in seen)
    return {"name": name, "interval_ms": interval_ms, "truth": truth, "counters": used, "seconds": found["seconds"],
            "around_s": around_s, "energy": summary["energy"], "gpus": summary["gpus"]}  # fmt: skip


def main() -> int:
    """Runs in turns, and their figures."""
    if sys.argv[1:2] == ["--inner"]:
        return inner(*sys.argv[2:6])
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("out", type=Path)
    parser.add_argument("--rounds", type=int, default=3)
    arguments = parser.parse_args()
    out: Path = arguments.out.resolve()
    out.mkdir(parents=True, exist_ok=True)
    (out / "job.py").write_text(JOB)
    ranks = len(counters_joules())
    idle_watts = measured_idle_watts()
    runs = []
    for number in range(arguments.rounds):
        runs += [one_run(out, idle_watts, f"all-{ms}-{number}", ranks, 4.0, ms) for ms in INTERVALS_MS]
        runs.append(one_run(out, idle_watts, f"short-{number}", 1, 0.0, 100))
        runs.append(one_run(out, idle_watts, f"one-{number}", 1, 3.0, 100, CUDA_VISIBLE_DEVICES="0"))
    (out / "runs.json").write_text(json.dumps(runs, indent=1) + "\n")
    errors: dict[str, list[float]] = {}
    for run in runs:
        joules = run["energy"]["joules"]
        print(f"{run['name']:14} truth {run['truth']:9.1f} J, stated {joules} J, at least "
              f"{run['energy']['joules_at_least']}, {run['seconds']:.2f} s, {len(run['gpus'])} GPUs")  # fmt: skip
        if joules is not None and run["truth"]:
            kind = run["name"].rsplit("-", 1)[0]
            errors.setdefault(kind, []).append(100 * abs(joules - run["truth"]) / run["truth"])
    figures = {f"accounts.real.{kind}.error_pct": figure(values, "%") for kind, values in errors.items()}
    missing = sum(run["energy"]["joules"] is None for run in runs)
    figures["accounts.real.not_stated"] = count(missing, len(runs))
    (out / "energy.json").write_text(json.dumps(figures, indent=1) + "\n")
    show(figures)
    return 0


if __name__ == "__main__":
    sys.exit(main())
