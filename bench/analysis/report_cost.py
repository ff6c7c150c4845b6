# SPDX-License-Identifier: Apache-2.0
"""What a report of a large run costs: time and memory of `powerccl report --html`, in a process of its own.

A million collectives, in each of which eight ranks take part: 16 million records, 1 GB of traces.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from bench.analysis.big_run import write_run

COLLECTIVES, RANKS = 1_000_000, 8
TIMES = 3


def once(folder: Path, html: Path) -> tuple[float, float]:
    """Seconds and peak MiB of one report, terminal and page.

    Raises:
        RuntimeError: the report failed.
    """
    program = (
        "import resource, sys\n"
        "from powerccl.commands import main\n"
        "try:\n    main()\n"
        "finally:\n    print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss, file=sys.stderr)\n"
    )
    command = [sys.executable, "-c", program, "report", str(folder), "--html", str(html)]
    begin = time.monotonic()
    done = subprocess.run(command, capture_output=True, text=True, check=False, env={**os.environ, "NO_COLOR": "1"})
    seconds = time.monotonic() - begin
    if done.returncode or not html.exists() or "where the time went" not in done.stdout:
        raise RuntimeError(f"powerccl report ended with {done.returncode}: {done.stderr[-2000:]}")
    return seconds, int(done.stderr.split()[-1]) / 1024


def figures(collectives: int = COLLECTIVES, times: int = TIMES) -> dict[str, dict[str, Any]]:
    """Figures by name: value (median), unit, low and high (least and most), n. The run is synthetic."""
    with tempfile.TemporaryDirectory() as scratch:
        folder = write_run(Path(scratch) / "big", collectives, RANKS)
        html = Path(scratch) / "report.html"
        found = [once(folder, html) for _ in range(times)]
        size_mib = html.stat().st_size / (1 << 20)
    rows = {
        "analysis.report_1M.seconds": ([seconds for seconds, _ in found], "s"),
        "analysis.report_1M.peak_mib": ([peak for _, peak in found], "MiB"),
        "analysis.report_1M.html_mib": ([size_mib], "MiB"),
    }
    return {
        name: {
            "value": round(sorted(values)[len(values) // 2], 2),
            "unit": unit,
            "low": round(min(values), 2),
            "high": round(max(values), 2),
            "n": len(values),
        }
        for name, (values, unit) in rows.items()
    }


if __name__ == "__main__":
    import json

    sys.stdout.write(json.dumps(figures(), indent=2) + "\n")
