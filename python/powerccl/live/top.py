# SPDX-License-Identifier: Apache-2.0
"""`powerccl top`: what runs on a node, as lines that fit the terminal they are for."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from rich.console import Group, RenderableType
from rich.style import Style
from rich.text import Text

from powerccl.console import Console
from powerccl.live.snapshot import LiveGpu, LiveJob, LiveMpi, LiveMpiRank, LivePattern, LiveRank, NodeView
from powerccl.quantities import (
    NOT_KNOWN,
    age,
    at_least,
    byte_size,
    change,
    change_between,
    exact,
    mhz,
    microseconds,
    number,
    percent,
    plural,
    seconds,
    watts,
)
from powerccl.reports.job import on_host
from powerccl.reports.table import Table
from powerccl.reports.terminal import COMMUNICATION, ELSEWHERE, heading, warning
from powerccl.traces.job_labels import in_words

WIDE = 100
SILENT_S = 10.0  # a rank that has called nothing for so long is shown as waiting
NARROW_CALL = 22
STALE_S = 3.0  # samples come twice a second
BARS = "▁▂▃▄▅▆▇█"
MOST_PATTERNS = 4
MOST_MPI_RANKS = 16
RANK_LINE = Style(meta={"rank": True})  # marks the lines of ranks, of which the live view counts those out of sight
History = Mapping[str, Sequence[float]]


def render(
    view: NodeView, width: int, history: History | None = None, interval_s: float | None = None
) -> RenderableType:
    """Everything in at most `width` columns; `history` holds each job's power of the last looks, by folder."""
    parts: list[RenderableType] = [_title(view, width, interval_s)]
    if not view.jobs:
        parts += [Text(""), Text("no job runs under powerccl on this node"), _found_how(view)]
    for job in view.jobs:
        parts += ["", *_job(job, width, (history or {}).get(job.folder, ()))]
    others = _other_leases(view)
    if others:
        parts += ["", *others]
    parts += [warning(text) for text in view.problems]
    if view.jobs and view.unreadable_processes:
        parts.append(_found_how(view))
    return Group(*parts)


def print_top(console: Console, view: NodeView) -> None:
    """Once, as text."""
    console.print(render(view, console.width))


def _title(view: NodeView, width: int, interval_s: float | None) -> Text:
    running = sum(not job.ended for job in view.jobs)
    ended = f", {len(view.jobs) - running} ended" if running < len(view.jobs) else ""
    clock = time.strftime("%H:%M:%S", time.localtime(view.unix_s))
    line = Text.assemble(("powerccl top", "bold"), f" · {view.host} · {clock} · {plural(running, 'job')}{ended}")
    if interval_s is not None and view.jobs:
        right = f"every {exact(interval_s, 's')}, over {exact(view.jobs[0].window_s, 's')}"
        if line.cell_len + len(right) + 2 <= width:
            line.append(" " * (width - line.cell_len - len(right)) + right, style="dim")
    return line


def _found_how(view: NodeView) -> Text:
    text = "start a job: powerccl run -- COMMAND; see one that has ended: powerccl top RUN" if not view.jobs else ""
    if view.unreadable_processes:
        others = f"{plural(view.unreadable_processes, 'process', 'processes')} of other users cannot be read"
        text = f"{text}\n{others}" if text else others
    return Text(text, style="dim")


def _job(job: LiveJob, width: int, history: Sequence[float]) -> list[RenderableType]:
    narrow = width < WIDE
    name = heading(Path(job.folder).name, job.emulated.split(":")[0])
    facts = []
    if job.ended:
        facts.append(f"ended, exit {job.exit_code}" if job.exit_code is not None else "ended")
    if job.ranks or job.policy not in ("", "observe"):
        facts.append(
            f"policy {job.policy or '?'}" + (f", clocks {job.clocks}" if job.clocks not in ("", "none") else "")
        )
    if job.restarts:
        facts.append(plural(job.restarts, "restart"))
    facts.append(seconds(job.elapsed_s))
    if job.pids and not job.ended:
        facts.append(f"{job.user}, {plural(len(job.pids), 'process', 'processes')}")
    about = Text(" · ".join(facts))
    if job.ended:
        about.stylize("bold" if job.exit_code == 0 else "bold red", 0, len(facts[0]))
    lines: list[RenderableType] = [name]
    if name.cell_len + 2 + about.cell_len <= width:
        name.append("  ", style="not bold").append_text(about)
    else:
        name.truncate(width, overflow="ellipsis")
        lines.append(about)
    words = [Path(word).name if index == 0 else word for index, word in enumerate(job.command)]
    command = Text(" ".join(words).replace("\n", " "), style="dim")
    command.truncate(width, overflow="ellipsis")
    lines.append(command)
    lines += [Text(line, overflow="ellipsis") for line in filter(None, [" · ".join(in_words(job.labels))])]
    lines += [Text(line) for line in _budget(job)]
    lines.append(_totals(job, width, history))
    if job.gpus or job.ranks:
        lines.append(_gpus(job, narrow))
    if job.patterns:
        lines.append(_patterns(job.patterns, narrow))
    if job.mpi:
        lines.append(_mpi(job.mpi, narrow))
    # Below the tables: these come and go, and the lines above them should stay where they are.
    lines += [Text(line) for line in [*_requests(job), *_throttled(job)]]
    for rank in job.ranks:
        if rank.dropped:
            lines.append(
                warning(f"rank {_name(rank)}: {plural(rank.dropped, 'record')} dropped (POWERCCL_TRACE_LIMIT_MB)")
            )
    behind = sum(rank.behind for rank in job.ranks)
    if behind:
        lines.append(Text(f"{plural(behind, 'record')} of the traces not read yet", style="dim"))
    lines += [warning(text) for text in [*job.notes[-3:], *job.problems[:4]]]
    return lines


