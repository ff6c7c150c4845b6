# SPDX-License-Identifier: Apache-2.0
"""What comparing ranks of several hosts rests on: which hosts have one clock, and how well that is known."""

from __future__ import annotations

from powerccl.analysis.report_findings import HostAlignment
from powerccl.traces.folder import RunData


def domain(run: RunData, host: str) -> str:
    """The name of the clock that a host's times are of; hosts that are aligned have one."""
    return run.host_clocks.domain(host) if run.host_clocks else host


def error_ns(run: RunData) -> float:
    """How well times of two hosts with one clock agree; 0: no two hosts are aligned."""
    return run.host_clocks.error_ns() if run.host_clocks else 0.0


def alignments(run: RunData) -> list[HostAlignment]:
    """Each host beside the reference, for reports."""
    return [
        HostAlignment(host=each.host, reference=each.reference, reason=each.reason)
        if each.reason
        else HostAlignment(
            host=each.host,
            reference=each.reference,
            offset_ns=each.offset_ns,
            drift_ppm=each.drift * 1e6,
            error_us=each.error_ns / 1e3,
            bound_us=each.bound_ns / 1e3,
            collectives=each.collectives,
        )
        for each in (run.host_clocks.clocks if run.host_clocks else [])
    ]
