# SPDX-License-Identifier: Apache-2.0
"""One run of powerccl-bench under `powerccl run`: started, watched, read, and predicted from."""

import contextlib
import json
import os
import shutil
import signal
import statistics
import subprocess
import sys
import threading
import time
from dataclasses import dataclass
from pathlib import Path

from powerccl.aliases import current_policy, figure_policy
from powerccl.analysis.policy import policy_outcome
from powerccl.launch.native import BENCH, find_native
from powerccl.traces.folder import read_run

from . import priority
from .figures import Record
from .platforms import PLATFORMS, SCENARIOS, SLOW_TO_SETTLE, Traits

LEARNING = ("auto", "phase", "job")
MODEL_CASE = "models."
CLOCK_THREAD = "powerccl-clock"
DRY = "dry"  # as `powerccl run` says of a run's clocks
LOOK_EVERY_S = 0.5
LEAST_WATCHED_S = 2.0
END_S = 20.0
WHATIF_S = 120.0

# What learns nothing. After 5 s a T4 takes 1 % less time than after 18 s, as much as a policy may cost: what others are
# compared with is as warm as they are. At its power limit a GPU's clock swings for seconds: 9 s of it are no baseline.
WARM_S, MEASURED_S = 45.0, 60.0
PERCALL_WARM_S, PERCALL_MEASURED_S = 25.0, 30.0  # of iterations as they are by themselves: it may take twice the time
PERCALL_DRAWS = 150
# What learns has chosen by 12 s, and leaves a block of 8 s alone to compare with, from then on one in 16 and at last
# one in 40 where it is known well what it costs. It is measured from the first of these on for as long as that takes.
LEARNT_S, LEARNT_FOR_S = 60.0, 300.0
# Where iterations differ by themselves all of this takes longer.
VARYING_LEARNT_S = 105.0
STEP_OF = ("ddp", "exposed", "fsdp", "graph", "moe", "pp", "shift", "straggler", "tp", "zero1")
STEP_MS = {
    "t4x8": dict(zip(STEP_OF, (112, 112, 117, 77, 109, 91, 97, 105, 88, 111), strict=True)),
    "t4x8-fastlink": dict(zip(STEP_OF, (97, 50, 104, 62, 90, 80, 70, 86, 69, 82), strict=True)),
    "h200x4": dict(zip(STEP_OF, (85, 31, 92, 53, 74, 72, 60, 76, 57, 69), strict=True)),
}
# A job that changes half way is learnt anew; each half lasts as long as all of another job. Who learns nothing needs
# less of it.
CHANGING_COUNT = 1200
# Of models as many as tell a few tenths of a percent; under what learns with their share of iterations left alone.
MODEL_COUNTS = {
    "microllama": {True: (350, 560), False: (60, 100)},
    "opt": {True: (40, 100), False: (10, 40)},
    "gpt2": {True: (120, 520), False: (70, 120)},
    "distilgpt2": {True: (150, 840), False: (100, 160)},
}
SCENARIO_LIMIT_S = 900.0
MODEL_LIMIT_S = 900.0
QUICK_COUNTS = (6, 12)


stopped = threading.Event()  # whoever makes runs in threads wants them to end
Key = tuple[str, str, str, int, int, int]


class RunError(Exception):
    """A run that gave no figures; says why."""


@dataclass(frozen=True)
class Run:
    """What to run."""

    platform: str
    case: str
    policy: str
    repeat: int
    warm_up: int
    iterations: int

    @property
    def key(self) -> Key:
        """What makes two runs the same."""
        return (self.platform, self.case, self.policy, self.repeat, self.warm_up, self.iterations)

    @property
    def limit_s(self) -> float:
        """After so long it hangs."""
        return MODEL_LIMIT_S if self.case.startswith(MODEL_CASE) else SCENARIO_LIMIT_S


