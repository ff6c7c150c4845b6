# SPDX-License-Identifier: Apache-2.0
"""Bus bandwidth that a run reached, against what the platform's profile says the links can do."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np
import polars as pl

from powerccl.analysis.communication import Alike
from powerccl.analysis.report_findings import LinkRow, Reference
from powerccl.quantities import plural

NO_PROFILE = "no platform profile"  # the reason of all rows, then
NOISE = 0.1  # of a kernel's time: when so little is left without waiting, it is more noise than transfer

# Times the uncertainty of ranks' clocks. A transfer shorter than that may come out a third too fast. At half of it one
# comes out above the link now and then; at double small collectives have no bandwidth without waiting.
CLEARLY = 4


def link_rows(of_kinds: Iterable[Alike], reference: Reference | None, uncertainty_us: float = 0.0) -> list[LinkRow]:
    """One row a pattern and size class, the longest first.

    `of_kinds`: kernels as WholeRun.of_kinds has them, with `waiting_ns` (stragglers.Matched).
    `uncertainty_us`: of one rank's times against another's. A transfer that is not clearly longer has no bandwidth.
    """
    rows: list[dict[str, Any]] = [
        {
            "pattern": alike.pattern,
            "size_class": alike.size_class,
            "count": len(alike.kind),
            "time_ns": int(alike.inside_ns.sum()),
            "size": alike.median("bytes"),
            "most_ranks": alike.kinds["ranks"].max(),
            "least_ranks": alike.kinds["ranks"].min(),
            "busbw": alike.busbw,
            **_without_waiting(alike, uncertainty_us),
        }
        for alike in of_kinds
    ]
    rows.sort(key=lambda row: -row["time_ns"])
    return [_row(row, reference) for row in rows if row["busbw"]]


def _without_waiting(alike: Alike, uncertainty_us: float) -> dict[str, float | None]:
    """Medians: `transfer` (GB/s) where the time without waiting tells it, and `left`, the share of that time."""
    waiting = alike.more["waiting_ns"]
    known = (waiting >= 0) & (alike.duration_ns > 0)  # clock ticks give some kernels no length, and so no bandwidth
    length = alike.duration_ns[known]
    # The rank that came last has not waited.
    left = np.maximum(length - waiting[known], 1)
    share = left / length
    clear = (left >= NOISE * length) & (left > CLEARLY * 1e3 * uncertainty_us)
    transfer = alike.kinds["moved"].to_numpy()[alike.kind[known][clear]] / left[clear]
    transfer = transfer[~np.isnan(transfer)]
    return {
        "transfer": float(np.median(transfer)) if len(transfer) else None,
        "left": float(np.median(share)) if len(share) else None,
    }


def _row(row: dict[str, Any], reference: Reference | None) -> LinkRow:
    pattern = str(row["pattern"])
    busbw, transfer = _float(row["busbw"]) or 0.0, _float(row["transfer"])
    if (_float(row["left"]) or 0.0) < NOISE:
        transfer = None
    link_row = LinkRow(
        pattern=pattern,
        size_class_bytes=int(str(row["size_class"])),
        operations=int(str(row["count"])),
        time_all_ranks_s=(_float(row["time_ns"]) or 0.0) / 1e9,
        busbw_gbs=busbw,
        transfer_gbs=transfer,
    )
    if reference is None:
        link_row.reason = NO_PROFILE
    elif {row["most_ranks"], row["least_ranks"]} != {reference.gpus}:
        link_row.reason = f"the profile is for {plural(reference.gpus, 'GPU')}"
    else:
        link_row.profile_gbs = profile_busbw(reference, pattern, _float(row["size"]) or 0.0)
        if link_row.profile_gbs:
            link_row.change_pct = 100 * ((busbw if transfer is None else transfer) / link_row.profile_gbs - 1)
        else:
            link_row.reason = "not in the profile"
    return link_row


def _float(value: object) -> float | None:
    return float(value) if isinstance(value, (int, float)) else None


def profile_busbw(reference: Reference, pattern: str, size_bytes: float) -> float | None:
    """GB/s of the profile at a size, between its own sizes; None outside of them."""
    points = reference.points.get(pattern, [])
    if not points or not points[0][0] <= size_bytes <= points[-1][0]:
        return None
    sizes = np.log2([max(point[0], 1) for point in points])
    return float(np.interp(np.log2(max(size_bytes, 1)), sizes, [point[1] for point in points]))


def alone_watts(totals: pl.DataFrame, reference: Reference | None) -> float | None:
    """What a GPU draws that does nothing but this run's communication, by its time; None: the profile does not know.

    `totals`: as WholeRun has them.
    """
    if reference is None:
        return None
    total = weight = 0.0
    rows = totals.group_by("pattern", "bytes", maintain_order=True).agg(pl.col("duration_ns").sum())
    for pattern, size, time_ns in rows.iter_rows():
        watts = watts_alone(reference, pattern, size)
        if watts is not None:
            total, weight = total + watts * time_ns, weight + time_ns
    return total / weight if weight else None


def watts_alone(reference: Reference, pattern: str, size_bytes: float) -> float | None:
    """W of a GPU that does nothing but this, as the profile has it; None: it does not know the pattern's power."""
    points = [(point[0], point[2]) for point in reference.points.get(pattern, []) if point[2] is not None]
    if not points:
        return None
    logs = np.log2([max(point[0], 1) for point in points])
    return float(np.interp(np.log2(max(size_bytes, 1)), logs, [point[1] for point in points]))
