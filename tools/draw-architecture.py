#!/usr/bin/env python3
"""Draw docs/images/architecture.svg from the arrows that `make lint` enforces.

Native folders come from ALLOWED in tools/check-arrows.py, Python's layers from import-linter's contract in
pyproject.toml. tools/generate-reference.py writes the picture, and its --check compares it.
"""

import math
import re
import runpy
from collections.abc import Sequence
from dataclasses import dataclass, field
from html import escape
from itertools import pairwise
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
WIDTH, PYTHON_AT = 1100, 720  # px; the other pictures of the docs are as wide
JOB = (24, 384)  # left and right edge of what lives in the job's process
MARGIN = 16  # in it
BOX_HEIGHT, ROW, BAND_GAP, TOP = 34, 78, 26, 76
LETTER, PAD, GAP = 8.6, 30, 26  # of a box: px for a letter, for both margins together, and to the next box
OUTSIDE = {"hooks"}  # imports nothing of ours: it runs in the job's own Python
NODE_HALF = 8  # of the place that an arrow takes where it passes a row
ROUNDS = 24  # of sorting and of moving: with twice as many the picture is the same

STYLE = """
  .page { fill: #f7f8fa } .job { fill: #2a78d614; stroke: #2a78d6; stroke-dasharray: 5 4 }
  .box { fill: #fff; stroke: #b9c1ca } .in .box { stroke: #2a78d6 } .band { fill: #e9ecef }
  text { fill: #16191d; font: 15px system-ui, -apple-system, "Segoe UI", sans-serif; text-anchor: middle }
  .left { text-anchor: start } .quiet { fill: #5c6570; font-size: 13px } .title { font-weight: 600 }
  .arrow { fill: none; stroke: #5c6570; stroke-width: 1.4 } .head { fill: #5c6570 }
  @media (prefers-color-scheme: dark) {
    .page { fill: #0f1216 } .job { fill: #4d9bf018; stroke: #4d9bf0 } .box { fill: #171b21; stroke: #3a424c }
    .in .box { stroke: #4d9bf0 } .band { fill: #1e242c } text { fill: #e6e9ed } .quiet { fill: #98a2ae }
    .arrow { stroke: #98a2ae } .head { fill: #98a2ae }
  }
"""

Arrows = dict[str, set[str]]


@dataclass
class Node:
    """A room, or a place where a long arrow passes a row."""

    name: str
    row: int
    half: float
    x: float = 0.0
    above: list["Node"] = field(default_factory=list)
    below: list["Node"] = field(default_factory=list)


def native_rules() -> tuple[Arrows, dict[str, set[str]]]:
    """For each native folder, the folders that it may include; and the parts that folders stand in."""
    rules = runpy.run_path(str(ROOT / "tools" / "check-arrows.py"))
    return rules["ALLOWED"], rules["PARTS"]


def python_layers() -> list[list[str]]:
    """The layers of import-linter's contract, the highest first, each as its packages."""
    text = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    contract = re.search(r'type = "layers"\nlayers = \[(.*?)\]', text, re.DOTALL)
    if contract is None:
        raise SystemExit("pyproject.toml: no contract of import-linter with layers")
    # "|": the packages of this layer do not import each other.
    layers = [
        [name.strip().removeprefix("powerccl.") for name in layer.split("|")]
        for layer in re.findall(r'"([^"]+)"', contract[1])
    ]
    drawn = {name for layer in layers for name in layer} | OUTSIDE
    packages = {path.parent.name for path in (ROOT / "python" / "powerccl").glob("*/__init__.py")}
    if drawn != packages:
        raise SystemExit(f"pyproject.toml: not the packages of python/powerccl: {sorted(drawn ^ packages)}")
    return layers


def reached(arrows: Arrows, start: str) -> set[str]:
    """All that a room leads to, by arrows of arrows."""
    found: set[str] = set()
    waiting = [start]
    while waiting:
        for name in arrows[waiting.pop()] - found:
            found.add(name)
            waiting.append(name)
    return found


def without_shortcuts(arrows: Arrows) -> Arrows:
    """The arrows that no chain of others stands for."""
    return {
        room: {name for name in allowed if not any(name in reached(arrows, other) for other in allowed - {name})}
        for room, allowed in arrows.items()
    }


def forbidden_shortcuts(arrows: Arrows) -> list[str]:
    """Where a chain of arrows leads, and an include may not."""
    return [
        f"{room} → {name}"
        for room, allowed in sorted(arrows.items())
        for name in sorted(reached(arrows, room) - allowed)
    ]


def rows_of(arrows: Arrows) -> dict[str, int]:
    """Each room's row, counted from below: one above the highest room that it leads to."""
    rows: dict[str, int] = {}
    while len(rows) < len(arrows):
        for room, allowed in arrows.items():
            if room not in rows and allowed <= set(rows):
                rows[room] = max((rows[name] + 1 for name in allowed), default=0)
    return rows


