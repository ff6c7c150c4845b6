# SPDX-License-Identifier: Apache-2.0
"""The loads of `powerccl prove`, as scenarios of powerccl-bench, and how long each is measured."""

from __future__ import annotations

from dataclasses import dataclass

ALL_REDUCE_BYTES = 64 << 20
# Of a load's iteration. The host enqueues each one, which adds to its time: half of it would double that share. Twice
# would leave few whole iterations in a window.
ITERATION_MS = 100.0
ALL_REDUCE_MS = 200.0  # the same of the all-reduce, where each rank's host may be late
# Shares of the highest clock. Close together where the voltage changes most. The two lowest are below the voltage's
# knee of every board in docs/concepts/emulator-calibration.md (0.51 to 0.88 of the highest clock), as the fit needs.
CLOCK_SHARES = (1.0, 0.93, 0.86, 0.79, 0.71, 0.62, 0.46, 0.34)
TARGET_SHARES = (1.0, 0.85, 0.7, 0.55, 0.4)


@dataclass(frozen=True)
class Load:
    """A scenario and the options of powerccl-bench that say what its computation is."""

    name: str
    scenario: str
    options: tuple[str, ...] = ()
    collective: bool = False  # it has nothing but collectives


# `memory`: what emulated GPUs take the kind of computation for. Decoding multiplies few tokens with weights that no
# cache holds; the share is modelled.
PRODUCT = Load("product", f"compute {ITERATION_MS:g} memory 0%\n", ("--compute", "matmul"))
COPY = Load("copy", f"compute {ITERATION_MS:g} memory 100%\n", ("--compute", "memory"))
DECODE = Load("decode", f"compute {ITERATION_MS:g} memory 85%\n", ("--compute", "matmul", "--products", "16x8192x8192"))
# Short kernels that follow the clock and that no power limit slows: they tell when a clock has changed.
SHORT = Load("short", "compute 1 memory 0%\n", ("--compute", "fma"))
# As PyTorch's DistributedDataParallel: gradients go in buckets of 25 MB beside the backward pass. Products and copies
# take half of the time each.
STEP = Load(
    "step",
    "streams comm\ncompute 25 memory 50%\nrepeat 4\n  compute 14 memory 50%\n  wait compute on comm\n"
    "  all_reduce 25M on comm\nend\nwait comm on compute\ncompute 3 memory 50%\n",
    ("--compute", "both"),
)


def all_reduce(microseconds: float) -> Load:
    """An all-reduce, back to back, for an iteration; one of them takes so long."""
    count = max(1, round(ALL_REDUCE_MS * 1e3 / microseconds))
    return Load("all-reduce", f"repeat {count}\n  all_reduce {ALL_REDUCE_BYTES}\nend\n", collective=True)


def operations(load: Load) -> int:
    """How many collectives an iteration has."""
    return int(load.scenario.split()[1])


@dataclass(frozen=True)
class Pace:
    """Seconds of each part."""

    settle_s: float  # after a clock call, before a load is measured
    window_s: float  # of a load at a clock
    dwell_s: float  # at a target clock, of transitions
    visits: int  # of each target
    turn_s: float  # of a stall's turn, with calls or without
    turns: int  # of either kind, even
    every_s: float  # between the calls of a turn: not as long as an iteration, so that calls fall anywhere in one
    train_s: float  # of a training run
    pairs: int  # of training runs
    shares: tuple[float, ...] = CLOCK_SHARES  # of the highest clock, at which loads are measured


# A published worst transition is 48 ms and Hopper's are said to take 100, so a dwell of 0.3 s sees their end. Power
# counters change every 100 ms at most seldom: 1.5 s know a power to 1 %.
FULL = Pace(0.3, 1.5, 0.3, 12, 2.0, 8, 0.23, 25.0, 3)
QUICK = Pace(0.15, 0.8, 0.2, 3, 1.0, 2, 0.23, 4.0, 1, (1.0, 0.86, 0.71, 0.46, 0.34))
EDGE_S = 2 * ALL_REDUCE_MS / 1e3  # before the first call of a turn and behind the last: a whole iteration at least
LATE_S = 0.3  # powerccl-bench reports an iteration when the next one has begun
START_S = 8.0  # powerccl-bench on eight GPUs, with libraries and communicators; two take half of it


def parts(pace: Pace, gpus: int, dry: bool) -> list[tuple[str, float]]:
    """What is measured, in order, with the seconds that it takes on real GPUs at most."""
    loads = 4 if gpus > 1 else 3
    clocks = 1 if dry else len(pace.shares)
    each = pace.settle_s + pace.window_s
    stalls = START_S + (2 * pace.turns + 1) * (pace.turn_s + LATE_S + pace.settle_s) + pace.turns * 2 * EDGE_S
    training = (START_S + pace.train_s) * pace.pairs
    plan = [
        ("idle GPUs with a context", START_S + clocks * each),
        *[(f"power and time of load {n + 1} of {loads}", START_S + clocks * each) for n in range(loads)],
    ]
    if dry:
        return [*plan, ("the training step", training)]
    return [
        *plan,
        ("transitions to five clocks", START_S + len(TARGET_SHARES) * pace.visits * pace.dwell_s),
        *([("stall of an all-reduce", stalls)] if gpus > 1 else []),
        ("stall of a matrix product", stalls),
        ("the training step without a policy and under auto, in turns", 2 * training),
        ("clocks restored and read back", START_S + pace.window_s),
    ]
