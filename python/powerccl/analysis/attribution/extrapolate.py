# SPDX-License-Identifier: Apache-2.0
"""From the energy of a part of a run, or of some of its GPUs, to that of all of it."""

from __future__ import annotations

import polars as pl

from powerccl.analysis import intervals as iv
from powerccl.analysis.attribution.kind_energy import EnergyFindings
from powerccl.analysis.run_tables import Window
from powerccl.analysis.whole_run import WholeRun, spans_of
from powerccl.quantities import exact, plural, seconds


def extrapolate(
    energy: EnergyFindings, kernels: pl.DataFrame, built: WholeRun, gpus: int, window: Window | None, outside_j: float
) -> None:
    """Make sums those of all GPUs and of all of `built`, which is taken to draw as much in as long as these kernels.

    `gpus`: how many of them were measured; `window`: the part that was asked for, if it is not all of `built`.
    `outside_j`: what these GPUs drew outside of all kernels, over all of `built`, as far as it is not idle.
    """
    parts, spans = spans_of(kernels), built.spans
    span_ns = sum(last - first for first, last in spans.values())
    seen_ns = sum(iv.length_ns(iv.clip(built.communicating[gpu], *part)) for gpu, part in parts.items())
    all_ns = sum(iv.length_ns(each) for each in built.communicating.values())
    part_ns = sum(last - first for first, last in parts.values())
    times = all_ns / max(seen_ns, 1)
    rest = (span_ns - all_ns) / max(part_ns - seen_ns, 1)
    of_gpus = len(spans) / max(gpus, 1)
    for name, factor in {
        **dict.fromkeys(("communication", "communication_low", "communication_high"), times),
        "computation": rest,
        "idle": of_gpus,
    }.items():
        value = getattr(energy, f"joules_{name}")
        setattr(energy, f"joules_{name}", None if value is None else value * factor)
    if energy.joules_unexplained is not None:
        energy.joules_unexplained = (energy.joules_unexplained - outside_j) * rest + outside_j * of_gpus
    known = (energy.joules_communication, energy.joules_computation, energy.joules_unexplained)
    energy.joules_total = sum(each or 0.0 for each in (*known, energy.joules_idle))
    counted = built.totals.group_by(pl.col("pattern").cast(pl.String), "size_class", maintain_order=True).agg(
        pl.col("count", "time_ns").sum()
    )
    counts = {(pattern, size): (count, time_ns) for pattern, size, count, time_ns in counted.iter_rows()}
    for kind in energy.kinds:
        kind.operations, time_ns = counts[kind.pattern, kind.size_class_bytes]
        kind.time_s = time_ns / 1e9 / max(len(spans), 1)
        kind.joules = None if kind.joules_per_operation is None else kind.joules_per_operation * kind.operations
    said = [] if gpus == len(spans) else [f"{gpus:,} of {plural(len(spans), 'GPU')}"]
    first, last = (pick(each) for pick, each in zip((min, max), zip(*parts.values(), strict=True), strict=True))
    if part_ns * of_gpus < 0.99 * span_ns:
        length = exact((window[1] - window[0]) / 1e9, "s") if window else seconds((last - first) / 1e9)
        said.append(f"{length} in the middle of the run")
    energy.part = ", ".join(said)
