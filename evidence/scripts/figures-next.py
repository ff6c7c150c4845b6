"""What `powerccl` advises to do next with runs whose best action is known, and whether a step would harm the job.

figures-next.py [--kind development|reported] [--real DIR] [--only KIND ...] [--out FILE]. POWERCCL_NATIVE names the
built programs. The rules may be changed on development runs, never on reported ones. `--real`: the folder of recorded
runs of H100s; without it they are not counted. MPI needs an mpiexec. The machine should be idle.

What is known of simulated runs comes from the simulator, which knows the machine: `auto` against observe for clocks,
the job without its slow rank for a straggler, and links four times as fast for NCCL's parameters. A search over TCP
sockets found so much (results/tune-h200x2.json).
"""

import argparse
import itertools
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT), str(ROOT / "tests")]

from evidence.robustness.jobs import built_in, job
from evidence.robustness.machines import Machine, machine
from evidence.robustness.trials import BUDGET_PCT, UNNOTICED_PCT
from support.figures import Figure, Figures, about, bare, count, show, spread, write

from powerccl.analysis.report_findings import NextStep
from powerccl.commandline.summaries import summary_of
from powerccl.commands.advice import advise
from powerccl.launch.native import find_native
from powerccl.platforms.conf import changed, value_of
from powerccl.platforms.ways import TABLES
from powerccl.reports.next_steps import LEAST_PCT
from powerccl.traces.folder import read_run
from powerccl.whatif.simulator import SIMULATOR, call, simulate

FIRST_MACHINE, MOST_GPUS = 3000, 8  # behind those of figures-whatif.py; of a prediction in half a minute
BEFORE_S, RECORDED_S = 20.0, 10.0
# LOOKED_S finds a machine, and MANAGED_S says what is known of it, as in figures-robustness.py.
LEARNING_S, LOOKED_S, MANAGED_S = 60.0, 60.0, 240.0
FACTORS = (1.0, 1.01, 1.05, 1.15, 1.3, 1.6)
NEVER_LAST = 0.5  # the factor of a rank that all others wait for no more: what its step promises at most
MUCH_PCT, NOTHING_PCT = 2.0, 0.5  # of energy, by clocks
CLOCK_RUNS, PREDICTED, NOTHING_RUNS, MOST_LOOKED_AT = 4, 3, 3, 24
FASTER_LINKS = 4.0
START_UPS_S, WORK_S = (0, 12, 20, 40), 65
MPI_PAIRS, MPI_NOISE_PCT = 3, 3.0  # of the quickest quarter of iterations, on two cores
WAYS_GPU = "NVIDIA H100 80GB HBM3"
CONDITIONS = (
    "runs of the simulator, of the real-time emulator, of MPI on this machine, and recorded ones of H100s; right: the "
    "best action is among the three and none is untrue; first: it is the first of them; harmful: a step lowers clocks "
    f"where `auto` takes more than {BUDGET_PCT:g} % more time on the machine, or `--mpi auto` takes more than "
    f"{MPI_NOISE_PCT:g} % more time; jobs that whatif refuses to predict are left out"
)


@dataclass
class Case:
    """A run: `best` is the rule of its best action (empty: not known), `untrue` are those whose step would be wrong."""

    kind: str
    name: str
    steps: list[NextStep]
    best: str
    untrue: set[str] = field(default_factory=set)
    known: str = ""
    slowdown_pct: float | None = None  # of `auto` on the machine
    excess_points: float | None = None  # by which a straggler's step promises more than the job gains

    @property
    def right(self) -> bool:
        """The best action is among the steps, and none of them is wrong."""
        rules = {step.rule for step in self.steps}
        return (not self.best or self.best in rules) and not self.untrue & rules

    @property
    def harmful(self) -> int:
        """Steps that lower clocks where that costs more than the budget, which they name."""
        clocks = [step for step in self.steps if step.rule == "clocks"]
        return len(clocks) if (self.slowdown_pct or 0.0) > BUDGET_PCT + UNNOTICED_PCT else 0


