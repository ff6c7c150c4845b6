# SPDX-License-Identifier: Apache-2.0
"""Every verb over recorded, emulated and damaged runs: figures that cannot be, and parts that exceed their whole.

TRUST_RUNS: how many emulated runs at random, and as many damaged ones (200).
"""

from __future__ import annotations

import os
import random
import shutil
import sys
from pathlib import Path

from harm.readers import damaged
from support.commands import Said
from support.figures import Figures, count

from powerccl.launch.native import NativeFiles
from trust import checks, fault
from trust.damage import KINDS
from trust.jobs import PLATFORMS, random_job, record_all, recorded
from trust.spoken import speak, spread

RUNS = 200
# The fastest that a platform's model, or the link's data sheet, allows; GB/s. H100: 18 NVLinks of 25 GB/s.
LINK_GBS = {
    "t4x8": 3.2,
    "a100x4": 206.0,
    "h200x4": 355.0,
    "h200x4-sockets": 3.8,
    "a100x8-two-nodes": 9.9,
}
H100_GBS = 450.0
DAMAGED_FILES = ("power-*.csv", "rank-*.trace", "run.json", "cpu-*.csv", "policy.table")


def link_gbs(emulated: str) -> float | None:
    """The bound of a run's bus bandwidth; None: not known."""
    if not emulated:
        return H100_GBS
    name, _, settings = emulated.partition(":")
    scale = 1.0
    for each in settings.split(","):
        key, _, value = each.partition("=")
        if key == "link_scale":
            scale = float(value)
    return LINK_GBS[name] * scale if name in LINK_GBS else None


def damage_at_random(source: Path, target: Path, seed: int) -> Path:
    """A damaged copy: one of the kinds of partial measurement, or bytes of a file."""
    chance = random.Random(seed)
    shutil.copytree(source, target)
    try:
        if chance.random() < 0.6:
            chance.choice([kind for kind in KINDS if not kind.mpi]).apply(target, chance)
        else:
            files = sorted(target.glob(chance.choice(DAMAGED_FILES)))
            if files:
                file = chance.choice(files)
                file.write_bytes(damaged((file.read_bytes()[: 1 << 20],), chance))
    except (OSError, ValueError, IndexError, KeyError):
        (target / "run.json").write_text("{")  # the kind needs what this run has not
    return target


class Faults:
    """What was found of one run."""

    def __init__(self, run: Path) -> None:
        self.name = run.name
        self.impossible: list[str] = []
        self.parts: list[str] = []
        self.pages = 0

    def page(self, verb: str, said: Said, differences: bool = False) -> None:
        """Judge a page of text, and how its verb ended."""
        self.pages += 1
        if said.died or said.code not in (0, 1):
            self.impossible.append(f"{verb} died: {(said.err or said.out)[-300:]!r}")
        self.impossible += [f"{verb}: {each}" for each in checks.text_faults(said.out + said.err, differences)]

    def read(self, verb: str, text: str, link: float | None) -> dict[str, object] | None:
        """Judge a document's numbers; what it holds."""
        self.pages += 1
        try:
            document = checks.strict_json(text)
        except ValueError as error:
            self.impossible.append(f"{verb}: {error}")
            return None
        self.impossible += [f"{verb}: {each}" for each in checks.number_faults(document, link)]
        return document if isinstance(document, dict) else None


def judge(run: Path) -> Faults:
    """All verbs of one run folder."""
    found = Faults(run)
    folder = run.with_name(run.name + ".pages")
    folder.mkdir(exist_ok=True)
    files = {name: folder / name for name in ("json", "html", "perfetto")}
    options = [word for name, file in files.items() for word in (f"--{name}", file)]
    said = speak(["report", run, *options, "--csv", folder / "csv"])
    found.page("report", said)
    link = None
    if said.code == 0:
        report = found.read("report --json", files["json"].read_text(), None)
        if report is not None:
            link = link_gbs(str(report["summary"]["emulated"]))  # type: ignore[index]
            found.read("report --json", files["json"].read_text(), link)
            found.parts += [f"report --json: {each}" for each in checks.report_parts(report)]
            found.impossible += [f"report --json: {each}" for each in checks.report_times(report)]
        found.page("report --html", Said(0, checks.html_text(files["html"].read_text()), ""))
        for file in sorted((folder / "csv").glob("*.csv")):
            found.pages += 1
            found.impossible += [f"--csv {file.name}: {each}" for each in checks.table_faults(file.read_text())]
    for verb, arguments in (
        ("whatif", ["whatif", run, "--json", folder / "whatif.json"]),
        ("compare", ["compare", run, run, "--json", folder / "compare.json"]),
    ):
        said = speak(arguments)
        found.page(verb, said, differences=True)
        file = folder / f"{verb}.json"
        if said.code == 0 and (document := found.read(f"{verb} --json", file.read_text(), link)) and verb == "whatif":
            found.impossible += [f"whatif --json: {each}" for each in checks.whatif_faults(document)]
    said = speak(["top", "--once", run])
    found.page("top", said)
    said = speak(["top", "--once", run, "--json"])
    if said.code == 0 and (document := found.read("top --json", said.out, link)):
        found.parts += [f"top --json: {each}" for each in checks.top_parts(document)]
    said = speak(["export", "--once", run])
    found.pages += 1
    found.impossible += [f"export: {each}" for each in checks.metric_faults(said.out)]
    shutil.rmtree(folder)
    return found


def measure(native: NativeFiles, folder: Path) -> Figures:
    """All runs."""
    runs = int(os.environ.get("TRUST_RUNS", RUNS))
    assert set(LINK_GBS) == set(PLATFORMS)
    good = record_all(native, [random_job(seed) for seed in range(runs)], folder / "good")
    known = recorded(folder / "recorded")
    (folder / "bad").mkdir()
    bad = [
        damage_at_random((good + known)[seed % len(good + known)], folder / "bad" / f"damaged-{seed}", seed)
        for seed in range(runs)
    ]
    impossible = parts = pages = 0
    with_impossible, with_parts = set(), set()
    for found in spread(judge, known + good + bad, native.root):
        pages += found.pages
        impossible += len(set(found.impossible))
        parts += len(set(found.parts))
        if found.impossible:
            with_impossible.add(found.name)
        if found.parts:
            with_parts.add(found.name)
        for text in sorted({*found.impossible, *found.parts}):
            fault(f"{found.name}: {text}")
    n = len(known) + len(good) + len(bad)
    print(f"{n} runs, {pages} pages: {impossible} impossible figures, {parts} parts", file=sys.stderr)
    return {
        "trust.figures.impossible": count(len(with_impossible), n),
        "trust.figures.parts_above_whole": count(len(with_parts), n),
        "trust.figures.pages": count(pages, pages),
    }
