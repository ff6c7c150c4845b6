# SPDX-License-Identifier: Apache-2.0
"""Do printed figures and tables agree with the JSON of the same report? A part of `audit.py`."""

from __future__ import annotations

import re
from collections import defaultdict
from typing import TYPE_CHECKING, Any

from read_outputs import Page, shown, text_rows

if TYPE_CHECKING:
    from audit import Audit

CSV_OF = {
    "ranks": ("ranks",),
    "patterns": ("summary", "patterns"),
    "gpus": ("summary", "gpus"),
    "counts": ("counts",),
    "energy": ("energy", "kinds"),
    "bandwidth": ("link",),
    "stragglers": ("peers", "ranks"),
}


def pages(audit: Audit) -> None:
    """Printed figures against the report's, in text and HTML."""
    summary, text, page = audit.summary, audit.outputs.text, audit.outputs.html
    energy, talk, shares = summary["energy"], summary["communication"], summary["shares"]
    joules = energy["joules"] if energy["joules"] is not None else energy["joules_at_least"]
    talked = talk["joules"] if talk["joules"] is not None else talk["joules_at_least"]
    rows = {row["what"]: row for row in text_rows(text, "what", "time", "energy")}
    for what, time_s, joule in (
        ("whole run", summary["wall_s"], joules),
        ("communication", talk["time_s"], talked),
        ("elsewhere", None, None),
    ):
        row = rows.get(what, {})
        cell = next((row[name] for name in row if name.startswith("energy")), None)
        audit.printed("text", f"time of {what}", row.get("time"), time_s)
        audit.printed("text", f"energy of {what}", cell, joule)
        figure = shown(cell) if cell else None
        if what == "whole run" and figure and figure.at_least != (energy["joules"] is None):
            audit.fault("text", f"energy {cell!r}, where joules are {energy['joules']}")
    for column in ("time", "energy"):
        figures = [
            next((shown(cell) for name, cell in rows.get(what, {}).items() if name.startswith(column)), None)
            for what in ("whole run", "communication", "elsewhere")
        ]
        known = [figure for figure in figures if figure]
        if len(known) == len(figures) and not known[0].at_least:
            slack = sum(figure.slack for figure in known)
            what = f"communication + elsewhere ({column})"
            audit.same("text", what, known[1].value + known[2].value, known[0].value, slack)
    for name, key in (("communicating", "communicating_pct"), ("exposed", "exposed_pct")):
        if match := re.search(rf"{name} (?:at least )?([\d.]+ %)[^\n]*working time", text):
            audit.printed("text", f"share {name}", match[1], shares[key])
    for label, right in (
        ("time", summary["wall_s"]),
        ("energy", joules),
        ("communicating", shares["communicating_pct"]),
        ("exposed communication", shares["exposed_pct"]),
        ("start-up", shares["startup_s"]),
    ):
        audit.printed("html", label, page.behind(label), right)
    split = audit.report["energy"]
    for name in ("communication", "computation", "idle", "unexplained"):
        right = split[f"joules_{name}"]
        cells = [row[1] for row in page.rows if len(row) == 2 and row[0] == name and shown(row[1])]
        for cell in cells:
            audit.printed("html", f"energy of {name}", cell, right)
        if match := re.search(rf"energy of all GPUs:[^\n]*{name} (\d[^,\n]*)", text):
            audit.printed("text", f"energy of {name}", match[1], right)
    gpus_and_ranks(audit, text, page)
    classes(audit, text, page)
    if summary["mpi"]:
        mpi_pages(audit)


def gpus_and_ranks(audit: Audit, text: str, page: Page) -> None:
    """Tables with a row a GPU or a rank."""
    heads: list[str] = []
    rows: list[dict[str, str]] = []
    for cells in page.rows:
        if cells[:2] == ["GPU", "ranks"]:
            heads = cells
        elif heads and len(cells) == len(heads):
            rows.append(dict(zip(heads, cells, strict=True)))
        else:
            heads = []
    gpus = audit.summary["gpus"] if len(rows) == len(audit.summary["gpus"]) else []
    for row, gpu in zip(rows, gpus, strict=False):
        joules = gpu["joules"] if gpu["joules"] is not None else gpu["joules_at_least"]
        audit.printed("html", f"energy of GPU {gpu['gpu']}", row.get("energy"), joules)
        audit.printed("html", f"power of GPU {gpu['gpu']}", row.get("power"), gpu["average_watts"])
        audit.printed("html", f"GPU {gpu['gpu']} communicating", row.get("communicating"), gpu["communication_s"])
    ranks = {str(row["rank"]): row for row in audit.report["ranks"]}
    for row in text_rows(text, "rank", "rank", "working time", "communicating"):
        if right := ranks.get(row["rank"]):
            audit.printed("text", f"working time of rank {row['rank']}", row.get("working time"), right["span_s"])
            for head, name in (("communicating", "communication_s"), ("exposed", "exposed_s")):
                pct = None if right[name] is None or not right["span_s"] else 100 * right[name] / right["span_s"]
                audit.printed("text", f"{head} of rank {row['rank']}", row.get(head), pct)


