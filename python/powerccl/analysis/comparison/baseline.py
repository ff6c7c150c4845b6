# SPDX-License-Identifier: Apache-2.0
"""A run against a baseline, as `powerccl run --baseline` prints it. `powerccl compare` is side_by_side.py."""

from __future__ import annotations

import msgspec

from powerccl.analysis.findings import RunSummary
from powerccl.quantities import plural


class Difference(msgspec.Struct, kw_only=True):
    """One figure in both runs; change_pct is against the baseline, None where one is not known or the baseline is 0."""

    what: str
    unit: str
    baseline: float | None
    value: float | None
    change_pct: float | None


class Comparison(msgspec.Struct, kw_only=True):
    """A run against a baseline."""

    baseline: str
    run: str
    differences: list[Difference]
    caveats: list[str]


def run_figures(summary: RunSummary) -> list[tuple[str, str, float | None]]:
    """What runs are compared by: a figure's name, its unit and its value, None where it is not known."""
    energy, communication, mpi = summary.energy, summary.communication, summary.mpi
    return [
        ("wall time", "s", summary.wall_s),
        ("energy", "J", energy.joules),
        # Of a part of the time, or of the GPUs, it is no mean of the run.
        ("average power", "W", energy.average_watts if energy.joules is not None else None),
        ("communication time", "s", communication.time_s if summary.ranks else None),
        ("communication energy", "J", communication.joules),
        ("communication power", "W", communication.average_watts),
        ("power elsewhere", "W", communication.other_average_watts),
        ("clock in communication", "MHz", communication.clock_mhz),
        ("clock elsewhere", "MHz", communication.other_clock_mhz),
        ("time in MPI, per rank", "s", mpi.time_per_rank_s if mpi else None),
        ("waiting in MPI, per rank", "s", mpi.wait_per_rank_s if mpi else None),
        ("CPU time of the ranks", "s", mpi.cpu_s if mpi else None),
        ("energy of the CPUs", "J", mpi.energy.joules if mpi else None),
    ]


def energy_missing(summary: RunSummary) -> list[str]:
    """Where samples of energy are missing, in words: energies in all are not known then, and not compared."""
    return [*summary.energy.missing, *(summary.mpi.energy.missing if summary.mpi else [])]


def compare(baseline: RunSummary, run: RunSummary) -> Comparison:
    """Compare wall time, energy and communication; `caveats` names what makes the two hard to compare."""
    pairs = [
        (what, unit, before, after)
        for (what, unit, before), (_, _, after) in zip(run_figures(baseline), run_figures(run), strict=True)
    ]
    caveats: list[str] = []
    if baseline.command != run.command:
        caveats.append("the commands differ")
    if baseline.emulated != run.emulated:
        caveats.append("the runs are on different platforms, of which one or both are emulated or simulated")
    if baseline.mpi and run.mpi and baseline.mpi.ranks != run.mpi.ranks:
        caveats.append(f"{baseline.mpi.ranks} MPI ranks against {run.mpi.ranks}")
    if len(baseline.gpus) != len(run.gpus):
        caveats.append(f"{plural(len(baseline.gpus), 'GPU')} against {len(run.gpus)}")
    for summary, word in ((baseline, "baseline"), (run, "run")):
        caveats += [f"{word}: {text}" for text in energy_missing(summary)]
        if summary.exit_code != 0:
            caveats.append(f"the {word} did not end with exit code 0")
    return Comparison(
        baseline=baseline.folder,
        run=run.folder,
        differences=[
            Difference(what=what, unit=unit, baseline=before, value=after, change_pct=change_pct(before, after))
            for what, unit, before, after in pairs
        ],
        caveats=caveats,
    )


def change_pct(before: float | None, after: float | None) -> float | None:
    """Change of after against before in percent."""
    if before is None or after is None or before == 0:
        return None
    return (after - before) / before * 100
