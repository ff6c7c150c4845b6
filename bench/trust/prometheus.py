# SPDX-License-Identifier: Apache-2.0
"""What Prometheus and a strict JSON parser say of all output for machines.

`promtool check metrics` reads each file of metrics. Files for node_exporter lie beside each other in one folder, as
its collector reads them: one series twice is an error. The labels of a job's series must not change while it lives.
"""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
import time
from collections.abc import Iterable
from pathlib import Path

from bench.topics import Figures, count
from bench.trust import fault
from bench.trust.checks import strict_json
from bench.trust.jobs import Job, environment, powerccl, random_job, record_all, recorded
from bench.trust.spoken import speak, spread

from powerccl.launch.native import NativeFiles

RUNS = 12
LOOKS = 8
Series = tuple[str, tuple[tuple[str, str], ...]]
LABEL = re.compile(r'(\w+)="((?:[^"\\]|\\.)*)"')


def promtool(text: str) -> list[str]:
    """What promtool has against metrics.

    Raises:
        FileNotFoundError: it is not installed (package prometheus).
    """
    program = shutil.which("promtool")
    if program is None:
        raise FileNotFoundError("no promtool: install the package prometheus")
    done = subprocess.run([program, "check", "metrics"], input=text, capture_output=True, text=True, check=False)
    lines = [line for line in (done.stdout + done.stderr).splitlines() if line.strip()]
    return lines or ([f"promtool: exit code {done.returncode}"] if done.returncode else [])


def series(text: str) -> list[Series]:
    """Name and labels of each sample."""
    found = []
    for line in text.splitlines():
        if line and not line.startswith("#"):
            name = re.split(r"[{ ]", line, maxsplit=1)[0]
            labels = line[line.find("{") : line.rfind("}") + 1] if "{" in line else ""
            found.append((name, tuple(sorted(LABEL.findall(labels)))))
    return found


def together(files: Iterable[tuple[str, str]]) -> list[str]:
    """What node_exporter's collector has against files in one folder: a series twice, or two texts of help for one."""
    seen: dict[Series, str] = {}
    helps: dict[str, str] = {}
    found = []
    for name, text in files:
        for each in series(text):
            if each in seen:
                found.append(f"{name} and {seen[each]}: {each[0]}{dict(each[1])} twice")
            seen[each] = name
        for line in text.splitlines():
            if line.startswith("# HELP "):
                _, _, metric, help_text = line.split(" ", 3)
                if helps.setdefault(metric, help_text) != help_text:
                    found.append(f"{name}: another help of {metric}")
    return found


def life(looks: list[str]) -> list[str]:
    """Series of a job's looks in turn: the labels of one metric may grow in number, and never change."""
    found = []
    before: set[Series] = set()
    for at, text in enumerate(looks):
        now = {each for each in series(text) if dict(each[1]).get("run") is not None}
        if before and now and before - now:
            found.append(f"look {at}: {len(before - now)} series are gone, {min(map(str, before - now))[:200]}")
        before = now or before
    return found


def _pages(run: Path) -> tuple[str, str, list[str]]:
    """A run's metrics from `report` and `export`, and what the strict parser has against its JSON."""
    folder = run.with_name(run.name + ".machine")
    folder.mkdir()
    metrics = folder / "metrics.prom"
    speak(["report", run, "-q", "--prometheus", metrics])
    wrong = []
    for words in (
        ["report", run, "-q", "--json", "-"],
        ["compare", run, run, "--json", "-"],
        ["whatif", run, "--json", "-"],
        ["top", "--once", "--json", run],
    ):
        said = speak(words)
        if said.code == 0:
            try:
                strict_json(said.out)
            except ValueError as error:
                wrong.append(f"{words[0]} --json of {run.name}: {error}")
    summary = run / "summary.json"
    if summary.exists():
        try:
            strict_json(summary.read_text())
        except ValueError as error:
            wrong.append(f"summary.json of {run.name}: {error}")
    text = metrics.read_text() if metrics.exists() else ""
    exported = speak(["export", "--once", run]).out
    shutil.rmtree(folder)
    return text, exported, wrong


def living(native: NativeFiles, folder: Path) -> tuple[list[str], str]:
    """Looks of `export` at two runs of one command beside each other, from before they start until after the end."""
    command = ["powerccl-bench", "all_reduce", "-b", "1M", "-e", "1M", "-g", "2", "-c", "0", "--min-time", "4"]
    runs = folder / "living"
    words = [
        sys.executable,
        "-m",
        "powerccl",
        "run",
        "--emulate",
        "t4x8",
        "-q",
        "--runs-dir",
        str(runs),
        "--name",
        "same",
    ]
    jobs = [
        subprocess.Popen([*words, "--", *command], cwd=folder, env=environment(native), stdout=subprocess.DEVNULL)
        for _ in range(2)
    ]
    looks = []
    for _ in range(LOOKS):
        looks.append(powerccl(native, ["export", "--once", "--runs-dir", runs], folder).out)
        time.sleep(0.4)
    for job in jobs:
        job.wait()
    looks.append(powerccl(native, ["export", "--once", "--runs-dir", runs], folder).out)
    return looks, looks[-1]


def measure(native: NativeFiles, folder: Path) -> Figures:
    """All output for machines."""
    same = Job("t4x8", ("powerccl-bench", "all_reduce", "-b", "1M", "-e", "1M", "-g", "2", "-c", "0"))
    jobs = [same, same, *(random_job(1000 + seed) for seed in range(RUNS))]
    runs = [*record_all(native, jobs, folder / "runs"), *recorded(folder / "recorded")]
    checked, errors = 0, []
    reported, exported = [], []
    for run, (text, look, wrong) in zip(runs, spread(_pages, runs, native.root), strict=True):
        reported.append((f"{run.parent.name}/{run.name}", text))
        exported.append((run.name, look))
        errors += wrong
        checked += 5
    for name, text in [*reported, *exported]:
        checked += 1
        errors += [f"{name}: {line}" for line in promtool(text)]
    errors += together(reported)
    looks, last = living(native, folder)
    errors += [f"export of living jobs: {each}" for each in life(looks)]
    for text in looks:
        checked += 1
        errors += [f"export of living jobs: {line}" for line in promtool(text)]
    names = {dict(labels).get("run") for _, labels in series(last)} - {None}
    if len(names) != 2:
        errors.append(f"two runs of one command are {sorted(map(str, names))} in an export")
    for text in sorted(set(errors)):
        fault(text)
    print(f"promtool and json, {checked} documents", file=sys.stderr)
    return {"trust.prometheus.errors": count(len(set(errors)), checked)}
