# SPDX-License-Identifier: Apache-2.0
"""Which of NCCL's parameters are searched here: data of parameters.json, filtered for a machine and a workload.

A configuration is the variables that it sets, name -> value; a parameter left at NCCL's own default is not in it.
"""

from __future__ import annotations

import mmap
import re
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field
from math import prod
from pathlib import Path

import msgspec

from powerccl.errors import PowercclError, UsageError, nearest

DATA = Path(__file__).parent / "parameters.json"
UNSET = ""  # the choice that leaves a parameter at NCCL's default
LINKS = ("nvlink", "nvls", "pcie", "sockets", "ib")

Configuration = dict[str, str]


class Parameter(msgspec.Struct, frozen=True):
    """One variable: what it may be set to, on which links and NCCL versions it says anything, and for which patterns.

    `links`: `any`, or some of LINKS; `a+b` wants both. `default` is NCCL's own, in words where it is not a value.
    `windows`: says something only of buffers in symmetric windows. `risky`: known to fail or hang in places; searched
    only when asked for by name.
    """

    name: str
    values: tuple[str, ...]
    links: tuple[str, ...] = ("any",)
    what: str = ""
    default: str = ""
    since: str = ""
    until: str = ""
    patterns: tuple[str, ...] = ()
    windows: bool = False
    risky: bool = False

    @property
    def choices(self) -> tuple[str, ...]:
        """What the search chooses from; UNSET first."""
        return (UNSET, *(value for value in self.values if value != self.default))


class Conflict(msgspec.Struct, frozen=True):
    """Values that do not go together.

    `ordered`: names[0] <= names[1]; `product`: at most `most`; `needs`: names[0] only says something where names[1] has
    one of `values`.
    """

    kind: str
    names: tuple[str, ...]
    why: str
    most: int = 0
    values: tuple[str, ...] = ()

    def broken_by(self, configuration: Mapping[str, str]) -> bool:
        """Whether the configuration has such a conflict."""
        settings = [configuration.get(name, UNSET) for name in self.names]
        if self.kind == "needs":
            return bool(settings[0]) and settings[1] not in self.values
        if not all(value.isdigit() for value in settings):
            return False
        numbers = [int(value) for value in settings]
        return numbers[0] > numbers[1] if self.kind == "ordered" else prod(numbers) > self.most


class _Data(msgspec.Struct):
    parameters: list[Parameter]
    conflicts: list[Conflict]


@dataclass(frozen=True)
class Machine:
    """What a tuned configuration holds for: refused elsewhere.

    `links`: those that collectives go over, of LINKS. `ranks`: of the communicator that is tuned.
    """

    gpu: str
    ranks: int
    nodes: int
    nccl: str
    links: tuple[str, ...]

    def likeness(self, other: Machine) -> int:
        """How much an earlier study of `other` says of this machine: 0 nothing, 4 that it is the same."""
        if self.gpu != other.gpu or not set(self.links) & set(other.links):
            return 0
        return 1 + (self.ranks == other.ranks) + (self.nccl == other.nccl) + (self.links == other.links)


@dataclass
class Space:
    """The parameters of a search, in the data's order; what was fixed; why others were left out, name -> reason."""

    parameters: list[Parameter]
    conflicts: list[Conflict]
    fixed: Configuration = field(default_factory=dict)
    left_out: dict[str, str] = field(default_factory=dict)

    @property
    def size(self) -> int:
        """How many configurations there are, conflicts included."""
        return prod(len(parameter.choices) for parameter in self.parameters)

    def mend(self, configuration: Mapping[str, str]) -> Configuration:
        """The configuration with fixed values, without UNSET, and without the first of each pair that conflicts."""
        mended = {name: value for name, value in {**configuration, **self.fixed}.items() if value != UNSET}
        for conflict in self.conflicts:
            if conflict.broken_by(mended):
                first = next((name for name in conflict.names if name not in self.fixed), conflict.names[0])
                mended.pop(first, None)
        return dict(sorted(mended.items()))


def version_key(text: str) -> tuple[int, ...]:
    """`2.28.9` as numbers; nothing for what is no version."""
    return tuple(int(part) for part in text.split(".") if part.isdigit())