def plan(platform: str, case: str, policy: str, repeat: int, traits: Traits, quick: bool) -> Run:
    """The run with its counts."""
    learns = policy in LEARNING
    if case.startswith(MODEL_CASE):
        warm_up, iterations = MODEL_COUNTS[case.removeprefix(MODEL_CASE)][learns]
    else:
        step_s = STEP_MS.get(platform, STEP_MS["t4x8"]).get(case, 100) / 1000
        brief = policy == "percall" and platform not in SLOW_TO_SETTLE
        warm_up = round((PERCALL_WARM_S if brief else WARM_S) / step_s)
        iterations = round((PERCALL_MEASURED_S if brief else MEASURED_S) / step_s)
        learning = round((VARYING_LEARNT_S if traits.varies else LEARNT_S) / step_s)
        learnt = round(len(traits.begins) * LEARNT_FOR_S / step_s)
        if not traits.same:  # sections of a scenario go by the iteration's number: all policies get the same work
            iterations = CHANGING_COUNT if len(traits.begins) > 1 else PERCALL_DRAWS
        if learns:
            warm_up = max(warm_up, learning)
            iterations = max(iterations, learnt)
        if traits.varies:  # so do draws
            warm_up = learning
            iterations = iterations if policy == "percall" else learnt
    if quick:
        warm_up, iterations = QUICK_COUNTS
    return Run(platform, case, policy, repeat, warm_up, iterations)


def command_of(run: Run, profile: str, folder: Path, report: Path) -> list[str]:
    """The command line, as a user would type it."""
    command = [sys.executable, "-m", "powerccl", "run", "--quiet", "--emulate", PLATFORMS[run.platform]]
    command += [
        "--platform",
        profile,
        "--policy",
        current_policy(run.policy),
        "--runs-dir",
        str(folder),
        "--name",
        run.policy,
    ]
    if run.case.startswith(MODEL_CASE):  # as `powerccl demo` does
        command += ["--overhead", "published", "--interval-ms", "10"]
        what = ["train", "--model", run.case.removeprefix(MODEL_CASE)]
    else:
        what = ["scenario", str(SCENARIOS / f"{run.case}.scn")]
    command += ["--", str(find_native().path(BENCH)), *what]
    return [*command, "--iterations", str(run.iterations), "-w", str(run.warm_up), "--json", str(report)]


def perform(run: Run, profile: str, folder: Path, recordings: Path | None = None) -> Record:
    """Run it in an empty folder and read what it says. `recordings`: where what observe recorded is kept.

    Raises:
        RunError: it failed, hung, or said nothing.
    """
    report = folder / "report.json"
    log = folder / "output.log"
    with log.open("wb") as output:
        command = command_of(run, profile, folder, report)
        child = subprocess.Popen(command, stdout=output, stderr=subprocess.STDOUT, start_new_session=True)
        threads = ClockThreads(child.pid)
        first = priority.put_first(child.pid)
        try:
            _wait(child, run.limit_s, threads, first)
        finally:
            _end(child)
    if child.returncode != 0:
        raise RunError(f"exit code {child.returncode}: {_last_words(log)}")
    if run.policy != "observe":
        refuse_dry(folder)
    record = read_report(run, report)
    record.core_share_pct = threads.shares_pct()
    if run.policy in LEARNING:
        record.told_pct = told(folder)
    if run.policy == "observe":
        if recordings:
            for path in folder.glob("*/run.json"):
                shutil.copytree(path.parent, recording_of(run, recordings), dirs_exist_ok=True)
        record.predicted, record.remark = predict(folder, profile)
    return record


def refuse_dry(folder: Path) -> None:
    """Where no clock was set, nothing was saved: that says nothing of a policy.

    Raises:
        RunError: clocks were dry.
    """
    for path in folder.glob("*/run.json"):
        with contextlib.suppress(OSError, ValueError):
            if json.loads(path.read_text()).get("clocks") == DRY:
                raise RunError("its clocks were dry: is bin/powerccld in POWERCCL_NATIVE, and POWERCCL_CLOCKS unset?")


def told(folder: Path) -> list[float]:
    """The slowdown in percent that the job itself came to, between its bounds: low, estimate, high; [] if none."""
    outcome = next((policy_outcome(read_run(path.parent)) for path in folder.glob("*/run.json")), None)
    if outcome is None or outcome.slowdown_pct is None:
        return []
    return [each or 0.0 for each in (outcome.slowdown_low_pct, outcome.slowdown_pct, outcome.slowdown_high_pct)]


def recording_of(run: Run, recordings: Path) -> Path:
    """The run folder that is kept."""
    return recordings / f"{run.platform}-{run.case}-{run.repeat}" / "run"


