# SPDX-License-Identifier: Apache-2.0
"""What to do next with a job: a rule for each action, by what was recorded of the job.

Gains of two actions are never added up: each is of the job as it was recorded.
"""

from __future__ import annotations

import math
import shlex
import textwrap
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

from rich.text import Text

from powerccl.analysis.findings import Gpu, RunSummary
from powerccl.analysis.report import Waiting
from powerccl.analysis.report_findings import NextStep, RankParts
from powerccl.analysis.ways import WaysFindings
from powerccl.console import Console
from powerccl.estimate import Estimate
from powerccl.launch.environment import DEFAULT_SLOWDOWN_PCT
from powerccl.platforms.ways import COPY_ENGINE, WaysTable, what_to_write_for
from powerccl.quantities import NOT_KNOWN, byte_size, percent, plural, seconds
from powerccl.reports.job import on_host
from powerccl.reports.mpi import late_rank
from powerccl.reports.terminal import heading
from powerccl.traces.run_info import SIMULATED as SIMULATED_BY

MOST_STEPS = 3
INDENT = "   "
# Of the energy or the time, at best: repetitions of a job differ by as much (0.3 to 1.4 % on four H100s).
LEAST_PCT = 1.0
NOTHING = "Nothing above 1 % is to be had, and that is good news."
# A start-up that is shorter is that of most jobs: imports, the driver and NCCL take 8 to 10 s on H100s.
LEAST_STARTUP_S, LEAST_STARTUP_PCT = 10.0, 5.0
# A recording with less work says little of a job that runs for hours.
SHORT_WORK_S = 60.0
# Of the working time, and of an MPI job's time: less communication is not worth a search.
LEAST_EXPOSED_PCT = 5.0
# Bus bandwidth of large messages. NVLink and an adapter of 400 Gbit/s a GPU have twice that and more. PCIe and TCP
# have less.
SLOW_GBS, LARGE_BYTES = 20.0, 16 << 20
# Energy that `auto` saved on simulated machines by a word of the GPU's name: median, and nine in ten (make
# figures-robustness). Longer words first.
SIMULATED = {
    "A100": Estimate(2.4, 0.0, 22.6),
    "A800": Estimate(2.4, 0.0, 22.6),
    "H100": Estimate(3.9, 0.3, 24.7),
    "H200": Estimate(2.5, 0.5, 21.8),
    "T4": Estimate(3.7, 0.3, 14.8),
}
ALL_KERNELS = "POWERCCL_KERNEL_EVENTS=all"  # short ones as well: a prediction needs times of most kernels
# Points of energy saved by which a prediction's range is wider than its cases, on both sides. They miss how this board
# differs from its model, and what the policy finds in real iterations. The range holds the truth on 41 of 45
# development machines. Without the margin it did on 29, with half of it on 36, with double of it on 44.
MARGIN_POINTS = 2.5
ENDS = {
    "the first communicator": "the program loads, and makes its model and data ready",
    "the first communication": "ranks wait for the slowest of them to be ready",
    "the first regular iteration": "the first iterations compile and allocate",
}
OLDEST_COPY_ENGINES = (2, 29)  # NCCL
# Time that FSDP2 jobs saved by copy engines: 6.9 % on two H200s (evidence/results/ways-h200x2.json), and 5.6 % on four
# H100s, of which no result is kept. Small layers save nothing. A table of collectives says less: it does not know how
# they slow the job's other kernels.
FSDP_PCT, FSDP_BYTES = Estimate(5.6, 0.0, 6.9), 64 << 20


