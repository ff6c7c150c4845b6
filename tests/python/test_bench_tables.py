# SPDX-License-Identifier: Apache-2.0
"""Tables of powerccl-bench's lines, and the options that are not the program's."""

from __future__ import annotations

import json
from typing import Any

import pytest

from powerccl.bench.shown import _value, _without
from powerccl.bench.tables import Tables

HEADER: dict[str, Any] = {
    "type": "header",
    "mode": "sweep",
    "version": "0.1.0",
    "nccl_version": "2.28.9",
    "nccl_path": "/libnccl.so.2",
    "gpus": [{"rank": 0, "device": 0, "pci": "0000:01:00.0", "name": "Tesla T4"}],
    "emulated": True,
    "moves_data": False,
    "clock_control": "dry",
    "clock_control_reason": "POWERCCL_CLOCKS=dry",
}
POINT: dict[str, Any] = {
    "type": "point",
    **{"pattern": "broadcast", "size_bytes": 1024, "count": 256, "dtype": "float16", "op": None, "root": 3},
    **{"way": None, "beside": None, "clock_requested_mhz": None, "in_place": False, "valid": True, "wrong": None},
    **{"time_us": 12.345, "algbw_gbs": 1.5, "busbw_gbs": 2.5, "sm_clock_mhz": None},
    **{"watts_per_gpu": 70.0, "joules_per_gpu": 0.00086},
}
SUMMARY: dict[str, Any] = {
    "type": "summary",
    **{"points": 1, "invalid": 0, "skipped": 0, "wrong": 0, "avg_busbw_gbs": 2.5, "nvml_error": None},
}
MPI = {"type": "header", "version": "0.1.0", "mpi_version": "MPICH", "mpi_abi": "mpich", "mpi_path": "/m", "ranks": 2}
SPREAD = {"median": 100.0, "low": 90.0, "high": 120.0}


def printed(*lines: dict[str, Any] | bytes) -> list[str]:
    """What is printed of these lines."""
    tables = Tables()
    return (
        b"".join(tables.feed(line if isinstance(line, bytes) else json.dumps(line).encode() + b"\n") for line in lines)
        .decode()
        .splitlines()
    )


def test_points_have_nccl_tests_columns() -> None:
    said = printed(HEADER, POINT, {**POINT, "in_place": True, "valid": False, "wrong": 2}, SUMMARY)
    assert "#  Rank  0 device  0 [0000:01:00.0] Tesla T4" in said
    assert "# Clocks are left as found: POWERCCL_CLOCKS=dry" in said
    rows = [line.split() for line in said if not line.startswith("#")]
    first = "broadcast 1024 256 half none 3 12.35 1.50 2.50 N/A N/A 70.00 0.00086"
    assert rows[0] == first.split()
    assert rows[1] == [*first.replace("N/A", "2", 1).split(), "in-place", "invalid"]
    assert len({line.rindex("70.00") for line in said if "70.00" in line}) == 1, "columns are aligned"


def test_the_summary_says_what_went_wrong() -> None:
    wrong = {**SUMMARY, "wrong": 3, "invalid": 1, "skipped": 4, "nvml_error": "reading power: no permission (NVML 4)"}
    said = "\n".join(printed(HEADER, POINT, wrong))
    assert "# Out of bounds values : 3 FAILED" in said
    assert "1 of 1 results: this machine was too slow for the emulator" in said
    assert "# Points done before    : 4, left out" in said
    assert "# NVML failed at times  : reading power: no permission (NVML 4)" in said
    nothing = "\n".join(printed(HEADER, {**SUMMARY, "points": 0, "avg_busbw_gbs": None}))
    assert "# Avg bus bandwidth    : N/A (no point was measured in this run)" in nothing


def test_an_invalid_point_is_in_no_comparison_of_ways() -> None:
    ways = [{**POINT, "way": way, "valid": way != "symmetric"} for way in ("plain", "symmetric", "efficiency")]
    rows = [line.split()[1:4] for line in printed(HEADER, *ways, SUMMARY) if line.startswith("#      broadcast")]
    assert rows == [["broadcast", "1024", "plain"], ["broadcast", "1024", "efficiency"]]


