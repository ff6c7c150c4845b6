"""Measure what recording and sampling add to a job's step, within one process of a job that never stops.

Two starts of a job that waits for its hosts differ by more than PowerCCL changes. So this script compares blocks of
0.4 s of one start: recorded or not, and sampled or not, in groups of all four in random order
(toggle-recording.c, step-worker.py). What the preloaded functions cost by themselves is in all of them.
A start's figure is the mean over its groups of the difference of logarithms; the result is the mean over all starts
with the 95 % interval of all groups. Several starts work at once, each on GPUs of its own.

`--runs RUN...` measures nothing. It says what the runtime counted in recorded runs, in percent of the time from the
first call of a rank to its last: figures `recording.FOLDER.KIND_pct`, by the folder of the run and the kinds of own_ns
in abi/trace.h.

Marks have an allowance for each second, and are made in recorded blocks alone: there twice as often as in a job that is
recorded throughout.
"""

import argparse
import json
import math
import os
import statistics
import subprocess
import sys
from pathlib import Path
from typing import Any

from powerccl.traces import records
from powerccl.traces.rank import read_header, read_rank

HERE = Path(__file__).parent
Block = dict[str, Any]


def start(number: int, place: int, kind: str, o: argparse.Namespace) -> subprocess.Popen[str]:
    """Start a job on the `place`th group of GPUs; `kind` is a variable NAME=VALUE, or `default`."""
    gpus = range(o.gpus * place, o.gpus * (place + 1))
    environment = os.environ | {"OMP_NUM_THREADS": "4", "POWERCCL_CLOCKS": "dry"}
    environment["CUDA_VISIBLE_DEVICES"] = ",".join(map(str, gpus))
    if kind != "default":
        environment |= dict([kind.split("=", 1)])
    command = [sys.executable, "-m", "powerccl", "run", "-q", "--runs-dir", str(o.out.parent / "runs")]
    command += ["--policy", "observe", "--platform", "none", "--"]
    command += [sys.executable, "-m", "torch.distributed.run", f"--nproc-per-node={o.gpus}"]
    command += [f"--master-port={29600 + 8 * number}", str(HERE / "step-worker.py"), "observe", "-"]
    command += [f"--models={o.models}", f"--seconds={o.seconds}", f"--toggle={o.library}", *o.worker.split()]
    log = (o.out.parent / f"start-{number}.log").open("w")
    return subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, stderr=log, text=True)


def added(blocks: list[Block], model: str) -> dict[str, list[float]]:
    """Percent that each thing adds to a step, a value for each group of blocks."""
    groups: dict[int, dict[tuple[bool, bool], float]] = {}
    for block in blocks:
        if block["model"] == model:
            groups.setdefault(block["group"], {})[block["recorded"], block["sampled"]] = 100 * math.log(block["ms"])
    whole = [group for group in groups.values() if len(group) == 4]
    return {
        "recording": [(g[True, True] + g[True, False] - g[False, True] - g[False, False]) / 2 for g in whole],
        "sampling": [(g[True, True] + g[False, True] - g[True, False] - g[False, False]) / 2 for g in whole],
        "both": [g[True, True] - g[False, False] for g in whole],
    }


def trimmed(values: list[float]) -> dict[str, object]:
    """The mean of the middle 80 % with its 95 % interval (Tukey and McLaughlin), since some blocks are disturbed."""
    ordered, cut = sorted(values), len(values) // 10
    kept = ordered[cut : len(ordered) - cut]
    mean = statistics.fmean(kept)
    bounded = [min(max(value, kept[0]), kept[-1]) for value in ordered]
    half = 1.96 * statistics.stdev(bounded) / (0.8 * math.sqrt(len(ordered)))
    shown = {"value": round(mean, 3), "low": round(mean - half, 3), "high": round(mean + half, 3)}
    return shown | {"unit": "%", "n": len(values)}


