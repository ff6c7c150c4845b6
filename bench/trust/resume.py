# SPDX-License-Identifier: Apache-2.0
"""What goes on with another machine's file: profile, bench, study and tune must refuse it, and leave it as it was."""

from __future__ import annotations

import hashlib
import shutil
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from bench.figures import Figures, count
from bench.trust import fault
from bench.trust.jobs import TOGETHER, powerccl

from powerccl.launch.native import NativeFiles

# Another GPU, another link of the same GPUs, another count, another clock or link by an override.
PAIRS = (
    ("t4x8", "a100x4"),
    ("h200x4", "h200x4-sockets"),
    ("h200x4-sockets", "h200x4"),
    ("t4x8", "t4x8:link_scale=4"),
    ("t4x8", "t4x8:gpus=4"),
    ("a100x4", "a100x8-two-nodes"),
)


@dataclass(frozen=True)
class Verb:
    """How a verb begins and goes on; {platform} is the machine, {file} what is resumed."""

    name: str
    begin: tuple[str, ...]
    on: tuple[str, ...] = ()  # what the second call has besides


SWEEP = ("-b", "1M", "-e", "1M", "-n", "2", "-w", "0", "-c", "0", "--min-time", "0.05")
VERBS = (
    Verb(
        "profile",
        ("profile", "--emulate", "{platform}", "--patterns", "all_reduce", "--sizes", "1M", "--clocks", "1005",
         "--no-computing", "--out", "{file}"),
        ("--resume",),
    ),
    Verb("bench", ("bench", "--emulate", "{platform}", "all_reduce", *SWEEP, "--json-lines", "{file}"), ("--resume",)),
    Verb(
        "study",
        ("study", "scaling", "--gpus", "2", "--emulate", "{platform}", "--no-sweep", "--runs-dir", "{file}", "--",
         "powerccl-bench", "all_reduce", "-g", "{gpus}", *SWEEP),
    ),
    Verb(
        "tune",
        ("tune", "all_reduce", "--sizes", "1M", "--emulate", "{platform}", "--time", "6s", "--trials",
         "2", "--no-rules", "--no-narrow", "--out", "{file}"),
    ),
)  # fmt: skip


def digest(path: Path) -> str:
    """Of a file, or of all files of a folder with their names; what only says that somebody looked is left out."""
    files = sorted(each for each in path.rglob("*") if each.is_file()) if path.is_dir() else [path]
    hashed = hashlib.sha256()
    for file in files:
        if file.suffix not in (".log", ".lock"):
            hashed.update(str(file.relative_to(path.parent)).encode() + file.read_bytes())
    return hashed.hexdigest()


def _words(words: Sequence[str], platform: str, file: Path) -> list[str]:
    return [word.replace("{platform}", platform).replace("{file}", str(file)) for word in words]


def resumed(native: NativeFiles, verb: Verb, pair: tuple[str, str], folder: Path) -> list[str]:
    """Faults of one verb and one pair of machines.

    Raises:
        RuntimeError: the first machine's file could not be made.
    """
    folder.mkdir(parents=True)
    target = folder / ("out" if verb.name in ("study", "tune") else "out.json")
    before, after = pair
    first = powerccl(native, _words(verb.begin, before, target), folder)
    if not target.exists():
        raise RuntimeError(f"{verb.name} on {before} wrote nothing ({first.code}): {first.err[-300:]}")
    kept = digest(target)
    second = powerccl(native, _words((*verb.begin[:1], *verb.on, *verb.begin[1:]), after, target), folder)
    found = []
    name = f"{verb.name} of {before} resumed on {after}"
    if second.code == 0:
        found.append(f"{name} ends with 0: {second.out[-200:]!r}")
    elif digest(target) != kept:
        found.append(f"{name} is refused ({second.code}) and changes the file")
    elif second.died:
        found.append(f"{name}: {second.err[-200:]!r}")
    shutil.rmtree(folder, ignore_errors=True)
    return found


def measure(native: NativeFiles, folder: Path) -> Figures:
    """Each verb on each pair; and that the same machine goes on, so that a refusal means something."""
    cases = [(verb, pair) for verb in VERBS for pair in (*PAIRS, ("t4x8", "t4x8"))]

    def run(case: tuple[int, tuple[Verb, tuple[str, str]]]) -> tuple[bool, list[str]]:
        number, (verb, pair) = case
        return pair[0] == pair[1], resumed(native, verb, pair, folder / f"case-{number}")

    mixed = refused = other = 0
    with ThreadPoolExecutor(TOGETHER) as pool:
        for (verb, pair), (same, found) in zip(cases, pool.map(run, enumerate(cases)), strict=True):
            if same:
                if not any("ends with 0" in each for each in found):
                    refused += 1
                    fault(f"{verb.name} of {pair[0]} is not resumed on the same: {found}")
            else:
                other += 1
                mixed += bool(found)
                for each in found:
                    fault(each)
    return {
        "trust.resume.mixed": count(mixed, other),
        "trust.resume.refused_on_the_same": count(refused, len(VERBS)),
    }
