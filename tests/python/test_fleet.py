# SPDX-License-Identifier: Apache-2.0
"""An index of runs, and what it answers: sums that a person can check, broken runs, two writers, other engines."""

from __future__ import annotations

import datetime
import json
import math
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import polars as pl
import pytest
from click.testing import CliRunner, Result
from fleet_runs import KWH, late_run, months, run_of
from synthetic import MS, TraceWriter, training_run, write_info

from powerccl import files
from powerccl.analysis.findings import (
    SUMMARY_FILE,
)
from powerccl.commands import cli
from powerccl.errors import PowercclError
from powerccl.fleet import store
from powerccl.fleet.ask import Answer, ask, connect, duckdb_source, query_of, questions, views
from powerccl.fleet.index import index
from powerccl.fleet.read import program_of
from powerccl.fleet.schema import TABLES, columns
from powerccl.fleet.store import known_runs, writing

ROOT = Path(__file__).parents[2]


def silent(_: str) -> None:
    """Say nothing."""


def answer(root: Path, question: str, **more: Any) -> list[dict[str, Any]]:
    """What DuckDB answers of an index in `root`."""
    return ask(connect(root / store.FOLDER, **more), question).dicts()


def make(root: Path, analyse: Any = None) -> Any:
    """A pass over `root`."""
    return index(root, root / store.FOLDER, analyse, silent)


def invoke(*words: str | Path) -> Result:
    return CliRunner().invoke(cli, [str(word) for word in words], catch_exceptions=False)


def refused(words: str, *arguments: str | Path) -> None:
    result = invoke(*arguments)
    assert result.exit_code in (1, 2)
    assert re.search(words, result.output), result.output


def test_sums_are_those_of_the_summaries(tmp_path: Path) -> None:
    run_of(tmp_path / "a")
    run_of(tmp_path / "deep" / "b", wall_s=7200)
    run_of(tmp_path / "c", joules=None, host="node2")
    done = make(tmp_path)
    assert (done.seen, done.read, done.failed, done.unsummarised) == (3, 3, 0, 0)
    (row,) = answer(tmp_path, "by-user")
    assert (row["runs"], row["gpu_hours"], row["kwh"], row["runs_not_whole"]) == (3, pytest.approx(8), 5.0, 1)
    assert row["exposed_share_pct"] == pytest.approx(20.0)
    nodes = {row["node"]: (row["runs"], row["gpu_hours"], row["kwh"]) for row in answer(tmp_path, "by-node")}
    assert nodes == {"node1": (2, pytest.approx(6), 4.0), "node2": (1, pytest.approx(2), None)}
    gpus = {row["gpu_uuid"]: (row["runs"], row["gpu_number"], row["kwh"]) for row in answer(tmp_path, "by-gpu")}
    assert gpus["GPU-node1-1"] == (2, 1, 2.0) and gpus["GPU-node2-0"] == (1, 0, None)
    (calls,) = ask(connect(tmp_path / store.FOLDER), "sql", "SELECT sum(calls), sum(joules) FROM collectives").rows
    assert calls == (30, 48.0)  # of each run ten calls, and eight timed ones of 2 J


def test_only_new_and_changed_runs_are_read(tmp_path: Path) -> None:
    run = run_of(tmp_path / "a")
    run_of(tmp_path / "b")
    assert make(tmp_path).read == 2
    assert make(tmp_path).read == 0
    shutil.rmtree(run)
    run_of(run, day="2026-11-02", joules=4 * KWH)  # the run changed its day, too
    os.utime(run / "run.json", ns=(1, 1))
    run_of(tmp_path / "c")
    assert make(tmp_path).read == 2
    assert [(str(row["day"]), row["runs"], row["kwh"]) for row in answer(tmp_path, "by-day")] == [
        ("2026-11-02", 1, 4.0),
        ("2026-11-01", 2, 4.0),
    ]
    assert sum(row["runs"] for row in answer(tmp_path, "by-gpu")) == 6


