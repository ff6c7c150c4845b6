# SPDX-License-Identifier: Apache-2.0
"""`powerccl whatif`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from powerccl.commands.old_options import with_old_options
from powerccl.commands.runs import find_run, runs_dir_option
from powerccl.errors import PowercclError

if TYPE_CHECKING:
    from powerccl.analysis.whatif.findings import WhatIf
    from powerccl.analysis.whatif.platform import ClockPlatform
    from powerccl.platforms.schema import PlatformProfile
    from powerccl.traces.folder import RunData


@with_old_options
@click.command("whatif")
@click.argument("name", metavar="[RUN]", default="")
@click.option("--platform", default="", metavar="NAME|FILE", help="Platform profile.  [default: the run's own]")
@click.option(
    "--max-slowdown",
    type=click.FloatRange(0.1, 50),
    default=1.0,
    show_default=True,
    metavar="PERCENT",
    help="Largest slowdown of the job that exposed, fixed and auto may cause.",
)
@click.option("--call-us", type=click.FloatRange(min=0), help="Time of a clock call, in µs.  [default: the profile's]")
@click.option(
    "--transition-us",
    type=click.FloatRange(min=0),
    help="Time from a clock call's return until the clock changes, in µs.  [default: the profile's]",
)
@click.option(
    "--overhead",
    type=click.Choice(["measured", "published"]),
    default="measured",
    show_default=True,
    help="Message size from which per-call lowers clocks: the profile's value, or PCCL's.",
)
@click.option(
    "--ways",
    default="",
    metavar="auto|NAME|FILE",
    help="Predict ways of carrying collectives out instead, by this table of ways (auto: that of the run's GPUs).",
)
@runs_dir_option
@click.option("--gpus", "of_gpus", is_flag=True, help="Show each GPU as well.")
@click.option("--json", "json_file", default="", metavar="FILE", help="Write the findings to FILE (-: stdout).")
def command(
    name: str,
    platform: str,
    max_slowdown: float,
    call_us: float | None,
    transition_us: float | None,
    overhead: str,
    ways: str,
    runs_dir: Path,
    of_gpus: bool,
    json_file: str,
) -> int:
    """Predict what clock policies would have saved in a recorded run.

    It predicts the slowdown of each policy too. RUN is a run folder of `powerccl run --policy observe`. Without RUN,
    whatif takes the last run in --runs-dir. It changes no clock. The run shows where and how long computation waited.
    The platform profile gives power and time at other clocks.

    With --ways it predicts what copy engines or symmetric kernels would save, at the clocks as they were.

    \b
    powerccl run -- torchrun train.py
    powerccl whatif runs/20260101-120000-train --platform my-machine
    powerccl whatif runs/20260101-120000-train --ways auto
    """  # noqa: D301 - click's mark for text that is not to be wrapped
    from powerccl.analysis.whatif import what_if
    from powerccl.commands.references import check_profile
    from powerccl.platforms.store import load_profile
    from powerccl.traces.folder import read_run

    folder = find_run(name, runs_dir)
    run = read_run(folder)
    _check(run)
    if ways:
        from powerccl.commands.whatif_ways import predict_ways

        return predict_ways(run, folder, ways, json_file)
    profile = load_profile(platform) if platform else _own(run)
    check_profile(profile, run)
    replaced = _replaced(run)
    clocks = clock_platform(
        profile,
        overhead,
        replaced.get("set_clock_call_us") if call_us is None else call_us,
        replaced.get("clock_transition_us") if transition_us is None else transition_us,
    )
    try:
        found = what_if(run, clocks, max_slowdown)
    except ValueError as error:
        hint = "sample power: `powerccl run` without --interval-ms 0" if "power" in str(error) else _RECORD
        raise PowercclError(f"{folder}: {error}", hint) from error
    if profile.emulated and not run.emulated:
        found.notes.append(f"profile {profile.name} is of an emulated server: powers at other clocks are modelled")
    _show(found, of_gpus, json_file)
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

    policies = {trace.policy for trace in run.ranks if trace.policy} - {"observe"}
    changed = any(len(trace.kinds[records.CLOCK]) and not trace.dry for trace in run.ranks)
    if policies and changed:
        raise PowercclError(
            f"{run.folder} was recorded under {', '.join(sorted(policies))}: its clocks were changed already",
            "record the job with `powerccl run --policy observe -- ...`",
        )


def _own(run: RunData) -> PlatformProfile:
    from powerccl.commands.references import own_profile

    found = own_profile(run)
    if found is None:
        raise PowercclError(
            f"{run.folder} names no platform profile", "choose one with --platform, or make one with `powerccl profile`"
        )
    return found


def _replaced(run: RunData) -> dict[str, float]:
    """Numbers that replaced the emulated platform's own: `t4x8:clock_transition_us=20000` (powerccl run --emulate)."""
    _, _, changes = (run.info.emulated if run.info else "").partition(":")
    pairs = (change.partition("=")[::2] for change in changes.split(",") if "=" in change)
    return {key.strip(): float(value) for key, value in pairs if value.strip().replace(".", "", 1).isdigit()}


