# SPDX-License-Identifier: Apache-2.0
"""`powerccl report`."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import click

from powerccl.commandline.options import html_option, json_option
from powerccl.commandline.runs import complete_run, find_run, runs_dir_option
from powerccl.commandline.tariffs import asked_tariff, tariff_options
from powerccl.errors import PowercclError, UsageError

if TYPE_CHECKING:
    from powerccl.analysis.report_findings import Reference


@click.command("report")
@click.argument("name", metavar="[RUN]", default="", shell_complete=complete_run)
@html_option()
@click.option("--perfetto", type=click.Path(path_type=Path), metavar="FILE", help="Write a trace for ui.perfetto.dev.")
@click.option(
    "--csv",
    "csv_folder",
    type=click.Path(path_type=Path),
    metavar="DIR",
    help="Write the tables, one file each, into DIR.",
)
@json_option("the findings, in SI units,")
@click.option(
    "--kineto",
    multiple=True,
    metavar="FILE[:RANK]",
    help="Trace of torch.profiler, which separates computation from idle time. One per rank.",
)
@click.option(
    "--platform",
    default="",
    metavar="NAME|FILE",
    help="Platform profile to rate bandwidth against.  [default: the run's own]",
)
@click.option(
    "--ways",
    default="",
    metavar="auto|NAME|FILE",
    help="Table of ways to say by what could be had without changing a clock (auto: that of the run's GPUs).  "
    "[default: auto]",
)
@click.option("--window", default="", metavar="FROM:TO", help="Report this part only, in seconds from the run's start.")
@click.option("--slurm-energy", is_flag=True, help="Also print the energy that Slurm counted, as sacct has it.")
@tariff_options
@runs_dir_option
@click.option("-q", "--quiet", is_flag=True, help="Print errors only.")
def command(
    name: str,
    html_file: str,
    perfetto: Path | None,
    csv_folder: Path | None,
    json_file: str,
    kineto: tuple[str, ...],
    platform: str,
    ways: str,
    window: str,
    slurm_energy: bool,
    price: str,
    carbon: str,
    pue: float | None,
    runs_dir: Path,
    quiet: bool,
) -> int:
    """Show where the time and the energy of a recorded run went.

    RUN is a run folder of `powerccl run`. Without RUN, report takes the last run in --runs-dir. It also reads the
    folder of a killed job or one with damaged files, and says what is missing.

    \b
    powerccl report runs/20260101-120000-train
    powerccl report 20260101-120000-train --html train.html
    powerccl report --price 0.25EUR/kWh --carbon 380g/kWh --pue 1.3
    powerccl report 20260101-120000-train --kineto rank0.pt.trace.json.gz:0
    """  # noqa: D301 - click's mark for text that is not to be wrapped
    from dataclasses import replace

    from msgspec import structs

    from powerccl.memory import return_freed

    return_freed()

    from powerccl.analysis.cost import cost_of
    from powerccl.analysis.energy import energy_curves
    from powerccl.analysis.findings import SUMMARY_FILE
    from powerccl.analysis.report import report
    from powerccl.commandline.output import say, write_out
    from powerccl.commandline.references import own_table
    from powerccl.commandline.summaries import keep_summary
    from powerccl.commands.advice import advise
    from powerccl.platforms.ways import load_table
    from powerccl.ways.forecast import power_limit, predict_best
    from powerccl.ways.possible import possible

    part, tariff = _window(window), asked_tariff(price, carbon, pue)
    folder = find_run(name, runs_dir, quiet=quiet)
    reference = _reference(platform, folder)
    made = report(folder, reference, [_kineto(text) for text in kineto], part)
    table = load_table(ways) if ways not in ("", "auto") else own_table(made.run)
    if table:
        other_ways = possible(made.calls, table)
        if made.run.in_part and other_ways.rows:
            made.findings.summary.notes.append("what other ways would save is of a part in the middle of the run")
        if other_ways.rows:
            kernels = made.kernels.with_columns(waiting_ns=made.waiting_ns)
            curves, limit_w = energy_curves(made.run), power_limit(made.run)
            best = predict_best(made.calls, kernels, made.waits, curves, table, limit_w)
            other_ways = structs.replace(other_ways, predicted=best)
        made = replace(made, findings=structs.replace(made.findings, ways=other_ways))
    steps = advise(made.run, made.findings.summary, made.findings)
    made = replace(made, findings=structs.replace(made.findings, next_steps=steps))
    cost = cost_of(made.run, made.findings.summary, tariff, made.findings.iterations)
    made = replace(made, findings=structs.replace(made.findings, cost=cost))
    findings = made.findings
    if not (kineto or platform or made.run.window or (folder / SUMMARY_FILE).exists()):
        keep_summary(findings.summary, made.run)
    summary = findings.summary
    if not (summary.ranks or summary.gpus or summary.mpi) and not (folder / "run.json").exists():
        raise PowercclError(f"{folder} is no run folder: it has no run.json, no trace and no samples", _NAME)
    if html_file:
        from powerccl.reports.report_page import report_page

        write_out(html_file, report_page(made).encode())
    if perfetto:
        from powerccl.reports.perfetto import write_perfetto

        left_out: list[str] = []
        _write(perfetto, lambda path: left_out.append(write_perfetto(made, path)))
        if left_out[0]:
            say(left_out[0])
    if csv_folder:
        from powerccl.reports.tabular import write_csv

        tables: list[Path] = []
        _write(csv_folder, lambda path: tables.extend(write_csv(findings, path)))
        if not tables:
            say(f"{csv_folder} has no tables: the run has no ranks, no GPUs and no MPI calls")
    if json_file:
        from powerccl.analysis.report import encode

        write_out(json_file, encode(findings))
    if not quiet:
        from powerccl.console import Console
        from powerccl.reports.report import print_report

        console = Console(stderr=json_file == "-")
        print_report(console, findings)
        if slurm_energy:
            from powerccl.commandline.slurm_energy import slurm_energy_line

            console.print(slurm_energy_line(summary.labels))
        written = {"page": html_file, "perfetto": perfetto, "tables": csv_folder}
        for what, path in written.items():
            if path:
                console.print(f"{what:<8} {path}", soft_wrap=True)
    return 0


_NAME = "name a folder that `powerccl run` made, such as those in runs/"


def _window(text: str) -> tuple[float, float] | None:
    if not text:
        return None
    first, _, last = text.partition(":")
    try:
        part = (float(first or 0), float(last))
    except ValueError:
        part = (0.0, 0.0)
    if not 0 <= part[0] < part[1] < 1e9:
        raise UsageError(f"--window {text}: not understood", "seconds from the run's start: --window 60:90")
    return part


def _kineto(text: str) -> tuple[Path, int | None]:
    """FILE or FILE:RANK; a colon may be part of the file's name."""
    match = re.fullmatch(r"(.+):(\d+)", text)
    path, rank = (Path(match[1]), int(match[2])) if match and not Path(text).exists() else (Path(text), None)
    if not path.is_file():
        raise PowercclError(f"no profiler trace {path}", "name what torch.profiler's export_chrome_trace wrote")
    return path, rank


def _write(path: Path, write: Callable[[Path], object]) -> None:
    try:
        write(path)
    except OSError as error:
        raise PowercclError(f"cannot write {path}: {error.strerror}", "name another file") from error


def _reference(platform: str, folder: Path) -> Reference | None:
    """The profile asked for, or the run's own, or of GPUs like its; None where there is none."""
    from powerccl.commandline.references import check_profile, own_reference, reference_of
    from powerccl.platforms.store import load_profile
    from powerccl.traces.folder import RunData, read_info

    run = RunData(folder)
    if platform:
        profile = load_profile(platform)
        check_profile(profile, run)
        return reference_of(profile)
    read_info(run)
    return own_reference(run)