def test_a_removed_run_is_marked_and_stays_in_the_sums(tmp_path: Path) -> None:
    run = run_of(tmp_path / "a")
    run_of(tmp_path / "b")
    make(tmp_path)
    run.rename(tmp_path.parent / f"{tmp_path.name}-aside")
    assert make(tmp_path).removed == 1
    assert make(tmp_path).removed == 0
    count = "SELECT count(*), sum(CASE WHEN removed THEN 1 ELSE 0 END) FROM runs"
    assert ask(connect(tmp_path / store.FOLDER), "sql", count).rows == [(2, 1)]
    (tmp_path.parent / f"{tmp_path.name}-aside").rename(run)
    assert make(tmp_path).read == 1
    assert ask(connect(tmp_path / store.FOLDER), "sql", count).rows == [(2, 0)]


def test_another_directory_marks_nothing_removed(tmp_path: Path) -> None:
    run_of(tmp_path / "one" / "a")
    run_of(tmp_path / "other" / "b")
    to = tmp_path / "index"
    index(tmp_path / "one", to, None, silent)
    assert index(tmp_path / "other", to, None, silent).removed == 0
    assert len(known_runs(to)) == 2


def garbage(folder: Path) -> None:
    (folder / "run.json").write_bytes(b"{")


def a_fifo(folder: Path) -> None:
    (folder / SUMMARY_FILE).unlink()
    os.mkfifo(folder / SUMMARY_FILE)


def no_run_json(folder: Path) -> None:
    (folder / "run.json").rename(folder / ".run-id")


def wrong_kinds(folder: Path) -> None:
    (folder / SUMMARY_FILE).write_text('{"energy": []}')


@pytest.mark.parametrize(
    ("spoil", "why"),
    [
        (garbage, "run.json: "),
        (a_fifo, "summary.json: a FIFO"),
        (no_run_json, "run.json is missing"),
        (wrong_kinds, "summary.json: "),
    ],
)
def test_a_broken_run_costs_one_row_that_says_why(tmp_path: Path, spoil: Callable[[Path], None], why: str) -> None:
    run_of(tmp_path / "a")
    spoil(run_of(tmp_path / "b"))
    assert make(tmp_path).failed == 1
    ((error,),) = ask(connect(tmp_path / store.FOLDER), "sql", "SELECT error FROM runs WHERE error <> ''").rows
    assert error.startswith(why)
    assert [row["runs"] for row in answer(tmp_path, "by-user")] == [1]


def test_figures_that_no_run_has_are_not_known(tmp_path: Path) -> None:
    run = run_of(tmp_path / "a")
    summary = json.loads((run / SUMMARY_FILE).read_text())
    summary["energy"]["joules"] = 1e300
    summary["patterns"][0]["calls"] = 1 << 70
    summary["gpus"][0]["index"] = 1 << 70
    (run / SUMMARY_FILE).write_text(json.dumps(summary))
    assert make(tmp_path).failed == 0
    assert [row["kwh"] for row in answer(tmp_path, "by-user")] == [None]


@pytest.mark.parametrize("timed", [1 << 63, 1 << 2000])
def test_a_figure_that_cannot_be_reckoned_with_stops_no_index(tmp_path: Path, timed: int) -> None:
    run_of(tmp_path / "a")
    run = run_of(tmp_path / "b")
    summary = json.loads((run / SUMMARY_FILE).read_text())
    summary["patterns"][0]["timed"] = timed
    (run / SUMMARY_FILE).write_text(json.dumps(summary))
    os.utime(run, (1 << 40, 1 << 40))  # after the year 9999
    make(tmp_path)
    assert sum(row["runs"] for row in answer(tmp_path, "by-user")) in (1, 2)
    assert len(known_runs(tmp_path / store.FOLDER)) == 2


