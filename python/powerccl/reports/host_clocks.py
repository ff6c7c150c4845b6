# SPDX-License-Identifier: Apache-2.0
"""Clocks of hosts in a report: which have one clock, and how well that is known."""

from __future__ import annotations

from collections.abc import Sequence

from powerccl.analysis.report_findings import HostAlignment
from powerccl.quantities import microseconds, number, plural, said_once

MOST_HOSTS = 4


def host_clock_lines(hosts: Sequence[HostAlignment]) -> list[str]:
    """A sentence of each host, those with the largest error first; of many hosts, a count of the others."""
    unknown = said_once(f"{host.host}: {host.reason}" for host in hosts if host.reason)
    lines = [f"times of hosts are not compared: {', '.join(unknown[:MOST_HOSTS])}"] if unknown else []
    aligned = sorted((host for host in hosts if not host.reason), key=lambda host: -(host.error_us or 0.0))
    lines += [
        f"the clock of {host.host} is aligned with {host.reference} by {plural(host.collectives, 'collective')}:"
        f" error {microseconds(host.error_us)}, at most {microseconds(host.bound_us)}"
        f" (offset {number((host.offset_ns or 0) / 1e9, 's')}, drift {number(host.drift_ppm, 'ppm')})"
        for host in aligned[:MOST_HOSTS]
    ]
    if len(aligned) > MOST_HOSTS:
        lines.append(f"the clocks of {len(aligned) - MOST_HOSTS} more hosts are aligned with smaller errors")
    return lines
