# SPDX-License-Identifier: Apache-2.0
"""Two or more sides, each one or several runs or sweeps: the findings of `powerccl compare`."""

from __future__ import annotations

import math
import re
import shlex
import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

import msgspec

from powerccl.compare.gate import Gate, judge
from powerccl.compare.member import (
    BANDWIDTH,
    CO2E,
    COST,
    ENERGY,
    FORMS,
    MPI_SWEEP,
    NO_TARIFF,
    OPERATIONS,
    POWER,
    RUN,
    SWEEP,
    TIME,
    Key,
    Member,
    ReferenceOf,
    nothing_known,
    pattern_order,
)
from powerccl.compare.significance import HIGHER, LOWER, SAME, UNKNOWN, Cell, Change, Value, cell, change
from powerccl.compare.sources import read_member
from powerccl.errors import PowercclError, UsageError
from powerccl.patterns import KIB
from powerccl.quantities import MOST_NAMED, byte_size, plural, quantity_change, said_once
from powerccl.tariff import Tariff
from powerccl.traces.folder import RunData, read_info
from powerccl.traces.run_info import model_label

SMALL_BYTES = 4 * KIB  # up to here a message's time is latency
MANY_ROWS = 20
MANY_SIDES = 6  # more have no place beside each other, and are shown one below the other
SAME_WORK = 0.01  # a job that ends by a time limit makes a call more or less; one run's time is less exact than this
MOST_KINDS = 3  # of calls that are named
# Facts that make sides hard to compare, and what to say of them; others are listed as differences.
_GRAVE = {
    "GPUs": "the number of GPUs",
    "ranks": "the number of ranks",
    "MPI ranks": "the number of MPI ranks",
    "GPU": "the GPUs",
    "data": "whether collectives move data",
    "replays": "the replayed jobs",
    "checksum": "the results",
    OPERATIONS: "the number of operations in an iteration",
}
_QUIET = ("version of python", "version of kernel", "driver", "host")
# Where less is better; of bandwidth more is; the rest is neither.
_LESS = re.compile(
    r"time|energy|cost|CO2e|power|step|communication|computation|forward|backward|wait|late|iteration|latency"
)


class Row(msgspec.Struct, kw_only=True):
    """One figure over all sides; `changes` are those of the second side on, against the first."""

    what: str
    unit: str  # SI
    pattern: str = ""
    size_bytes: int | None = None
    variant: str = ""
    better: str = ""  # less, more, or neither
    cells: list[Cell]
    changes: list[Change]
    factor_low: float | None = None  # of a figure over a whole sweep: least and greatest of its sizes
    factor_high: float | None = None


class Side(msgspec.Struct, kw_only=True):
    """One side: what it is called, and what it was made from and with."""

    name: str
    members: list[str]
    kind: str
    emulated: str = ""
    facts: dict[str, str] = {}
    left_out: list[str] = []  # why members of it could not be read


class SideBySide(msgspec.Struct, kw_only=True):
    """Findings of a comparison; the first side is the baseline. `headline` is the form of published tables."""

    schema: int = 1
    kind: str
    emulated: bool
    sides: list[Side]
    headline: list[Row]
    rows: list[Row]
    differs: list[str]  # settings in which the sides differ: most likely what is compared
    caveats: list[str]  # what makes them hard to compare
    notes: list[str]
    gate: Gate | None = None  # None: none was asked for

    @property
    def modelled(self) -> str:
        """`emulated`, `simulated` or both, where no hardware was measured on some side; else empty."""
        labels = (model_label(name) for side in self.sides for name in side.emulated.split(", ") if name)
        return " and ".join(sorted({label.split()[0] for label in labels}))


@dataclass
class _Side:
    name: str
    members: list[Member] = field(default_factory=list)
    left_out: list[str] = field(default_factory=list)

    def values(self, key: Key) -> list[Value]:
        return [member.values[key] for member in self.members if key in member.values]


