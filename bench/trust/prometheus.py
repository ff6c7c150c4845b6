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

from bench.figures import Figures, count
from bench.trust import fault
from bench.trust.checks import strict_json
from bench.trust.jobs import Job, environment, random_job, record_all, recorded
from bench.trust.spoken import speak, spread

from powerccl.launch.native import NativeFiles

RUNS = 12
LOOK_S = 0.5
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


def life(looks: list[str], prefix: str = "") -> list[str]:
    """What changes over looks in turn at series of runs whose folders begin so: new ones may come, none may go."""
    found = []
    before: set[Series] = set()
    for at, text in enumerate(looks):
        now = {each for each in series(text) if dict(each[1]).get("run", "\0").startswith(prefix)}
        if before - now:
            found.append(f"look {at}: {len(before - now)} series are gone, {min(map(str, before - now))[:200]}")
        before = now
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
    """Looks at what `export` writes of two runs of one command, from before they start until after their end.

    Second: how the folders of these runs begin.
    """
    command = ["powerccl-bench", "all_reduce", "-b", "1M", "-e", "1M", "-g", "2", "-c", "0", "--min-time", "4"]
    runs = folder / "living"
    runs.mkdir()
    begin = [sys.executable, "-m", "powerccl"]
    words = ["run", "--emulate", "t4x8", "-q", "--runs-dir", str(runs), "--name", "same", "--", *command]
    file = folder / "living.prom"
    look = ["export", "--runs-dir", str(runs), "--textfile", str(file), "--interval", "1"]
    looks = []
    with subprocess.Popen([*begin, *look], env=environment(native), stderr=subprocess.DEVNULL) as exporter:
        jobs = [
            subprocess.Popen([*begin, *words], env=environment(native), stdout=subprocess.DEVNULL) for _ in range(2)
        ]
        while any(each.poll() is None for each in jobs):
            time.sleep(LOOK_S)
            looks.append(file.read_text() if file.exists() else "")
        time.sleep(3)  # for what is told of the jobs that have ended
        looks.append(file.read_text())
        exporter.terminate()
    return looks, str(runs)


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
    looks, prefix = living(native, folder)
    errors += [f"export of living jobs: {each}" for each in life(looks, prefix)]
    for text in looks:
        checked += 1
        errors += [f"export of living jobs: {line}" for line in promtool(text)]
    all_names = {dict(labels).get("run", "") for _, labels in series(looks[-1])}
    names = {name for name in all_names if name.startswith(prefix)}
    if len(names) != 2:
        errors.append(f"two runs of one command are {sorted(names)} in an export")
    for text in sorted(set(errors)):
        fault(text)
    print(f"promtool and json, {checked} documents", file=sys.stderr)
    return {"trust.prometheus.errors": count(len(set(errors)), checked)}
