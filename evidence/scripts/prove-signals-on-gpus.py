#!/usr/bin/env python3
"""Prove on real GPUs that signals end no helper: prove-signals-on-gpus.py OUT.

A job of NCCL all-reduces on all GPUs runs under `powerccl run`. Each signal goes to every process of the step. Then
powerccl-agent is killed twice. Writes OUT/signals.json with figures. No clock is set: POWERCCL_CLOCKS=dry.
"""

import argparse
import json
import os
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT), str(ROOT / "python"), str(ROOT / "tests")]
os.environ["POWERCCL_CLOCKS"] = "dry"

from harm.helper_signals import AGENT, CATCHABLE, WITNESS, Case, Found, try_step
from support.figures import count, one, show

from powerccl.launch.native import find_native

JOB = """
import sys
import torch, torch.distributed as dist, torch.multiprocessing as mp

def rank(index, ranks):
    dist.init_process_group("nccl", init_method="tcp://127.0.0.1:29511", rank=index, world_size=ranks)
    torch.cuda.set_device(index)
    data = torch.ones(1 << 26, device="cuda")
    while True:
        dist.all_reduce(data)
        torch.cuda.synchronize()

if __name__ == "__main__":
    mp.spawn(rank, args=(torch.cuda.device_count(),), nprocs=torch.cuda.device_count())
"""


def main() -> int:
    """Run the step, and keep its figures."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("out", type=Path)
    out: Path = parser.parse_args().out
    out.mkdir(parents=True, exist_ok=True)
    job = out / "job.py"
    job.write_text(JOB)
    found = Found()
    case = Case(("--interval-ms", "19"), ("sh", "-c", f"python3 {job} & wait"), (AGENT, WITNESS))
    try_step(find_native(), out / "step", case, dict(os.environ), CATCHABLE, (AGENT, WITNESS, AGENT), found)
    figures = {
        "harm.signals.helpers_lost": count(found.lost, found.sent),
        "harm.signals.helpers_left": count(found.left, found.steps),
        "harm.signals.gap_s": one(round(found.gap_s, 3), "s", found.steps),
    }
    (out / "signals.json").write_text(json.dumps(figures, indent=1) + "\n")
    show(figures)
    return 0


if __name__ == "__main__":
    sys.exit(main())
