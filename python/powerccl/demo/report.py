# SPDX-License-Identifier: Apache-2.0
"""`powerccl demo` in the terminal: a picture of three iterations, and published figures beside ours."""

from __future__ import annotations

from dataclasses import dataclass

from rich.text import Text

from powerccl.console import Console
from powerccl.demo.chart import power_and_clock
from powerccl.demo.iterations import Training
from powerccl.demo.series import GpuSeries, gpu_series
from powerccl.estimate import Estimate
from powerccl.quantities import mhz, percent, quantity, watts
from powerccl.reports.table import Table
from powerccl.reports.terminal import heading

WORDS = {
    "observe": "records only: no clock is set",
    "per-call": "PCCL as published: the clock falls while communicating",
}
PICTURED = 3  # iterations, as in the publication's figures 4 and 9

# PCCL's figures for the same quantities (docs/concepts/pccl.md), as printed. Its 27 % is of collectives in general; the
# 29 % of power was seen in the training run.
PUBLISHED: dict[str, str] = {
    "comm_energy_saved_pct": "27 %  (29 % of power)",
    "energy_saved_pct": "17.3 %  (mean of four models)",
    "power_saved_pct": "18.9 %  (MicroLlama 20.1 %)",
    "slowdown_pct": "1 to 2 % at most",
}
MEANING = {
    "comm_energy_saved_pct": "energy saved in communication",
    "energy_saved_pct": "energy saved end to end",
    "power_saved_pct": "average power saved",
    "slowdown_pct": "time added",
}

NEXT = {
    "powerccl doctor": "what works on this machine",
    "powerccl run -- COMMAND": "record a job; no clock is set",
    "powerccl report --html report.html": "where its time and energy went",
}


@dataclass
class DemoResult:
    """One model, run both ways."""

    model: str
    platform: str
    observed: Training
    managed: Training
    figures: dict[str, Estimate]

    @property
    def policy(self) -> str:
        """The policy set against `observe`."""
        return self.managed.summary.policy

    def runs(self) -> list[tuple[str, Training]]:
        """Both runs with their policy's name."""
        return [("observe", self.observed), (self.policy, self.managed)]


def pictured(training: Training) -> GpuSeries | None:
    """The first GPU over the first measured iterations."""
    last = training.iterations[:PICTURED][-1]
    return gpu_series(training.run, training.window_ns[0], last.end_ns)


def tops(series: list[GpuSeries | None]) -> tuple[float, float]:
    """Axis ends for power (W) and clock (MHz) that hold all of the series."""
    power = max((float(s.power_w.max()) for s in series if s is not None), default=1.0)
    clock = max((float(s.clock_mhz.max()) for s in series if s is not None), default=1.0)
    return max(20.0, -(-power // 20) * 20), max(300.0, -(-clock // 100) * 100)


def print_demo(console: Console, result: DemoResult) -> None:
    """Picture, then figures."""
    width = min(console.width, 120)
    drawn = [(policy, pictured(training)) for policy, training in result.runs()]
    power_top, clock_top = tops([series for _, series in drawn])
    console.print()
    console.print(heading(f"{result.model} on 8 x Tesla T4, three iterations, one GPU", result.platform))
    for policy, series in drawn:
        if series is None:
            continue
        console.print()
        console.print(Text(policy, style="bold").append(f"  {WORDS[policy]}", style="not bold dim"))
        for line in power_and_clock(series, power_top, clock_top, width):
            console.print(line, no_wrap=True, overflow="crop")
    console.print()
    console.print(absolute(result))
    console.print()
    console.print(against_published(result))
    for policy, training in result.runs():
        if training.run.late:
            console.print(Text(f"! {policy}: {training.run.late}", style="yellow"))


def print_next(console: Console) -> None:
    """What to run on one's own job, behind all of the demo."""
    console.print()
    console.print(heading("Next, with a job of yours", ""))
    table = Table(3, show_header=False)
    table.add_column(no_wrap=True)
    table.add_column(style="dim")
    for line, what in NEXT.items():
        table.add_row(line, what)
    console.print(table)


def absolute(result: DemoResult) -> Table:
    """An iteration under both policies."""
    table = Table(3)
    table.add_column("one iteration", no_wrap=True)
    for policy, _ in result.runs():
        table.add_column(policy, justify="right", no_wrap=True)
    table.add_column("published", style="dim", overflow="fold")
    figures = result.figures
    published = {
        "time": ("step_ms", "ms", "~600 ms" if result.model == "microllama" else ""),
        "energy, 8 GPUs": ("joules_per_step", "J", ""),
        "  of it in communication": ("comm_joules_per_step", "J", ""),
        "power communicating, per GPU": ("comm_watts", "W", "45 W, 32 to 33 W"),
    }
    for label, (name, unit, published_value) in published.items():
        cells = [figures.get(f"{policy}.{name}") for policy, _ in result.runs()]
        table.add_row(label, *[quantity(cell.value if cell else None, unit) for cell in cells], published_value)
    communication = [training.summary.communication for _, training in result.runs()]
    table.add_row("clock communicating", *[mhz(each.clock_mhz) for each in communication], "1590 MHz, 500 MHz")
    elsewhere = [watts(each.other_average_watts) for each in communication]
    table.add_row("power computing, per GPU", *elsewhere, "60 to 100 W, 60 to 80 W")
    return table


def against_published(result: DemoResult) -> Table:
    """What the managed run saves."""
    table = Table(3)
    table.add_column(f"{result.policy} against observe", no_wrap=True)
    table.add_column("emulated here", justify="right", no_wrap=True)
    table.add_column("published (8 x T4)", style="dim")
    for name, label in MEANING.items():
        figure = result.figures[f"{result.policy}.{name}"]
        text = percent(figure.value, (figure.high - figure.low) / 2)
        table.add_row(label, Text(text, style="bold"), PUBLISHED[name])
    return table
