# SPDX-License-Identifier: Apache-2.0
"""`powerccl profile --ways` and `powerccl whatif --ways`."""

from __future__ import annotations

import signal
import sys
from itertools import pairwise
from pathlib import Path

from powerccl import clean
from powerccl.commandline.output import say, write_out
from powerccl.commandline.references import gpu_names, own_table
from powerccl.console import Console
from powerccl.errors import PowercclError, UsageError
from powerccl.platforms.ways import WaysTable, load_table
from powerccl.traces.folder import RunData
from powerccl.ways import profile
from powerccl.ways.forecast import Forecaster, ways_what_if
from powerccl.ways.forecast_report import print_ways_what_if
from powerccl.ways.report import print_table


def measure_ways(
    emulate: str, patterns: list[str], sizes: list[int], name: str, out: Path | None, resume: bool, products: str
) -> None:
    """Measure, write and print a table of ways.

    Raises:
        PowercclError: sizes do not grow by one whole factor, or nothing can be measured.
    """
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    try:
        table, written = profile.measure(emulate, patterns, _span(sizes), name, out, resume, products, say)
    except KeyboardInterrupt:
        say("interrupted; the same command with --resume goes on from here")
        raise
    print_table(Console(), table)
    say(f"written: {written}")


def _span(sizes: list[int]) -> tuple[int, int, int]:
    """Sizes as first, last and factor."""
    factor = sizes[1] // sizes[0] if len(sizes) > 1 else 2
    if any(later != factor * before for before, later in pairwise(sizes)):
        raise UsageError("--sizes: --ways takes sizes that grow by one whole factor", "try 16M:256M:2")
    return sizes[0], sizes[-1], factor


def predict_ways(run: RunData, folder: Path, ways: str, json_file: str) -> None:
    """Predict and print.

    Raises:
        PowercclError: there is no table of these GPUs, or nothing can be predicted from the run.
    """
    table = _table(run, ways)
    prediction = ways_what_if(Forecaster.of_run(run, table))
    prediction.folder, prediction.name = str(folder), folder.name
    prediction.emulated = run.modelled_by
    if json_file:
        write_out(json_file, clean.to_json(prediction, indent=2))
    print_ways_what_if(Console(stderr=json_file == "-"), prediction)


def _table(run: RunData, ways: str) -> WaysTable:
    names = [name for of_node in gpu_names(run).values() for name in of_node]
    if ways == "auto":
        measured = own_table(run)
        if measured is None:
            raise PowercclError(
                "no table of ways for the GPUs of this run",
                "measure that machine, in some minutes and without any right: powerccl profile --ways",
            )
        return measured
    table = load_table(ways)
    if names and set(names) != {table.gpu}:
        raise PowercclError(
            f"the table of ways '{table.name}' was measured on {table.gpus} x {table.gpu}; the run was on "
            f"{', '.join(sorted(set(names)))}",
            "name one of those GPUs, or measure them: powerccl profile --ways",
        )
    return table