@dataclass(frozen=True)
class Evidence:
    """What the rules go by. `ways` is by `table`; it is a neighbour's if that is of other GPUs than the run's.

    `clocks_pct`: energy that `auto` is predicted to save of this very run, and `clocks_slower_pct` at which slowdown,
    within `budget_pct`.
    `unpredictable`: why nothing can be predicted. `own_ways`: the run was recorded with `--ways`.
    """

    summary: RunSummary
    waiting: Waiting = field(default_factory=Waiting)
    ways: WaysFindings | None = None
    table: WaysTable | None = None
    neighbour: bool = False
    clocks_pct: Estimate | None = None
    clocks_slower_pct: Estimate | None = None
    budget_pct: float = DEFAULT_SLOWDOWN_PCT
    unpredictable: str = ""
    own_ways: bool = False

    @property
    def emulate(self) -> tuple[str, ...]:
        """The option that emulates the run's machine again."""
        platform = self.summary.emulated.removeprefix(SIMULATED_BY).strip()
        return ("--emulate", platform) if platform not in ("", "yes") else ()  # yes: by another process's emulator

    def run(self, *options: str) -> str:
        """The job's command, with these options of `powerccl run`. The simulator has a policy as well."""
        if self.summary.emulated.startswith(SIMULATED_BY):
            return shlex.join([*self.summary.command, *options])
        ways = ("--ways", "auto") if self.own_ways and "--ways" not in options else ()
        return shlex.join(["powerccl", "run", *self.emulate, *ways, *options, "--", *self.summary.command])

    def report(self, *options: str) -> str:
        """A command that reports on the run."""
        return shlex.join(["powerccl", "report", self.summary.folder, *options])


def next_steps(evidence: Evidence) -> list[NextStep]:
    """At most MOST_STEPS actions, what is worth most first. Empty: nothing above LEAST_PCT is to be had."""
    rules: tuple[Callable[[Evidence], Iterator[NextStep]], ...] = (
        _record,
        _startup,
        _stragglers,
        _late_mpi_rank,
        _mpi_waits,
        _ways,
        _clocks,
        _tune,
    )
    steps = [step for rule in rules for step in rule(evidence)]
    kept = [step for step in steps if step.gain_pct is None or step.gain_pct.high >= LEAST_PCT]
    return sorted(kept, key=_worth, reverse=True)[:MOST_STEPS]


def _worth(step: NextStep) -> float:
    """Recording comes first: without it nothing else is known."""
    if step.gain_pct is None:
        return 100.0 if step.rule == "record" else 0.0
    return step.gain_pct.value


def _record(evidence: Evidence) -> Iterator[NextStep]:
    if evidence.summary.unrecorded:
        yield NextStep(rule="record", text=evidence.summary.unrecorded, command="powerccl doctor")


def _startup(evidence: Evidence) -> Iterator[NextStep]:
    summary, shares = evidence.summary, evidence.summary.shares
    if shares.startup_s is None or not summary.wall_s or shares.startup_s < LEAST_STARTUP_S:
        return
    share = 100 * shares.startup_s / summary.wall_s
    if share < LEAST_STARTUP_PCT:
        return
    longest = max(shares.startup_parts, key=lambda part: part.time_s, default=None)
    why = ENDS.get(longest.until, "") if longest else ""
    text = f"Shorten the start-up: it took {seconds(shares.startup_s)} of {seconds(summary.wall_s)}"
    text += f", {seconds(longest.time_s)} of it until {longest.until}: {why}." if longest and why else "."
    trial = (shares.span_s or 0.0) < SHORT_WORK_S
    basis = "how much of it can go is not known"
    if shares.startup_joules is not None and summary.energy.joules:
        basis += f"; {percent(100 * shares.startup_joules / summary.energy.joules)} of the energy"
    if trial:
        basis = f"this run has {seconds(shares.span_s)} of work: record a longer one to know the share of start-up"
    yield NextStep(
        rule="startup",
        text=text,
        gain_pct=None if trial else Estimate.between(0.0, share),
        of="time",
        basis=basis,
        command=evidence.report("--window", f"0:{math.ceil(shares.startup_s)}", "--html", "startup.html"),
    )