def clock_platform(
    profile: PlatformProfile,
    overhead: str = "measured",
    call_us: float | None = None,
    transition_us: float | None = None,
) -> ClockPlatform:
    """What a prediction needs of a profile; the two times replace the profile's own.

    Raises:
        PowercclError: the profile was made where clocks could not be set.
    """
    import numpy as np

    from powerccl.analysis.whatif.platform import UNKNOWN_TRANSITION_US, ClockPlatform, Curve, Switch
    from powerccl.platforms.policy_table import clock_ranges, overhead_bytes
    from powerccl.platforms.schema import GpuPower

    if not profile.clocks_set:
        raise PowercclError(
            f"platform profile '{profile.name}' has no minimum clocks, as none could be set ({profile.clocks_reason})",
            "profile as root (`sudo powerccl profile`), or name another with --platform",
        )
    curves: dict[str, dict[int, Curve]] = {}
    by_size: dict[tuple[str, int], list[tuple[float, float, float]]] = {}
    for point in profile.points:
        watts = point.watts_per_gpu if point.watts_per_gpu is not None else float("nan")
        time_us = min(point.time_us, point.time_low_us or point.time_us)
        by_size.setdefault((point.pattern, point.size_bytes), []).append((point.clock_mhz, time_us, watts))
    for (pattern, size), rows in by_size.items():
        columns = np.array(sorted(rows), dtype=np.float64).T
        curves.setdefault(pattern, {})[size] = Curve(columns[0], columns[1], columns[2])
    cost = profile.clock_switch
    call = call_us if call_us is not None else cost.call_us if cost else 5000.0
    known = transition_us if transition_us is not None else cost.transition_us if cost else None
    power = profile.gpu_power or GpuPower(provenance="")
    spreads = [point.energy_uncertainty_pct for point in profile.points if point.energy_uncertainty_pct is not None]
    found = ClockPlatform(
        name=profile.name,
        gpus=profile.gpus,
        clock_max_mhz=profile.clock_max_mhz,
        clocks_mhz=tuple(sorted({point.clock_mhz for point in profile.points})),
        curves=curves,
        managed=clock_ranges(profile),
        overhead_bytes=overhead_bytes(profile, overhead),
        switch=Switch(
            call_us=call,
            transition_us=UNKNOWN_TRANSITION_US if known is None else known,
            asking_us=max(0.0, cost.latency_us - cost.call_us) if cost else 0.0,
            transition_known=known is not None,
        ),
        idle_watts=power.idle_watts,
        behind_watts=power.behind_watts,
        kelvin_per_watt=power.kelvin_per_watt or 0.0,
        leakage_watts_per_kelvin=power.leakage_watts_per_kelvin or 0.0,
        computing=tuple(sorted((float(point.clock_mhz), point.watts) for point in profile.computing)),
        spread_pct=float(np.median(spreads)) if spreads else 0.0,
    )
    return found.isothermal() if found.kelvin_per_watt else found


def _show(found: WhatIf, of_gpus: bool, json_file: str) -> None:
    from powerccl import clean
    from powerccl.commands import write_out
    from powerccl.console import Console
    from powerccl.reports.whatif import print_what_if

    if json_file:
        write_out(json_file, clean.to_json(found, indent=2))
    print_what_if(Console(stderr=json_file == "-"), found, of_gpus)
