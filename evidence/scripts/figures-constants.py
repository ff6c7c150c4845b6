"""What half and double of each constant of the clock policy do to what it saves and costs, simulated.

figures-constants.py [--out FILE] [--markdown FILE] [--only NAME ...] [--machines N] [--together N]. Constants stand in
the policy's headers, so each variant is a build of powerccl-sim: it takes a checkout of HEAD in a folder of its own,
and about 20 s. On a machine with many cores --together N builds N variants at once.
Factors near 1, such as the part of the budget that is aimed at, are varied by their distance from 1. Machines and jobs
are development ones (evidence/robustness).
"""

import argparse
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from queue import SimpleQueue
from statistics import fmean

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT), str(ROOT / "tests")]

from evidence.robustness.jobs import Job, job
from evidence.robustness.machines import Machine, machine
from support.figures import Figures, about, bare, write

from powerccl.whatif.simulator import Simulated, simulate

HEADERS = (
    "learning_policy.h",
    "slack_reclaimer.h",
    "iteration_profile.h",
    "iteration_detector.h",
    "node_state.h",
)
FIRST = 300  # of the development machines: constants were chosen on lower ones
MOST_GPUS = 8  # of a machine: larger ones take longer, and tell the same
MEASURED_S, WARM_UP_S = 120.0, 60.0
NEAR_ONE = (0.7, 1.6)
BUDGET_PCT = 1.0
# Sizes of memory and of words, what is reported only, and what smaller budgets reach: nothing here depends on them.
FIXED = {"kClockBits", "kLeastBudget", "kInterval", "kGolden", "kRuns", "kRing", "kLongest", "kKinds", "kWays"}
WORKTREE = ["git", "-C", str(ROOT), "worktree"]
# Mean energy saved and time added, and the most time added; percent.
Judged = tuple[float, float, float]


@dataclass(frozen=True)
class Constant:
    """A constant as it stands in a header; `why`: the comment beside or above its line."""

    header: str
    name: str
    value: str
    why: str
    real: bool

    def variants(self) -> dict[str, str]:
        """Half and double of it, as C++ has them."""
        if self.name in FIXED or not re.fullmatch(r"[\d.e+]+u?", self.value):
            return {}
        number = float(self.value.rstrip("u"))
        if self.real and number != 1 and NEAR_ONE[0] < number < NEAR_ONE[1]:
            return {"half": f"{1 + (number - 1) / 2:g}", "double": f"{1 + 2 * (number - 1):g}"}
        half, double = number / 2, number * 2
        if self.real:
            return {"half": f"{half:g}", "double": f"{double:g}"}
        tail = "u" if self.value.endswith("u") else ""
        return {"half": f"{max(1, round(half))}{tail}", "double": f"{round(double)}{tail}"}


def constants_of(header: str, text: str) -> Iterator[Constant]:
    """The constants of a header, several in a line included."""
    why: list[str] = []
    ended = True  # the comment above: the next one begins anew
    for line in text.splitlines():
        stripped = line.strip()
        if stripped.startswith("//"):
            why = [*([] if ended else why), stripped.removeprefix("//").strip()]
            ended = False
            continue
        found = re.match(r"static constexpr (\w+) (.*?);(?:\s*//\s*(.*))?$", stripped)
        ended = True
        why = why if found else []
        for name, value in re.findall(r"(k\w+) = ([^,;]+)", found[2]) if found else ():
            told = " ".join([*why, *([found[3]] if found and found[3] else [])])
            yield Constant(header, name, value, told, bool(found and found[1] == "double"))


