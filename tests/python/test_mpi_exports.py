# SPDX-License-Identifier: Apache-2.0
"""What other programs get of an MPI run: tables and traces."""

from __future__ import annotations

import csv
from pathlib import Path

import pytest
from click.testing import CliRunner
from printing import printed
from synthetic import MS, mpi_run, mpi_trace, write_info
from test_mpi import RAPL

from powerccl.analysis.report import report
from powerccl.commands import cli
from powerccl.reports.mpi import print_mpi
from powerccl.reports.report_page import report_page


def test_times_of_several_threads_say_so(tmp_path: Path) -> None:
    """Eleven threads spend 11 times as long in MPI as their rank runs: text, page and tables say sums of what."""
    folder = tmp_path / "run"
    folder.mkdir()
    for rank in range(2):
        trace = mpi_trace(rank, 2)
        for thread in range(11):
            trace.mpi_total(2010 * MS, "Allreduce", 10, 1500 * MS, 500 * MS, thread=thread)
        trace.process(2010 * MS, 100 * MS)
        trace.write(folder, f"mpi-{rank}.trace")
    write_info(folder, 2010 * MS)
    found = report(folder).findings
    mpi = found.summary.mpi
    assert mpi is not None
    assert [row.threads for row in mpi.by_rank] == [11, 11]
    assert [row.execution_s for row in mpi.by_rank] == pytest.approx([11 * 0.5] * 2)
    for width in (80, 120):
        assert "sums over 11 threads" in printed(print_mpi, mpi, width=width)
    assert "sum over 11 threads" in report_page(report(folder))


def test_every_export_has_what_an_mpi_run_has(tmp_path: Path) -> None:
    folder = mpi_run(tmp_path / "run", ranks=4, cpu=RAPL)
    options = [str(folder), "-q", "--csv", str(tmp_path / "csv")]
    done = CliRunner().invoke(cli, ["report", *options, "--perfetto", str(tmp_path / "run.pftrace")])
    assert done.exit_code == 0 and not done.stderr
    tables = {path.stem: list(csv.DictReader(path.open())) for path in (tmp_path / "csv").iterdir()}
    assert set(tables) >= {"mpi-ranks", "mpi-calls", "mpi-communicators", "mpi-imbalance", "cpu-energy"}
    assert [row["rank"] for row in tables["mpi-ranks"]] == ["0", "1", "2", "3"]
    seconds = sum(float(row["time_all_ranks_s"]) for row in tables["mpi-calls"])
    assert seconds == pytest.approx(sum(float(row["time_s"]) for row in tables["mpi-ranks"]))
    trace = (tmp_path / "run.pftrace").read_bytes()
    for name in ("rank 3 node1", "MPI_Allreduce 8 B", "package-0 power, W"):
        assert name.encode() in trace, name


def test_an_export_without_content_says_so(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    folder.mkdir()
    write_info(folder, 10 * MS)
    options = [str(folder), "-q", "--csv", str(tmp_path / "csv"), "--perfetto", str(tmp_path / "run.pftrace")]
    said = CliRunner().invoke(cli, ["report", *options]).stderr
    assert "has no tables" in said and "the trace holds nothing" in said