def _stragglers(evidence: Evidence) -> Iterator[NextStep]:
    summary, span_s = evidence.summary, evidence.summary.shares.span_s
    steady = [row for row in evidence.waiting.peers.ranks if row.steady]
    if not steady or not span_s:
        return
    worst = max(steady, key=lambda row: row.cost_s or row.cost_at_most_s or 0.0)
    cost_s = worst.cost_s if worst.cost_s is not None else worst.cost_at_most_s
    if cost_s is None:
        return
    gpu = next((each for each in summary.gpus if each.gpu == worst.gpu), None)
    name = on_host(summary.rank_name(worst.rank), worst.host)
    text = (
        f"Look at rank {name}, {_place(gpu, worst.host)}: it arrives last in "
        f"{percent(worst.last_pct)} of the collectives, and the others wait for it."
    )
    others = {reason for each in summary.gpus if each is not gpu for reason in each.throttle_reasons}
    held = [reason for reason in gpu.throttle_reasons if reason not in others] if gpu else []
    if held:
        text += f" Its clock alone was limited: {', '.join(held)}."
    gain = 100 * cost_s / span_s
    look = evidence.report("--perfetto", "ranks.perfetto")
    if held and gpu and gpu.index is not None and not summary.emulated:
        look = f"nvidia-smi -i {gpu.index} -q -d PERFORMANCE,TEMPERATURE,POWER"
    yield NextStep(
        rule="straggler",
        text=text,
        # All of it: if the rank becomes as quick as the others. It may be the others that are quick by chance.
        gain_pct=Estimate(gain, 0.0, gain) if worst.cost_s is not None else Estimate.between(0.0, gain),
        of="time",
        basis="measured in this run: another rank waits so long for it",
        command=look,
    )


def _place(gpu: Gpu | None, host: str) -> str:
    if gpu is None or gpu.index is None:
        return f"on {host}"
    return f"GPU {gpu.index} of {host}"


def _late_mpi_rank(evidence: Evidence) -> Iterator[NextStep]:
    mpi = evidence.summary.mpi
    last = late_rank(mpi) if mpi else None
    if not mpi or not last or not mpi.wall_s:
        return
    host = next((each.host for each in mpi.by_rank if each.rank == last.latest_rank), "")
    name = on_host(mpi.rank_name(last.latest_rank), host)
    yield NextStep(
        rule="straggler",
        text=f"Look at rank {name}{f' on {host}' if host else ''}: it arrives last in "
        f"{last.function}, and the others wait for it.",
        gain_pct=Estimate.between(0.0, 100 * (last.wait_max_s - last.wait_min_s) / mpi.wall_s),
        of="time",
        basis="measured in this run: another rank waits so long for it",
        command=evidence.report("--html", "ranks.html"),
    )


def _mpi_waits(evidence: Evidence) -> Iterator[NextStep]:
    mpi = evidence.summary.mpi
    if not mpi or mpi.wait_mode != "observe" or not mpi.share_pct or not mpi.time_s:
        return
    awake = mpi.share_pct * max(mpi.wait_s - mpi.sleep_s, 0.0) / mpi.time_s
    if awake < LEAST_EXPOSED_PCT:
        return
    yield NextStep(
        rule="mpi",
        text="Let ranks sleep while they wait in MPI: they spun.",
        gain_pct=Estimate.between(0.0, awake),
        of="CPU time",
        basis="measured in this run",
        cost="about 1 % of each wait's length",
        command=evidence.run("--mpi", "auto"),
    )


