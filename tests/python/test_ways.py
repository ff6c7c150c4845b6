# SPDX-License-Identifier: Apache-2.0
"""Tables of ways: reading, choosing by them, and what they come from."""

from __future__ import annotations

import csv
import html
import json
import os
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import polars as pl
import pytest
import synthetic
from msgspec import structs
from printing import printed

from powerccl.analysis import report as run_report
from powerccl.analysis.ways import Possible, WaysFindings
from powerccl.bench.process import with_libraries
from powerccl.errors import PowercclError
from powerccl.estimate import Estimate
from powerccl.launch import ways as launched
from powerccl.launch.gpus import Gpus
from powerccl.platforms.schema import encode
from powerccl.platforms.ways import (
    COPY_ENGINE,
    PLAIN,
    TABLES,
    WayPoint,
    WaysTable,
    compare,
    load_table,
    medians,
    never_slower_from,
    table_for,
)
from powerccl.reports.report import print_report
from powerccl.reports.report_page import report_page
from powerccl.reports.tabular import write_csv
from powerccl.reports.ways import possible_lines, what_to_write
from powerccl.ways.possible import possible
from powerccl.ways.profile import table_of

MIB = 1 << 20


def point(
    size: int, way: str, time_us: float, beside: str = "", added_us: float | None = None, **more: Any
) -> WayPoint:
    return WayPoint(
        pattern="all_gather", size_bytes=size, way=way, beside=beside, time_us=time_us, added_us=added_us, **more
    )


def table(*points: WayPoint, **more: Any) -> WaysTable:
    made: dict[str, Any] = {
        "name": "here",
        "gpu": "NVIDIA H200",
        "gpus": 2,
        "emulated": False,
        "provenance": "a test",
        **more,
    }
    return WaysTable(points=list(points), **made)


def pair(size: int, plain_us: float, other_us: float, plain_added: float, other_added: float) -> list[WayPoint]:
    return [
        point(size, PLAIN, plain_us, joules_per_gpu=0.2),
        point(size, COPY_ENGINE, other_us, joules_per_gpu=0.15),
        point(size, PLAIN, 3 * plain_us, "matmul", plain_added, added_joules_per_gpu=0.1),
        point(size, COPY_ENGINE, 2 * other_us, "matmul", other_added, added_joules_per_gpu=0.04),
    ]


def test_a_way_that_is_slower_anywhere_is_not_chosen() -> None:
    # By itself quicker at every size; beside computation dearer at 64 MiB.
    made = table(
        *pair(16 * MIB, 50, 40, 30, 20), *pair(64 * MIB, 150, 130, 60, 100), *pair(256 * MIB, 550, 440, 250, 150)
    )
    found = compare(made, COPY_ENGINE)
    assert [each.never_slower for each in found] == [True, False, True]
    assert found[2].time_saved_pct == pytest.approx(20)
    assert found[2].energy_saved_pct == pytest.approx(25)
    assert found[2].beside_saved_us == {"matmul": pytest.approx(100)}
    assert found[2].beside_saved_joules == {"matmul": pytest.approx(0.06)}
    assert never_slower_from(made, "all_gather", COPY_ENGINE) == 256 * MIB
    assert never_slower_from(made, "all_reduce", COPY_ENGINE) is None


def test_a_percent_is_no_difference_and_nothing_known_is_no_saving() -> None:
    made = table(*pair(16 * MIB, 100, 100.9, 50, 50.9))
    assert compare(made, COPY_ENGINE)[0].never_slower
    worse = table(*pair(16 * MIB, 100, 101.1, 50, 50))
    assert not compare(worse, COPY_ENGINE)[0].never_slower
    blind = table(point(MIB, PLAIN, 10), point(MIB, COPY_ENGINE, 9))
    assert compare(blind, COPY_ENGINE)[0].energy_saved_pct is None
    assert compare(table(point(MIB, PLAIN, 10)), COPY_ENGINE) == []


def test_medians_are_of_what_is_known() -> None:
    found = medians([point(MIB, PLAIN, us, joules_per_gpu=joules) for us, joules in ((10, None), (30, 0.5), (20, 0.7))])
    assert len(found) == 1
    assert (found[0].time_us, found[0].joules_per_gpu, found[0].rounds) == (20, 0.6, 3)
    assert medians([point(MIB, PLAIN, 10)])[0].joules_per_gpu is None


