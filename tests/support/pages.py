# SPDX-License-Identifier: Apache-2.0
"""Blocks of documentation pages: their commands, and the output that the page shows."""

from __future__ import annotations

import json
import re
from dataclasses import asdict, dataclass, field
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
KEPT = ROOT / "build/blocks"
PAGES = [ROOT / "README.md", ROOT / "docs/tutorial.md", *sorted((ROOT / "docs/guides").glob("*.md"))]
FENCE = re.compile(r"^( *)```(console|sh|bash|text)\n(.*?)^ *```$", re.DOTALL | re.MULTILINE)


@dataclass
class Step:
    """A command of a page, and the lines of its output that the page shows."""

    command: str
    shown: list[str] = field(default_factory=list)


@dataclass
class Block:
    """A fenced block: `console` has commands after `$`, `sh` and `bash` are a script, `text` is output alone."""

    page: str
    line: int
    kind: str
    text: str
    steps: list[Step] = field(default_factory=list)
    shown: list[str] = field(default_factory=list)

    @property
    def name(self) -> str:
        """Page and line, as an editor opens it."""
        return f"{self.page}:{self.line}"


@dataclass
class Outcome:
    """What became of a block: run and as shown, different with the reason, or not run with the reason."""

    block: str
    run: bool
    different: str = ""
    why_not: str = ""


def blocks_of(page: Path) -> list[Block]:
    """Blocks of commands and output, in the page's order; blocks of other languages are not among them."""
    text = page.read_text(encoding="utf-8")
    found = []
    for match in FENCE.finditer(text):
        indent, kind, inside = match.groups()
        lines = [line.removeprefix(indent) for line in inside.splitlines()]
        where = text.count("\n", 0, match.start()) + 1
        block = Block(str(page.relative_to(ROOT)), where, kind, "\n".join(lines) + "\n")
        if kind == "console":
            block.steps = steps_of(lines)
        elif kind in ("sh", "bash"):
            block.steps = [Step(block.text)]
        else:
            block.shown = [line for line in lines if line.strip() not in ("", "…")]
        found.append(block)
    return found


def steps_of(lines: list[str]) -> list[Step]:
    """Commands after `$ `, continued by `> `, each with the output below it."""
    steps: list[Step] = []
    for line in lines:
        if line.startswith("$ "):
            steps.append(Step(line[2:]))
        elif line.startswith("> "):
            steps[-1].command += "\n" + line[2:]
        elif line.strip() not in ("", "…"):
            steps[-1].shown.append(line)
    return steps


def label(line: str) -> str:
    """The text of a line of output up to its first figure, bar or column, which no measurement changes.

    Which policy would save the most within its budget depends on the times of the recorded run.
    """
    text = re.sub(r"^\W+|^\d+\. |^[a-z-]+ (?=would save )", "", line)
    return re.split(r"\s{2,}|[\d█▓▁░]", text)[0].strip()


def missing(shown: list[str], output: str) -> list[str]:
    """Lines of the page whose label the output lacks, wherever either breaks its lines."""
    words = " ".join(output.split())
    return [line for line in shown if label(line) not in words]


def keep(name: str, outcomes: list[Outcome]) -> None:
    """Leave a test's outcomes for evidence/scripts/figures-first.py."""
    KEPT.mkdir(parents=True, exist_ok=True)
    (KEPT / f"{name}.json").write_text(json.dumps([asdict(each) for each in outcomes], indent=1) + "\n")


def kept() -> list[Outcome]:
    """Outcomes that tests left, for every block of every page; a block of a page that left none did not run."""
    found = {each["block"]: Outcome(**each) for file in KEPT.glob("*.json") for each in json.loads(file.read_text())}
    names = [block.name for page in PAGES for block in blocks_of(page)]
    return [found.get(name, Outcome(name, False, why_not="its test failed")) for name in names]
