"""Random jobs: the scenarios of bench/scenarios with lengths, kernels, sizes, counts and imbalance drawn."""

import random
import re
from dataclasses import dataclass
from pathlib import Path

from evidence.robustness.machines import log_uniform

SCENARIOS = Path(__file__).resolve().parents[2] / "bench/scenarios"
# Left out: `shift`, whose halves would have to be compared separately, and `graph`, in which little varies.
NAMES = ("ddp", "exposed", "fsdp", "moe", "pp", "straggler", "tp", "zero1")
OVER_HOSTS = ("h100/llama-fsdp", "h100/three-ways", "h100/experts")  # for several hosts of h100x8
OF_TODAY = (*OVER_HOSTS, "h100/serve")  # for h100x8


@dataclass(frozen=True)
class Job:
    """A job: `text` is its scenario."""

    name: str
    scenario: str
    text: str


def names_for(platform: str) -> tuple[str, ...]:
    """The scenarios that are simulated on a built-in platform."""
    if platform.startswith("h100x16"):
        return OVER_HOSTS
    return OF_TODAY if platform == "h100x8" else (*NAMES, "graph")


def built_in(name: str) -> Job:
    """One of bench/scenarios as it is."""
    return Job(name, name, (SCENARIOS / f"{name}.scn").read_text())


# What kernels are: how often, and the percent of their time that is memory's. Products read operands, normalisation
# and decoding wait for memory. A kernel's power goes by it (Activity in native/testbed/physics/platform.h).
KERNELS = ((0.6, (0, 15)), (0.25, (20, 60)), (0.15, (70, 95)))
# Percent by which computation of a rank differs from iteration to iteration, evenly drawn. Iterations of training on
# four H100s have standard deviations of 1.0 (without rare long ones) to 2.9 %.
NOISE_PCT = (2, 5)
MOST_TO_ALL = 8  # GPUs: an all-to-all among 16 is simulated at six times real time


def job(kind: str, number: int, gpus: int) -> Job:
    """The job of that number for so many GPUs; the same wherever it is drawn."""
    draw = random.Random(f"job {kind} {number}")
    name = draw.choice([each for each in NAMES if each != "moe" or gpus <= MOST_TO_ALL])
    longer, larger = log_uniform(draw, 0.3, 3), log_uniform(draw, 0.25, 4)
    noise = random.Random(f"noise {kind} {number}").randint(*NOISE_PCT)
    lines = [f"seed {draw.randrange(1, 1000)}"]
    for line in (SCENARIOS / f"{name}.scn").read_text().splitlines():
        words = line.partition("#")[0].split()
        if not words or words[0] == "seed":
            continue
        if words[0] == "compute":
            words[1] = f"{float(words[1]) * longer * draw.uniform(0.7, 1.3):.4g}"
            (limits,) = draw.choices([shares for _, shares in KERNELS], [often for often, _ in KERNELS])
            words += ["memory", f"{draw.randint(*limits)}%"]
        elif words[0] == "repeat":
            words[1] = str(draw.randint(max(1, int(words[1]) // 2), 2 * int(words[1])))
        elif words[0] == "rank":
            words[2] = f"x{draw.uniform(1.05, 1.6):.3f}"
        elif size := re.fullmatch(r"([\d.]+)M", words[1] if len(words) > 1 else ""):
            differs = 1.0 if words[0] in ("send", "receive") else draw.uniform(0.7, 1.3)  # both ends are of one size
            words[1] = f"{max(1, round(float(size[1]) * 1024 * larger * differs))}K"
        if "vary" in words:
            words[words.index("vary") + 1] = f"{draw.randint(10, 80)}%"
        elif words[0] == "compute":
            words += ["vary", f"{noise}%"]
        lines.append(" ".join(words))
    return Job(f"{kind}-{number}", name, "\n".join(lines) + "\n")