def figures(starts: list[dict[str, Any]]) -> dict[str, dict[str, object]]:
    """Figures of each kind of start and model."""
    made: dict[str, dict[str, object]] = {}
    for kind in dict.fromkeys(each["kind"] for each in starts):
        mine = [each["blocks"] for each in starts if each["kind"] == kind]
        for model in dict.fromkeys(block["model"] for blocks in mine for block in blocks):
            name = f"{model}.{kind}" if kind != "default" else model
            alone = [
                b["ms"] for bs in mine for b in bs if b["model"] == model and not b["recorded"] and not b["sampled"]
            ]
            made[f"{name}.step_ms"] = {"value": round(statistics.median(alone), 3), "unit": "ms", "n": len(alone)}
            each = [added(blocks, model) for blocks in mine]
            for what in ("recording", "sampling", "both"):
                made[f"{name}.{what}_added_pct"] = trimmed([value for one in each for value in one[what]])
    return made


def counted(runs: list[Path]) -> dict[str, dict[str, object]]:
    """What our own code took of the ranks' threads: the mean over a run's ranks, the least and the most."""
    made: dict[str, dict[str, object]] = {}
    for run in runs:
        shares: dict[str, list[float]] = {}
        for path in sorted(run.glob("rank-*.trace")):
            own_ns = read_header(path)[0]["own_ns"][0]
            calls = read_rank(path).kinds[records.CALL]
            elapsed_ns = int(calls["start_ns"].max()) - int(calls["start_ns"].min())
            for kind, ns in zip(("calls", "waits", "launches", "all"), (*own_ns, own_ns.sum()), strict=True):
                shares.setdefault(kind, []).append(100 * int(ns) / elapsed_ns)
        for kind, values in shares.items():
            bounds = {"low": round(min(values), 3), "high": round(max(values), 3), "unit": "%", "n": len(values)}
            made[f"recording.{run.parent.name}.{kind}_pct"] = {"value": round(statistics.fmean(values), 3)} | bounds
    return made


def main() -> None:
    """Measure and write."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--gpus", type=int, default=2, help="of each start")
    parser.add_argument("--places", type=int, default=1, help="starts at once")
    parser.add_argument("--kinds", default="default", help="of starts, one after the other: default or NAME=VALUE")
    parser.add_argument("--models", default="pipe,tp")
    parser.add_argument("--seconds", type=float, default=45, help="of each model and start")
    parser.add_argument("--worker", default="", help="further options of step-worker.py")
    parser.add_argument("--results", nargs="*", type=Path, default=[], help="make figures of these files' starts")
    parser.add_argument("--runs", nargs="*", type=Path, default=[], help="only say what was counted in these runs")
    parser.add_argument("--out", type=Path, required=True)
    options = parser.parse_args()
    if options.runs:
        for name, value in counted(options.runs).items():
            print(name, json.dumps(value))
        return
    starts = [one for path in options.results for one in json.loads(path.read_text())["starts"]]
    if not options.results:
        options.out.parent.mkdir(parents=True, exist_ok=True)
        options.library = str(options.out.parent.resolve() / "toggle.so")
        subprocess.run(
            ["cc", "-O2", "-shared", "-fPIC", "-o", options.library, str(HERE / "toggle-recording.c")], check=True
        )
        for turn, kind in enumerate(options.kinds.split(",")):
            places = range(options.places)
            jobs = [start(turn * options.places + place, place, kind, options) for place in places]
            for place, job in enumerate(jobs):
                out, _ = job.communicate()
                lines = [line for line in out.splitlines() if line.startswith('{"blocks"')]
                if job.returncode or not lines:
                    print(f"{kind}, place {place}: exit {job.returncode}", flush=True)
                    continue
                starts.append({"kind": kind, "place": place, "blocks": json.loads(lines[0])["blocks"]})
            options.out.write_text(json.dumps({"figures": figures(starts), "starts": starts}) + "\n")
    made = figures(starts)
    options.out.write_text(json.dumps({"figures": made, "starts": starts}) + "\n")
    for name, value in made.items():
        print(name, json.dumps(value))


if __name__ == "__main__":
    main()