def _why_not(parameter: Parameter, machine: Machine, patterns: set[str], windows: bool) -> str:
    version = version_key(machine.nccl)
    if version and parameter.since and version < version_key(parameter.since):
        return f"needs NCCL {parameter.since} or newer"
    if version and parameter.until and version > version_key(parameter.until):
        return f"not in NCCL after {parameter.until}"
    links = set(machine.links)
    if "any" not in parameter.links and not any(set(link.split("+")) <= links for link in parameter.links):
        return f"only for {' or '.join(parameter.links)}"
    if parameter.patterns and not set(parameter.patterns) & patterns:
        return f"only for {', '.join(parameter.patterns)}"
    if parameter.windows and not windows:
        return "only for buffers in symmetric windows (--symmetric)"
    return "may fail or hang; add it with --parameter" if parameter.risky else ""


def read_data(path: Path = DATA) -> tuple[list[Parameter], list[Conflict]]:
    """All parameters that are known, and their conflicts."""
    data = msgspec.json.decode(path.read_bytes(), type=_Data)
    return data.parameters, data.conflicts


def make_space(
    machine: Machine,
    patterns: Iterable[str],
    environment: Mapping[str, str],
    add: Iterable[str] = (),
    fix: Iterable[str] = (),
    forbid: Iterable[str] = (),
    read_by_nccl: Callable[[], Collection[str]] = frozenset,
    windows: bool = False,
) -> Space:
    """The search space of a machine and a workload.

    `environment`: variables that the user has set there are kept and not searched. `add`: NAME=V1,V2,... (or NAME of a
    risky one); `fix`: NAME=VALUE; `forbid`: NAME. `read_by_nccl`: names that the library reads, asked for only where
    one is not among the known parameters; empty if not known. `windows`: buffers are in symmetric windows.

    Raises:
        PowercclError: one of the three is not understood or names no variable of NCCL, or nothing is left to search.
    """
    known, conflicts = read_data()
    by_name = {parameter.name: parameter for parameter in known}
    wanted, asked = set(patterns), set()
    for text in add:
        name, equals, values = text.partition("=")
        if equals:
            choices = tuple(value for value in values.split(",") if value)
            if not choices or not name.startswith("NCCL_"):
                raise UsageError(f"--parameter {text}: not of the form NAME=V1,V2", "NCCL_NAME=VALUE,VALUE,...")
            _refuse_unread("--parameter", name, by_name, read_by_nccl)
            by_name[name] = Parameter(name, choices, what="added")
        elif name not in by_name:
            raise _unknown("--parameter", name, by_name)
        asked.add(name)
    fixed: Configuration = {}
    for text in fix:
        name, equals, value = text.partition("=")
        if not equals or not name.startswith("NCCL_"):
            raise UsageError(f"--fix {text}: not of the form NAME=VALUE", "NCCL_NAME=VALUE")
        _refuse_unread("--fix", name, by_name, read_by_nccl)
        fixed[name] = value
    forbidden = set(forbid)
    for name in forbidden - set(by_name):
        raise _unknown("--forbid", name, by_name)
    space = Space([], conflicts, fixed)
    for name, parameter in by_name.items():
        if name in fixed:
            why = f"fixed at {fixed[name]}"
        elif name in forbidden:
            why = "forbidden"
        elif name in environment:
            why = f"set to {environment[name]} in the environment"
        elif name in asked:
            why = ""
        else:
            why = _why_not(parameter, machine, wanted, windows)
        if why:
            space.left_out[name] = why
        else:
            space.parameters.append(parameter)
    if not space.parameters:
        raise PowercclError(
            "no parameter is left to search", "exclude or fix fewer, or add parameters with --parameter"
        )
    return space


def names_in(library: Path) -> frozenset[str]:
    """Names of NCCL's variables that a libnccl has as strings; none if it cannot be read."""
    try:
        with library.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as content:
            return frozenset(name.decode() for name in re.findall(rb"NCCL_[A-Z0-9_]+(?=\0)", content))
    except (OSError, ValueError):  # an empty file cannot be mapped
        return frozenset()


def _refuse_unread(option: str, name: str, known: Collection[str], read_by_nccl: Callable[[], Collection[str]]) -> None:
    """Refuse a variable that NCCL does not read: all trials of it would be alike, and differ by chance."""
    if name in known:
        return
    names = read_by_nccl()
    if names and name not in names:
        raise PowercclError(
            f"{option} {name}: this NCCL reads no such variable",
            f"{nearest(name, [*known, *names])}set variables of a network plugin in the environment",
        )


def _unknown(option: str, name: str, known: Iterable[str]) -> UsageError:
    return UsageError(
        f"{option} {name}: unknown parameter", f"{nearest(name, known)}add one with --parameter NAME=V1,V2"
    )