@pytest.mark.parametrize(
    "line", [b"NCCL INFO Bootstrap\n", b'{"type": "ready"}\n', b"[1, 2]\n", b'{"no": "type"}\n', b"\xff\n", b"no end"]
)
def test_other_lines_are_printed_as_they_are(line: bytes) -> None:
    for tables in (Tables(), Tables()):
        assert tables.feed(line) == line
        tables.feed(json.dumps(HEADER).encode())
        assert tables.feed(line) == line


def test_a_summary_without_an_iteration_is_no_table() -> None:
    scenario = {"name": "a", "file": "a.scn", "iterations": None, "seed": 1}
    header = {**HEADER, "mode": "scenario", "scenario": scenario, "compute": {"kind": "matmul", "unit_ms": 0.2}}
    said = printed(header, {"type": "summary", "finished": False, "error": "a rank failed"})
    assert "# Scenario a (a.scn), iterations: by --seconds, seed 1" in said
    assert "# Computation           : matmul, in units of 0.2000 ms" in said
    assert said[-1].split() == ["#", "iteration", "step(ms)", "compute", "comm", "exposed"]


def test_mpi_has_a_table_for_each_test() -> None:
    sweep = {"type": "result", "size_bytes": 8, "wrong": 0, "cpu_s": [1.0, 2.0], "loop_s": 2.0}
    times = dict.fromkeys(("avg_us", "min_us", "max_us", "median_us", "low_us", "high_us"), 1.5)
    rates = {"mb_per_s": 10.0, "median_mb_per_s": 11.0, "messages_per_s": 12.0}

    def rows(test: str, mode: str, *lines: dict[str, Any]) -> list[list[str]]:
        return [line.split() for line in printed({**MPI, "test": test, "mode": mode}, *lines)[2:]]

    names, values = rows("allreduce", "collective", {**sweep, **times})
    assert dict(zip(names, values, strict=True))["cpu_pct"] == "75.0"
    names, values = rows("latency", "point_to_point", {**sweep, **times})
    assert names == ["size_bytes", "avg_us", "median_us", "low_us", "high_us", "wrong"]
    names, values = rows("bibw", "point_to_point", {**sweep, **rates})
    assert values == ["8", "10.00", "11.00", "12", "0"]
    wait = {"type": "result", "waited_us": 200.0, "cpu_us": 50.0, "late_us": 2.0}
    summary = {"type": "summary", "waited_us": SPREAD, "cpu_us": SPREAD, "late_us": SPREAD}
    found = rows("wait", "wait", {**wait, "repeat": 0}, {**wait, "repeat": 20}, summary)
    assert [row[0] for row in found] == ["repeat", "0", "median", "25", "75"]
    assert found[1] == ["0", "200.00", "50.00", "25.00", "2.00"]
    assert found[2] == ["median", "100.00", "100.00", "100.00", "100.00"]
    rank = {"type": "result", "rank": 0, "cpu_s": 1.0, "compute_s": 0.5, "mpi_s": 0.25}
    assert rows("stencil", "stencil", rank)[1] == ["0", "1.0000", "0.5000", "0.2500"]


def test_options_that_are_not_the_programs() -> None:
    assert _without(["a", "--json-lines", "-", "b"], "--json-lines", "-") == (["a", "b"], True)
    assert _without(["a", "--json-lines=-"], "--json-lines", "-") == (["a"], True)
    assert _without(["--json-lines", "file", "-"], "--json-lines", "-") == (["--json-lines", "file", "-"], False)
    assert _value(["-g", "2", "--clocks=900"], ("--clock", "--clocks")) == "900"
    assert _value(["-g", "2"], ("-g",)) == "2"
    assert _value(["-g"], ("-g",)) == ""
    assert _value(["x"], ("-g",)) is None