def test_real_and_emulated_runs_are_never_in_one_sum(tmp_path: Path) -> None:
    run_of(tmp_path / "real", host="node1")
    run_of(tmp_path / "emulated", emulated="t4x8", joules=7 * KWH, host="node1")
    make(tmp_path)
    for question in ("by-user", "by-node", "by-day", "by-name"):
        assert [row["kwh"] for row in answer(tmp_path, question)] == [2.0]
        assert [row["kwh"] for row in answer(tmp_path, question, modelled=True)] == [7.0]


def test_a_run_without_a_summary_has_no_figures_until_it_is_analysed(tmp_path: Path) -> None:
    run = late_run(tmp_path / "late")
    assert invoke("index", tmp_path).exit_code == 0
    assert [(row["runs"], row["kwh"]) for row in answer(tmp_path, "by-user", modelled=True)] == [(1, None)]
    assert answer(tmp_path, "waiting-gpu", modelled=True) == []
    shown = invoke("index", tmp_path, "--analyse")
    assert shown.exit_code == 0 and "1 read" in shown.output
    assert not (run / SUMMARY_FILE).exists()  # an index writes nothing into runs
    (late,) = answer(tmp_path, "waiting-gpu", modelled=True)
    assert late["gpu_number"] == 1 and late["late_ranks"] == 1
    # The other GPU waits 50 ms in each of 20 steps, at the 45 W that it draws in communication.
    assert late["waited_gpu_hours"] * 3600 == pytest.approx(20 * 0.05, rel=0.1)
    assert late["waiting_kwh"] * KWH == pytest.approx(20 * 0.05 * 45, rel=0.2)
    (straggler,) = [row for row in answer(tmp_path, "savings", modelled=True) if row["rule"] == "straggler"]
    assert straggler["most_gpu_hours"] > 0
    assert "0 read" in invoke("index", tmp_path, "--analyse").output


def test_peers_of_a_late_rank_count_each(tmp_path: Path) -> None:
    late_run(tmp_path / "four", ranks=4)
    invoke("index", tmp_path, "--analyse")
    (late,) = answer(tmp_path, "waiting-gpu", modelled=True)
    ((cost_s,),) = ask(connect(tmp_path / store.FOLDER), "sql", "SELECT max(cost_s) FROM ranks").rows
    assert late["waited_gpu_hours"] * 3600 == pytest.approx(3 * cost_s, rel=0.05)


def test_a_summary_outlives_the_traces(tmp_path: Path) -> None:
    run_of(tmp_path / "a")
    invoke("index", tmp_path, "--analyse")
    assert [row["kwh"] for row in answer(tmp_path, "by-user")] == [2.0]


def test_an_analysis_that_fails_costs_its_run_only(tmp_path: Path) -> None:
    run_of(tmp_path / "a")

    def fails(*_: Any) -> Any:
        raise ZeroDivisionError("of this test")

    assert make(tmp_path, fails).failed == 1
    assert make(tmp_path, fails).read == 0  # it would fail again
    assert [row["kwh"] for row in answer(tmp_path, "by-user")] == [2.0]  # the summary stays


def test_a_run_that_goes_on_is_not_analysed(tmp_path: Path) -> None:
    run = training_run(tmp_path / "a")
    write_info(run, 0, exit_code=None)
    read: list[Path] = []
    make(tmp_path, lambda folder, _: read.append(folder))
    assert read == []
    for path in run.iterdir():
        os.utime(path, (1, 1))  # it was killed long ago
    make(tmp_path, lambda folder, _: read.append(folder))
    assert read == [run]


