# SPDX-License-Identifier: Apache-2.0
"""Energy of the hosts' processors over a job, from RAPL counters as powerccl-agent sampled them."""

from __future__ import annotations

import re

import numpy as np
import polars as pl

from powerccl import quantities
from powerccl.analysis import intervals as iv
from powerccl.analysis.findings import CpuEnergy
from powerccl.analysis.helper_ends import why_unsampled
from powerccl.traces.cpu import CPU_DOMAIN, CpuLog
from powerccl.traces.folder import RunData
from powerccl.traces.host_ends import unsampled_hosts
from powerccl.traces.plausible import GAP_PERIODS, Ints

# Domains that add up. The others (core, uncore) are parts of a package, or contain all of it (psys).
COUNTED = re.compile(r"(^|[/_-])(package|pkg|dram|ram)([-_]?\d+)?(-die-\d+)?$")
NOT_SAMPLED = "the agent sampled no processor energy"
NOT_READABLE = "RAPL counters cannot be read here"
NOT_MOVING = "RAPL counters are here but do not move, as in some virtual machines"


def cpu_energy(run: RunData) -> CpuEnergy:
    """Joules between the job's start and end on all hosts sampled; None with the reason where counters do not tell."""
    if not run.cpu:
        why = why_unsampled(run, run.info.host) if run.info else ""
        return CpuEnergy(reason=NOT_SAMPLED + why)
    result = CpuEnergy(hosts=len(run.cpu))
    reasons, covered_s, busy_ns, idle_ns = [], [], 0, 0
    for log in run.cpu:
        window = _window(run, log.host)
        busy, idle = _idle(log, window)
        busy_ns, idle_ns = busy_ns + busy, idle_ns + idle
        counted, seconds, missing = _counted(log, window)
        why = why_unsampled(run, log.host)
        of_host = f"{log.host}: " if len(run.cpu) > 1 else ""
        result.missing += [f"{of_host}{text}{why}" for text in missing]
        if counted and not any(counted.values()):
            reasons.append(NOT_MOVING)
            result.missing.append(f"{log.host}: no energy of the processors")
        elif counted:
            result.domains.update({f"{log.host} {domain}": joules for domain, joules in counted.items()})
            covered_s.append(seconds)
        else:
            reasons.append(_reason(log))
            result.missing.append(f"{log.host}: no energy of the processors")
    result.missing += [f"{host}: not sampled" for host in unsampled_hosts(run.cpu, run.mpi)]
    result.missing += [f"{node.host}: its samples are not here" for node in run.elsewhere]
    if busy_ns + idle_ns > 0:
        result.idle_pct = idle_ns / (busy_ns + idle_ns) * 100
    if covered_s:
        joules = sum(result.domains.values())
        result.joules, result.joules_at_least = (None, joules) if result.missing else (joules, None)
        result.covered_s = float(np.mean(covered_s))
        result.average_watts = joules / result.covered_s if result.covered_s else None
        result.missing = quantities.said_once(result.missing)
    else:
        result.missing = []
    result.reason = "; ".join(dict.fromkeys(reasons))
    return result


def _reason(log: CpuLog) -> str:
    said = log.about.get("energy_reason") or log.about.get("rapl_reason") or log.about.get("reason")
    return said or NOT_READABLE


def _window(run: RunData, host: str) -> tuple[int, int]:
    """The job on that host: run.json's times hold for its own host only, traces for theirs."""
    info = run.info
    if info and info.host == host and info.span:
        return info.span
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


def _counted(log: CpuLog, window: tuple[int, int]) -> tuple[dict[str, float], float, list[str]]:
    """Joules of each domain as far as sampled, how long that is, and which domains were not sampled how long."""
    joules: dict[str, float] = {}
    missing: list[str] = []
    seconds = 0.0
    for (name,), rows in log.samples.filter(pl.col("energy_uj") >= 0).group_by(["domain"], maintain_order=True):
        domain = str(name)
        inside = _inside(rows, window)
        if not COUNTED.search(domain) or len(inside) < 2:
            continue
        time = inside["time_ns"].to_numpy()
        joules[domain] = float(inside["energy_uj"][-1] - inside["energy_uj"][0]) / 1e6
        covered = iv.minus(np.array([[time[0], time[-1]]]), log.breaks.get(domain, iv.EMPTY))
        period_ns = max(log.period_ns, int(np.median(np.diff(time))))
        covered = iv.minus(covered, _standing(time, inside["energy_uj"].to_numpy(), period_ns))
        seconds = max(seconds, iv.length_ns(covered) / 1e9)
        ends = (int(time[0]) - window[0], window[1] - int(time[-1])) if window[1] < 1 << 62 else ()
        lost_ns = int(time[-1] - time[0]) - iv.length_ns(covered)
        lost_ns += sum(end for end in ends if end > GAP_PERIODS * period_ns)
        if lost_ns and joules[domain]:
            missing.append(f"{domain}: no valid energy samples for {quantities.seconds(lost_ns / 1e9)}")
    return joules, seconds, missing


def _standing(time_ns: Ints, energy_uj: Ints, period_ns: int) -> iv.Intervals:
    """When a counter did not move for more than three periods: it cannot while its host runs."""
    moved = time_ns[np.append(True, np.diff(energy_uj) != 0)]
    # The last still reading before a move: what the move tells is of the time behind it.
    before = np.append(time_ns[np.flatnonzero(np.diff(energy_uj) != 0)], time_ns[-1])
    stands = np.stack([moved, before], axis=1)
    standing: iv.Intervals = stands[stands[:, 1] - stands[:, 0] > GAP_PERIODS * period_ns]
    return standing


def _idle(log: CpuLog, window: tuple[int, int]) -> tuple[int, int]:
    """Busy and idle processor time of the host during the job, ns; zeros if not sampled."""
    rows = log.samples.filter(
        (pl.col("domain") == CPU_DOMAIN) & (pl.col("cpu_busy_ns") >= 0) & (pl.col("cpu_idle_ns") >= 0)
    )
    inside = _inside(rows, window) if len(rows) else rows
    if len(inside) < 2:
        return 0, 0
    return tuple(max(int(inside[name][-1] - inside[name][0]), 0) for name in ("cpu_busy_ns", "cpu_idle_ns"))  # type: ignore[return-value]
