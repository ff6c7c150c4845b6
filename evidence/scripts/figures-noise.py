"""Noise of the trials that are like real jobs, beside what was recorded of those jobs on H100s and H200s.

figures-noise.py --data FOLDER [--out FILE]. FOLDER has a file for each of JOBS, as `record-noise.py` writes them.
An Allan deviation is that of means over so many seconds, from one to the next. POWERCCL_NATIVE names the programs.
"""

import argparse
import subprocess
import sys
from pathlib import Path

import numpy as np

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT), str(ROOT / "tests")]

from support.figures import Figures, about, one, show, write

from powerccl.launch.native import find_native

# What a figure is called after, and the kind of trial: the file.
JOBS = {
    ("fsdp", "fsdp"): "eager",
    ("ddp", "ddp"): "ddp",
    ("generation", "generation"): "tp",
    ("fsdp_h200x2", "fsdp"): "eager-h200x2",
    ("generation_h200x2", "generation"): "tp-h200x2",
}
WINDOWS_S = (0.34, 1.3, 5.4, 10.6, 21.0, 42.0)
LEAST_WINDOWS = 8  # fewer say nothing about how they differ
WARM_S = 20.0  # what the first seconds are compared with: the last of a recording
SEEDS = range(1000, 1020)


def allan_pct(ms: np.ndarray, seconds: float) -> float | None:
    """Percent of the mean; None: too few windows."""
    length = max(1, round(seconds * 1e3 / float(ms.mean())))
    count = len(ms) // length
    if count < LEAST_WINDOWS:
        return None
    means = ms[: count * length].reshape(count, length).mean(axis=1)
    return float(np.sqrt(0.5 * np.mean(np.diff(means) ** 2)) / ms.mean() * 100)


def drift_pct(ms: np.ndarray) -> float:
    """By how much longer iterations of the end are than those of the beginning."""
    count = round(WARM_S * 1e3 / float(ms.mean()))
    return float(np.median(ms[-count:]) / np.median(ms[:count]) - 1) * 100


def trial(kind: str, seed: int, seconds: float) -> np.ndarray:
    """Lengths of the iterations of a trial without a policy, in ms."""
    stage = Path(find_native().root)
    command = [str(stage.parent / "tests/native/policy/powerccl_adversity"), str(stage / "share/platforms/h100x8.conf")]
    command += [f"like-{kind}", str(seed), f"{seconds / 3600:.6f}", "-1"]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    return np.array([1e3 * float(line) for line in done.stdout.split()])


def main() -> None:
    """Compare, print and write."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    figures: Figures = {}
    for (job, kind), file in JOBS.items():
        recorded = np.load(options.data / f"{file}.npz")["ms"][0].astype(float)
        made = [trial(kind, seed, float(recorded.sum()) / 1e3) for seed in SEEDS]
        pairs = {
            f"allan_{seconds:g}s_pct": [allan_pct(ms, seconds) for ms in (recorded, *made)] for seconds in WINDOWS_S
        }
        pairs["drift_pct"] = [drift_pct(ms) for ms in (recorded, *made)]
        pairs["deviation_pct"] = [float(ms.std() / ms.mean()) * 100 for ms in (recorded, *made)]
        for name, (was, *drawn) in pairs.items():
            of = [each for each in drawn if each is not None]
            if was is None or not of:
                continue
            figures[f"noise.{job}.{name}.recorded"] = one(round(was, 2), "%")
            low, middle, high = (round(float(each), 2) for each in np.quantile(of, (0, 0.5, 1)))
            figures[f"noise.{job}.{name}.trials"] = {
                "value": middle,
                "low": low,
                "high": high,
                "unit": "%",
                "n": len(of),
            }
    show(figures)
    conditions = (
        "recorded: rank 0 of three jobs on four H100s, of 100 to 234 s, and of two on two H200s, of 491 and 229 s, "
        "nothing set; trials: kinds like-* of figures-adversity, without a policy, as long as the recordings; median, "
        f"lowest and highest of {len(SEEDS)} seeds"
    )
    write(options.out, figures, **about("evidence/scripts/figures-noise.py --data FOLDER", conditions))


if __name__ == "__main__":
    main()
