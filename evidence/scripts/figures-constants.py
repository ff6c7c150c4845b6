"""What half and double of each constant of the clock policy do to what it saves and costs, simulated.

figures-constants.py [--out FILE] [--markdown FILE] [--only NAME ...] [--machines N]. Constants stand in the policy's
headers, so each variant is a build of powerccl-sim: it takes a checkout of HEAD in a folder of its own, and about 20 s.
Factors near 1, such as the part of the budget that is aimed at, are varied by their distance from 1. Machines and jobs
are development ones (evidence/robustness).
"""

import argparse
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
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
# Sizes of memory, and what is reported only: nothing that is decided depends on them.
FIXED = {"kInterval", "kGolden", "kRuns", "kRing", "kLongest", "kKinds", "kWays"}


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
        subprocess.run(["git", "-C", str(ROOT), "worktree", "add", "-q", "--detach", str(folder)], check=True)
        (folder / "build").mkdir(exist_ok=True)
        (folder / "build/deps").symlink_to(ROOT / "build/deps")
        # Without link-time optimisation.
        options = ["-G", "Ninja", f"-DPython3_EXECUTABLE={sys.executable}", "-DPOWERCCL_TESTS=ON"]
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

    def close(self) -> None:
        """Leave nothing behind."""
        subprocess.run(["git", "-C", str(ROOT), "worktree", "remove", "--force", str(self.folder)], check=False)


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


def run_all(program: Path, of: list[tuple[Machine, Job]], policy: str) -> list[Simulated]:
    """Simulate them all."""
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        return list(pool.map(lambda c: simulate(program, c[0].conf, [c[1].text], policy, MEASURED_S, WARM_UP_S), of))


def judge(managed: list[Simulated], plain: list[Simulated]) -> tuple[float, float, float]:
    """Mean energy saved and time added, and the most time added; percent."""
    both = [of.against(against) for of, against in zip(managed, plain, strict=True)]
    return fmean(saved for saved, _ in both), fmean(slow for _, slow in both), max(slow for _, slow in both)


def table(
    rows: list[tuple[Constant, dict[str, tuple[float, float, float]]]], usual: tuple[float, float, float], number: int
) -> str:
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
    options = parser.parse_args()
    headers = {name: (ROOT / "native/job/policy" / name).read_text() for name in HEADERS}
    every = [each for name, text in headers.items() for each in constants_of(name, text)]
    found = [each for each in every if not re.search(r"\bk[A-Z]", each.value)]  # what follows from another is none
    of = cases(options.machines)
    folder = Path(tempfile.mkdtemp(prefix="powerccl-constants-"))
    shutil.rmtree(folder)
    builds = Builds(folder)
    figures: Figures = {}
    rows: list[tuple[Constant, dict[str, tuple[float, float, float]]]] = []

    def keep(name: str, came: tuple[float, float, float]) -> None:
        for figure, value in zip(("saved_pct", "slowdown_pct", "worst_slowdown_pct"), came, strict=True):
            figures[f"constants.{name}.{figure}"] = bare(round(value, 3), "%", len(of))
        print(f"{name}: saved {came[0]:.2f} %, slower {came[1]:.2f} %, {came[2]:.2f} % at most", flush=True)

    try:
        program = builds.program()
        plain = run_all(program, of, "observe")
        usual = judge(run_all(program, of, "auto"), plain)
        keep("as_it_is", usual)
        for constant in found:
            came: dict[str, tuple[float, float, float]] = {}
            wanted = constant.variants() if not options.only or constant.name in options.only else {}
            for side, value in wanted.items():
                if value == constant.value:
                    continue
                came[side] = judge(run_all(builds.program(constant, value), of, "auto"), plain)
                keep(f"{constant.header.removesuffix('.h')}.{constant.name}.{side}", came[side])
            rows.append((constant, came))
    finally:
        builds.close()
    print(f"{len(found)} constants")
    figures["constants.number"] = bare(len(found), "1")
    if options.markdown:
        options.markdown.write_text(table(rows, usual, len(of)))
    conditions = f"simulated: {len(of)} development machines of at most {MOST_GPUS} GPUs, {MEASURED_S:g} s each"
    write(options.out, figures, **about("make figures-constants", conditions))


if __name__ == "__main__":
    main()