def compare_sides(
    arguments: Sequence[str],
    find: Callable[[str], Path],
    energy: bool = False,
    reference_of: ReferenceOf = nothing_known,
    tariff: Tariff = NO_TARIFF,
    limit_pct: float | None = None,
) -> SideBySide:
    """Read and compare. Each argument is `[NAME=]MEMBER[,MEMBER...]`; `find` makes a path of a member.

    Without NAME= and commas, runs of one name are one side, unless all have one name.

    `energy`: estimate the energy of operations by regression, with what `reference_of` says of a run's platform.
    `tariff`: what the energy of runs costs and emits.
    `limit_pct`: of the energy gate between two sides; None: there is no gate.

    Raises:
        PowercclError: a member cannot be read, or sides are of different kinds.
    """
    sides = _read(arguments, find, partial(read_member, energy=energy, reference_of=reference_of, tariff=tariff))
    kinds = {member.kind for side in sides for member in side.members}
    if len(kinds) > 1:
        raise PowercclError(f"these cannot be compared with each other: {', '.join(sorted(kinds))}", FORMS)
    kind = kinds.pop()
    rows = _rows(sides, kind)
    if not rows:
        raise PowercclError("the sides have nothing in common", "measure the same patterns and sizes on each")
    caveats, differs = _differences(sides)
    work = _work(sides)
    gate = None
    if limit_pct is not None:
        gate = judge(sides[0].members, sides[1].members, limit_pct, not work)
    return SideBySide(
        kind=kind,
        emulated=any(member.emulated for side in sides for member in side.members),
        sides=[
            Side(
                name=side.name,
                members=[str(member.path) for member in side.members],
                kind=kind,
                emulated=", ".join(sorted({member.emulated for member in side.members if member.emulated})),
                facts=side.members[0].facts,
                left_out=side.left_out,
            )
            for side in sides
        ],
        headline=_headline(sides, kind),
        rows=rows,
        differs=differs,
        caveats=caveats + work + _warnings(sides) + _alone(sides, kind),
        notes=[*_notes(sides, rows, kind), *_costs(sides, rows)],
        gate=gate,
    )


def _read(arguments: Sequence[str], find: Callable[[str], Path], read: Callable[[Path], Member]) -> list[_Side]:
    asked, explicit = [], False
    for argument in arguments:
        name, rest = "", argument
        head, mark, tail = argument.partition("=")
        if mark and head and "/" not in head and not Path(argument).exists():
            name, rest = head, tail
        parts = [rest] if Path(rest).exists() else [part for part in rest.split(",") if part]
        paths = [find(part) for part in parts]
        if not paths:
            raise UsageError(f"'{argument}' names nothing", "a side is [NAME=]RUN[,RUN...]")
        explicit |= bool(name) or len(paths) > 1
        asked.append((name or _short(paths), paths))
    if not explicit:
        asked = _by_name([path for _, (path,) in asked]) or asked
    sides = [_side(name, paths, read) for name, paths in asked]
    names = [side.name for side in sides]
    for index, side in enumerate(sides):
        if names.count(side.name) > 1:
            side.name = f"{chr(ord('A') + index % 26)}: {side.name}"
    return sides


def _by_name(paths: Sequence[Path]) -> list[tuple[str, list[Path]]]:
    """Runs of one name as repetitions of one side; empty where they are not all runs, or have all one name."""
    sides: dict[str, list[Path]] = {}
    for path in {path.resolve(): path for path in paths}.values():  # a run that is named twice is no repetition
        run = RunData(path)
        if path.is_dir():
            read_info(run)
        if run.info is None or not run.info.name:
            return []
        sides.setdefault(run.info.name, []).append(path)
    return list(sides.items()) if len(sides) > 1 else []


def _side(name: str, paths: Sequence[Path], read: Callable[[Path], Member]) -> _Side:
    """A side of those members that can be read; one that cannot costs no other."""
    side = _Side(name)
    for path in paths:
        try:
            side.members.append(read(path))
        except PowercclError as error:  # noqa: PERF203 - reading takes longer by far
            if len(paths) == 1 or (path == paths[-1] and not side.members):
                raise
            side.left_out.append(error.message)
    return side


def _short(paths: Sequence[Path]) -> str:
    """A name from a path: without a run folder's date, and without an ending."""
    stem = paths[0].resolve().name if paths[0].is_dir() else paths[0].stem
    name = re.sub(r"^\d{8}-\d{6}-", "", stem)
    return name if len(paths) == 1 else f"{name} +{len(paths) - 1}"