def advice(folder: Path) -> list[NextStep]:
    """Of a report."""
    return advise(read_run(folder), summary_of(folder))


def predicted_advice(folder: Path) -> list[NextStep] | None:
    """Of a prediction; None: whatif says that it cannot predict the run."""
    out = folder / "whatif.json"
    try:
        powerccl("whatif", str(folder), "--platform", "none", "--json", str(out))
    except subprocess.CalledProcessError:
        return None
    told = json.loads(out.read_text())["next_steps"]
    return [NextStep(rule=each["rule"], text=each["text"], command=each["command"]) for each in told]


def powerccl(*words: str) -> None:
    """Run a verb quietly."""
    command = [sys.executable, "-m", "powerccl", *words]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, timeout=600)


def recorded(scratch: Path, conf: str, scenario: str, policy: str = "observe", seconds: float = RECORDED_S) -> Path:
    """A run folder of the simulator."""
    folder = Path(tempfile.mkdtemp(dir=scratch))
    (folder / "job.scn").write_text(scenario)
    times = ["--seconds", f"{seconds:g}", "--warm-up", f"{BEFORE_S:g}", "--policy", policy]
    call(find_native().path(SIMULATOR), conf, [str(folder / "job.scn"), *times, "--run-folder", str(folder / "run")])
    return folder / "run"


def clocks_known(conf: str, scenario: str, seconds: float = MANAGED_S) -> tuple[float, float]:
    """Energy saved and time added by `auto`, percent."""
    native = find_native()
    plain, managed = (
        simulate(native.path(SIMULATOR), conf, [scenario], policy, seconds, LEARNING_S)
        for policy in ("observe", "auto")
    )
    return managed.against(plain)


def time_saved(conf: str, scenario: str, other_conf: str, other_scenario: str) -> float:
    """Percent of the job's time that the other machine or job takes less."""
    program = find_native().path(SIMULATOR)
    before, after = (
        simulate(program, *each, "observe", RECORDED_S, BEFORE_S).iteration_ms
        for each in ((conf, [scenario]), (other_conf, [other_scenario]))
    )
    return 100 * (1 - after / before)


def machines(kind: str, nvlink: bool = False) -> Iterator[tuple[int, Machine]]:
    """Machines of that kind that are small enough, in their order; of all boards, or of those with NVLink."""
    for number in itertools.count(FIRST_MACHINE):
        made = machine(kind, number)
        if made.gpus <= MOST_GPUS and not (nvlink and made.board == "t4"):
            yield number, made


def best_of(gains: dict[str, float]) -> str:
    """The action that is worth most; none is, below what counts as one."""
    rule = max(gains, key=lambda each: gains[each])
    return rule if gains[rule] >= LEAST_PCT else ""


def stragglers(kind: str, scratch: Path) -> Iterator[Case]:
    """One rank computes longer. Links are NVLink, so that no search is worth it."""
    text = built_in("straggler").text
    for factor, (number, made) in zip(FACTORS, machines(kind, nvlink=True), strict=False):
        slow = text.replace("rank 3 x1.3", f"rank 3 x{factor}")
        saved, slower = clocks_known(made.conf, slow)
        gains = {"straggler": time_saved(made.conf, slow, made.conf, text.replace("rank 3 x1.3", "")), "clocks": saved}
        steps = advice(recorded(scratch, made.conf, slow))
        claims = [step.gain_pct.high for step in steps if step.gain_pct and "rank 3," in step.text]
        never_last = time_saved(made.conf, slow, made.conf, text.replace("rank 3 x1.3", f"rank 3 x{NEVER_LAST}"))
        known = ", ".join(f"{rule} {gain:.1f} %" for rule, gain in gains.items())
        known += f"; never last: {never_last:.1f} %, the step says {claims[0]:.1f} %" if claims else ""
        case = Case("straggler", f"{number} x{factor}", steps, best_of(gains), {"tune"}, known, slower)
        case.excess_points = claims[0] - never_last if claims else None
        yield case