def nodes_of(arrows: Arrows, left: set[str]) -> list[list[Node]]:
    """Rooms in rows from below, in an order with few crossings; those of `left` stand left of all others."""
    rows = rows_of(arrows)
    # A room that only one other leads to stands right below it.
    for room in sorted(rows, key=lambda name: rows[name]):
        users = [other for other in arrows if room in arrows[other]]
        if len(users) == 1 and not arrows[room]:
            rows[room] = rows[users[0]] - 1
    levels: list[list[Node]] = [[] for _ in range(max(rows.values()) + 1)]
    nodes = {room: Node(room, rows[room], (LETTER * len(room) + PAD) / 2) for room in sorted(arrows)}
    for node in nodes.values():
        levels[node.row].append(node)
    for room in sorted(arrows):
        for name in sorted(arrows[room]):
            upper = nodes[room]
            for row in range(rows[room] - 1, rows[name], -1):
                passing = Node(f"{room}>{name}", row, NODE_HALF)
                levels[row].append(passing)
                _join(upper, passing)
                upper = passing
            _join(upper, nodes[name])
    for turn in range(ROUNDS):
        downwards = turn % 2 == 0
        for level in reversed(levels) if downwards else levels:
            for place, node in enumerate(level):
                node.x = float(place)
            level.sort(key=lambda node: (not _is_left(node, left), _middle(node, downwards), node.name))
            for place, node in enumerate(level):
                node.x = float(place)
    return levels


def _join(upper: Node, lower: Node) -> None:
    upper.below.append(lower)
    lower.above.append(upper)


def _is_left(node: Node, left: set[str]) -> bool:
    return node.name.split(">")[0] in left


def _middle(node: Node, downwards: bool) -> float:
    near = node.above if downwards else node.below
    return sum(other.x for other in near) / len(near) if near else node.x


def place(levels: list[list[Node]], zones: dict[bool, tuple[float, float]], left: set[str]) -> None:
    """Give each node its x: near its neighbours, in the order of its row, inside its zone."""
    parts = [[node for node in level if _is_left(node, left) is side] for level in levels for side in (True, False)]
    bounds = [zones[side] for _ in levels for side in (True, False)]
    for level, (first, last) in zip(parts, bounds, strict=True):
        for number, node in enumerate(level):
            node.x = first + (last - first) * (number + 0.5) / len(level)
    for turn in range(ROUNDS):
        order = list(zip(parts, bounds, strict=True))
        for level, (first, last) in reversed(order) if turn % 2 == 0 else order:
            for node in level:
                near = node.above + node.below
                node.x = sum(other.x for other in near) / len(near) if near else node.x
            if level:
                _spread(level, first, last)


def _spread(level: list[Node], first: float, last: float) -> None:
    """Move nodes apart, as little as it takes."""
    for _ in range(ROUNDS):
        for one, other in pairwise(level):
            short = one.half + GAP + other.half - (other.x - one.x)
            if short > 0:
                one.x -= short / 2
                other.x += short / 2
        level[0].x = max(level[0].x, first + level[0].half)
        level[-1].x = min(level[-1].x, last - level[-1].half)
    for one, other in pairwise(level):
        other.x = max(other.x, one.x + one.half + GAP + other.half)


def box(name: str, x: float, y: float, half: float) -> str:
    """A room, by the middle of its upper edge."""
    rectangle = (
        f'<rect class="box" x="{x - half:.0f}" y="{y:.0f}" width="{2 * half:.0f}" height="{BOX_HEIGHT}" rx="7"/>'
    )
    return f'{rectangle}<text x="{x:.0f}" y="{y + BOX_HEIGHT / 2 + 5:.0f}">{escape(name)}</text>'


def text(words: str, x: float, y: float, kind: str = "left quiet") -> str:
    """A line of text."""
    return f'<text class="{kind}" x="{x:.0f}" y="{y:.0f}">{escape(words)}</text>'


def native_part(arrows: Arrows) -> tuple[list[str], float]:
    """The native rooms and their arrows, and where they end below."""
    job = {"adapters"} | reached(arrows, "adapters")
    levels = nodes_of(without_shortcuts(arrows), job)
    place(levels, {True: (JOB[0] + MARGIN, JOB[1] - MARGIN), False: (JOB[1] + GAP, PYTHON_AT - GAP)}, job)
    tops = [TOP + ROW * (len(levels) - 1 - row) for row in range(len(levels))]
    height = tops[0] - tops[-1] + BOX_HEIGHT + 2 * MARGIN
    parts = [
        f'<rect class="job" x="{JOB[0]}" y="{tops[-1] - MARGIN}" width="{JOB[1] - JOB[0]}" height="{height}" rx="10"/>'
    ]
    for level in levels:
        for node in level:
            parts += [_arrow(node, other, tops) for other in node.below]
    for node in (node for level in levels for node in level if ">" not in node.name):
        drawn = box(node.name, node.x, tops[node.row], node.half)
        parts.append(f'<g class="in">{drawn}</g>' if node.name in job else drawn)
    return parts, tops[0] + BOX_HEIGHT + MARGIN


