# SPDX-License-Identifier: Apache-2.0
"""The outputs of a run as a user's programs read them: printed figures, tables, metrics and tracks.

The standard library is enough, and nothing of powerccl is imported. `audit.py` compares what is read here.
"""

from __future__ import annotations

import csv
import io
import json
import re
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

from perfetto_tracks import Track, tracks

FACTORS = {"": 1.0, "%": 1.0, "GB/s": 1.0, "min": 60.0, "h": 3600.0, "d": 86400.0, "B": 1.0}
FACTORS |= {f"{prefix}B": 1024.0**at for at, prefix in enumerate(("Ki", "Mi", "Gi", "Ti"), 1)}
FACTORS |= {
    prefix + unit: factor
    for unit in ("J", "W", "s")
    for prefix, factor in {"n": 1e-9, "µ": 1e-6, "m": 1e-3, "": 1.0, "k": 1e3, "M": 1e6, "G": 1e9}.items()
}
UNITS = "|".join(sorted(map(re.escape, filter(None, FACTORS)), key=len, reverse=True))
FIGURE = re.compile(rf"(-?\d[\d,]*(?:\.\d+)?)(?: ±(\d[\d,]*(?:\.\d+)?))?(?: ({UNITS})(?![\w/]))?")


@dataclass(frozen=True)
class Shown:
    """A figure as printed: its value, and by how much rounding may have changed it."""

    value: float
    slack: float
    at_least: bool = False
    below: bool = False  # `<0.0001`: less than this


def shown(text: str) -> Shown | None:
    """A figure of a page; None: a dash, `not known`, or no figure."""
    first = FIGURE.search(text)
    if not first:
        return None
    value, slack = 0.0, 0.0
    for digits, error, unit in FIGURE.findall(text) if re.search(r"\d (min|h|d) \d", text) else [first.groups()]:
        factor = FACTORS[unit or ""]
        step = 0.5 * 10.0 ** -len(digits.partition(".")[2])
        value += float(digits.replace(",", "")) * factor
        slack = (max(step, 0.5 * float(error.replace(",", ""))) if error else step) * factor
    return Shown(value, slack * 1.01, "at least" in text or "≥" in text, text.startswith("<"))


class Page(HTMLParser):
    """What an HTML page shows: its texts in order, and its tables' rows of cells."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.texts: list[str] = []
        self.rows: list[list[str]] = []
        self._hidden, self._cell = 0, False
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self._hidden += tag in ("script", "style", "svg")
        if tag == "tr":
            self.rows.append([])
        if tag in ("td", "th") and self.rows:
            self.rows[-1].append("")
            self._cell = True

    def handle_endtag(self, tag: str) -> None:
        self._hidden -= tag in ("script", "style", "svg")
        self._cell &= tag not in ("td", "th")

    def handle_data(self, data: str) -> None:
        if self._hidden or not data.strip():
            return
        self.texts.append(data.strip())
        if self._cell:
            self.rows[-1][-1] = f"{self.rows[-1][-1]} {data.strip()}".strip()

    def behind(self, label: str) -> str | None:
        """The text that follows a label."""
        return self.texts[self.texts.index(label) + 1] if label in self.texts[:-1] else None


def text_rows(text: str, first: str, *heads: str) -> list[dict[str, str]]:
    """Rows of the text tables whose head has these words, as cells by head; the first column is called `first`.

    A cell belongs to the head under which it ends, as figures are flush right.
    """
    found: list[dict[str, str]] = []
    spans: list[tuple[str, int]] = []
    for line in text.splitlines():
        cells = [(cell.group(), cell.start(), cell.end()) for cell in re.finditer(r"\S+(?: \S+)*", line)]
        names = [cell[0] for cell in cells]
        if all(any(name.startswith(head) for name in names) for head in heads):
            spans = [(name, end) for name, _, end in cells]
        elif not cells:
            spans = []
        elif spans:
            row = {first: cells[0][0]}
            row.update({name: cell for cell, _, end in cells for name, at in spans if end == at})
            found.append(row)
    return found


def samples(text: str) -> dict[str, list[tuple[dict[str, str], float]]]:
    """Prometheus' text format: labels and value of each sample by metric."""
    found: dict[str, list[tuple[dict[str, str], float]]] = defaultdict(list)
    for line in text.splitlines():
        if match := re.fullmatch(r"(\w+)(?:\{(.*)\})? (\S+)", line):
            found[match[1]].append((dict(re.findall(r'(\w+)="((?:[^"\\]|\\.)*)"', match[2] or "")), float(match[3])))
    return found


@dataclass
class Outputs:
    """All outputs of one run. `said`: what a report says of missing parts, a sentence each."""

    text: str
    html: Page
    report: dict[str, Any]
    tables: dict[str, list[dict[str, str]]]
    export: dict[str, list[tuple[dict[str, str], float]]]
    tracks: list[Track]
    kept: dict[str, Any] | None  # summary.json

    @classmethod
    def read(cls, run: Path, folder: Path, text: str, export: str) -> Outputs:
        """The files json, html, perfetto and the folder csv of `folder`, and what two verbs printed."""
        kept = run / "summary.json"
        tables = {path.stem: list(csv.DictReader(io.StringIO(path.read_text()))) for path in folder.glob("csv/*.csv")}
        return cls(
            text,
            Page((folder / "html").read_text()),
            json.loads((folder / "json").read_text()),
            tables,
            samples(export),
            tracks((folder / "perfetto").read_bytes()),
            json.loads(kept.read_text()) if kept.exists() else None,
        )

    @property
    def said(self) -> set[str]:
        """What the report says of parts that are missing."""
        summary = self.report["summary"]
        sentences = [*summary["problems"], *summary["notes"], *summary["energy"]["missing"], summary["unrecorded"]]
        return {*sentences, summary["shares"]["reason"], summary["energy"]["reason"]} - {""}


def total(metrics: Mapping[str, Sequence[tuple[dict[str, str], float]]], name: str) -> float | None:
    """The sum of a metric over its labels; None: it is not there."""
    return sum(value for _, value in metrics[name]) if metrics.get(name) else None


def dict_of(metrics: Mapping[str, Iterable[tuple[dict[str, str], float]]], name: str) -> dict[str, float]:
    """A GPU's metric by UUID."""
    return {labels["uuid"]: value for labels, value in metrics.get(name, [])}