def _bar(pct: float, cells: int) -> Text:
    filled = round(min(max(pct, 0.0), 100.0) / 100 * cells)
    return Text("█" * filled, style=COMMUNICATION).append("░" * (cells - filled), style=ELSEWHERE)


def _totals(job: LiveJob, width: int, history: Sequence[float]) -> Text:
    """Share of communication and power of the whole job, with what power was in the last looks."""
    line = Text()
    share = job.share_pct
    about, where = "~" if job.estimated else "", "communication"
    if share is None and job.mpi and job.mpi.share_pct is not None:
        share, where = job.mpi.share_pct, "MPI"
    if share is not None:
        line.append_text(_bar(share, 20)).append(f" {about}{percent(share)} of the time in {where}")
    elif job.ranks:
        line.append("no communication was timed", style="dim")
    parts = []
    if job.power_w is not None or job.power_at_least_w is not None:
        parts.append(at_least(job.power_w, job.power_at_least_w, show=watts))
    if job.joules is not None or job.joules_at_least is not None:
        parts.append(at_least(job.joules, job.joules_at_least))
    if job.cpu_w is not None:
        parts.append(f"CPUs {watts(job.cpu_w)}")
    if parts:
        line.append(("   " if line.plain else "") + " · ".join(parts))
    room = width - line.cell_len - 2
    if len(history) > 1 and room >= 8:
        shown = list(history)[-min(room, 40) :]
        top = max(shown) or 1.0
        line.append("  " + "".join(BARS[round(value / top * (len(BARS) - 1))] for value in shown), style=ELSEWHERE)
    return line


def _budget(job: LiveJob) -> list[str]:
    """The slowdown that a policy may cause, and its estimate of the slowdown so far."""
    budget = job.budget
    if budget is None:
        return []
    text = "slowdown" + ("" if budget.allowed_pct is None else f" at most {exact(budget.allowed_pct, '%')}")
    if budget.slowdown_pct is not None:
        between = change_between(budget.low_pct, budget.high_pct)
        text += f", estimated {change(budget.slowdown_pct)} ({between})"
    elif budget.iterations is None:
        text += ", not estimated yet: the policy writes an estimate every 10 s"
    if budget.managed is not None:
        text += f", {budget.managed} of {plural(budget.iterations or 0, 'iteration')} managed"
    return [text]


def _requests(job: LiveJob) -> list[str]:
    """How often clocks were asked for in the window."""
    requests, failed = (sum(getattr(rank, name) for rank in job.ranks) for name in ("clock_requests", "clock_failed"))
    if not requests:
        return []
    text = f"{number(requests / job.window_s)} clock requests/s" + (
        " (dry run: no clock is set)" if job.clocks == "dry" else ""
    )
    return [text + (f", {failed} of {requests} failed" if failed else "")]


def _throttled(job: LiveJob) -> list[str]:
    """What throttles GPUs; their clocks are red."""
    reasons: dict[str, int] = {}
    for gpu in job.gpus:
        for reason in gpu.throttle_reasons:
            reasons[reason] = reasons.get(reason, 0) + 1
    return [f"throttled by {reason}: {held} of {plural(len(job.gpus), 'GPU')}" for reason, held in reasons.items()]


def _gpus(job: LiveJob, narrow: bool) -> Table:
    """A line a GPU with its rank; ranks that share one have a line each."""
    table = Table()
    table.add_column("GPU", justify="right", no_wrap=True)
    for column in ("rank", "clock", "power", *(() if narrow else ("busy", "temp")), "comm", "calls/s"):
        table.add_column(column, justify="right", no_wrap=True)
    # Cut first where there is no room; a column that is not to wrap would be cut like any other.
    table.add_column("last call", overflow="ellipsis", max_width=NARROW_CALL if narrow else None)
    leased = any(gpu.lease for gpu in job.gpus)
    if leased:
        table.add_column("lease", no_wrap=True, overflow="ellipsis")
    ranks: dict[str, list[LiveRank]] = {}
    for rank in job.ranks:
        ranks.setdefault(rank.gpu, []).append(rank)
    hosts = len({gpu.host for gpu in job.gpus}) > 1
    for gpu in job.gpus:
        gpu_ranks: list[LiveRank | None] = [*ranks.pop(gpu.gpu, [])]
        for index, owner in enumerate(gpu_ranks or [None]):
            cells = _of_gpu(gpu, narrow, hosts) if index == 0 else [""] * (3 if narrow else 5)
            _line(table, cells, owner, gpu.lease if leased else None, narrow)
    for rest in ranks.values():
        for rank in rest:
            _line(table, [""] + [NOT_KNOWN] * (2 if narrow else 4), rank, "" if leased else None, narrow)
    return table


