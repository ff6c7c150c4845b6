# SPDX-License-Identifier: Apache-2.0
"""All verbs in four locales, narrow and wide, with a standard output that is full: which of them die.

A verb dies with a traceback, as `unexpected`, or by a signal. An error that says what to do is none of these.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from bench.figures import Figures, count
from bench.trust import fault
from bench.trust.jobs import LIMIT_S, TOGETHER, Job, Said, environment, powerccl, record

from powerccl.launch.native import NativeFiles

WIDTHS = (40, 400)
# Names of a run that no narrow encoding has: they stand in titles, tables and hints.
NAME = "größe-Δ-日本-\U0001f680"


def locales(folder: Path) -> dict[str, dict[str, str]]:
    """Environments of four locales. Those that the machine has not are compiled, which needs no root.

    Raises:
        RuntimeError: they cannot be compiled.
    """
    made = folder / "locales"
    made.mkdir(exist_ok=True)
    for source, charmap, name in (("en_US", "ISO-8859-1", "en_US.ISO-8859-1"), ("ja_JP", "EUC-JP", "ja_JP.EUC-JP")):
        subprocess.run(["localedef", "-c", "-i", source, "-f", charmap, made / name], capture_output=True, check=False)
        if not (made / name / "LC_CTYPE").exists():
            raise RuntimeError(f"localedef makes no {name}: install the package locales")
    plain = {"PYTHONCOERCECLOCALE": "0", "PYTHONUTF8": "0"}
    return {
        "C": {**plain, "LC_ALL": "C"},
        "C.UTF-8": {"LC_ALL": "C.UTF-8"},
        "Latin-1": {**plain, "LC_ALL": "en_US.ISO-8859-1", "LOCPATH": str(made)},
        "EUC-JP": {**plain, "LC_ALL": "ja_JP.EUC-JP", "LOCPATH": str(made)},
    }


def verbs(run: Path, study: Path, tune: Path) -> dict[str, list[str | Path]]:
    """Each verb, as one that prints all it can of recorded things. `run`, `tune` and `study` beside work anew."""
    sweep = ["all_reduce", "-b", "1M", "-e", "1M", "-n", "1", "-w", "0", "-c", "0", "-g", "2", "--min-time", "0"]
    return {
        "help": ["--help"],
        "report --help": ["report", "--help"],
        "report": ["report", run],
        "report --json": ["report", run, "-q", "--json", "-"],
        "report of nothing": ["report", run.with_name("nothing-日本")],
        "compare": ["compare", run, run],
        "compare --markdown": ["compare", run, run, "--markdown", "-"],
        "compare --csv": ["compare", run, run, "--csv", "-"],
        "whatif": ["whatif", run, "--platform", "t4x8"],
        "whatif --ranks": ["whatif", run, "--platform", "t4x8", "--ranks", "16"],
        "top": ["top", "--once", run],
        "top --json": ["top", "--once", "--json", run],
        "export": ["export", "--once", run],
        "study": ["study", "scaling", "--from", study],
        "study --markdown": ["study", "scaling", "--from", study, "--markdown", "-"],
        "clocks": ["clocks"],
        "doctor": ["doctor"],
        "tune --list": ["tune", "all_reduce", "--emulate", "h200x4-sockets", "--list"],
        "tune": ["tune", "all_reduce", "--sizes", "1M", "--emulate", "t4x8", "--gpus", "2", "--time", "6s", "--trials",
                 "2", "--no-rules", "--no-narrow", "--out", tune],
        "profile": ["profile", "--emulate", "t4x8", "--patterns", "all_reduce", "--sizes", "1M", "--clocks", "1005",
                    "--no-computing", "--out", tune.with_suffix(".json")],
        "bench": ["bench", "--emulate", "t4x8", *sweep],
        "run": ["run", "--emulate", "t4x8", "--runs-dir", tune.with_suffix(".runs"), "--name", NAME, "--",
                "powerccl-bench", *sweep],
    }  # fmt: skip


WORKING = ("tune", "profile", "bench", "run")  # take seconds each: in every locale, at one width


def _full(native: NativeFiles, words: Sequence[str | Path], folder: Path, more: Mapping[str, str]) -> Said:
    """A verb whose standard output is a full disk."""
    with Path("/dev/full").open("wb") as full:
        done = subprocess.run(
            [sys.executable, "-m", "powerccl", *map(str, words)],
            cwd=folder,
            env=environment(native, more),
            stdin=subprocess.DEVNULL,
            stdout=full,
            stderr=subprocess.PIPE,
            timeout=LIMIT_S,
            check=False,
        )
    return Said(done.returncode, "", done.stderr.decode("utf-8", "replace"))


def prepared(native: NativeFiles, folder: Path) -> tuple[Path, Path]:
    """A run with a name that is hard to print, and a study.

    Raises:
        RuntimeError: the study was not made.
    """
    command = ("powerccl-bench", "all_reduce", "all_gather", "-b", "1M", "-e", "4M", "-g", "2", "-c", "0")
    run = record(native, Job("t4x8", command), folder, NAME)
    study = folder / "study"
    words = ["study", "scaling", "--gpus", "1,2", "--emulate", "t4x8", "--no-sweep", "--runs-dir", str(study), "--"]
    said = powerccl(native, [*words, "powerccl-bench", *command[1:-4], "-g", "{gpus}", "-c", "0"], folder)
    if not (study / "study.json").exists():
        raise RuntimeError(f"no study: {said.err[-300:]}")
    return run, study


def measure(native: NativeFiles, folder: Path) -> Figures:
    """Each verb in each locale at each width; and with a full standard output."""
    run, study = prepared(native, folder)
    places = locales(folder)
    cases: list[tuple[str, list[str | Path], dict[str, str], bool]] = []
    for place, more in places.items():
        for width in WIDTHS:
            tune = folder / f"tune-{place}-{width}"
            for verb, words in verbs(run, study, tune).items():
                if verb in WORKING and width != WIDTHS[0]:
                    continue
                name = f"{verb} in {place} at {width} columns"
                cases.append((name, words, {**more, "COLUMNS": str(width)}, False))
    for place in ("C.UTF-8", "Latin-1"):
        for verb, words in verbs(run, study, folder / f"tune-{place}-full").items():
            cases.append((f"{verb} in {place} to /dev/full", words, places[place], True))

    def die(case: tuple[str, list[str | Path], dict[str, str], bool]) -> str:
        name, words, more, full = case
        said = (_full if full else powerccl)(native, words, folder, more)
        return f"{name}: {said.code} {(said.err or said.out)[-300:]!r}" if said.died or said.code == 2 else ""

    with ThreadPoolExecutor(TOGETHER) as pool:
        died = [text for text in pool.map(die, cases) if text]
    for text in died:
        fault(text)
    return {"trust.streams.died": count(len(died), len(cases))}