def test_a_table_is_what_it_was(tmp_path: Path) -> None:
    made = table(*pair(16 * MIB, 50, 40, 30, 20))
    (tmp_path / "here.json").write_bytes(encode(made))
    assert load_table(str(tmp_path / "here.json")) == made


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"schema_version": 9}, "schema 9"),
        ({"points": [{"pattern": "all_gather", "size_bytes": 1, "way": "by hand", "time_us": 1}]}, "impossible point"),
        ({"points": [{"pattern": "all_gather", "size_bytes": 1, "way": "plain", "time_us": 0}]}, "impossible point"),
        ({"points": [{"pattern": "all_gather"}]}, "not a table of ways"),
        ({"gpus": "two"}, "not a table of ways"),
    ],
)
def test_damaged_tables_are_refused(tmp_path: Path, change: dict[str, object], said: str) -> None:
    whole = json.loads(encode(table(*pair(16 * MIB, 50, 40, 30, 20))))
    (tmp_path / "bad.json").write_text(json.dumps(whole | change))
    with pytest.raises(PowercclError) as refusal:
        load_table(str(tmp_path / "bad.json"))
    assert said in str(refusal.value) and "powerccl profile --ways" in refusal.value.hint


def test_the_built_in_tables_are_measured_and_of_use() -> None:
    assert set(TABLES.known()) >= {"h200x2", "h200x4"}
    for name, least in (("h200x2", 64 * MIB), ("h200x4", 256 * MIB)):
        built = load_table(name)
        assert not built.emulated and "2026" in built.provenance and built.versions["nccl"] == "2.30.7"
        assert never_slower_from(built, "all_gather", COPY_ENGINE) == least