def clocks(kind: str, scratch: Path) -> Iterator[Case]:
    """Random jobs of which `auto` saves much, or nothing."""
    much = nothing = 0
    for number, made in itertools.islice(machines(kind), MOST_LOOKED_AT):
        made_job = job(kind, number, made.gpus)
        if made_job.scenario == "straggler":
            continue
        if much >= CLOCK_RUNS and nothing >= NOTHING_RUNS:
            return
        saved, _ = clocks_known(made.conf, made_job.text, LOOKED_S)
        is_much, is_nothing = saved > MUCH_PCT and much < CLOCK_RUNS, saved < NOTHING_PCT and nothing < NOTHING_RUNS
        if not is_much and not is_nothing:
            continue
        run = recorded(scratch, made.conf, made_job.text)
        predicted = predicted_advice(run) if is_nothing or much < PREDICTED else None
        if is_nothing and predicted is None:
            continue
        saved, slower = clocks_known(made.conf, made_job.text)
        name, known = f"{number} {made_job.scenario}", f"clocks {saved:.1f} %, {slower:.2f} % more time"
        best, untrue = ("clocks", set[str]()) if is_much else ("", {"clocks"})
        if is_much:
            much += 1
            yield Case("clocks", name, advice(run), best, untrue, known, slower)
        if predicted is not None:
            nothing += is_nothing
            yield Case("clocks", f"{name} predicted", predicted, best, untrue, known, slower)


def links(kind: str, scratch: Path) -> Iterator[Case]:
    """Slow links, or a slow network between two hosts, and communication that nothing hides."""
    for at, (number, made) in enumerate(itertools.islice(machines(kind, nvlink=True), 5)):
        scale = float(value_of(made.conf, "link_scale"))
        if at % 2:
            change, faster = ({"hosts": "2", "network_gbs": f"{gbs:g}", "network_latency_us": "20"}
                              for gbs in (2.0, 2.0 * FASTER_LINKS))  # fmt: skip
        else:
            change, faster = ({"link_scale": f"{scale * by:g}"} for by in (0.02, 0.02 * FASTER_LINKS))
        conf, quick = (changed(made.conf, each) for each in (change, faster))
        scenario = built_in(("exposed", "zero1", "ddp")[at % 3]).text
        saved, slower = clocks_known(conf, scenario)
        gains = {"tune": time_saved(conf, scenario, quick, scenario), "clocks": saved}
        known = ", ".join(f"{rule} {gain:.1f} %" for rule, gain in gains.items())
        name = f"{number} {'two hosts' if at % 2 else 'slow links'}"
        yield Case("links", name, advice(recorded(scratch, conf, scenario)), best_of(gains), set(), known, slower)


def start_ups(scratch: Path) -> Iterator[Case]:
    """Emulated jobs that sleep before they communicate, in real time."""
    bench = f"exec {find_native().root}/bin/powerccl-bench scenario {ROOT}/bench/scenarios/ddp.scn --seconds {WORK_S}"
    for sleep_s in START_UPS_S:
        runs = scratch / f"start-up-{sleep_s}"
        record = ("run", "-q", "--emulate", "a100x4", "--policy", "observe", "--runs-dir", str(runs))
        powerccl(*record, "--", "sh", "-c", f"sleep {sleep_s}; {bench}")
        (run,) = runs.iterdir()
        share = 100 * sleep_s / (sleep_s + WORK_S)
        best, untrue = ("startup", set()) if sleep_s else ("", {"startup"})
        yield Case("start-up", f"{sleep_s} s", advice(run), best, untrue, f"{share:.0f} % of the time")


def managed(kind: str, scratch: Path) -> Iterator[Case]:
    """Clocks are set already: under `auto` in the simulator, and by an emulated lease."""
    for number, made in itertools.islice(machines(kind), 2):
        run = recorded(scratch, made.conf, built_in("fsdp").text, "auto", 60.0)
        yield Case("nothing", f"{number} auto", advice(run), "", {"clocks"}, "clocks are set")
    runs = scratch / "lease"
    bench = [f"{find_native().root}/bin/powerccl-bench", "scenario", str(ROOT / "bench/scenarios/fsdp.scn")]
    options = ("run", "-q", "--emulate", "a100x4", "--policy", "auto", "--runs-dir", str(runs))
    powerccl(*options, "--", *bench, "--seconds", "10")
    (run,) = runs.iterdir()
    yield Case("nothing", "lease", advice(run), "", {"clocks"}, "clocks are set")


