# SPDX-License-Identifier: Apache-2.0
"""`powerccl whatif`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from powerccl.commandline.options import json_option, max_slowdown_option, overhead_option
from powerccl.commandline.output import say
from powerccl.commandline.runs import complete_run, find_run, runs_dir_option
from powerccl.commandline.tariffs import asked_tariff, tariff_options
from powerccl.errors import PowercclError
from powerccl.launch.environment import DEFAULT_SLOWDOWN_PCT

if TYPE_CHECKING:
    from powerccl.analysis.report_findings import NextStep
    from powerccl.traces.folder import RunData
    from powerccl.whatif.forecasts import WhatIf


@click.command("whatif")
@click.argument("name", metavar="[RUN]", default="", shell_complete=complete_run)
@click.option(
    "--platform", default="", metavar="NAME|FILE", help="Platform profile, or none.  [default: the run's own]"
)
@max_slowdown_option
@click.option(
    "--call-us",
    type=click.FloatRange(min=0),
    metavar="N",
    help="Time of a clock call, in µs.  [default: the profile's]",
)
@click.option(
    "--transition-us",
    type=click.FloatRange(min=0),
    metavar="N",
    help="Time from a clock call's return until the clock changes, in µs.  [default: the profile's]",
)
@overhead_option
@click.option(
    "--ranks",
    type=click.IntRange(min=2),
    metavar="N",
    help="Predict the job on N GPUs, a multiple of the recorded ones: each does what it did.  [default: as recorded]",
)
@click.option(
    "--ways",
    default="",
    metavar="auto|NAME|FILE",
    help="Predict ways of carrying collectives out instead, by this table of ways (auto: that of the run's GPUs).",
)
@tariff_options
@runs_dir_option
@json_option("the findings")
def command(
    name: str,
    platform: str,
    max_slowdown: float | None,
    call_us: float | None,
    transition_us: float | None,
    overhead: str,
    ranks: int | None,
    ways: str,
    price: str,
    carbon: str,
    pue: float | None,
    runs_dir: Path,
    json_file: str,
) -> int:
    """Predict what clock policies would have saved in a run.

    It predicts the slowdown of each policy too. RUN is a run folder of `powerccl run --policy observe`. Without RUN,
    whatif takes the last run in --runs-dir. It changes no clock: it simulates the job on a model of its machine. What
    the run does not tell gives each figure a range. A platform profile makes it narrower, and is needed for per-call.

    With --ways it predicts what copy engines or symmetric kernels would save, at the clocks as they were.

    \b
    powerccl run -- torchrun train.py
    powerccl whatif runs/20260101-120000-train --platform my-machine
    powerccl whatif runs/20260101-120000-train --ways auto
    """  # noqa: D301 - click's mark for text that is not to be wrapped
    from powerccl.traces.folder import read_run
    from powerccl.traces.run_files import hosts_of

    tariff = asked_tariff(price, carbon, pue)
    folder = find_run(name, runs_dir)
    run = read_run(folder)
    _check(run)
    if run.elsewhere:
        say(f"{hosts_of(run.elsewhere)}: traces and samples are not here: the prediction is of the other ranks")
    if ways:
        from powerccl.ways.verbs import predict_ways

        predict_ways(run, folder, ways, json_file)
        return 0
    from powerccl.commandline.summaries import summary_of
    from powerccl.commands.advice import advise
    from powerccl.whatif.predict import Terms
    from powerccl.whatif.verb import predict_policies

    budget_pct = DEFAULT_SLOWDOWN_PCT if max_slowdown is None else max_slowdown

    def next_steps(prediction: WhatIf) -> list[NextStep]:
        automatic = next(each for each in prediction.policies if each.policy == "auto")
        return advise(run, summary_of(folder), None, automatic.saved_pct, automatic.slowdown_pct, budget_pct)

    terms = Terms(budget_pct, overhead, call_us, transition_us, ranks or 0)
    predict_policies(run, platform, terms, tariff, json_file, next_steps)
    return 0


_RECORD = (
    "record the job with `powerccl run --policy observe -- ...`, on GPUs that communicate through NCCL 2.18 or later"
)


def _check(run: RunData) -> None:
    """Refuse what nothing can be predicted from."""
    if not run.ranks:
        if run.mpi:
            raise PowercclError(
                f"{run.folder} is a run of MPI alone: no GPU communicated in it",
                "clock policies are for NCCL; `powerccl run` says what waiting in MPI costs",
            )
        raise PowercclError(f"{run.folder} has no trace of NCCL", _RECORD)
    from powerccl.traces import records

    if (jobs := len({trace.job for trace in run.ranks})) > 1:
        raise PowercclError(
            f"{run.folder} has {jobs} jobs that ran beside each other: a prediction is for one job",
            "start each job by a `powerccl run` of its own, such as `powerccl run --runs-dir runs/$HOSTNAME -- ...`",
        )
    if run.info and run.info.clock_mhz:
        raise PowercclError(
            f"{run.folder} was recorded at a fixed clock of {run.info.clock_mhz} MHz: its clocks were changed already",
            "record the job without --clock: `powerccl run --policy observe -- ...`",
        )
    policies = {trace.policy for trace in run.ranks if trace.policy} - {"observe"}
    changed = any(len(trace.kinds[records.CLOCK]) and not trace.dry for trace in run.ranks)
    if policies and changed:
        raise PowercclError(
            f"{run.folder} was recorded under {', '.join(sorted(policies))}: its clocks were changed already",
            "record the job with `powerccl run --policy observe -- ...`",
        )