def test_a_machine_finds_its_own_table(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    assert table_for(["NVIDIA H200"] * 2) == load_table("h200x2")
    assert table_for(["NVIDIA H200"] * 3) is None
    assert table_for(["NVIDIA H200", "NVIDIA H100"]) is None
    assert table_for([]) is None
    folder = tmp_path / "powerccl/ways"
    folder.mkdir(parents=True)
    (folder / "h200x2.json").write_text("damaged")
    assert table_for(["NVIDIA H200"] * 2) is None, "the user's own hides the built-in one"
    (folder / "mine.json").write_bytes(encode(table(*pair(16 * MIB, 50, 40, 30, 20))))
    found = table_for(["NVIDIA H200"] * 2)
    assert found is not None and found.name == "here"
    (folder / "h200x2.json").unlink()
    assert table_for(["NVIDIA H200"] * 2) == found, "the user's own before the built-in one, whatever its name"
    (folder / "newer.json").write_bytes(encode(table(*pair(16 * MIB, 60, 40, 30, 20), name="newer")))
    os.utime(folder / "mine.json", (1, 1))
    newest = table_for(["NVIDIA H200"] * 2)
    assert newest is not None and newest.name == "newer"


def test_a_job_on_some_of_the_gpus_has_their_table(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    tables = launched.choose_tables("auto", Gpus(names=["NVIDIA H200"] * 8))
    assert [found.name for found in tables] == ["h200x4", "h200x2"]
    variable = launched.ways_environment({}, tables, print)["POWERCCL_WINDOWS_FROM"]
    assert variable == f"{256 * MIB}@4,{64 * MIB}@2"


def test_a_job_is_hooked_where_it_pays(monkeypatch: pytest.MonkeyPatch) -> None:
    said: list[str] = []
    good = table(*pair(256 * MIB, 550, 440, 250, 150))
    found = launched.ways_environment({"PYTHONPATH": "/mine", "A": "b"}, [good], said.append)
    assert found["POWERCCL_WINDOWS_FROM"] == f"{256 * MIB}@2"
    hooks, mine = found["PYTHONPATH"].split(os.pathsep)
    assert (Path(hooks) / "sitecustomize.py").is_file() and mine == "/mine" and found["A"] == "b"
    assert said == []
    poor = table(*pair(256 * MIB, 550, 600, 250, 150))
    assert launched.ways_environment({"A": "b"}, [poor], said.append) == {"A": "b"}
    assert "changes nothing" in said[0] and "copy-engine is slower somewhere" in said[0]
    older = table(point(MIB, PLAIN, 10), versions={"nccl": "2.28.9"})
    launched.ways_environment({}, [older], said.append)
    assert "copy-engine was not measured for all_gather, with NCCL 2.28.9" in said[1]


def test_a_table_of_other_gpus_is_refused(tmp_path: Path) -> None:
    (tmp_path / "t.json").write_bytes(encode(table(*pair(MIB, 50, 40, 30, 20))))
    with pytest.raises(PowercclError, match="was measured on 2 x NVIDIA H200"):
        launched.choose_tables(str(tmp_path / "t.json"), Gpus(names=["NVIDIA A100"] * 2))
    with pytest.raises(PowercclError) as refusal:
        launched.choose_tables("auto", Gpus(names=["NVIDIA A100"] * 2))
    assert "powerccl profile --ways" in refusal.value.hint


@pytest.mark.parametrize(
    ("notes", "said"),
    [
        ([{"state": "on", "bytes": 2 << 30}, {"state": "on", "bytes": 1 << 30}], "on 2 ranks, with 2 GiB of memory"),
        ([{"state": "off", "reason": "NCCL is old"}], "nothing changed: NCCL is old"),
        ([], "no FSDP2 all-gather was large enough"),
    ],
)
def test_the_summary_says_what_came_of_it(tmp_path: Path, notes: list[dict[str, object]], said: str) -> None:
    for rank, note in enumerate(notes):
        (tmp_path / f"windows-{rank}.json").write_text(json.dumps({"groups": [note]}))
    (tmp_path / "windows-9.json").write_text("torn")
    assert said in launched.describe(tmp_path)


def calls(*groups: tuple[str, int, int, bool]) -> pl.DataFrame:
    """Calls of two GPUs by pattern, bytes, number and whether by copy engines: one each millisecond."""
    rows = [
        {
            "pattern": pattern,
            "bytes": size,
            "size_class": 1 << (size.bit_length() - 1),
            "ranks": 2,
            "gpu": gpu,
            "symmetric": False,
            "copy_engine": copied,
        }
        for pattern, size, count, copied in groups
        for _ in range(count)
        for gpu in ("a", "b")
    ]
    start = pl.col("n").cast(pl.Int64) * 500_000
    return pl.DataFrame(rows).with_row_index("n").with_columns(start_ns=start, stop_ns=start + 10)


def test_what_a_job_could_have_is_a_range() -> None:
    made = table(*pair(256 * MIB, 550, 440, 250, 150))
    found = possible(calls(("all_gather", 128 * MIB, 1000, False)), made)
    (row,) = found.rows
    assert (row.pattern, row.way, row.calls, row.size_bytes) == ("all_gather", COPY_ENGINE, 1000, 128 * MIB)
    # Half of what is saved at twice the size: 100 us beside computation, 110 us alone; 60 and 50 mJ of each GPU.
    assert (row.saved_s.low, row.saved_s.high) == pytest.approx((0.05, 0.055))
    assert row.saved_joules is not None
    assert (row.saved_joules.low, row.saved_joules.high) == pytest.approx((50, 60))
    assert found.span_s == pytest.approx(1.0, rel=1e-2)
    (sentence,) = possible_lines(found)
    assert "5.0 % to 5.5 % of each GPU's time" in sentence and "256 MiB of memory" in sentence
    assert what_to_write(found)[0].startswith("all-gather, copy-engine: PyTorch FSDP2: powerccl run --ways auto")


def test_nothing_to_be_had_is_said() -> None:
    poor = table(*pair(256 * MIB, 550, 600, 250, 260))
    job = calls(("all_gather", 256 * MIB, 10, False), ("all_gather", 256 * MIB, 5, True), ("all_reduce", 4, 7, False))
    found = possible(job, poor)
    assert (found.rows, found.other_ways, found.unmeasured) == ([], 10, 14)
    text = " ".join(possible_lines(found))
    assert text.startswith("Nothing:") and "10 calls went another way" in text and "14 calls of a pattern" in text
    far = possible(calls(("all_gather", 600 * MIB, 10, False)), table(*pair(256 * MIB, 550, 440, 250, 150)))
    assert (far.rows, far.unmeasured) == ([], 20)
    assert possible(job.clear(), poor).calls == 0


def test_what_saves_hardly_anything_is_left_out() -> None:
    made = table(*pair(256 * MIB, 550, 549.9, 250, 249.9))
    assert possible(calls(("all_gather", 256 * MIB, 10, False)), made).rows == []


def test_every_way_of_the_built_in_tables_can_be_written() -> None:
    for name in ("h200x2", "h200x4"):
        for way in ("symmetric", "copy-engine", "efficiency"):
            for each in compare(load_table(name), way):
                row = Possible(each.pattern, each.size_bytes, 1, way, Estimate.between(0, 1), None, 0)
                said = what_to_write(WaysFindings(table="t", provenance="a test", span_s=1.0, rows=[row]))
                assert all(line.partition(": ")[2] for line in said)


def lines(*points: dict[str, object], gpu: str = "NVIDIA H200") -> str:
    header = {"type": "header", "emulated": False, "gpu": gpu, "ranks": 2, "nccl_version": "2.30.7"}
    usual = {
        "type": "point",
        "pattern": "all_gather",
        "size_bytes": MIB,
        "way": "plain",
        "beside": None,
        "busbw_gbs": 1.0,
        "time_us": 10.0,
    }
    return "".join(json.dumps(each) + "\n" for each in (header, *(usual | each for each in points)))


def test_rounds_become_a_table(tmp_path: Path) -> None:
    files = [tmp_path / f"{number}.jsonl" for number in (1, 2, 3)]
    files[0].write_text(lines({"time_us": 10.0}, {"time_us": 90.0, "beside": "matmul", "added_us": 5.0}))
    files[1].write_text(lines({"time_us": 12.0}, {"time_us": 500.0, "valid": False}) + '{"type": "po')
    made = table_of(files, "here", "a test")
    assert [(each.beside, each.time_us, each.rounds) for each in made.points] == [("", 11.0, 2), ("matmul", 90.0, 1)]
    assert made.versions == {"nccl": "2.30.7"}
    files[1].write_text(lines({}, gpu="NVIDIA A100"))
    with pytest.raises(PowercclError, match="different machines"):
        table_of(files, "here", "a test")
    files[1].write_text(lines({"wrong": 3}))
    with pytest.raises(PowercclError, match="3 wrong elements"):
        table_of(files, "here", "a test")
    with pytest.raises(PowercclError, match="measured nothing"):
        table_of(files[2:], "here", "a test")


def test_the_wheels_libraries_are_found(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for library in ("cu13/lib/libcublas.so.13", "nccl/lib/libnccl.so.2"):
        (tmp_path / "nvidia" / library).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "nvidia" / library).touch()
    for module in [name for name in sys.modules if name.split(".")[0] == "nvidia"]:
        monkeypatch.delitem(sys.modules, module)
    monkeypatch.setattr(sys, "path", [str(tmp_path)])
    found = with_libraries({"LD_LIBRARY_PATH": "/mine"})
    assert found["LD_LIBRARY_PATH"] == f"/mine:{tmp_path}/nvidia/cu13/lib"
    assert found["NCCL_LIBRARY"] == f"{tmp_path}/nvidia/nccl/lib/libnccl.so.2"
    assert with_libraries({"NCCL_LIBRARY": "/mine.so"})["NCCL_LIBRARY"] == "/mine.so"
    preloaded = with_libraries({"LD_PRELOAD": "/lib/liba.so:/new/libnccl.so.2 /lib/libb.so"})
    assert preloaded["NCCL_LIBRARY"] == "/new/libnccl.so.2", "the job loads that one before PyTorch's"


def test_every_output_of_a_report_has_what_could_be_had(tmp_path: Path) -> None:
    """JSON, tables, terminal and page are made of the same findings."""
    made = run_report.report(synthetic.exposed_run(tmp_path / "run"))
    rows = [
        Possible("all_reduce", 64 * MIB, 32, "symmetric", Estimate.between(1.0, 3.0), joules, 4096)
        for joules in (None, Estimate(5.0, 4.0, 6.0))
    ]
    ways = WaysFindings(table="mine", provenance="a test", span_s=100.0, rows=rows, calls=64)
    made = replace(made, findings=structs.replace(made.findings, ways=ways))
    told = json.loads(run_report.encode(made.findings))["ways"]
    assert (told["table"], [row["saved_s"]["high"] for row in told["rows"]]) == ("mine", [3.0, 3.0])
    write_csv(made.findings, tmp_path / "tables")
    with (tmp_path / "tables/ways.csv").open() as file:
        found = [(row["way"], row["high_saved_s"], row["saved_joules"]) for row in csv.DictReader(file)]
    assert found == [("symmetric", "3.0", ""), ("symmetric", "3.0", "5.0")]
    assert "By the table of ways 'mine', a test." in html.unescape(report_page(made))
    assert "what could be had without changing a clock" in printed(lambda console: print_report(console, made.findings))