def read_report(run: Run, path: Path) -> Record:
    """What powerccl-bench wrote.

    Raises:
        RunError: it is no report of a run that finished, or has no energy.
    """
    try:
        report = json.loads(path.read_text())
        summary = report["summary"]
        measured = [each for each in report["results"] if not each["warmup"]]
    except (OSError, ValueError, KeyError) as error:
        raise RunError(f"no report ({type(error).__name__}: {error})") from error
    if not report.get("finished") or len(measured) != run.iterations:
        raise RunError(f"{len(measured)} of {run.iterations} iterations: {report.get('error') or 'not finished'}")
    if "run_joules_per_gpu" in summary:
        whole = summary["run_joules_per_gpu"]
        joules = None if whole is None else whole / len(measured)
    else:
        every = [each["joules_per_gpu"] for each in measured]
        joules = None if None in every else statistics.fmean(every)
    if joules is None:
        raise RunError("no energy was measured")
    return Record(
        platform=run.platform,
        case=run.case,
        policy=run.policy,
        repeat=run.repeat,
        step_ms=[each["step_ms"] for each in measured],
        joules=[each["joules_per_gpu"] for each in measured],
        joules_per_iteration=joules,
    )


class ClockThreads:
    """Processor time of our threads in a job, by looking at /proc now and then."""

    def __init__(self, root: int, proc: Path = Path("/proc")) -> None:
        self.root = root
        self.proc = proc
        self.seen: dict[str, tuple[float, int, float, int]] = {}  # first and last look: seconds, processor ns

    def look(self) -> None:
        """Once."""
        for task in priority.tasks_of(self.root, self.proc):
            if priority.name_of(task) == CLOCK_THREAD:
                with contextlib.suppress(OSError):
                    self._note(task.name, time.monotonic(), int((task / "schedstat").read_text().split()[0]))

    def _note(self, task: str, now_s: float, used_ns: int) -> None:
        first_s, first_ns, _, _ = self.seen.get(task, (now_s, used_ns, now_s, used_ns))
        self.seen[task] = (first_s, first_ns, now_s, used_ns)

    def shares_pct(self) -> list[float]:
        """Of each thread that was watched for long enough, between the first and the last look."""
        found = []
        for first_s, first_ns, last_s, last_ns in self.seen.values():
            if last_s - first_s >= LEAST_WATCHED_S:
                found.append((last_ns - first_ns) / 1e9 / (last_s - first_s) * 100)
        return found


def _wait(child: subprocess.Popen[bytes], limit_s: float, threads: ClockThreads, first: bool) -> None:
    """`first`: the child and what it starts come before all else on this machine; what it does itself need not."""
    until_s = time.monotonic() + limit_s
    while True:
        with contextlib.suppress(subprocess.TimeoutExpired):
            child.wait(LOOK_EVERY_S)
            return
        if time.monotonic() > until_s:
            raise RunError(f"not over after {limit_s:g} s")
        if stopped.is_set():
            raise RunError("stopped")
        if first and any(priority.name_of(task) == Path(BENCH).name for task in priority.tasks_of(child.pid)):
            priority.put_back(child.pid)
            first = False
        threads.look()


def _end(child: subprocess.Popen[bytes]) -> None:
    """Whatever still lives of it; politely at first, so that its emulated server goes with it."""
    if child.poll() is not None:
        return
    child.terminate()
    with contextlib.suppress(subprocess.TimeoutExpired):
        child.wait(END_S)
        return
    with contextlib.suppress(ProcessLookupError):
        os.killpg(child.pid, signal.SIGKILL)
    child.wait()


def _last_words(log: Path) -> str:
    lines = log.read_text("utf-8", "replace").strip().splitlines()
    return " / ".join(lines[-2:]) if lines else "no message"


def predict(folder: Path, profile: str) -> tuple[dict[str, float], str]:
    """Energy saved in percent by policy, as whatif says of the run in a folder, and why there is none."""
    found = [path.parent for path in folder.glob("*/run.json")]
    if len(found) != 1:
        return {}, "no run folder"
    command = [sys.executable, "-m", "powerccl", "whatif", str(found[0]), "--platform", profile, "--json", "-"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=WHATIF_S)
    except subprocess.TimeoutExpired:
        return {}, f"whatif: not over after {WHATIF_S:g} s"
    if done.returncode != 0:
        return {}, f"whatif: {(done.stderr.strip().splitlines() or ['no message'])[0]}"
    try:
        policies = json.loads(done.stdout)["policies"]
        return {figure_policy(each["policy"]): each["saved_pct"]["value"] for each in policies}, ""
    except (ValueError, KeyError) as error:
        return {}, f"whatif: {type(error).__name__}: {error}"