def test_two_indexers_at_once_leave_each_run_once(tmp_path: Path) -> None:
    for at in range(60):
        run_of(tmp_path / f"run{at}", day=f"2026-11-{at % 9 + 1:02d}")
    command = [sys.executable, "-m", "powerccl", "index", str(tmp_path)]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT / "python"), *sys.path])}
    started = [subprocess.Popen(command, stderr=subprocess.PIPE, text=True, env=environment) for _ in range(3)]
    ended = [(process.communicate(timeout=120)[1], process.returncode) for process in started]
    assert 0 in [code for _, code in ended]
    for said, code in ended:
        assert code == 0 or "another process writes" in said
    assert make(tmp_path).read == 0
    rows = ask(connect(tmp_path / store.FOLDER), "sql", "SELECT count(*), count(DISTINCT run) FROM runs").rows
    assert rows == [(60, 60)]
    assert not list((tmp_path / store.FOLDER).rglob(".*.parquet.*"))


def test_another_host_that_writes_is_respected_and_a_dead_writer_of_this_host_is_not(tmp_path: Path) -> None:
    run_of(tmp_path / "a")
    make(tmp_path)
    writer = tmp_path / store.FOLDER / ".writer"
    writer.write_text("node9 01234567")
    with pytest.raises(PowercclError, match="node9 writes") as raised:
        make(tmp_path)
    assert raised.value.hint.endswith(f"rm {writer}")
    writer.unlink()
    with writing(tmp_path / store.FOLDER):
        mine = writer.read_text()
        with pytest.raises(PowercclError, match="another process writes"):
            make(tmp_path)
    writer.write_text(mine)  # as a writer that was killed leaves it
    (half,) = (tmp_path / store.FOLDER / "runs").iterdir()
    (half / f".{store.PART}.0123").write_text("half")
    assert make(tmp_path).read == 0
    assert not writer.exists() and [path.name for path in half.iterdir()] == [store.PART]


@pytest.mark.parametrize("table", [*TABLES])
def test_a_pass_that_is_killed_is_made_up_for(tmp_path: Path, table: str, monkeypatch: pytest.MonkeyPatch) -> None:
    changed = run_of(tmp_path / "a")
    make(tmp_path)
    shutil.rmtree(changed)
    run_of(changed, joules=4 * KWH, wall_s=1800)
    run_of(tmp_path / "b")
    whole = files.written_whole

    def killed(path: Path) -> Any:
        if table in path.parts:
            raise KeyboardInterrupt
        return whole(path)

    with monkeypatch.context() as patch:
        patch.setattr(store, "written_whole", killed)
        with pytest.raises(KeyboardInterrupt):
            make(tmp_path)
    assert make(tmp_path).read == 2
    assert [(row["runs"], row["kwh"]) for row in answer(tmp_path, "by-user")] == [(2, 6.0)]
    assert [(row["runs"], row["kwh"]) for row in answer(tmp_path, "by-node")] == [(2, 6.0)]


def test_since_takes_days(tmp_path: Path) -> None:
    run_of(tmp_path / "a", day="2026-10-31")
    run_of(tmp_path / "b", day="2026-11-01")
    make(tmp_path)
    assert [row["runs"] for row in answer(tmp_path, "by-user", since=datetime.date(2026, 11, 1))] == [1]
    shown = invoke("fleet", tmp_path, "--by", "day", "--since", "2026-11-01", "--json", "-")
    found = json.loads(shown.output)
    assert found["since"] == "2026-11-01" and [row["day"] for row in found["by-day"]] == ["2026-11-01"]
    refused("not understood", "fleet", tmp_path, "--since", "yesterday")


def test_a_name_that_uses_more_than_last_month_is_told_from_chance(tmp_path: Path) -> None:
    months(tmp_path)
    run_of(tmp_path / "failed", day="2026-11-22", joules=9 * KWH, name="same", exit_code=1)
    make(tmp_path)
    found = json.loads(invoke("fleet", tmp_path, "--regressions", "--json", "-").output)["regressions"]
    risen = [row for row in found if row["verdict"] == "higher"]
    assert [(row["name"], row["figure"], row["old_runs"], row["new_runs"]) for row in risen] == [
        ("worse", "energy", 4, 4)
    ]
    assert risen[0]["change_pct"] == pytest.approx(30.0)
    assert risen[0]["low_pct"] < 30 < risen[0]["high_pct"] and found[0] == risen[0]
    shown = invoke("fleet", tmp_path, "--regressions").output
    assert "worse" in shown and "same" not in shown and "1 of 4 figures rose" in shown


