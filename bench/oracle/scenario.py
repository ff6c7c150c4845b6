# SPDX-License-Identifier: Apache-2.0
"""Scenario files (native/bench/README.md has the language) and what they mean for each rank and iteration."""

import math
from dataclasses import dataclass, field, replace
from pathlib import Path

from .platform import PATTERNS

MASK = (1 << 64) - 1
ELEMENT_BYTES = 2  # powerccl-bench replays in float16
ALIGNED_BYTES = 16


class ScenarioError(ValueError):
    """A scenario that cannot be read; names file and line."""


@dataclass(frozen=True)
class Operation:
    """One statement. act: compute, collective, send, receive, wait, sync."""

    act: str
    line: int
    stream: int = 0
    group: int = 0
    awaited: int = 0
    pattern: str = ""
    bytes: int = 0
    towards: int = 0
    ms: float = 0.0
    vary: float = 0.0


@dataclass(frozen=True)
class Group:
    """Who communicates together: `size` neighbours, ranks at distance `stride`, or all."""

    name: str
    size: int = 0
    stride: int = 0

    def members(self, rank: int, ranks: int) -> list[int]:
        """The ranks of this rank's communicator, in its order."""
        if self.size > 0:
            first = rank - rank % self.size
            return list(range(first, first + self.size))
        if self.stride > 0:
            return list(range(rank % self.stride, ranks, self.stride))
        return list(range(ranks))


@dataclass
class Scenario:
    """A file as read; repeats written out. sections: (share of the run it begins at, operations)."""

    name: str
    iterations: int = 120
    seed: int = 1
    streams: list[str] = field(default_factory=lambda: ["compute"])
    groups: list[Group] = field(default_factory=lambda: [Group("all")])
    factors: dict[int, float] = field(default_factory=dict)
    sections: list[tuple[float, list[Operation]]] = field(default_factory=lambda: [(0.0, [])])

    def varies(self) -> bool:
        """Whether iterations of a section differ."""
        return any(op.vary > 0 for _, operations in self.sections for op in operations)


def _mixed(word: int) -> int:  # splitmix64, as scenario_ranks.cpp
    word = (word + 0x9E3779B97F4A7C15) & MASK
    word = ((word ^ (word >> 30)) * 0xBF58476D1CE4E5B9) & MASK
    word = ((word ^ (word >> 27)) * 0x94D049BB133111EB) & MASK
    return word ^ (word >> 31)


def draw(seed: int, iteration: int, rank: int) -> float:
    """The number in [-1, 1) that `vary` goes by; powerccl-bench draws the same."""
    word = _mixed((_mixed((_mixed(seed) + iteration) & MASK) + rank) & MASK)
    return math.ldexp(float(word >> 11), -52) - 1


def compute_ms(scenario: Scenario, op: Operation, iteration: int, rank: int) -> float:
    """Milliseconds at the reference clock."""
    drawn = 1 + op.vary * draw(scenario.seed, iteration, rank)
    return op.ms * scenario.factors.get(rank, 1.0) * drawn