def classes(audit: Audit, text: str, page: Page) -> None:
    """Tables with a row a pattern and size: by place, since classes are printed by the median size."""
    names = [row["pattern"].replace("_", "-") for row in audit.summary["patterns"]]
    printed = [row for row in text_rows(text, "pattern", "pattern", "calls") if row["pattern"] in names]
    for row, right in zip(printed, audit.summary["patterns"], strict=False):
        for head, value in (
            ("calls", right["calls"]),
            ("time / GPU", right["time_s"] + right["estimated_s"]),
            ("median", None if right["median_us"] is None else right["median_us"] / 1e6),
            ("bus GB/s", right["busbw_gbs"]),
            ("energy / op", right["joules_per_operation"]),
        ):
            if row["pattern"] == right["pattern"].replace("_", "-") and "captured" not in row.get(head, ""):
                audit.printed("text", f"{head} of {row['pattern']}", row.get(head), value)
    heads: list[str] = []
    of_page: dict[tuple[str, str], dict[str, str]] = defaultdict(dict)
    for cells in page.rows:
        if cells[:2] == ["kind", "size"]:
            heads = cells
        elif len(cells) == len(heads):
            of_page[cells[0], cells[1]].update(zip(heads, cells, strict=True))
        else:
            heads = []
    for title, pairs in (
        ("bus bandwidth", {"GB/s": "GB/s"}),
        ("energy per GPU", {"per operation": "per operation and GPU"}),
    ):
        for row in text_rows(text, "kind", title, "size", "kernels"):
            other = of_page.get((row["kind"], row.get("size", "")), {})
            for mine, theirs in pairs.items():
                pair = shown(row.get(mine, "")), shown(other.get(theirs, ""))
                if pair[0] and pair[1]:
                    audit.same("twice", f"{theirs} of {row['kind']} in text and HTML", pair[0].value, pair[1].value,
                              pair[0].slack + pair[1].slack)  # fmt: skip


def mpi_pages(audit: Audit) -> None:
    """MPI's printed figures."""
    found, page = audit.summary["mpi"], audit.outputs.html
    rows = {row["what"]: row for row in text_rows(audit.outputs.text, "what", "time / rank", "of the run")}
    for what, name in (("in MPI", "time"), ("transferring", "transfer"), ("waiting", "wait"), ("asleep", "sleep")):
        audit.printed("text", f"MPI: {what}", rows.get(what, {}).get("time / rank"), found[f"{name}_per_rank_s"])
        audit.printed("text", f"MPI: {what}", rows.get(what, {}).get("all ranks"), found[f"{name}_s"])
    calls = [row for row in text_rows(audit.outputs.text, "call", "call", "calls") if row["call"].startswith("MPI_")]
    heads: list[str] = []
    of_page = []
    for cells in page.rows:
        heads = cells if cells[:1] == ["call"] else heads
        if cells and cells[0].startswith("MPI_"):
            of_page.append(dict(zip(heads, cells, strict=False)))
    for where, printed, time in (("text", calls, "time / rank"), ("html", of_page, "time per rank")):
        for row, right in zip(printed, found["rows"], strict=False):
            if row["call"] != right["function"]:
                break
            audit.printed(where, f"calls of {row['call']}", row.get("calls"), right["calls"])
            audit.printed(where, f"time of {row['call']}", row.get(time), right["time_per_rank_s"])
            audit.printed(where, f"waiting in {row['call']}", row.get("waiting"), right["wait_per_rank_s"])


def tables(audit: Audit) -> None:
    """CSV against the report: cells of the same name are the same."""
    for name, path in CSV_OF.items():
        rows: Any = audit.report
        for key in path:
            rows = rows[key]
        table = audit.outputs.tables.get(name, [])
        if len(table) != len(rows):
            audit.fault("csv", f"{name}.csv has {len(table)} rows of {len(rows)}")
            continue
        for cells, row in zip(table, rows, strict=True):
            for key, value in row.items():
                if isinstance(value, (int, float)) and not isinstance(value, bool) and cells.get(key):
                    audit.same("csv", f"{key} in {name}.csv", float(cells[key]), value)