class Builds:
    """A checkout of HEAD, in which one constant at a time is another."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        subprocess.run([*WORKTREE, "add", "-q", "--detach", str(folder)], check=True)
        (folder / "build").mkdir(exist_ok=True)
        (folder / "build/deps").symlink_to(ROOT / "build/deps")
        options = ["-G", "Ninja", f"-DPython3_EXECUTABLE={sys.executable}", "-DPOWERCCL_TESTS=OFF"]
        self._run("cmake", "-S", str(folder), "-B", str(folder / "build/sim"), *options)

    def _run(self, *command: str) -> None:
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode:
            raise SystemExit(f"{' '.join(command)}:\n{done.stdout[-2000:]}{done.stderr[-2000:]}")

    def program(self, constant: Constant | None = None, value: str = "") -> Path:
        """powerccl-sim with another value of a constant."""
        path = self.folder / "native/job/policy" / constant.header if constant else None
        before = path.read_text() if path else ""
        if constant and path:
            changed = before.replace(f"{constant.name} = {constant.value}", f"{constant.name} = {value}", 1)
            path.write_text(changed)
        try:
            self._run("cmake", "--build", str(self.folder / "build/sim"), "--target", "powerccl-sim")
        finally:
            if path:
                path.write_text(before)
        return self.folder / "build/sim/stage/bin/powerccl-sim"


def cases(number: int) -> list[tuple[Machine, Job]]:
    """So many small machines, each with a job."""
    found: list[tuple[Machine, Job]] = []
    index = FIRST
    while len(found) < number:
        each = machine("development", index)
        if each.gpus <= MOST_GPUS:
            found.append((each, job("development", index, each.gpus)))
        index += 1
    return found


def run_all(program: Path, of: list[tuple[Machine, Job]], policy: str, together: int = 1) -> list[Simulated]:
    """Simulate them all, beside `together` - 1 others of these."""
    with ThreadPoolExecutor(max(1, (os.cpu_count() or 1) // together)) as pool:
        return list(pool.map(lambda c: simulate(program, c[0].conf, [c[1].text], policy, MEASURED_S, WARM_UP_S), of))


def judge(managed: list[Simulated], plain: list[Simulated]) -> Judged:
    """What the policy makes of them."""
    both = [of.against(against) for of, against in zip(managed, plain, strict=True)]
    return fmean(saved for saved, _ in both), fmean(slow for _, slow in both), max(slow for _, slow in both)


def table(rows: list[tuple[Constant, dict[str, Judged]]], usual: Judged, number: int) -> str:
    """A page of all constants."""
    lines = [
        "# Constants of the clock policy",
        "",
        "This page is for people who change the policy. It lists each constant of `native/job/policy`, and what half",
        "and double of it do, simulated. `evidence/scripts/figures-constants.py` makes it.",
        "",
        f"As it is, the policy saves {usual[0]:.2f} % of the energy and changes the time by {usual[1]:+.2f} %:",
        f"means of {number} machines. The most slowdown is {usual[2]:.2f} %, with a budget of {BUDGET_PCT:g} %.",
        "A cell has saving, mean and most slowdown.",
        "Factors near 1 are varied by their distance from 1. A cell is empty where the constant is a size of memory or",
        "changes only what is reported.",
        "",
        "| Constant | Value | Unit and reason | Half | Double |",
        "|---|---|---|---|---|",
    ]
    for constant, came in rows:
        cells = [
            " / ".join(f"{value:.2f}" for value in came[side]) if side in came else "" for side in ("half", "double")
        ]
        where = constant.header.removesuffix(".h")
        lines.append(f"| `{where}` `{constant.name}` | {constant.value} | {constant.why} | {cells[0]} | {cells[1]} |")
    return "\n".join(lines) + "\n"


def main() -> None:
    """Build, simulate and write."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path)
    parser.add_argument("--markdown", type=Path)
    parser.add_argument("--only", nargs="*", default=[])
    parser.add_argument("--machines", type=int, default=8)
    parser.add_argument("--together", type=int, default=1, help="variants built and simulated at once")
    options = parser.parse_args()
    headers = {name: (ROOT / "native/job/policy" / name).read_text() for name in HEADERS}
    every = [each for name, text in headers.items() for each in constants_of(name, text)]
    found = [each for each in every if not re.search(r"\bk[A-Z]", each.value)]  # what follows from another is none
    of = cases(options.machines)
    figures: Figures = {}

    def keep(name: str, came: Judged) -> None:
        for figure, value in zip(("saved_pct", "slowdown_pct", "worst_slowdown_pct"), came, strict=True):
            figures[f"constants.{name}.{figure}"] = bare(round(value, 3), "%", len(of))
        print(f"{name}: saved {came[0]:.2f} %, slower {came[1]:.2f} %, {came[2]:.2f} % at most", flush=True)

    wanted = [each for each in found if not options.only or each.name in options.only]
    variants = [(c, side, value) for c in wanted for side, value in c.variants().items() if value != c.value]
    with tempfile.TemporaryDirectory(prefix="powerccl-constants-") as folder, ExitStack() as ended:
        idle: SimpleQueue[Builds] = SimpleQueue()
        for index in range(options.together):
            idle.put(Builds(Path(folder) / str(index)))
            ended.callback(subprocess.run, [*WORKTREE, "remove", "--force", f"{folder}/{index}"], check=False)
        builds = idle.get()
        program = builds.program()
        idle.put(builds)
        plain = run_all(program, of, "observe")
        usual = judge(run_all(program, of, "auto"), plain)
        keep("as_it_is", usual)

        def try_out(constant: Constant, side: str, value: str) -> Judged:
            builds = idle.get()
            try:
                came = judge(run_all(builds.program(constant, value), of, "auto", options.together), plain)
            finally:
                idle.put(builds)
            keep(f"{constant.header.removesuffix('.h')}.{constant.name}.{side}", came)
            return came

        with ThreadPoolExecutor(options.together) as pool:
            tried = dict(zip(variants, pool.map(lambda each: try_out(*each), variants), strict=True))
    rows = [(of, {side: came for (its, side, _), came in tried.items() if its == of}) for of in found]
    figures = {name: figures[name] for name in sorted(figures)}
    print(f"{len(found)} constants")
    figures["constants.number"] = bare(len(found), "1")
    if options.markdown:
        options.markdown.write_text(table(rows, usual, len(of)))
    conditions = f"simulated: {len(of)} development machines of at most {MOST_GPUS} GPUs, {MEASURED_S:g} s each"
    write(options.out, figures, **about("make figures-constants", conditions))


if __name__ == "__main__":
    main()
