# SPDX-License-Identifier: Apache-2.0
"""A platform profile in the terminal: minimum clocks and overhead points, ours beside the published ones."""

from __future__ import annotations

from rich.text import Text

from powerccl.console import Console
from powerccl.patterns import PATTERNS, PUBLISHED_OVERHEAD_BYTES
from powerccl.platforms.policy_table import minimum_clocks
from powerccl.platforms.schema import PlatformProfile
from powerccl.quantities import byte_size, change, microseconds, plural, seconds
from powerccl.reports.table import Table
from powerccl.reports.terminal import heading, warning


def print_profile(console: Console, profile: PlatformProfile) -> None:
    """Both tables and what setting a clock costs."""
    console.print()
    console.print(heading(title(profile), "yes" if profile.emulated else ""))
    console.print(Text(" · ".join(facts(profile)), style="dim"))
    console.print()
    if profile.clocks_set:
        console.print(minimum_clocks_table(profile, console.width))
    else:
        console.print(warning(unset(profile)))
    if profile.overhead:
        console.print()
        console.print(overhead_table(profile))
    if profile.clock_switch:
        cost = profile.clock_switch
        console.print()
        console.print(
            f"setting a clock: {microseconds(cost.call_us)} in the driver, {microseconds(cost.latency_us)} "
            f"from request to completion ({plural(cost.requests, 'request')})"
        )
    for note in profile.notes:
        console.print(warning(note))
    console.print()


def title(profile: PlatformProfile) -> str:
    """What was profiled."""
    return f"{profile.name}: {profile.gpus} x {profile.gpu}"


def facts(profile: PlatformProfile) -> list[str]:
    """How it was measured."""
    measured = f"{plural(len(profile.points), 'point')} in {seconds(profile.seconds)}"
    return [measured, *(f"{key} {value}" for key, value in profile.versions.items())]


def unset(profile: PlatformProfile) -> str:
    """Why there are no minimum clocks."""
    return f"clocks could not be set: {profile.clocks_reason}"


def minimum_clocks_table(profile: PlatformProfile, width: int) -> Table:
    """The lowest clock that keeps the bandwidth, by size; as many sizes as the width has room for."""
    clocks = minimum_clocks(profile)
    sizes = sorted({size for by_size in clocks.values() for size in by_size})
    room = max(2, (width - 26) // 8)
    shown = sizes if len(sizes) <= room else [sizes[round(i * (len(sizes) - 1) / (room - 1))] for i in range(room)]
    table = Table()
    table.add_column("minimum clock, MHz", no_wrap=True)
    for size in shown:
        table.add_column(byte_size(size).replace(" ", "").replace("iB", ""), justify="right", no_wrap=True)
    for pattern in (name for name in PATTERNS if name in clocks):
        cells = []
        for size in shown:
            clock = clocks[pattern].get(size)
            low = clock is not None and clock < profile.clock_max_mhz
            cells.append(Text("–" if clock is None else str(clock), style="bright_cyan" if low else "dim"))
        table.add_row(pattern.replace("_", "-"), *cells)
    return table


def overhead_table(profile: PlatformProfile) -> Table:
    """Where management starts to pay."""
    table = Table(3)
    table.add_column("overhead point", no_wrap=True)
    table.add_column("emulated here" if profile.emulated else "measured here", justify="right")
    table.add_column("published (8 x T4)", justify="right")
    table.add_column("loss at 1 MiB", justify="right")
    at_mib = {
        s.pattern: (s.managed_us / s.plain_us - 1) * 100 for s in profile.overhead_samples if s.size_bytes == 1 << 20
    }
    for point in profile.overhead:
        overhead = "never pays" if point.size_bytes is None else byte_size(point.size_bytes)
        published = byte_size(PUBLISHED_OVERHEAD_BYTES[point.pattern])
        loss = at_mib.get(point.pattern)
        table.add_row(point.pattern.replace("_", "-"), overhead, published, change(loss).removeprefix("+"))
    return table
