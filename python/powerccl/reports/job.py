# SPDX-License-Identifier: Apache-2.0
"""What is said of a job around its figures: what ran, how it ended, and what is not whole.

Nothing here needs Rich, whose import takes as long as everything else around a short job. `powerccl run` prints these
lines alone where nothing was recorded.
"""

from __future__ import annotations

import os
import shlex
import textwrap
from pathlib import Path
from typing import NamedTuple, TextIO

from powerccl import clean
from powerccl.analysis.findings import Clocks, RunSummary
from powerccl.quantities import mhz, microseconds, percent, plural, seconds
from powerccl.reports.policy import policy_lines
from powerccl.traces import job_labels
from powerccl.traces.run_info import model_label

MOST_WARNINGS = 8
MOST_HOSTS = 4  # named in a line of 80 columns
_COMMAND_CHARACTERS = 160
_SGR = {"": "", "bold": "1", "dim": "2", "warning": "1;33"}


class Line(NamedTuple):
    """A line and how it is shown: plain, bold, dim, or as a warning, which begins with `! `."""

    text: str
    style: str = ""


def opening(summary: RunSummary, headline: str = "") -> list[Line]:
    """What ran, what is to be known of it first, and how it ended."""
    label = f"  {model_label(summary.emulated)}" if summary.emulated else ""
    words = [Path(word).name if i == 0 else word for i, word in enumerate(summary.command)]
    lines = [
        Line(f"powerccl · {summary.name}{label}", "bold"),
        Line(headline or summary.unrecorded, "bold"),
        Line(shlex.join(words)[:_COMMAND_CHARACTERS], "dim"),
        Line(" · ".join(whose(summary))),
        Line(" · ".join(facts(summary))),
    ]
    return [line for line in lines if line.text]


def whose(summary: RunSummary, always: bool = False) -> list[str]:
    """Whose run it is, and on which hosts. Nothing of a run on one host, outside Slurm, Kubernetes and containers.

    `always`: such a run's user and host too. A terminal's user knows both; a page is sent to others.
    """
    words = job_labels.in_words(summary.labels)
    if not always and not words and len(summary.hosts) < 2:
        return []
    names = ", ".join(summary.hosts[:MOST_HOSTS])
    more = len(summary.hosts) - MOST_HOSTS
    hosts = f"{names} and {plural(more, 'more host')}" if more > 0 else names
    user = f"user {summary.user}" if summary.user else ""
    return [*words, *filter(None, (user, f"on {hosts}" if hosts else ""))]


def on_host(rank_name: str, host: str) -> str:
    """A rank's name beside the name of its host: without the host."""
    return rank_name.removesuffix(f" on {host}")


def of_gpus(summary: RunSummary) -> bool:
    """Whether the summary has anything about GPUs."""
    return bool(summary.ranks or summary.gpus)


def ranks_text(summary: RunSummary) -> str:
    """How many ranks, and how often they were started again."""
    text = plural(summary.ranks, "rank")
    return f"{text}, {plural(summary.restarts, 'restart')}" if summary.restarts else text


def facts(summary: RunSummary) -> list[str]:
    """What ran and how it ended, in few words each."""
    ended = f"exit {summary.exit_code}"
    if summary.exit_code is None:  # a step of Slurm that was recorded from its tasks' prolog ends without one
        ended = "exit not known" if summary.finished else "unfinished"
    parts = []
    if of_gpus(summary):
        parts = [ranks_text(summary), f"policy {summary.policy or '?'}"]
    if summary.clock_mhz:
        parts.append(f"clock fixed at {mhz(summary.clock_mhz)}")
    elif summary.clocks_mode not in ("", "none"):
        parts.append(f"clocks {summary.clocks_mode}")
    if summary.library:
        parts.append(summary.library)
    if summary.recording_pct is not None:
        parts.append(f"recording took about {percent(summary.recording_pct)} of the ranks' time")
    if summary.mpi:
        mpi = summary.mpi
        parts.append(plural(mpi.ranks, "MPI rank"))
        if mpi.processes > mpi.ranks:
            parts[-1] += f" ({plural(mpi.processes, 'process', 'processes')})"
        parts += [mpi.library] if mpi.library else []
        parts += [mpi_waits(mpi.wait_mode, mpi.wait_method)] if mpi.wait_mode else []
    elif not of_gpus(summary):
        parts.append(seconds(summary.wall_s))
    return [*parts, ended]


def mpi_waits(mode: str, method: str) -> str:
    """How ranks waited, for one line."""
    if mode == "observe":
        return "waits only observed"
    return f"waits {mode}" + (f": {method.replace(' us ', ' µs ')}" if method else "")


def clock_line(clocks: Clocks) -> str:
    """How often clocks were requested and set, in a sentence."""
    if not clocks.requests:
        return ""
    text = f"{plural(clocks.requests, 'clock request')} ({clocks.sets:,} set, {clocks.resets:,} reset)"
    if clocks.dry:
        text += ": dry run, no clock was set" if clocks.dry == clocks.requests else f", {clocks.dry} of them dry"
    if clocks.mean_call_us is not None:
        text += f", {microseconds(clocks.mean_call_us)} per driver call"
    if clocks.mean_latency_us is not None:
        text += f", {microseconds(clocks.mean_latency_us)} from request to completion"
    if clocks.without_lease:
        text += f", {clocks.without_lease} without a lease"
    if clocks.coalesced:
        text += f", {clocks.coalesced} replaced by a later request"
    return text


def closing(summary: RunSummary) -> list[Line]:
    """What the policy did, and what deserves attention."""
    clocks = summary.clocks
    warnings = []
    if clocks.failed:
        warnings.append(f"{plural(clocks.failed, 'clock request')} failed: the trace holds the driver's error codes")
    warnings += [*summary.energy.missing, *(summary.mpi.energy.missing if summary.mpi else [])]
    warnings += summary.notes + summary.problems
    lines = [Line(text) for text in policy_lines(summary)]
    if clocks.requests:
        lines.append(Line(clock_line(clocks)))
    lines += [Line(text, "warning") for text in warnings[:MOST_WARNINGS]]
    if len(warnings) > MOST_WARNINGS:
        lines.append(Line(f"… {len(warnings) - MOST_WARNINGS} more in summary.json", "dim"))
    return [Line(""), *lines] if lines else []


def record_line(summary: RunSummary) -> Line:
    """Where the record is."""
    return Line(f"record  {summary.folder}", "dim")


def has_figures(summary: RunSummary) -> bool:
    """Whether the summary has more to show than the lines of this module."""
    return of_gpus(summary) or summary.mpi is not None


def summary_lines(summary: RunSummary) -> list[Line]:
    """The whole summary of a run without figures."""
    return [Line(""), *opening(summary), *closing(summary), Line(""), record_line(summary)]


def write(lines: list[Line], stream: TextIO) -> None:
    """Write lines, with styles and wrapped to the width if the stream is a terminal that has styles."""
    terminal = stream.isatty()
    styles = terminal and not os.environ.get("NO_COLOR") and os.environ.get("TERM", "dumb") != "dumb"
    width = max(os.get_terminal_size(stream.fileno()).columns, 40) if terminal else 0
    for line in lines:
        text = clean.lines(f"! {line.text}" if line.style == "warning" else line.text)
        if width and len(text) > width and line.style != "dim":  # paths and commands stay whole, to be copied
            text = textwrap.fill(text, width, break_on_hyphens=False)
        code = _SGR[line.style] if styles else ""
        stream.write(f"\x1b[{code}m{text}\x1b[0m\n" if code and text else f"{text}\n")
    stream.flush()