def _better(key: Key) -> str:
    if "bandwidth" in key.what:
        return "more"
    return "less" if _LESS.search(key.what) and "clock" not in key.what.lower() else ""


def _row(sides: Sequence[_Side], key: Key, what: str = "") -> Row:
    values = [side.values(key) for side in sides]
    return Row(
        what=what or key.what,
        unit=key.unit,
        pattern=key.pattern,
        size_bytes=key.size_bytes if key.size_bytes >= 0 else None,
        variant=key.variant,
        better=_better(key),
        cells=[cell(each) for each in values],
        changes=[change(values[0], each) for each in values[1:]],
    )


def _rows(sides: Sequence[_Side], kind: str) -> list[Row]:
    """A row for each figure that at least two sides have, the baseline among them."""
    order: dict[Key, None] = {}
    for side in sides:
        for member in side.members:
            order.update(dict.fromkeys(member.values))
    keys = [key for key in order if sides[0].values(key) and any(side.values(key) for side in sides[1:])]
    if kind in (SWEEP, MPI_SWEEP, RUN):
        keys.sort(key=lambda key: (bool(key.pattern), *pattern_order(key.pattern), key.variant, key.size_bytes))
    return [_row(sides, key) for key in keys]


def _headline(sides: Sequence[_Side], kind: str) -> list[Row]:
    """Of a sweep, for each pattern: latency, bandwidth over all sizes, the largest size, power where it is known."""
    if kind not in (SWEEP, MPI_SWEEP):
        return []
    common = [key for key in _common(sides) if key.pattern]
    rows = []
    for pattern, variant in sorted({(k.pattern, k.variant) for k in common}, key=lambda p: (pattern_order(p[0]), p[1])):
        here = [key for key in common if (key.pattern, key.variant) == (pattern, variant)]
        times = sorted((key for key in here if key.what == TIME), key=lambda key: key.size_bytes)
        if times and 0 <= times[0].size_bytes <= SMALL_BYTES:
            rows.append(_row(sides, times[0], "latency"))
        rates = [key for key in here if key.what in (BANDWIDTH, "bandwidth")]
        if len(rates) > 1:
            rows.append(_over_sizes(sides, rates))
        if times and times[-1].size_bytes > SMALL_BYTES:
            rows.append(_row(sides, times[-1]))
        powers = sorted((key for key in here if key.what == POWER), key=lambda key: key.size_bytes)
        chosen = {0: "small", len(powers) // 2: "middle", len(powers) - 1: "large"} if powers else {}
        rows += [_row(sides, powers[at], "GPU power") for at in sorted(chosen)]
    return rows


def _common(sides: Sequence[_Side]) -> list[Key]:
    keys = dict.fromkeys(key for member in sides[0].members for key in member.values)
    return [key for key in keys if all(side.values(key) for side in sides)]


def _over_sizes(sides: Sequence[_Side], keys: Sequence[Key]) -> Row:
    """The greatest bandwidth of each side, and by which factor it differs over the sizes: their geometric mean."""
    cells = []
    for side in sides:
        best = max((cell(side.values(key)) for key in keys), key=lambda of_size: of_size.value or 0.0)
        cells.append(best)
    factors = []
    changes = []
    for side in sides[1:]:
        logs = [math.log((cell(side.values(key)).value or 1) / (cell(sides[0].values(key)).value or 1)) for key in keys]
        pct = math.expm1(sum(logs) / len(logs)) * 100
        verdicts = [change(sides[0].values(key), side.values(key)).verdict for key in keys]
        most = max(set(verdicts), key=verdicts.count)
        agree = verdicts.count(most)
        basis = f"geometric mean over {plural(len(keys), 'size')}; {agree} of them {most}"
        verdict = most if agree == len(keys) else "not known" if "not known" in verdicts else "mixed"
        settled = all(change(sides[0].values(key), side.values(key)).of_settings for key in keys)
        changes.append(Change(pct=pct, verdict=verdict, basis=basis, of_settings=settled))
        factors.append((math.exp(min(logs)), math.exp(max(logs))))
    first = keys[0]
    return Row(
        what=f"peak {first.what}",
        unit=first.unit,
        pattern=first.pattern,
        variant=first.variant,
        better="more",
        cells=cells,
        changes=changes,
        factor_low=factors[0][0] if len(factors) == 1 else None,
        factor_high=factors[0][1] if len(factors) == 1 else None,
    )


def _differences(sides: Sequence[_Side]) -> tuple[list[str], list[str]]:
    """Caveats, and settings that differ: facts of each side's first member, and where members of one side disagree."""
    caveats, differs = [], []
    emulated = [sorted({_platform(member.emulated) for member in side.members}) for side in sides]
    if len({*(text for each in emulated for text in each)}) > 1:
        listed = _listed(sides, [" and ".join(each) for each in emulated])
        caveats.append(f"the sides mix emulated and real runs, or different emulated or simulated platforms: {listed}")
    names = dict.fromkeys(name for side in sides for member in side.members for name in member.facts)
    for name in names:
        values = [[member.facts.get(name, "") for member in side.members] for side in sides]
        for side, each in zip(sides, values, strict=True):
            if len(set(each)) > 1 and name not in _QUIET and name != "command":
                caveats.append(f"{side.name}: {name} is not the same in all of its members ({named(each)})")
        firsts = [each[0] for each in values]
        if len(set(firsts)) < 2:
            continue
        listed = _listed(sides, firsts)
        if name == "command":
            caveats += _commands(sides, firsts)
        elif name in _GRAVE:
            caveats.append(f"{_GRAVE[name]} differ{'s' if _GRAVE[name][-4:] != 'GPUs' else ''}: {listed}")
        else:
            differs.append(f"{name}: {listed}")
    return caveats, differs


def _listed(sides: Sequence[_Side], values: Sequence[str]) -> str:
    """What each side has: `1 (A), 2 (B)`; of many sides those that have one value together."""
    if len(sides) <= MANY_SIDES:
        return ", ".join(f"{text or 'not listed'} ({side.name})" for side, text in zip(sides, values, strict=True))
    having: dict[str, list[str]] = {}
    for side, text in zip(sides, values, strict=True):
        having.setdefault(text or "not listed", []).append(side.name)
    return named([f"{text} ({named(names)})" for text, names in having.items()])


def named(texts: Sequence[str], separator: str = ", ") -> str:
    """The first few different ones, and how many more there are."""
    different = list(dict.fromkeys(texts))
    more = len(different) - MOST_NAMED
    return separator.join(different[:MOST_NAMED]) + (f" and {more:,} more" if more > 0 else "")


def _platform(emulated: str) -> str:
    """What a member was measured on."""
    return model_label(emulated) or "real GPUs"


def _commands(sides: Sequence[_Side], commands: Sequence[str]) -> list[str]:
    """In which words the commands differ, up to a few."""
    words = [shlex.split(command) for command in commands]
    if len({len(each) for each in words}) == 1:
        at = [index for index, column in enumerate(zip(*words, strict=True)) if len(set(column)) > 1]
        if 0 < len(at) <= 2:
            listed = _of_sides(sides, [shlex.join([each[index] for index in at]) for each in words])
            return [f"the commands differ in one word: {listed}" if len(at) == 1 else f"the commands differ: {listed}"]
    return ["the commands differ: " + _of_sides(sides, commands)]


def _of_sides(sides: Sequence[_Side], texts: Sequence[str]) -> str:
    listed = [f"{side.name}: {text}" for side, text in zip(sides, texts, strict=True)]
    return "; ".join(listed) if len(sides) <= MANY_SIDES else named(listed, "; ")


def _work(sides: Sequence[_Side]) -> list[str]:
    """Where sides made more or fewer calls: their totals are not of the same work."""
    counts = [_calls(side) for side in sides]
    differing = []
    for name in dict.fromkeys(name for each in counts for name in each):
        values = [each.get(name, 0.0) for each in counts]
        if max(values) > min(values) * (1 + SAME_WORK):
            listed = _listed(sides, [f"{value:,.0f}" for value in values])
            differing.append(f"{name}: {listed}")
    if not differing:
        return []
    more = f" and {len(differing) - MOST_KINDS} more kinds" if len(differing) > MOST_KINDS else ""
    return [f"the amounts of work differ, so the totals cannot be compared: {'; '.join(differing[:MOST_KINDS])}{more}"]


def _calls(side: _Side) -> dict[str, float]:
    """Calls of each kind in the median member."""
    names = dict.fromkeys(name for member in side.members for name in member.work)
    return {name: statistics.median(member.work.get(name, 0) for member in side.members) for name in names}


def _warnings(sides: Sequence[_Side]) -> list[str]:
    """What members have to say of themselves, each sentence once a side."""
    warnings = []
    for side in sides:
        warnings += [f"{side.name}: left out: {why}" for why in side.left_out]
        several = len(side.members) > 1
        listed: dict[str, list[str]] = {}
        for member in side.members:
            for text in member.warnings:
                listed.setdefault(text, []).append(member.path.name)
        for text, who in listed.items():
            part = f" ({named(who)})" if several and len(who) < len(side.members) else ""
            warnings.append(f"{side.name}{part}: {text}")
    return said_once(warnings) if len(sides) > MANY_SIDES else warnings


def _alone(sides: Sequence[_Side], kind: str) -> list[str]:
    """Sizes and patterns that not all sides have."""
    if kind not in (SWEEP, MPI_SWEEP, RUN):
        return []
    left_out = []
    points = [{key[2:5] for member in side.members for key in member.values if key.pattern} for side in sides]
    everywhere = set.intersection(*points)
    for side, here in zip(sides, points, strict=True):
        only = sorted(here - everywhere)
        if only:
            pattern, size, _ = only[0]
            of = "points" if kind != RUN else "kinds of communication"
            first = f"{pattern.replace('_', '-')} {byte_size(size)}"
            left_out.append(f"{side.name}: {len(only)} {of} that not all sides have are left out ({first}, ...)")
    return said_once(left_out) if len(sides) > MANY_SIDES else left_out


def _costs(sides: Sequence[_Side], rows: Sequence[Row]) -> list[str]:
    """How much less or more each side costs than the baseline, and what that counts."""
    lines = []
    for place, side in enumerate(sides[1:], 1):
        parts = []
        for row in rows:
            before, after = row.cells[0].value, row.cells[place].value
            if row.what.partition(" ")[0] in (COST, CO2E) and before is not None and after is not None:
                same = " (not significant)" if row.changes[place - 1].verdict == SAME else ""
                parts.append(f"{row.what} {quantity_change(after - before, row.unit)}{same}")
        if parts:
            lines.append(f"{side.name} against {sides[0].name}: {', '.join(parts)}")
    counted = dict.fromkeys(member.covers for side in sides for member in side.members if member.covers)
    return [*lines, *(f"cost and CO2e count: {text}" for text in counted)]


def _notes(sides: Sequence[_Side], rows: Sequence[Row], kind: str) -> list[str]:
    """How the verdicts are meant."""
    judged = [each for row in rows for each in row.changes if each.low_pct is not None]
    notes = []
    if judged:
        notes.append("intervals are 95 % intervals; 'no significant change': the interval contains zero")
    if any(not each.of_settings and each.verdict in (LOWER, HIGHER) for each in judged):
        notes.append(
            "*: these two runs differ. One run of each side cannot show that the settings are the cause: another "
            "start, node or hour also changes results. Name several runs per side: A1,A2,A3"
        )
    if any(each.pct is not None and each.verdict == UNKNOWN for row in rows for each in row.changes):
        notes.append("?: each side has one run, so chance cannot be judged. Name several runs per side: A1,A2,A3")
    if len(judged) > MANY_ROWS:
        notes.append(f"at 95 %, about {round(len(judged) / 20)} of {len(judged)} changes look significant by chance")
    if kind in (SWEEP, MPI_SWEEP) and any("bandwidth" in row.what for row in rows):
        notes.append("peak bandwidth: its change is the geometric mean over all sizes, with the least and the greatest")
    if any(row.what == ENERGY and row.pattern for row in rows):
        notes.append("energy is of one operation: of all GPUs in a sweep, of one GPU in a run")
    return notes
