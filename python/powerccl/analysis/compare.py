# SPDX-License-Identifier: Apache-2.0
"""Two runs side by side."""

from __future__ import annotations

import msgspec

from powerccl.analysis.findings import RunSummary


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


def compare(baseline: RunSummary, run: RunSummary) -> Comparison:
    """Compare wall time, energy and communication; `caveats` names what makes the two hard to compare."""
    pairs: list[tuple[str, str, float | None, float | None]] = [
        ("wall time", "s", baseline.wall_s, run.wall_s),
        ("energy", "J", baseline.energy.joules, run.energy.joules),
        ("average power", "W", baseline.energy.average_watts, run.energy.average_watts),
        ("communication time", "s", _communication_s(baseline), _communication_s(run)),
        ("communication energy", "J", baseline.communication.joules, run.communication.joules),
        ("communication power", "W", baseline.communication.average_watts, run.communication.average_watts),
        ("power elsewhere", "W", baseline.communication.other_average_watts, run.communication.other_average_watts),
        ("clock in communication", "MHz", baseline.communication.clock_mhz, run.communication.clock_mhz),
        ("clock elsewhere", "MHz", baseline.communication.other_clock_mhz, run.communication.other_clock_mhz),
        ("time in MPI, per rank", "s", *_of_mpi(baseline, run, "time_per_rank_s")),
        ("waiting in MPI, per rank", "s", *_of_mpi(baseline, run, "wait_per_rank_s")),
        ("CPU time of the ranks", "s", *_of_mpi(baseline, run, "cpu_s")),
        ("energy of the CPUs", "J", _cpu_joules(baseline), _cpu_joules(run)),
    ]
    caveats: list[str] = []
    if baseline.command != run.command:
        caveats.append("the commands differ")
    if baseline.emulated != run.emulated:
        caveats.append("one run is emulated or on another emulated platform")
    if baseline.mpi and run.mpi and baseline.mpi.ranks != run.mpi.ranks:
        caveats.append(f"{baseline.mpi.ranks} MPI ranks against {run.mpi.ranks}")
    if len(baseline.gpus) != len(run.gpus):
        caveats.append(f"{len(baseline.gpus)} GPUs against {len(run.gpus)}")
    for summary, word in ((baseline, "baseline"), (run, "run")):
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


def _of_mpi(baseline: RunSummary, run: RunSummary, name: str) -> tuple[float | None, float | None]:
    return getattr(baseline.mpi, name, None), getattr(run.mpi, name, None)


def _communication_s(summary: RunSummary) -> float | None:
    return summary.communication.time_s if summary.ranks else None


def _cpu_joules(summary: RunSummary) -> float | None:
    return summary.mpi.energy.joules if summary.mpi else None


def change_pct(before: float | None, after: float | None) -> float | None:
    """Change of after against before in percent."""
    if before is None or after is None or before == 0:
        return None
    return (after - before) / before * 100
