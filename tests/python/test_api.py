# SPDX-License-Identifier: Apache-2.0
"""`powerccl.open_run`: tables and figures of a run, the same as those of the report."""

from __future__ import annotations

import json
import subprocess
import sys
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import Any

import polars as pl
import pytest
import synthetic
from click.testing import CliRunner
from polars.testing import assert_frame_equal
from synthetic import MS

import powerccl
from powerccl.commands.report import command
from powerccl.errors import PowercclError

ROOT = Path(__file__).resolve().parents[2]
TABLES = ("iterations", "collectives", "gpus", "ranks", "patterns", "power")
MORNING = datetime(2026, 1, 2, 8, tzinfo=timezone.utc)
MORNING_NS = int(MORNING.timestamp()) * 10**9


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return synthetic.exposed_run(tmp_path_factory.mktemp("runs") / "train", iterations=16)


def test_tables_are_those_of_the_report(folder: Path) -> None:
    done = CliRunner().invoke(command, [str(folder), "-q", "--json", "-"])
    assert done.exit_code == 0, done.output
    said = json.loads(done.stdout)
    run = powerccl.open_run(folder)
    found = said["iterations"][0]
    iterations = run.iterations
    assert len(iterations) == found["found"] > 10
    assert iterations["duration_s"].mean() == pytest.approx(found["mean_s"], rel=1e-9)
    assert iterations["joules"].drop_nulls().mean() == pytest.approx(found["joules"], rel=1e-9)
    assert iterations["start_s"].to_list() == pytest.approx([row["start_s"] for row in found["rows"]])
    assert run.gpus["joules"].sum() == pytest.approx(said["summary"]["energy"]["joules"], rel=1e-9)
    assert run.gpus.to_dicts() == said["summary"]["gpus"]
    assert run.patterns.to_dicts() == said["summary"]["patterns"]
    for mine, row in zip(run.ranks.to_dicts(), said["ranks"], strict=True):
        assert mine == {name: value for name, value in row.items() if name in mine}
    counts = {(row["pattern"], row["size_class_bytes"]): row["kernels"] for row in said["counts"]}
    assert len(run.collectives) == sum(counts.values())
    assert run.collectives["duration_s"].sum() == pytest.approx(sum(row["time_all_ranks_s"] for row in said["counts"]))
    time, energy, communication = run.iteration_time, run.iteration_energy, run.communication_energy
    assert time and energy and communication
    assert (time.value, time.unit, energy.value, energy.unit) == (found["mean_s"], "s", found["joules"], "J")
    assert energy.high - energy.value == pytest.approx(1.96 * found["joules_error"])
    assert communication.value == said["summary"]["communication"]["joules"]
    assert communication.low <= communication.value <= communication.high


def test_what_the_columns_mean(folder: Path) -> None:
    run = powerccl.open_run(folder)
    joules = run.iterations.drop_nulls("joules")
    assert (joules["joules_low"] <= joules["joules"]).all() and (joules["joules"] <= joules["joules_high"]).all()
    # 150 ms at 70 W, 450 ms at 45 W, two GPUs
    assert joules["joules"].mean() == pytest.approx(61.5, rel=0.01)
    assert (joules["joules_high"] - joules["joules_low"]).max() < 0.15 * 61.5  # type: ignore[operator]
    assert run.iterations["duration_s"].to_list() == pytest.approx([0.6] * len(run.iterations), abs=1e-3)
    assert set(run.power["watts"].unique()) == {70.0, 45.0}
    called = run.collectives.filter(rank=0)
    assert called["pattern"].unique().to_list() == ["all_reduce"]
    assert called["start_s"].is_sorted()
    assert (called["end_s"] - called["start_s"] - called["duration_s"]).abs().max() < 1e-3  # type: ignore[operator]


def test_wall_clock_of_the_samples_head(folder: Path, tmp_path: Path) -> None:
    assert powerccl.open_run(folder).started is None
    assert powerccl.open_run(folder).iterations["start"].null_count() == len(powerccl.open_run(folder).iterations)
    dated = synthetic.exposed_run(tmp_path / "dated")
    power = dated / f"power-{synthetic.HOST}.csv"
    power.write_text(f"# start_ns: 7\n# start_realtime_ns: {MORNING_NS + 7}\n" + power.read_text())
    run = powerccl.open_run(dated)
    assert run.started == MORNING + timedelta(microseconds=0)
    row = run.iterations.row(0, named=True)
    assert row["start"] == MORNING + timedelta(microseconds=round(row["start_s"] * 1e6))
    assert run.iterations.schema["start"] == pl.Datetime("ns", "UTC")


def test_wall_clock_of_run_json_alone(tmp_path: Path) -> None:
    synthetic.write_info(tmp_path, 2000 * MS, started_at="2026-01-02T09:00:00+0100")
    assert powerccl.open_run(tmp_path).started == MORNING


