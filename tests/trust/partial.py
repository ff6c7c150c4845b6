# SPDX-License-Identifier: Apache-2.0
"""Partial measurements of more than thirty kinds, and whether a page shows a total without a word on that.

A total counts as whole within 1 % of the undamaged run's. Outside of that it must be `not known`, or stand with a word
that the undamaged run's page has not; a total above the true one is a fault whatever the words.
"""

from __future__ import annotations

import random
import re
import shutil
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from support.figures import Figures, count

from powerccl.launch.native import NativeFiles
from trust import ROOT, fault
from trust.checks import html_text, strict_json
from trust.damage import KINDS, samples, traces, with_cpu_energy, with_limits, without_counter
from trust.jobs import Job, powerccl, record, recorded
from trust.spoken import speak, spread

NEAR = 0.01
WORDS = re.compile(
    r"at least|≥|not known|unknown|no sample|no power|no energy|missing|lost|gap|cut |cut off|cut short|skipped"
    r"|plausib|stuck|without|left no|only|not read|stops|ends|dropped|partial|incomplete|not told|not cover|less than"
    r"|not a |newer|full|killed|SIGKILL|exit 137|exit_code|does not parse|do not parse|no trace|never|damaged|running"
    r"|not finished|unreadable|cannot",
    re.IGNORECASE,
)
MARKS = re.compile(r"problem|missing|partial|lost|gap|incomplete|unread|dropped|known|whole|covered|exit_code|running")


@dataclass
class Surface:
    """One page: the totals it shows by quantity (None: not known), and the sentences it has."""

    totals: dict[str, float | None]
    sentences: set[str]


def _strings(value: Any, key: str = "") -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, bool) or value is None:
        yield f"{key}: {value}"
    elif isinstance(value, dict):
        for name, each in value.items():
            if name not in ("folder", "command", "name", "run", "members"):
                yield from _strings(each, str(name))
    elif isinstance(value, list):
        for each in value:
            yield from _strings(each, key)


def _lines(text: str) -> set[str]:
    return {line.strip() for line in text.splitlines() if line.strip()}


def _totals(summary: dict[str, Any]) -> dict[str, float | None]:
    mpi = summary.get("mpi") or {}
    return {
        "joules": summary["energy"]["joules"],
        "calls": summary["communication"]["calls"] + (mpi.get("calls") or 0),
        "processor joules": (mpi.get("energy") or {}).get("joules"),
    }


def _sum(lines: list[str], metric: str) -> float:
    return sum(float(line.split()[-1]) for line in lines if line.startswith(metric + "{"))


def surfaces(folder: Path, base: Path, scratch: Path) -> dict[str, Surface]:
    """Every page that tells of a run's totals. A verb that refuses the run shows none."""
    found = {}
    page = scratch / "page.html"
    said = speak(["report", folder, "--json", scratch / "report.json", "--html", page])
    if said.code == 0:
        report = strict_json((scratch / "report.json").read_text())
        summary = report["summary"]
        totals = _totals(summary)
        said_of = set(_strings(summary))
        covered_s, wall_s = summary["energy"].get("covered_s"), summary.get("wall_s")
        if covered_s and wall_s and covered_s < 0.98 * wall_s:
            said_of.add("covered_s: energy covers only a part")
        found["report --json"] = Surface(totals, set(_strings(report)) | said_of)
        found["summary.json"] = Surface(totals, said_of)
        found["report"] = Surface(totals, _lines(said.out + said.err))
        found["report --html"] = Surface(totals, _lines(html_text(page.read_text())))
    file = scratch / "compare.json"
    said = speak(["compare", f"A={base}", f"B={folder}", "--json", file])
    if said.code == 0:
        rows = {row["what"]: row["cells"] for row in strict_json(file.read_text())["rows"] if not row["pattern"]}
        cells = rows.get("energy")
        totals = {"joules": cells[1]["value"] if cells and cells[1] else None}
        found["compare"] = Surface(totals, _lines(said.out + said.err))
    said = speak(["top", "--once", folder, "--json"])
    if said.code == 0:
        jobs = strict_json(said.out)["jobs"]
        if jobs:
            found["top --json"] = Surface({"joules": jobs[0].get("joules")}, set(_strings(jobs[0])))
    said = speak(["export", "--once", folder])
    if said.code == 0:
        lines = [line for line in said.out.splitlines() if not line.startswith("#")]
        joules = [float(line.split()[-1]) for line in lines if line.startswith("powerccl_gpu_energy_joules_total")]
        marks = {re.sub(r"run=\"[^\"]*\"", "", line) for line in lines if MARKS.search(line.split("{")[0])}
        calls = [float(line.split()[-1]) for line in lines if line.startswith("powerccl_collectives_total")]
        ranks = [_sum(lines, f"powerccl_job_ranks_{which}") for which in ("expected", "found")]
        # A series must not vanish where a part is missing: what it lacks stands beside it.
        marks |= {"missing seconds"} if _sum(lines, "powerccl_gpu_unsampled_seconds") > 0 else set()
        marks |= {"missing ranks"} if ranks[0] > ranks[1] else set()
        # A series a GPU: one that is not there is no total of the others.
        whole = {"joules": sum(joules) if joules else None, "calls": sum(calls) if calls else None}
        found["export"] = Surface(whole, {f"not known: {mark}" for mark in marks} | {f"series: {len(joules)} only"})
    for file in (scratch / "report.json", scratch / "compare.json", page):
        file.unlink(missing_ok=True)
    return found