def mpi(scratch: Path) -> Iterator[Case]:
    """Two ranks. In `wait` one waits in MPI_Recv; in `stencil` the last has more work."""
    bench = f"{find_native().root}/bin/powerccl-bench-mpi"
    stencil = ["stencil", "--step-us", "100000", "--iterations", "40", "--imbalance-pct"]
    wait = ["wait", "--wait-us", "1000000", "--repeat", "5"]
    cases: tuple[tuple[str, list[str], str, set[str]], ...] = (
        ("observe", wait, "mpi", set()),
        ("observe", [*stencil, "40"], "straggler", set()),
        ("observe", [*stencil, "80"], "straggler", set()),
        ("auto", wait, "", {"mpi", "straggler"}),
        ("auto", [*stencil, "40"], "straggler", {"mpi"}),
    )
    for at, (mode, words, best, untrue) in enumerate(cases):
        runs = scratch / f"mpi-{at}"
        powerccl("run", "-q", "--mpi", mode, "--runs-dir", str(runs), "--", "mpiexec", "-n", "2", bench, *words)
        (run,) = runs.iterdir()
        yield Case("mpi", f"{mode} {words[0]} {words[-1] if words is not wait else ''}", advice(run), best, untrue)


def mpi_slowdown(scratch: Path) -> float:
    """Percent by which iterations take longer with `--mpi auto` than with observe: runs in turns, of the same work."""
    bench, took = f"{find_native().root}/bin/powerccl-bench-mpi", {"observe": list[float](), "auto": list[float]()}
    words = ["stencil", "--sweeps", "400", "--iterations", "40", "--imbalance-pct", "40", "--json"]
    for _ in range(MPI_PAIRS):
        for mode, values in took.items():
            out, runs = scratch / "out.json", scratch / "mpi-harm"
            options = ("run", "-q", "--mpi", mode, "--runs-dir", str(runs), "--")
            powerccl(*options, "mpiexec", "-n", "2", bench, *words, str(out))
            # The lower quartile of iterations: other processes on the machine make some longer.
            values.append(float(json.loads(out.read_text())["summary"]["step_us"]["low"]))
    return 100 * (median(took["auto"]) / median(took["observe"]) - 1)


def real(folder: Path, scratch: Path) -> Iterator[Case]:
    """Recorded H100s. What FSDP2 saves by copy engines was measured; nothing repeats in the runs of one collective."""
    for info in sorted(folder.rglob("run.json")):
        run, name = info.parent, info.parent.name
        if name.endswith("-none"):
            yield Case("ways", name, advice(run), "measure-ways", {"ways"}, "ways 5.6 %, no table of these GPUs")
            kept = os.environ.get("XDG_CONFIG_HOME")
            os.environ["XDG_CONFIG_HOME"] = str(own_table(scratch))
            yield Case("ways", f"{name} own table", advice(run), "ways", {"measure-ways"}, "ways 5.6 %")
            os.environ.pop("XDG_CONFIG_HOME") if kept is None else os.environ.update(XDG_CONFIG_HOME=kept)
        elif re.search(r"\d{6}-auto$", name):
            steps = predicted_advice(copied(run, scratch)) or []
            lost = {step.rule for step in steps if " run " in step.command and "--ways" not in step.command}
            yield Case("ways", name, steps, "", {"ways", "measure-ways"} | lost, "ways are used, and must stay")
        elif "-230-" in name:
            steps = advice(run)
            refused = {step.rule for step in steps if "whatif" in step.command}
            yield Case("ways", name, steps, "clocks", refused, "cannot be predicted: record more of it")


def copied(run: Path, scratch: Path) -> Path:
    """Where files may be written."""
    return Path(shutil.copytree(run, scratch / run.name))