def _arrow(upper: Node, lower: Node, tops: Sequence[float]) -> str:
    begin = tops[upper.row] + (BOX_HEIGHT if ">" not in upper.name else BOX_HEIGHT / 2)
    ends = ">" not in lower.name
    end = tops[lower.row] + (-7 if ends else BOX_HEIGHT / 2)
    # Arrows that leave or reach a box side by side stand a little apart.
    start_x, end_x = upper.x + _offset(upper, lower, upper.below), lower.x + _offset(lower, upper, lower.above)
    bend = (end - begin) / 2
    curve = f"{start_x:.0f} {begin + bend:.0f} {end_x:.0f} {end - bend:.0f} {end_x:.0f} {end:.0f}"
    line = f"M{start_x:.0f} {begin:.0f} C{curve}"
    head = f'<path class="head" d="M{end_x:.0f} {end + 7:.0f} l-4 -8 h8 z"/>' if ends else ""
    return f'<path class="arrow" d="{line}"/>{head}'


def _offset(node: Node, other: Node, others: list[Node]) -> float:
    if ">" in node.name or len(others) < 2:
        return 0.0
    order = sorted(others, key=lambda each: each.x)
    step = min(16.0, 1.5 * node.half / len(order))
    return step * (order.index(other) - (len(order) - 1) / 2)


def python_part(layers: list[list[str]]) -> tuple[list[str], float]:
    """Python's layers as bands, and where they end below."""
    left, right = PYTHON_AT, WIDTH - 24
    middle, y = (left + right) / 2, float(TOP - MARGIN)
    parts: list[str] = []
    for number, layer in enumerate(layers):
        boxes = [(name, LETTER * len(name) + PAD) for name in layer]
        count = math.ceil(sum(width + GAP / 2 for _, width in boxes) / (right - left - 24))
        each = math.ceil(len(boxes) / count)
        lines = [boxes[first : first + each] for first in range(0, len(boxes), each)]
        height = len(lines) * (BOX_HEIGHT + 10) + 10
        parts.append(f'<rect class="band" x="{left}" y="{y:.0f}" width="{right - left}" height="{height}" rx="10"/>')
        for row, line in enumerate(lines):
            x = middle - (sum(width for _, width in line) + GAP / 2 * (len(line) - 1)) / 2
            for name, width in line:
                parts.append(box(name, x + width / 2, y + 10 + row * (BOX_HEIGHT + 10), width / 2))
                x += width + GAP / 2
        y += height
        if number + 1 < len(layers):
            parts.append(f'<path class="arrow" d="M{middle:.0f} {y:.0f} v{BAND_GAP - 7}"/>')
            parts.append(f'<path class="head" d="M{middle:.0f} {y + BAND_GAP:.0f} l-4 -8 h8 z"/>')
            y += BAND_GAP
    return parts, y


def picture() -> str:
    """The picture in SVG."""
    arrows, rooms = native_rules()
    native, native_end = native_part(arrows)
    python, python_end = python_part(python_layers())
    notes = [
        "; ".join(f"{part}/ has {', '.join(sorted(of))}" for part, of in rooms.items() if part != "job") + ".",
        "Native: an arrow says “may include and link”. A chain of arrows says the same, but not for",
        ", ".join(forbidden_shortcuts(arrows)) + ".",
        "Python: a layer may import all layers below it. Packages of one layer do not import each other.",
    ]
    parts = [
        text("native/", 24, 40, "left title"),
        text("in the dashed frame: inside the job’s process: job/, and what it shares", 90, 40),
        text("python/powerccl/", PYTHON_AT, 40, "left title"),
        *native,
        *python,
        *(text(line, 24, native_end + 34 + 20 * number) for number, line in enumerate(notes)),
    ]
    height = max(native_end + 34 + 20 * len(notes), python_end + MARGIN)
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height:.0f}" role="img" '
        'aria-label="Which folder may include which">\n'
        "<!-- Drawn by tools/draw-architecture.py; `make reference` renews it. -->\n"
        f'<style>{STYLE}</style>\n<rect class="page" width="{WIDTH}" height="{height:.0f}" rx="10"/>\n'
        + "\n".join(parts)
        + "\n</svg>\n"
    )


if __name__ == "__main__":
    print(picture(), end="")
