# SPDX-License-Identifier: Apache-2.0
"""`powerccl whatif --ways`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from powerccl.errors import PowercclError

if TYPE_CHECKING:
    from powerccl.platforms.ways import WaysTable
    from powerccl.traces.folder import RunData


def predict_ways(run: RunData, folder: Path, ways: str, json_file: str) -> int:
    """Predict and print.

    Raises:
        PowercclError: there is no table of these GPUs, or nothing can be predicted from the run.
    """
    from powerccl import clean
    from powerccl.commandline.output import write_out
    from powerccl.console import Console
    from powerccl.ways.forecast import Forecaster, ways_what_if
    from powerccl.ways.forecast_report import print_ways_what_if

    table = _table(run, ways)
    prediction = ways_what_if(Forecaster.of_run(run, table))
    prediction.folder, prediction.name = str(folder), folder.name
    prediction.emulated = run.modelled_by
    if json_file:
        write_out(json_file, clean.to_json(prediction, indent=2))
    print_ways_what_if(Console(stderr=json_file == "-"), prediction)
    return 0


def _table(run: RunData, ways: str) -> WaysTable:
    from powerccl.commandline.references import gpu_names, own_table
    from powerccl.platforms.ways import load_table

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
