#!/usr/bin/env python3
"""Judge pairs of runs of recorded noise with the energy gate: `figures-gate.py FOLDER`.

FOLDER has a recording of each of three jobs on four H100s, whose clocks and limits stayed the same: `ddp.npz`,
`eager.npz` (FSDP2) and `tp.npz` (generation, tensor-parallel). `ms` is ranks by iterations, `samples` has GPU, s, MHz,
W, degrees Celsius and throttle reasons. Noise is that of real jobs, the pairs are drawn from it:

- A run is 30 s in a row of a recording, from a random iteration on, or 15 s where sides have three runs. No two of them
  overlap. The first minutes are among them, in which GPUs warm up: cold and warm runs are compared as well.
- The energy of an iteration is the integral of the power samples of all GPUs from its begin to its end.
- A recording is of one start. Each run is therefore multiplied by a random factor, which stands for what starts differ
  by: log-normal, 0.15 %, the standard deviation of the energy of five starts of this FSDP2 job on these GPUs.
- The second run of a pair with more energy is multiplied by 1.03.

gate.false_pct is the worst of the three jobs, gate.caught_pct the worse one of the two training jobs: generation varies
by 6 % from run to run, so the gate decides nothing. gate.three is of three runs against three.
"""

from __future__ import annotations

import argparse
import sys
from collections import Counter
from pathlib import Path

import numpy as np
import numpy.typing as npt

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT), str(ROOT / "tests")]

from support.figures import Figures, about, one, show, write

from powerccl.compare import gate
from powerccl.compare.significance import Value, mean_of

JOBS = {"ddp": "ddp", "fsdp2": "eager", "generation": "tp"}
TRAINING = ("ddp", "fsdp2")
START_PCT = 0.15
RUN_S = {1: 30.0, 3: 15.0}  # by the runs of a side: the shortest recording, 104 s, has room for all
LIMIT_PCT, MORE = 2.0, 1.03
Numbers = npt.NDArray[np.float64]


def energies(path: Path) -> tuple[Numbers, float]:
    """Joules of each iteration on all GPUs, and the mean length of an iteration in s."""
    kept = np.load(path)
    lengths_s = kept["ms"].astype(float).mean(axis=0) / 1e3
    edges_s = np.concatenate([[0.0], np.cumsum(lengths_s)])
    samples = kept["samples"].astype(float)
    joules = np.zeros(len(lengths_s))
    for index in np.unique(samples[:, 0]):
        time_s, watts = samples[samples[:, 0] == index][:, [1, 3]].T
        curve = np.concatenate([[0.0], np.cumsum((watts[1:] + watts[:-1]) / 2 * np.diff(time_s))])
        joules += np.diff(np.interp(edges_s, time_s, curve))
    return joules[edges_s[1:] <= samples[:, 1].max()], float(lengths_s.mean())


def sides(
    joules: Numbers, length_s: float, runs: int, more: float, rng: np.random.Generator
) -> tuple[list[Value], list[Value]]:
    """So many runs of each of two sides, the second with `more` times the energy."""
    count = int(RUN_S[runs] / length_s)
    gaps = np.sort(rng.integers(0, len(joules) - 2 * runs * count + 1, 2 * runs))
    begins = rng.permutation(gaps + count * np.arange(2 * runs))
    values = []
    for place, begin in enumerate(begins):
        times = float(np.exp(rng.normal(0.0, START_PCT / 100))) * (more if place >= runs else 1.0)
        value = mean_of((joules[begin : begin + count] * times).tolist(), "iterations")
        assert value
        values.append(value)
    return values[:runs], values[runs:]


def share_pct(joules: Numbers, length_s: float, runs: int, more: float, pairs: int, seed: int) -> dict[str, float]:
    """How many of the pairs had which outcome, in percent. `runs`: of each side."""
    rng, outcomes = np.random.default_rng(seed), Counter[str]()
    for _ in range(pairs):
        outcomes[gate.decide(gate.change_of(*sides(joules, length_s, runs, more, rng)), LIMIT_PCT)] += 1
    return {outcome: 100 * outcomes[outcome] / pairs for outcome in (gate.PASSED, gate.FAILED, gate.UNDECIDED)}


def measure(folder: Path, pairs: int) -> Figures:
    """The outcomes of each job, for one run of each side and for three."""
    figures: Figures = {}
    recordings = {job: energies(folder / f"{name}.npz") for job, name in JOBS.items()}
    for runs, stem in ((1, "gate"), (3, "gate.three")):
        noise = {job: share_pct(*kept, runs, 1.0, pairs, 1) for job, kept in recordings.items()}
        more = {job: share_pct(*kept, runs, MORE, pairs, 2) for job, kept in recordings.items()}
        worst = max(each[gate.FAILED] for each in noise.values())
        figures[f"{stem}.false_pct"] = one(worst, "%", pairs)
        figures[f"{stem}.caught_pct"] = one(min(more[job][gate.FAILED] for job in TRAINING), "%", pairs)
        for job in JOBS:
            for name, found in (("noise", noise[job]), ("more", more[job])):
                for outcome, value in found.items():
                    figures[f"{stem}.{job}.{name}.{outcome.replace(' ', '_')}_pct"] = one(value, "%", pairs)
    usual = gate.START_PCT
    for times, name in ((0.5, "half"), (2.0, "double")):
        gate.START_PCT = usual * times
        noise = {job: share_pct(*kept, 1, 1.0, pairs, 1) for job, kept in recordings.items()}
        more = {job: share_pct(*recordings[job], 1, MORE, pairs, 2) for job in TRAINING}
        figures[f"gate.start_{name}.false_pct"] = one(max(each[gate.FAILED] for each in noise.values()), "%", pairs)
        figures[f"gate.start_{name}.caught_pct"] = one(min(each[gate.FAILED] for each in more.values()), "%", pairs)
    gate.START_PCT = usual
    return figures


def main() -> int:
    """Judge, print and write."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path, help="folder of the recordings, which are not part of the repository")
    parser.add_argument("--out", type=Path, default=ROOT / "build/figures/gate.json")
    parser.add_argument("--pairs", type=int, default=200)
    arguments = parser.parse_args()
    figures = measure(arguments.folder, arguments.pairs)
    show(figures)
    conditions = (
        "noise of real jobs: every iteration of three jobs (DDP 122 s, FSDP2 234 s, generation 104 s), power every 20 "
        "ms, nothing set; a run is 30 s in a row, with the GPUs' warm-up; 200 pairs of each job, --fail-above 2%; "
        "start to start 0.15 % on top; more: 3 % more energy on one side; three: three runs of 15 s on each side; "
        "start_half, start_double: with half and double of START_PCT"
    )
    machine = "4 x H100 SXM over NVLink, driver 580, NCCL 2.30.7, PyTorch 2.11"
    write(arguments.out, figures, **about("evidence/scripts/figures-gate.py FOLDER", conditions, machine))
    return 0


if __name__ == "__main__":
    sys.exit(main())