def judge(name: str, true: Surface, shown: Surface, surface: str) -> tuple[list[str], list[str]]:
    """Faults of a page: totals shown as whole, and totals above the true one."""
    whole, above = [], []
    told = any(WORDS.search(each) for each in shown.sentences - true.sentences)
    for quantity, right in true.totals.items():
        value = shown.totals.get(quantity)
        if right is None or value is None or abs(value - right) <= NEAR * right:
            continue
        text = f"{name}: {surface} shows {value:.6g} {quantity}, which is {right:.6g}"
        if value > right:
            above.append(text)
        elif not told:
            whole.append(text + ", and no word")
    return whole, above


Task = tuple[int | None, Path, Path]  # the damage's place in KINDS, None: undamaged; the run; a folder of its own


def _case(task: Task) -> dict[str, Surface]:
    """One damaged run's pages, or the undamaged one's."""
    number, clean, folder = task
    folder.mkdir(parents=True)
    broken = folder / clean.name
    shutil.copytree(clean, broken)
    if number is not None:
        KINDS[number].apply(broken, random.Random(KINDS[number].name))
    found = surfaces(broken, clean, folder)
    shutil.rmtree(folder, ignore_errors=True)
    return found


def _mpi_run(native: NativeFiles, folder: Path) -> Path:
    """A job of two MPI ranks, with processors that tell their energy."""
    inner = [sys.executable, "-m", "powerccl", "bench", "--mpi", "-n", "2", "stencil", "--imbalance-pct", "20"]
    more = {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}
    powerccl(native, ["run", "-q", "--runs-dir", folder / "mpi", "--name", "mpi", "--", *inner], ROOT, more)
    found = sorted((folder / "mpi").glob("*-mpi"))
    if not found or not list(found[0].glob("mpi-*.trace")):
        raise RuntimeError("a job of two MPI ranks left no trace: is there an mpiexec?")
    with_cpu_energy(found[0])
    return found[0]


def measure(native: NativeFiles, folder: Path) -> Figures:
    """Each kind of damage in an emulated run and in a recorded one."""
    sweep = ("all_reduce", "-b", "1M", "-e", "4M", "-n", "4", "-g", "2", "-c", "0", "--min-time", "0.5")
    command = ("powerccl-bench", *sweep)
    emulated = record(native, Job("t4x8", command), folder, "emulated")
    sources = [emulated, next(each for each in recorded(folder / "recorded") if "fsdp-0-0-observe" in each.name)]
    with_limits(sources[1])
    mpi = _mpi_run(native, folder)
    bare = {}
    for source in sources:
        bare[source] = folder / f"bare-{source.name}"
        shutil.copytree(source, bare[source])
        without_counter(bare[source])
        if len(traces(source)) < 2 or not samples(source):
            raise RuntimeError(f"{source.name} has too few ranks to lose one")
    clean_runs = [*sources, *bare.values(), mpi]
    tasks: list[Task] = [(None, clean, folder / f"clean-{at}") for at, clean in enumerate(clean_runs)]
    for number, damage in enumerate(KINDS):
        for source in [mpi] if damage.mpi else sources:
            tasks.append((number, bare[source] if damage.bare else source, folder / f"case-{len(tasks)}"))
    true: dict[Path, dict[str, Surface]] = {}
    whole, above = set(), set()
    pages = 0
    for (place, clean, _), shown in zip(tasks, spread(_case, tasks, native.root), strict=True):
        if place is None:
            true[clean] = shown
            continue
        name = f"{KINDS[place].name} ({clean.name})"
        for surface, page in shown.items():
            pages += 1
            as_whole, too_much = judge(name, true[clean][surface], page, surface)
            for text in as_whole + too_much:
                fault(text)
            if as_whole:
                whole.add(name)
            if too_much:
                above.add(name)
    cases = len(tasks) - len(clean_runs)
    print(f"{cases} cases, {pages} pages", file=sys.stderr)
    return {
        "trust.partial.shown_as_whole": count(len(whole), cases),
        "trust.partial.above_true": count(len(above), cases),
        "trust.partial.kinds": count(len(KINDS), len(KINDS)),
    }