def _of_gpu(gpu: LiveGpu, narrow: bool, hosts: bool) -> list[str | Text]:
    stale = gpu.age_s is not None and gpu.age_s > STALE_S
    style = "dim" if stale else "red" if gpu.throttle_reasons else ""
    cells: list[str | Text] = [
        f"{gpu.host} {gpu.index}" if hosts else str(gpu.index),
        Text(mhz(gpu.clock_mhz), style=style),
        Text(watts(gpu.power_w), style="dim" if stale else ""),
    ]
    if not narrow:
        cells.append(percent(gpu.utilization_pct))
        cells.append(number(gpu.temperature_c, "°C"))
    return cells


def _name(rank: LiveRank | LiveMpiRank) -> str:
    return rank.name or str(rank.rank)


def _line(
    table: Table,
    of_gpu: list[str | Text] | list[str],
    rank: LiveRank | None,
    lease: str | None,
    narrow: bool,
) -> None:
    name = "" if rank is None else _name(rank)
    if rank is not None and str(of_gpu[0]).startswith(f"{rank.host} "):
        name = on_host(name, rank.host)
    cells: list[str | Text] = [of_gpu[0], Text(name, style=RANK_LINE), *of_gpu[1:]]
    if rank is None:
        cells += [NOT_KNOWN, NOT_KNOWN, ""]
    else:
        share = percent(rank.share_pct)
        cells += [f"~{share}" if rank.estimated else share, number(rank.per_s), _last(rank, narrow)]
    if lease is not None:
        cells.append(lease)
    table.add_row(*cells)


def _last(rank: LiveRank, narrow: bool) -> str | Text:
    if not rank.last:
        return Text("none yet", style="dim")
    text = f"{rank.last.replace('_', '-')} {byte_size(rank.last_bytes)}"
    ago_s = rank.last_s or 0.0
    if ago_s >= SILENT_S:
        waits = f", {rank.pending} pending" if rank.pending else ""
        return Text(f"{text} {age(ago_s)} ago{waits}", style="yellow")
    return text if narrow or not rank.pending else f"{text}, {rank.pending} pending"


def _patterns(rows: Sequence[LivePattern], narrow: bool) -> Table:
    table = Table()
    table.add_column("pattern", no_wrap=True)
    for column in ("from", "calls/s", "mean", "bus GB/s", *(() if narrow else ("timed",))):
        table.add_column(column, justify="right", no_wrap=True)
    for row in rows[:MOST_PATTERNS]:
        mean = microseconds(row.mean_us)
        cells = [row.pattern.replace("_", "-"), byte_size(row.size_class_bytes), number(row.per_s), mean]
        table.add_row(
            *cells, number(row.busbw_gbs), *(() if narrow else (f"{min(row.timed, row.calls)} of {row.calls}",))
        )
    table.add_more(len(rows) - MOST_PATTERNS)
    return table


def _mpi(mpi: LiveMpi, narrow: bool) -> Group:
    table = Table()
    for column in ("rank", "in MPI", "waiting", "asleep", "calls/s"):
        table.add_column(column, justify="right", no_wrap=True)
    table.add_column("", no_wrap=True)
    for rank in mpi.ranks[:MOST_MPI_RANKS]:
        shares = [percent(each) for each in (rank.share_pct, rank.wait_pct, rank.sleep_pct)]
        bar: str | Text = "" if rank.share_pct is None else _bar(rank.share_pct, 20)
        if rank.last_s is not None and rank.last_s > SILENT_S:
            bar = Text(f"no record for {age(rank.last_s)}", style="yellow")
        table.add_row(Text(_name(rank), style=RANK_LINE), *shares, number(rank.calls_per_s), bar)
    table.add_more(len(mpi.ranks) - MOST_MPI_RANKS)
    texts = [
        f"{each.function} {percent(each.share_pct)} of the time, {number(each.calls_per_s)}/s"
        for each in mpi.functions[:3]
    ]
    functions = Text(" · ".join(texts[: 2 if narrow else 3]), style="dim")
    return Group(table, *([functions] if texts else []))


def _other_leases(view: NodeView) -> list[RenderableType]:
    """Devices that no process shown here holds."""
    shown = {gpu.gpu for job in view.jobs for gpu in job.gpus if gpu.lease}
    lines: list[RenderableType] = []
    for held in view.leases:
        if held.device in shown:
            continue
        clock = mhz(held.max_mhz) if held.max_mhz else "default clock"
        who = f"{held.user}'s process {held.pid}" + (f" ({held.run})" if held.run else "") if held.pid else "no process"
        state = ", to be restored" if held.pending else ""
        lines.append(Text(f"{held.device}: {clock}, {who}, for {age(held.held_s)}{state}"))
    return [Text("other leases", style="bold"), *lines] if lines else []
