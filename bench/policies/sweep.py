# SPDX-License-Identifier: Apache-2.0
"""All runs, one after another or side by side: how long they will take, and a file that knows what was done."""

import json
import os
import queue
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import asdict, dataclass, field
from pathlib import Path

from .figures import Figure, Record, Spread, figures_of
from .platforms import MODELS_ON, PLATFORMS, ROOT, SCENARIOS, Traits, profile_of, traits_of
from .runs import MODEL_CASE, Key, Run, RunError, perform, plan, predict, recording_of, stopped

MODEL_POLICIES = ("observe", "percall", "auto")
ATTEMPTS = 2
LEAST_CORES = 4  # that a run is given, if there are so many: it keeps a fifth of one busy, but not evenly
MOST_RUNS = 2  # for each core
Oracles = dict[tuple[str, str], dict[str, object]]


@dataclass
class Wanted:
    """What is asked for."""

    platforms: Sequence[str]
    scenarios: Sequence[str]
    policies: Sequence[str]
    models: Sequence[str]
    repeat: int = 1
    quick: bool = False
    recordings: Path | None = None  # where what observe recorded is kept
    rows: Sequence[tuple[str, str, str]] = ()  # platform, case, policy: of all that is asked for these alone, if any

    def traits(self) -> dict[str, Traits]:
        """Of each scenario."""
        return {name: traits_of((SCENARIOS / f"{name}.scn").read_text()) for name in self.scenarios}

    def runs(self) -> list[Run]:
        """In the order in which they are made: what is compared follows one another."""
        traits, found = self.traits(), []
        policies = list(dict.fromkeys(["observe", *self.policies]))
        for platform in self.platforms:
            cases = [(name, policies, traits[name]) for name in self.scenarios]
            if platform == MODELS_ON:
                of_models = [policy for policy in MODEL_POLICIES if policy in policies]
                cases += [(MODEL_CASE + model, of_models, Traits()) for model in self.models]
            for case, mine, its in cases:
                mine = self._in_rows(platform, case, mine)
                for repeat in range(self.repeat):
                    found += [plan(platform, case, policy, repeat, its, self.quick) for policy in mine]
        return found

    def _in_rows(self, platform: str, case: str, policies: Sequence[str]) -> list[str]:
        """Of these policies those that a row names, and what they are compared with."""
        named = {policy for *of, policy in self.rows if of == [platform, case]}
        return [each for each in policies if not self.rows or each in named or (named and each == "observe")]


@dataclass
class Journal:
    """Runs that were made, a line each: a sweep that was interrupted goes on from it."""

    path: Path
    records: dict[Key, Record] = field(default_factory=dict)
    missing: dict[Key, str] = field(default_factory=dict)

    def read(self) -> None:
        """What an earlier sweep left; a line cut off by an interruption is ignored."""
        if not self.path.exists():
            return
        text = self.path.read_text()
        if text and not text.endswith("\n"):
            self.path.write_text(text + "\n")  # what is added next has a line of its own
        for line in text.splitlines():
            try:
                entry = json.loads(line)
            except ValueError:
                continue
            if entry["record"]:
                self.records[tuple(entry["key"])] = Record(**entry["record"])

    def start(self) -> None:
        """Anew; the runs of the sweep before are set aside, for they took hours."""
        self.path.parent.mkdir(parents=True, exist_ok=True)
        if self.path.exists() and self.path.stat().st_size:
            self.path.replace(self.path.with_suffix(".before"))
        self.path.write_text("")

    def add(self, run: Run, record: Record | None, why: str, seconds: float) -> None:
        """Note what became of a run, with how busy the machine was."""
        if record:
            self.records[run.key] = record
        else:
            self.missing[run.key] = why
        entry: dict[str, object] = {"key": run.key, "record": asdict(record) if record else None, "missing": why}
        entry |= {"seconds": round(seconds, 1), "load": round(os.getloadavg()[0], 2)}
        entry["date"] = time.strftime("%Y-%m-%dT%H:%M:%S%z")
        with self.path.open("a") as file:
            file.write(json.dumps(entry) + "\n")