def _ways(evidence: Evidence) -> Iterator[NextStep]:
    ways, table = evidence.ways, evidence.table
    if ways is None or table is None or not ways.rows or ways.span_s <= 0:
        return
    low, high = (100 * saved / ways.span_s for saved in (ways.saved_s.low, ways.saved_s.high))
    gain, of = Estimate.between(max(low, 0.0), high), f"{table.gpus} {table.gpu}"
    basis = f"by the table {table.name}, measured on {of}"
    if ways.predicted:
        gain = Estimate.between(*ways.predicted.time_saved_pct)
    gathers = [row for row in ways.rows if row.pattern == "all_gather"]
    shards = any(row.pattern == "reduce_scatter" for row in evidence.summary.patterns)
    if shards and any(row.size_bytes >= FSDP_BYTES for row in gathers) and gain.high < FSDP_PCT.high:
        gain, basis = FSDP_PCT, "FSDP2 jobs on H100s and H200s; small layers save nothing"
    if evidence.neighbour:
        yield NextStep(
            rule="measure-ways",
            text="Measure how NCCL carries collectives out best on these GPUs: symmetric kernels or copy engines.",
            gain_pct=Estimate(gain.value, 0.0, gain.high),
            of="time",
            basis=basis + ("" if gain is FSDP_PCT else ": other GPUs than yours"),
            cost="ten minutes of free GPUs, and sets no clock",
            command="powerccl profile --ways",
        )
        return
    memory = f"{byte_size(max(row.memory_bytes for row in ways.rows))} of memory of each GPU"
    if any(row.way == COPY_ENGINE for row in gathers):
        version = _nccl(evidence.summary.library)
        if version and version < OLDEST_COPY_ENGINES:
            has = evidence.summary.library.split()[1]
            memory += f"; needs NCCL 2.29 or newer, and this job has {has}"
        yield NextStep(
            rule="ways",
            text="Let copy engines carry the all-gathers of FSDP2.",
            gain_pct=gain,
            of="time",
            basis=basis,
            cost=memory,
            command=evidence.run("--ways", "auto"),
        )
        return
    best = ways.rows[0]
    advice = what_to_write_for([(best.pattern, best.way)])
    yield NextStep(
        rule="ways",
        text=f"Carry {best.pattern.replace('_', '-')}s out by {best.way.replace('-', ' ')} kernels: "
        + (advice[0][1] if advice else ""),
        gain_pct=gain,
        of="time",
        basis=basis,
        cost=f"{memory}, and a line in the job",
        command=evidence.report(),
    )


def _nccl(library: str) -> tuple[int, ...]:
    """The version in `nccl 2.28.9 profiler v5`; empty: not known."""
    words = library.split()
    numbers = words[1].split(".") if len(words) > 1 and words[0] == "nccl" else []
    return tuple(int(each) for each in numbers if each.isdigit())


def _clocks(evidence: Evidence) -> Iterator[NextStep]:
    summary = evidence.summary
    if not summary.ranks or summary.clock_mhz or summary.clocks_mode not in ("", "none", "dry"):
        return  # something sets clocks already
    if evidence.clocks_pct is not None:
        if evidence.clocks_pct.value < LEAST_PCT and evidence.clocks_pct.high < LEAST_PCT + MARGIN_POINTS:
            return  # of no case that the prediction simulated
        slower = evidence.clocks_slower_pct
        time = f"about {percent(evidence.budget_pct)} more time at most"
        time += f", {percent(max(slower.value, 0.0))} by the prediction" if slower else ""
        options: tuple[str, ...] = ("--policy", "auto") if summary.emulated else ("--set-clocks",)
        if evidence.budget_pct != DEFAULT_SLOWDOWN_PCT:
            options += ("--max-slowdown", f"{evidence.budget_pct:g}")
        yield NextStep(
            rule="clocks",
            text="Let PowerCCL lower the clocks of the GPUs.",
            gain_pct=evidence.clocks_pct,
            basis="predicted of this run, by simulation",
            cost=f"{time}" + ("" if summary.emulated else "; needs root or powerccld on the hosts"),
            command=evidence.run(*options),
        )
        return
    if evidence.unpredictable:
        text = f"Record a hundred iterations, to predict what lower clocks save. Of this run: {evidence.unpredictable}."
        yield NextStep(rule="clocks", text=text, command=f"{ALL_KERNELS} {evidence.run()}")
        return
    names = {gpu.name for gpu in summary.gpus if gpu.name}
    known = next((SIMULATED[word] for word in SIMULATED if names and all(word in name for name in names)), None)
    yield NextStep(
        rule="clocks",
        text="Predict what lower clocks would save of this job.",
        gain_pct=known,
        basis="lower clocks did in nine in ten of 70 simulated jobs on such GPUs" if known else "",
        cost="a minute, and sets no clock",
        command=shlex.join(["powerccl", "whatif", summary.folder]),
    )


