# SPDX-License-Identifier: Apache-2.0
"""Energy per all-reduce: attributed in a run that mixes sizes with computation, and swept alone on the same GPUs.

python3 -m evidence.analysis.isolated RUN SWEEP... > figures.json: RUN is a run folder, SWEEPs are replies of
`powerccl-bench serve` to `measure ... energy=1`, made before and after the run.
"""

from __future__ import annotations

import json
import statistics
import sys
from pathlib import Path

from support.figures import Figures, figure_of, size_name

from powerccl.analysis.attribution import attribute
from powerccl.patterns import size_class
from powerccl.quantities import byte_size
from powerccl.study.worlds import read_sweep
from powerccl.traces.folder import read_run


def figures(folder: Path, sweeps: list[Path], stem: str) -> tuple[Figures, list[str]]:
    """Figures under `stem`, and a line a size to read. Joules are one GPU's and operation's.

    A size that attribution could not tell apart has no error, and neither has the whole then: the reason is said.
    """
    swept: dict[tuple[str, int], list[float]] = {}
    for path in sweeps:
        for point in read_sweep(path):
            if point.joules_per_gpu is not None:
                swept.setdefault((point.pattern, size_class(point.size_bytes)), []).append(point.joules_per_gpu)
    energy = attribute(read_run(folder))
    kinds = {(kind.pattern, kind.size_class_bytes): kind for kind in energy.kinds}
    found: Figures = {}
    lines = [f"{'size':>8} {'attributed, 95 %':>30} {'alone':>10} {'error':>8}"]
    errors: list[float | None] = []
    for (pattern, size), alone in sorted(swept.items()):
        kind = kinds.get((pattern, size))
        name = f"{stem}.{pattern}.{size_name(size)}"
        middle = statistics.mean(alone)
        found[f"{name}.alone_joules"] = figure_of(middle, "J", min(alone), max(alone), len(alone))
        if kind is None or kind.joules_per_operation is None:
            lines.append(f"{byte_size(size):>8} not told: {kind.reason if kind else energy.reason or 'not in the run'}")
            errors.append(None)
            continue
        error = 100 * (kind.joules_per_operation / middle - 1)
        errors.append(abs(error))
        found[f"{name}.attributed_joules"] = figure_of(
            kind.joules_per_operation, "J", kind.low, kind.high, kind.operations
        )
        found[f"{name}.error_pct"] = figure_of(error, "%")
        spread = f"({kind.low:.4g} to {kind.high:.4g})" if kind.low is not None and kind.high is not None else ""
        told = f"{kind.joules_per_operation:.4g} J {spread}"
        lines.append(f"{byte_size(size):>8} {told:>30} {f'{middle:.4g} J':>10} {f'{error:+.1f} %':>8}")
    known = [error for error in errors if error is not None]
    if known and len(known) == len(errors):
        found[f"{stem}.error_pct"] = figure_of(max(known), "%", n=len(known))
        lines.append(f"worst {max(known):.1f} %")
    return found, lines


def main() -> None:
    """Figures to stdout, the table to stderr."""
    found, lines = figures(Path(sys.argv[1]), [Path(each) for each in sys.argv[2:]], "analysis.h200.attribution")
    print("\n".join(lines), file=sys.stderr)
    print(json.dumps(found, indent=1))


if __name__ == "__main__":
    main()