def own_table(scratch: Path) -> Path:
    """A configuration with a table of ways of four H100s: that of four H200s."""
    table = json.loads(TABLES.known()["h200x4"].read_text()) | {"name": "mine", "gpu": WAYS_GPU}
    home = scratch / "config"
    (home / "powerccl/ways").mkdir(parents=True)
    (home / "powerccl/ways/mine.json").write_text(json.dumps(table))
    return home


def figures_of(cases: list[Case], mpi_slower_pct: float | None) -> Figures:
    """Of all runs, and how many of each kind are right."""
    figures: Figures = {}
    for kind, number in Counter(case.kind for case in cases).items():
        right = sum(case.right for case in cases if case.kind == kind)
        figures[f"next.{kind.replace('-', '_')}.right"] = count(right, number)
    known = [case for case in cases if case.best]
    first = sum(case.right and case.steps[0].rule == case.best for case in known)
    excess = [each.excess_points for each in cases if each.excess_points is not None]
    slowdowns = [each.slowdown_pct for each in cases if each.slowdown_pct is not None]
    harmful = sum(case.harmful for case in cases)
    if (mpi_slower_pct or 0.0) > MPI_NOISE_PCT:
        harmful += sum(step.rule == "mpi" for case in cases for step in case.steps)
    figures |= {
        "next.right_pct": share(sum(case.right for case in cases), len(cases)),
        "next.first_pct": share(first, len(known)),
        "next.runs": count(len(cases), len(cases)),
        "next.harmful": count(harmful, sum(len(case.steps) for case in cases)),
        "next.clocks.worst_slowdown_pct": bare(round(max(slowdowns), 3) if slowdowns else None, "%", len(slowdowns)),
        "next.mpi.slowdown_pct": bare(None if mpi_slower_pct is None else round(mpi_slower_pct, 2), "%", MPI_PAIRS),
    }
    if excess:
        figures["next.straggler.excess_points"] = spread(excess, "points")
    return figures


def share(some: int, of: int) -> Figure:
    """Percent."""
    return bare(round(100 * some / of, 1) if of else None, "%", of)


def main() -> None:
    """Print a row each, and write figures."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--kind", choices=("development", "reported"), default="reported")
    parser.add_argument("--real", type=Path, help="folder of recorded runs of H100s")
    parser.add_argument(
        "--only", nargs="*", default=["straggler", "clocks", "links", "start-up", "nothing", "mpi", "ways"]
    )
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    cases: list[Case] = []
    slower_pct = None
    with tempfile.TemporaryDirectory() as name, ThreadPoolExecutor(1) as in_real_time:
        scratch = Path(name)
        slept = in_real_time.submit(lambda: list(start_ups(scratch)) if "start-up" in options.only else [])
        kinds: dict[str, Callable[[], Iterable[Case]]] = {
            "straggler": lambda: stragglers(options.kind, scratch),
            "clocks": lambda: clocks(options.kind, scratch),
            "links": lambda: links(options.kind, scratch),
            "nothing": lambda: managed(options.kind, scratch),
            "ways": lambda: real(options.real, scratch) if options.real else [],
            "start-up": slept.result,
            "mpi": lambda: mpi(scratch) if shutil.which("mpiexec") else [],
        }
        for each in (case for kind, made in kinds.items() if kind in options.only for case in made()):
            cases.append(each)
            rules = " ".join(step.rule for step in each.steps) or "nothing"
            verdict = ("right" if each.right else "WRONG") + (", HARMFUL" if each.harmful else "")
            expected = each.best or f"not {' '.join(sorted(each.untrue))}"
            print(f"{each.kind:9} {each.name:28} {verdict}: {expected} in {rules} ({each.known})", flush=True)
        if any(case.kind == "mpi" for case in cases):
            slower_pct = mpi_slowdown(scratch)
    command = "make figures-next" + (" H100_RUNS=DIR" if options.real else "")
    write(options.out, figures := figures_of(cases, slower_pct), **about(command, CONDITIONS))
    show(figures)


if __name__ == "__main__":
    main()