def test_hosts_agree_on_the_wall_clock_alone(tmp_path: Path) -> None:
    ahead_ns = 5_000_000 * MS
    for rank, host in enumerate((synthetic.HOST, "node2")):
        begin_ns = rank * ahead_ns
        trace = synthetic.TraceWriter(rank, 2, host=host, start_ns=begin_ns + 1, start_realtime_ns=MORNING_NS)
        trace.comm(begin_ns + MS)
        for call in range(1, 30):
            at_ns = begin_ns + call * 100 * MS
            trace.call(call, at_ns, 1 << 20, flags=0x40)
            trace.kernel(call, at_ns, at_ns + 10 * MS, 1 << 20, delay_ns=0)
        trace.write(tmp_path)
    synthetic.write_info(tmp_path, 3000 * MS)
    run = powerccl.open_run(tmp_path)
    here, there = (run.collectives.filter(rank=rank)["start_s"].to_list() for rank in (0, 1))
    assert here == pytest.approx(there, abs=1e-6)
    assert run.iterations["host"].unique().sort().to_list() == [synthetic.HOST, "node2"]
    assert run.iteration_energy is None


def test_a_run_with_nothing_in_it_has_empty_tables(folder: Path, tmp_path: Path) -> None:
    synthetic.write_info(tmp_path, 2000 * MS)
    empty, full = powerccl.open_run(tmp_path), powerccl.open_run(folder)
    for name in TABLES:
        assert_frame_equal(getattr(empty, name), getattr(full, name).clear())
    assert empty.iteration_time is empty.iteration_energy is empty.communication_energy is None


def test_untimed_calls_are_rows_without_times(tmp_path: Path) -> None:
    trace = synthetic.TraceWriter(0, 1)
    trace.comm(1 * MS)
    trace.call(1, 10 * MS, 1 << 20, flags=0x40)
    trace.kernel(1, 11 * MS, 12 * MS, 1 << 20, delay_ns=0)
    trace.call(2, 20 * MS, 1 << 20)
    trace.write(tmp_path)
    synthetic.write_info(tmp_path, 100 * MS)
    rows = powerccl.open_run(tmp_path).collectives
    assert rows["call_id"].to_list() == [1, 2]
    assert rows["start_s"].is_null().to_list() == [False, True]
    assert rows["called_s"].to_list() == pytest.approx([0.01, 0.02], abs=1e-6)


def test_latest_and_names_are_found(folder: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(PowercclError):
        powerccl.open_run()
    (tmp_path / "runs").symlink_to(folder.parent)
    assert powerccl.open_run().folder.name == powerccl.open_run("train").folder.name == "train"


def test_what_is_no_run(tmp_path: Path) -> None:
    with pytest.raises(PowercclError, match="is no run folder"):
        powerccl.open_run(tmp_path)
    with pytest.raises(PowercclError, match="no run"):
        powerccl.open_run(tmp_path / "none")


def test_importing_it_imports_no_tables() -> None:
    code = (
        "import sys, powerccl; print([n for n in ('polars', 'numpy', 'click') if n in sys.modules], powerccl.__all__)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[] ['open_run']"


def test_without_the_extra_it_names_it(folder: Path) -> None:
    code = (
        "import sys; sys.modules['polars'] = None\n"
        "import powerccl; from powerccl.errors import PowercclError\n"
        "try: powerccl.open_run(sys.argv[1])\n"
        "except PowercclError as error: print(error.message, '|', error.hint)\n"
    )
    done = subprocess.run([sys.executable, "-c", code, str(folder)], capture_output=True, text=True, check=True)
    assert "polars, which is not installed | pip install 'powerccl[report]'" in done.stdout


def test_the_page_has_every_column(folder: Path) -> None:
    page = (ROOT / "docs/reference/python.md").read_text()
    run = powerccl.open_run(folder)
    for name in TABLES:
        section = page.partition(f"\n## `{name}`")[2].partition("\n## ")[0]
        missing = [column for column in getattr(run, name).columns if f"`{column}`" not in section]
        assert not missing, f"{name}: {missing}"


def test_the_notebook_runs(folder: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    notebook = json.loads((ROOT / "docs/guides/notebook.ipynb").read_text())
    code = [cell for cell in notebook["cells"] if cell["cell_type"] == "code"]
    assert not any(cell["outputs"] for cell in code), "commit it without outputs"
    (tmp_path / "runs").symlink_to(folder.parent)
    monkeypatch.chdir(tmp_path)
    names: dict[str, Any] = {}
    for cell in code:
        exec("".join(cell["source"]), names)
    assert [len(trace.x) for trace in names["power"].data] == [481] * 2
    assert len(names["joules"].data[0].y) == len(names["run"].iterations)
    assert names["by_size"]["operations"].sum() == len(names["run"].collectives)
