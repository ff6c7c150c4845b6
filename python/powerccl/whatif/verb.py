# SPDX-License-Identifier: Apache-2.0
"""`powerccl whatif` without --ways."""

from __future__ import annotations

from collections.abc import Callable

from powerccl import clean
from powerccl.analysis.programs.calls import RECORD, NoProgramError
from powerccl.analysis.report_findings import NextStep
from powerccl.commandline.output import write_out
from powerccl.commandline.references import check_profile, gpu_names, own_profile
from powerccl.console import Console
from powerccl.errors import PowercclError
from powerccl.launch.native import find_native
from powerccl.platforms.store import load_profile
from powerccl.tariff import Tariff
from powerccl.traces.folder import RunData
from powerccl.whatif.forecasts import WhatIf
from powerccl.whatif.month import month_saved
from powerccl.whatif.predict import Terms, what_if
from powerccl.whatif.report import print_what_if
from powerccl.whatif.simulator import SIMULATOR, SimulatorError


def predict_policies(
    run: RunData,
    platform: str,
    terms: Terms,
    tariff: Tariff,
    json_file: str,
    advise: Callable[[WhatIf], list[NextStep]],
) -> None:
    """Predict what clock policies would have saved of a run, and print it with what `advise` says to do next.

    Raises:
        PowercclError: nothing can be predicted from the run.
    """
    prediction = _predict(run, platform, terms)
    prediction.next_steps = advise(prediction)
    prediction.month = month_saved(run, prediction, tariff)
    if json_file:
        write_out(json_file, clean.to_json(prediction, indent=2))
    print_what_if(Console(stderr=json_file == "-"), prediction)


def _predict(run: RunData, platform: str, terms: Terms) -> WhatIf:
    profile = None if platform == "none" else load_profile(platform) if platform else own_profile(run)
    if profile:
        check_profile(profile, run)
    names = [name for of_node in gpu_names(run, of_job=True).values() for name in of_node]
    native = find_native()
    try:
        prediction = what_if(
            run, names[0] if names else "", native.path(SIMULATOR), native.root / "share/platforms", profile, terms
        )
    except NoProgramError as error:
        raise PowercclError(f"{run.folder} cannot be simulated: {error}", RECORD) from error
    except SimulatorError as error:
        raise PowercclError(f"{run.folder} cannot be simulated: {error}", "report this with the run folder") from error
    if profile and profile.emulated and not run.emulated:
        prediction.notes.append(f"profile {profile.name} is of an emulated server: its clocks are modelled")
    return prediction
