# SPDX-License-Identifier: Apache-2.0
"""Energy of the hosts' processors over a job, from RAPL counters as powerccl-agent sampled them."""

from __future__ import annotations

import re

import numpy as np
import numpy.typing as npt
import polars as pl

from powerccl.analysis.findings import CpuEnergy
from powerccl.traces.cpu import CPU_DOMAIN, CpuLog
from powerccl.traces.folder import RunData

# Domains that add up. The others (core, uncore) are parts of a package, or contain all of it (psys).
COUNTED = re.compile(r"(^|[/_-])(package|pkg|dram|ram)([-_]?\d+)?(-die-\d+)?$")
NOT_SAMPLED = "the agent sampled no processor energy"
NOT_READABLE = "RAPL counters cannot be read here"
NOT_MOVING = "RAPL counters are here but do not move, as in some virtual machines"


def cpu_energy(run: RunData) -> CpuEnergy:
    """Joules between the job's start and end on all hosts sampled; None with the reason where counters do not tell."""
    if not run.cpu:
        return CpuEnergy(reason=NOT_SAMPLED)
    found = CpuEnergy(hosts=len(run.cpu))
    reasons, covered_s, busy_ns, idle_ns = [], [], 0, 0
    for log in run.cpu:
        window = _window(run, log.host)
        busy, idle = _idle(log, window)
        busy_ns, idle_ns = busy_ns + busy, idle_ns + idle
        counted, seconds = _counted(log, window)
        if counted and not any(counted.values()):
            reasons.append(NOT_MOVING)
        elif counted:
            found.domains.update({f"{log.host} {domain}": joules for domain, joules in counted.items()})
            covered_s.append(seconds)
        else:
            reasons.append(_reason(log))
    if busy_ns + idle_ns > 0:
        found.idle_pct = idle_ns / (busy_ns + idle_ns) * 100
    if covered_s:
        found.joules = sum(found.domains.values())
        found.covered_s = float(np.mean(covered_s))
        found.average_watts = found.joules / found.covered_s if found.covered_s else None
    found.reason = "; ".join(dict.fromkeys(reasons))
    return found


def _reason(log: CpuLog) -> str:
    said = log.about.get("energy_reason") or log.about.get("rapl_reason") or log.about.get("reason")
    return said or NOT_READABLE


def _window(run: RunData, host: str) -> tuple[int, int]:
    """The job on that host: run.json's times hold for its own host only, traces for theirs."""
    info = run.info
    if info and info.host == host and info.end_ns > info.start_ns > 0:
        return info.start_ns, info.end_ns
    here = [trace for trace in run.mpi if trace.host == host]
    if here:
        return min(trace.start_ns for trace in here), max(trace.last_ns() for trace in here)
    return 0, 1 << 62


def _inside(rows: pl.DataFrame, window: tuple[int, int]) -> pl.DataFrame:
    """The samples of the job: from the last before its start to the first after its end."""
    time_ns = rows["time_ns"].to_numpy()
    first = max(int(np.searchsorted(time_ns, window[0], side="right")) - 1, 0)
    last = min(int(np.searchsorted(time_ns, window[1], side="left")), len(time_ns) - 1)
    return rows.slice(first, max(last - first + 1, 0))


def _counted(log: CpuLog, window: tuple[int, int]) -> tuple[dict[str, float], float]:
    joules: dict[str, float] = {}
    seconds = 0.0
    for (name,), rows in log.samples.filter(pl.col("energy_uj") >= 0).group_by(["domain"], maintain_order=True):
        domain = str(name)
        inside = _inside(rows, window)
        if not COUNTED.search(domain) or len(inside) < 2:
            continue
        energy = _rise(inside["energy_uj"].to_numpy(), log.about.get(f"{domain}_max_energy_range_uj", ""))
        if energy is None:
            continue
        joules[domain] = energy / 1e6
        seconds = max(seconds, float(inside["time_ns"][-1] - inside["time_ns"][0]) / 1e9)
    return joules, seconds


def _rise(energy_uj: npt.NDArray[np.int64], wraps_at: str) -> float | None:
    """What a counter rose by. One that falls has wrapped, if it is known where; else nothing is known."""
    steps = np.diff(energy_uj).astype(np.float64)
    if np.any(steps < 0):
        if not wraps_at.isdigit():
            return None
        steps[steps < 0] += float(wraps_at)
    return float(steps.sum()) if np.all(steps >= 0) else None


def _idle(log: CpuLog, window: tuple[int, int]) -> tuple[int, int]:
    """Busy and idle processor time of the host during the job, ns; zeros if not sampled."""
    rows = log.samples.filter(
        (pl.col("domain") == CPU_DOMAIN) & (pl.col("cpu_busy_ns") >= 0) & (pl.col("cpu_idle_ns") >= 0)
    )
    inside = _inside(rows, window) if len(rows) else rows
    if len(inside) < 2:
        return 0, 0
    return tuple(max(int(inside[name][-1] - inside[name][0]), 0) for name in ("cpu_busy_ns", "cpu_idle_ns"))  # type: ignore[return-value]