def test_own_sql_csv_and_errors(tmp_path: Path) -> None:
    run_of(tmp_path / "a", name='=cmd|"x"')
    make(tmp_path)
    lines = invoke("fleet", tmp_path, "--sql", "SELECT name, joules FROM chosen", "--csv", "-").output.splitlines()
    assert lines == ["name,joules", '"\'=cmd|""x""",7200000.0']
    file = tmp_path / "query.sql"
    file.write_text("SELECT count(*) AS many FROM runs")
    assert json.loads(invoke("fleet", tmp_path, "--sql", file, "--json", "-").output)["sql"] == [{"many": 1}]
    refused(r"DuckDB: .*nope", "fleet", tmp_path, "--sql", "SELECT nope FROM runs")
    refused("is no index", "fleet", tmp_path / "a")
    refused("cannot read", "index", tmp_path / "gone")
    (tmp_path / "empty").mkdir()
    invoke("index", tmp_path / "empty")
    refused("no run yet", "fleet", tmp_path / "empty")


@pytest.mark.parametrize("width", ["80", "140"])
def test_tables_fit_the_terminal(tmp_path: Path, width: str, monkeypatch: pytest.MonkeyPatch) -> None:
    late_run(tmp_path / "late")
    run_of(tmp_path / "a")
    invoke("index", tmp_path, "--analyse")
    monkeypatch.setenv("COLUMNS", width)
    for words in ([], ["--by", "user"], ["--by", "gpu"], ["--waiting"], ["--savings"], ["--regressions"]):
        shown = invoke("fleet", tmp_path, "--emulated", *words)
        assert shown.exit_code == 0
        assert max(len(line) for line in shown.output.splitlines()) <= int(width)
    assert "GPU 1 of node1 is late" in invoke("fleet", tmp_path, "--emulated").output


def test_an_index_of_another_version_is_refused(tmp_path: Path) -> None:
    run_of(tmp_path / "a")
    make(tmp_path)
    (tmp_path / store.FOLDER / store.INDEX_FILE).write_text('{"schema": 99}')
    with pytest.raises(PowercclError, match="another powerccl"):
        make(tmp_path)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a folder to another user")
def test_root_writes_no_index_where_a_user_leads(tmp_path: Path) -> None:
    run_of(tmp_path / "a")
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / store.FOLDER).symlink_to(tmp_path / "elsewhere")
    os.lchown(tmp_path / store.FOLDER, 65534, 65534)
    with pytest.raises(PowercclError, match="belongs to a user"):
        make(tmp_path)
    assert not list((tmp_path / "elsewhere").iterdir())


def test_programs() -> None:
    assert program_of(["torchrun", "--nproc-per-node", "8", "src/train.py", "--lr", "1"]) == "train"
    assert program_of(["mpiexec", "-n", "64", "./app", "in.dat"]) == "app"
    assert program_of(["mpiexec", "--bind-to", "core", "-x", "LD_PRELOAD", "-n", "2", "./app", "env"]) == "app"
    assert program_of(["mpiexec"]) == "mpiexec"
    assert program_of([]) == ""


def test_every_question_is_answered_in_duckdb(tmp_path: Path) -> None:
    filled(tmp_path)
    connection = connect(tmp_path / store.FOLDER, modelled=True)
    for question in questions():
        assert ask(connection, question).rows, question


def filled(root: Path) -> None:
    """An index with rows in each table, all of them modelled."""
    months(root, emulated="t4x8")
    late_run(root / "late")
    invoke("index", root, "--analyse")