def sweep(
    wanted: Wanted, out: Path, journal: Journal, profiles: Path, oracles: Oracles, at_once: int = 1
) -> dict[str, Figure]:
    """Make all runs that the journal lacks; `out` holds the figures of those made so far.

    `at_once`: so many runs side by side, each on its share of the cores.
    """
    traits, runs = wanted.traits(), wanted.runs()
    left = [run for run in runs if run.key not in journal.records]
    if at_once > 1:
        left.sort(key=_work, reverse=True)  # the longest first, or all would wait for one of them in the end
    platform_profiles = {name: profile_of(name, profiles) for name in dict.fromkeys(run.platform for run in left)}
    all_work, work_done, began_s = sum(map(_work, left)), 0, time.monotonic()
    cores: queue.SimpleQueue[set[int]] = queue.SimpleQueue()
    for each in shares(os.sched_getaffinity(0), at_once):
        cores.put(each)

    def make(run: Run) -> tuple[Record | None, str, float]:
        mine = cores.get()
        before_s = time.monotonic()
        try:
            os.sched_setaffinity(0, mine)  # of this thread, and of what it starts
            record, why = _attempt(run, platform_profiles[run.platform], wanted.recordings)
        finally:
            cores.put(mine)
        return record, why, time.monotonic() - before_s

    with ThreadPoolExecutor(at_once) as pool:
        under_way = {pool.submit(make, run): run for run in left}
        try:
            for number, done in enumerate(as_completed(under_way), 1):
                run, (record, why, took_s) = under_way[done], done.result()
                journal.add(run, record, why, took_s)
                work_done += _work(run)
                rest_s = (time.monotonic() - began_s) * (all_work / work_done - 1)
                said = f"{record.joules_per_iteration:.3f} J, {_median(record.step_ms):.2f} ms" if record else why
                said = said if record else f"MISSING: {said}"
                if record and record.remark:
                    said += f" ({record.remark})"
                print(
                    f"# [{number}/{len(left)}] {run.platform} {run.case} {run.policy}: {said}; "
                    f"{took_s:.0f} s, {_duration(rest_s)} left",
                    file=sys.stderr,
                    flush=True,
                )
                _write(out, figures_of(_chosen(runs, journal), traits, oracles))
        except BaseException:  # interrupted
            stopped.set()
            pool.shutdown(wait=False, cancel_futures=True)
            raise
    figures = figures_of(_chosen(runs, journal), traits, oracles)
    figures["policies.runs_missing"] = Spread(len(journal.missing), None, None, len(runs)).figure("runs")
    _write(out, figures)
    return figures