def _tune(evidence: Evidence) -> Iterator[NextStep]:
    shares, waiting = evidence.summary.shares, evidence.waiting
    exposed = shares.exposed_pct if shares.exposed_pct is not None else shares.communicating_pct
    if exposed is None:
        return
    exposed -= _waiting_pct(waiting.ranks)  # no parameter has a rank come earlier
    if exposed < LEAST_EXPOSED_PCT:
        return
    hosts = {gpu.host for gpu in evidence.summary.gpus}
    compared = waiting.peers.matched_pct is not None
    large = [row for row in waiting.link if row.size_class_bytes >= LARGE_BYTES]
    rates = [rate for row in large if (rate := row.transfer_gbs if compared else row.busbw_gbs)]
    slow = bool(rates) and max(rates) < SLOW_GBS
    if len(hosts) < 2 and not slow:
        return
    where = f"between {plural(len(hosts), 'host')}" if len(hosts) > 1 else "over a link this slow"
    yield NextStep(
        rule="tune",
        text=f"Search NCCL's parameters for this job's collectives {where}.",
        gain_pct=Estimate.between(0.0, exposed),
        of="time",
        basis="all exposed communication but waiting; what a search finds differs by network",
        cost="minutes of free GPUs",
        command=shlex.join(["powerccl", "tune", *evidence.emulate, "--from", evidence.summary.folder]),
    )


def _waiting_pct(ranks: list[RankParts]) -> float:
    """Of the ranks' time: waiting for a peer while nothing computes. 0: not known."""
    span_s = sum(each.span_s for each in ranks)
    return 100 * sum(each.exposed_waiting_s or 0.0 for each in ranks) / span_s if span_s else 0.0


def gain_text(step: NextStep) -> str:
    """`4.0 to 7.1 % of the energy`, `3.2 % of the time`, or why it is not known."""
    gain = step.gain_pct
    if gain is None:
        return NOT_KNOWN
    if gain.high - gain.low < 0.05:
        return f"{percent(gain.value)} of the {step.of}"
    if gain.low <= 0:
        return f"up to {percent(gain.high)} of the {step.of}"
    return f"{percent(gain.low).removesuffix(' %')} to {percent(gain.high)} of the {step.of}"


def about(step: NextStep) -> str:
    """Gain, what it is known by, and cost, for one line."""
    if step.rule == "record":
        return ""
    gain = f"saves {gain_text(step)}" if step.gain_pct else f"gain {NOT_KNOWN}"
    parts = [gain + (f" ({step.basis})" if step.basis else "")]
    return "; ".join(parts + ([f"costs {step.cost}"] if step.cost else []))


def print_next_steps(console: Console, steps: list[NextStep]) -> None:
    """The actions, each with its command, which stays whole to be copied."""
    console.print()
    console.print(heading("what to do next"))
    if not steps:
        console.print(NOTHING)
    for number, step in enumerate(steps, 1):
        for text, lead, style in ((step.text, f"{number}. ", ""), (about(step), INDENT, "dim")):
            lines = textwrap.wrap(text, console.width, initial_indent=lead, subsequent_indent=INDENT)
            if lines:
                console.print(Text("\n".join(lines), style=style))
        console.print(Text(f"{INDENT}{step.command}", style="bright_cyan"), soft_wrap=True)