@pytest.mark.parametrize("engine", [pytest.param(name, marks=pytest.mark.large(name)) for name in ("chdb", "pyspark")])
def test_other_engines_answer_the_same(tmp_path: Path, engine: str) -> None:
    filled(tmp_path)
    connection = connect(tmp_path / store.FOLDER, modelled=True)
    others = {"chdb": by_clickhouse, "pyspark": by_spark}[engine](tmp_path / store.FOLDER)
    for second in others:
        first = ask(connection, second.question)
        assert first.columns == second.columns
        for row, other in zip(first.rows, second.rows, strict=True):
            for one, two in zip(row, other, strict=True):
                if isinstance(one, (int, float)):
                    assert math.isclose(one, float(two), rel_tol=1e-9, abs_tol=1e-11)
                else:
                    assert str(two) == str(one)


def by_clickhouse(folder: Path) -> list[Answer]:
    from chdb import session

    opened = session.Session()
    answers = []
    try:
        for statement in views(f"file('{folder}/{{}}/day=*/part.parquet', Parquet)", modelled=True):
            opened.query(statement)
        for question in questions():
            made = json.loads(str(opened.query(query_of(question), "JSONCompact")))
            names = [column["name"] for column in made["meta"]]
            answers.append(Answer(question, names, [tuple(row) for row in made["data"]]))
    finally:
        opened.close()
    return answers


def by_spark(folder: Path) -> list[Answer]:
    from pyspark.sql import SparkSession

    builder = SparkSession.builder.master("local[1]").config("spark.ui.enabled", "false")
    opened = builder.config("spark.sql.shuffle.partitions", "1").getOrCreate()
    try:
        for statement in views("parquet.`{}`", modelled=True):
            of_table = re.sub(r"parquet\.`(\w+)`", rf"parquet.`{folder}/\1`", statement)
            opened.sql(of_table.replace("CREATE VIEW", "CREATE OR REPLACE TEMPORARY VIEW"))
        frames = {question: opened.sql(query_of(question)) for question in questions()}
        return [Answer(name, each.columns, [tuple(row) for row in each.collect()]) for name, each in frames.items()]
    finally:
        opened.stop()


def test_print_sql_is_what_is_asked(tmp_path: Path) -> None:
    import duckdb

    run_of(tmp_path / "a")
    make(tmp_path)
    shown = invoke("fleet", tmp_path, "--by", "user", "--print-sql").output
    statements = [each for each in shown.split(";") if each.strip()]
    connection = duckdb.connect()
    for statement in statements[:-1]:
        connection.execute(statement)
    assert connection.execute(statements[-1]).fetchall() == ask(connect(tmp_path / store.FOLDER), "by-user").rows


def test_the_folder_of_an_index_may_have_any_name(tmp_path: Path) -> None:
    assert duckdb_source(Path("/a/it's {here}")).format("runs").startswith("read_parquet('/a/it''s {here}/runs/")


def test_the_page_lists_each_column() -> None:
    page = (ROOT / "docs/guides/fleet.md").read_text()
    for table in TABLES:
        part = page.partition(f"### `{table}`")[2].partition("\n#")[0]
        assert re.findall(r"^\| `(\w+)`", part, re.MULTILINE) == list(columns(table)), table


def test_parts_have_the_types_of_the_schema(tmp_path: Path) -> None:
    filled(tmp_path)
    kinds = {"int": pl.Int64, "float": pl.Float64, "str": pl.String, "bool": pl.Boolean, "date": pl.Date}
    for table in TABLES:
        for file in (tmp_path / store.FOLDER / table).rglob("*.parquet"):
            schema = pl.read_parquet_schema(file)
            assert list(schema) == list(columns(table))
            assert all(schema[name] == kinds[kind] for name, kind in columns(table).items() if kind in kinds)


def test_traces_alone_make_no_run(tmp_path: Path) -> None:
    """Of a folder without run.json and .run-id nothing says that it is a run."""
    (tmp_path / "a").mkdir()
    trace = TraceWriter(0, 1)
    trace.comm(1 * MS)
    trace.write(tmp_path / "a")
    assert make(tmp_path).seen == 0