def shares(cores: Iterable[int], count: int) -> list[set[int]]:
    """Cores of each of so many runs, neighbours together: two at least, which several runs share where there are fewer.

    Raises:
        ValueError: there are too few cores.
    """
    ranked = sorted(cores)
    if count > MOST_RUNS * len(ranked):
        raise ValueError(f"{count} runs at once on {len(ranked)} cores: no more than {MOST_RUNS} for each are any good")
    size = max(len(ranked) // count, LEAST_CORES)
    places = max(len(ranked) // size, 1)
    return [set(ranked[place % places * size :][:size]) for place in range(count)]


def predict_again(wanted: Wanted, journal: Journal, profiles: Path) -> int:
    """What whatif says now of what observe recorded in an earlier sweep; returns of how many runs."""
    count = 0
    for run in wanted.runs():
        recording = recording_of(run, wanted.recordings) if wanted.recordings else Path()
        if run.policy != "observe" or run.key not in journal.records or not (recording / "run.json").exists():
            continue
        record = journal.records[run.key]
        record.predicted, record.remark = predict(recording.parent, profile_of(run.platform, profiles))
        journal.add(run, record, "", 0)
        count += 1
    return count


def _chosen(runs: Sequence[Run], journal: Journal) -> list[Record]:
    return [journal.records[run.key] for run in runs if run.key in journal.records]


def _attempt(run: Run, profile: str, recordings: Path | None) -> tuple[Record | None, str]:
    """The run, a second time if the first fails; else why it is missing."""
    why = ""
    for _ in range(ATTEMPTS):
        if stopped.is_set():
            break
        with tempfile.TemporaryDirectory(prefix="powerccl-policies-") as folder:
            try:
                return perform(run, profile, Path(folder), recordings), ""
            except RunError as error:
                why = str(error)
                print(f"# {run.platform} {run.case} {run.policy} failed: {why}", file=sys.stderr, flush=True)
    return None, why


def _work(run: Run) -> int:
    """How long runs take beside each other: iterations, those of models six times as long, and starting."""
    each = 6 if run.case.startswith(MODEL_CASE) else 1
    return (run.warm_up + run.iterations) * each + 50


def _median(values: Sequence[float]) -> float:
    return sorted(values)[len(values) // 2]


def _duration(seconds: float) -> str:
    minutes = round(seconds / 60)
    return f"{minutes // 60} h {minutes % 60:02} min" if minutes >= 60 else f"{minutes} min"


def _write(path: Path, figures: Mapping[str, Figure]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_suffix(".partial")
    partial.write_text(json.dumps(figures, indent=1) + "\n")
    partial.replace(path)


def find_oracles(wanted: Wanted, folder: Path, schedules: bool = True) -> Oracles:
    """What bench.oracle says; computed where its file in `folder` lacks a scenario or is older than its sources."""
    sources = [*(ROOT / "bench/oracle").glob("*.py"), *(ROOT / "native/emulator/platforms").glob("*.conf")]
    sources += [SCENARIOS / f"{name}.scn" for name in wanted.scenarios]
    newest = max(source.stat().st_mtime for source in sources)
    found: Oracles = {}
    for platform in wanted.platforms if wanted.scenarios else []:
        path = folder / f"{platform}.json"
        fresh = path.exists() and path.stat().st_mtime > newest
        mine = read_oracles(path) if fresh else {}
        lacking = [name for name in wanted.scenarios if (platform, name) not in mine]
        if lacking:
            print(f"# the oracle of {platform}: {', '.join(lacking)}", file=sys.stderr, flush=True)
            mine |= _compute(platform, lacking, folder, schedules)
            folder.mkdir(parents=True, exist_ok=True)
            scenarios = {name: each for (_, name), each in mine.items()}
            path.write_text(json.dumps({"platforms": {PLATFORMS[platform]: scenarios}}, indent=1) + "\n")
        found |= mine
    return found


def _compute(platform: str, scenarios: Sequence[str], folder: Path, schedules: bool) -> Oracles:
    """By its own command, so that a scenario that it cannot solve costs only that one."""
    found: Oracles = {}
    folder.mkdir(parents=True, exist_ok=True)
    for scenario in scenarios:
        out = folder / f"{platform}-{scenario}.part.json"
        command = [sys.executable, "-m", "bench.oracle", "--platform", PLATFORMS[platform], "--out", str(out)]
        command += ([] if schedules else ["--no-schedules"]) + [str(SCENARIOS / f"{scenario}.scn")]
        done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
        if done.returncode == 0 and out.exists():
            found |= read_oracles(out)
        else:
            words = (done.stderr.strip().splitlines() or ["no message"])[-1]
            print(f"# no oracle of {scenario} on {platform}: {words}", file=sys.stderr, flush=True)
        out.unlink(missing_ok=True)
    return found


def read_oracles(path: Path) -> Oracles:
    """A file of `python -m bench.oracle --out`, by the names that platforms have here."""
    names = {spec: name for name, spec in PLATFORMS.items()}
    platforms = json.loads(path.read_text())["platforms"]
    return {
        (names[spec], scenario): found
        for spec, scenarios in platforms.items()
        if spec in names
        for scenario, found in scenarios.items()
    }
