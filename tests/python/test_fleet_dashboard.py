# SPDX-License-Identifier: Apache-2.0
"""The Grafana dashboard of all runs: its SQL is that of the shipped questions, and engines answer it."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from test_fleet import filled

from powerccl.fleet import store
from powerccl.fleet.ask import connect, query_of, views

DASHBOARD = Path(__file__).parents[2] / "packaging/fleet/grafana-powerccl-fleet.json"
QUESTIONS = {
    "Users": "by-user",
    "Programs": "by-program",
    "Nodes": "by-node",
    "GPUs": "by-gpu",
    "Late GPUs": "waiting-gpu",
    "Savings found": "savings",
}
Columns = list[str]


def panels() -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = json.loads(DASHBOARD.read_text())["panels"]
    return found


def sql_of(panel: dict[str, Any]) -> str:
    (target,) = panel["targets"]
    assert target["datasource"]["type"] == "grafana-clickhouse-datasource"
    return str(target["rawSql"])


def in_range(question: str) -> str:
    """A shipped question without its comments, about the days that the dashboard shows."""
    sql = re.sub(r"^--.*\n", "", query_of(question), flags=re.MULTILINE).strip()

    def narrowed(match: re.Match[str]) -> str:
        return f"{match[1]} (SELECT * FROM {match[2]} WHERE $__dateFilter(day)) AS {match[3] or match[2]}"

    return re.sub(r"\b(FROM|JOIN) (chosen\w*)(?: AS (\w+))?", narrowed, sql)


def test_panels_ask_the_shipped_questions() -> None:
    kinds: dict[str, set[str]] = {}
    for panel in panels():
        kinds.setdefault(panel["type"], set()).add(panel["title"])
        if panel["type"] == "stat":
            assert sql_of(panel) == in_range("overview"), panel["title"]
        if panel["type"] == "table":
            assert sql_of(panel) == in_range(QUESTIONS[panel["title"]]), panel["title"]
    assert kinds["table"] == set(QUESTIONS) and len(kinds["stat"]) == 6 and len(kinds["timeseries"]) == 2
    ids = [panel["id"] for panel in panels()]
    assert len(ids) == len(set(ids))


def by_duckdb(index: Path) -> Callable[[str], tuple[Columns, int]]:
    connection = connect(index, modelled=True)

    def asked(sql: str) -> tuple[Columns, int]:
        made = connection.execute(sql)
        return [column[0] for column in made.description or []], len(made.fetchall())

    return asked


def by_clickhouse(index: Path) -> Callable[[str], tuple[Columns, int]]:
    from chdb import session

    opened = session.Session()
    for statement in views(f"file('{index}/{{}}/day=*/part.parquet', Parquet)", modelled=True):
        opened.query(statement)

    def asked(sql: str) -> tuple[Columns, int]:
        made = json.loads(str(opened.query(sql, "JSONCompact")))
        return [column["name"] for column in made["meta"]], len(made["data"])

    return asked


@pytest.mark.parametrize("engine", ["duckdb", pytest.param("chdb", marks=pytest.mark.large("chdb"))])
def test_every_panel_is_answered_with_the_columns_that_it_shows(tmp_path: Path, engine: str) -> None:
    filled(tmp_path)
    asked = {"duckdb": by_duckdb, "chdb": by_clickhouse}[engine](tmp_path / store.FOLDER)
    for panel in panels():
        sql = sql_of(panel)
        columns, rows = asked(sql.replace("$__dateFilter(day)", "day >= CAST('2020-01-01' AS DATE)"))
        assert rows, panel["title"]
        shown = {each["matcher"]["options"] for each in panel["fieldConfig"]["overrides"]}
        if panel["type"] == "stat":
            shown = {panel["options"]["reduceOptions"]["fields"].strip("/^$")}
        assert shown <= set(columns), panel["title"]
        if panel["type"] == "timeseries":
            assert columns[0] == "time"
        _, none = asked(sql.replace("$__dateFilter(day)", "day < CAST('2020-01-01' AS DATE)"))
        assert not none or panel["type"] == "stat", "the range of time narrows each table"