def piece_bytes(scenario: Scenario, op: Operation, iteration: int, members: list[int], to: int) -> int:
    """What each member of an all-to-all sends to member `to`."""
    even = op.bytes / len(members)
    if op.vary == 0:
        return int(op.bytes // ELEMENT_BYTES // len(members) // 8 * 8) * ELEMENT_BYTES
    share = 1 + op.vary * draw(scenario.seed, iteration, members[to])
    return int(even * share) // ALIGNED_BYTES * ALIGNED_BYTES


def parse_size(text: str) -> int:
    """`25M` and the like, suffixes of 1024."""
    body = text.removesuffix("iB").removesuffix("B")
    power = "KMGT".find(body[-1:].upper()) + 1 if body[-1:].isalpha() else 0
    if body[-1:].isalpha() and power == 0:
        raise ValueError(f"'{text}' is not a size")
    return int(math.ldexp(float(body[:-1] if power else body), 10 * power))


class _Parser:
    def __init__(self, scenario: Scenario) -> None:
        self.scenario = scenario
        self.blocks: list[tuple[bool, int, int]] = []  # captures, count, first operation
        self.line = 0
        self.words: list[str] = []

    def _next(self) -> str:
        if not self.words:
            raise ValueError("a word is missing")
        return self.words.pop(0)

    def _stream(self) -> int:
        return self.scenario.streams.index(self._next())

    @property
    def _operations(self) -> list[Operation]:
        return self.scenario.sections[-1][1]

    def statement(self, line: str) -> None:
        self.line += 1
        self.words = line.partition("#")[0].split()
        if not self.words:
            return
        verb = self._next()
        if verb in PATTERNS:
            self._add(Operation("collective", self.line, pattern=verb, bytes=parse_size(self._next())))
        else:
            getattr(self, f"_{verb}", self._unknown)()
        if self.words:
            raise ValueError(f"'{self.words[0]}' is one word too many")

    def _unknown(self) -> None:
        raise ValueError("this statement means nothing")

    def _iterations(self) -> None:
        self.scenario.iterations = int(self._next())

    def _seed(self) -> None:
        self.scenario.seed = int(self._next())

    def _streams(self) -> None:
        self.scenario.streams += self.words
        self.words = []

    def _group(self) -> None:
        name, size = self._next(), self._next()
        group = Group(name, stride=int(self._next())) if size == "stride" else Group(name, size=int(size))
        self.scenario.groups.append(group)

    def _rank(self) -> None:
        rank = int(self._next())
        self.scenario.factors[rank] = float(self._next().removeprefix("x"))

    def _compute(self) -> None:
        self._add(Operation("compute", self.line, ms=float(self._next())))

    def _send(self) -> None:
        self._transfer("send", "to")

    def _receive(self) -> None:
        self._transfer("receive", "from")

    def _transfer(self, act: str, word: str) -> None:
        size = parse_size(self._next())
        if self._next() != word:
            raise ValueError(f"`{act}` without `{word}`")
        towards = {"next": 1, "previous": -1}[self._next()]
        self._add(Operation(act, self.line, bytes=size, towards=towards))

    def _wait(self) -> None:
        awaited = self._stream()
        if self._next() != "on":
            raise ValueError("`wait` without `on`")
        self._operations.append(Operation("wait", self.line, stream=self._stream(), awaited=awaited))

    def _sync(self) -> None:
        self._operations.append(Operation("sync", self.line, stream=self._stream()))

    def _repeat(self) -> None:
        self.blocks.append((False, int(self._next()), len(self._operations)))

    def _capture(self) -> None:
        self.blocks.append((True, 1, len(self._operations)))

    def _end(self) -> None:
        if not self.blocks:
            raise ValueError("there is no block to end")
        captures, count, first = self.blocks.pop()
        body = self._operations[first:]
        if captures:
            # The emulator runs a graph's nodes one after another, in the stream it is launched in.
            body = [replace(op, stream=0) for op in body if op.act != "wait"]
        self._operations[first:] = body * count

    def _from(self) -> None:
        share = float(self._next().removesuffix("%")) / 100
        self.scenario.sections.append((share, []))

    def _add(self, op: Operation) -> None:
        while self.words:
            word = self._next()
            if word == "vary":
                op = replace(op, vary=float(self._next().removesuffix("%")) / 100)
            elif word == "in":
                names = [group.name for group in self.scenario.groups]
                op = replace(op, group=names.index(self._next()))
            elif word == "on":
                op = replace(op, stream=self._stream())
            else:
                raise ValueError(f"`{word}` has no meaning here")
        self._operations.append(op)


def parse_scenario(text: str, name: str) -> Scenario:
    """Raises ScenarioError with the line; what would wait for ever is powerccl-bench's to refuse."""
    scenario = Scenario(name)
    parser = _Parser(scenario)
    try:
        for line in text.splitlines():
            parser.statement(line)
    except (ValueError, KeyError) as error:
        raise ScenarioError(f"{name}:{parser.line}: {error}") from error
    if parser.blocks or not all(operations for _, operations in scenario.sections):
        raise ScenarioError(f"{name}: a block without `end`, or an iteration without operations")
    return scenario


def read_scenario(path: Path) -> Scenario:
    """Read a .scn file."""
    return parse_scenario(path.read_text(encoding="utf-8"), path.stem)
