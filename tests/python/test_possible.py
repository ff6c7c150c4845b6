# SPDX-License-Identifier: Apache-2.0
"""No figure that cannot be: neither of predictions on wild platforms nor of findings with wild numbers in them."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
from click.testing import CliRunner
from test_whatif import exposed_run, platform, profile

from powerccl.analysis import possible
from powerccl.analysis.attribution.findings import EnergyFindings, KindEnergy
from powerccl.analysis.findings import Clocks, Communication, Energy, Gpu, PatternRow, RunSummary, Shares
from powerccl.analysis.report_findings import LinkRow, Parts
from powerccl.analysis.scaling import World
from powerccl.analysis.whatif import what_if
from powerccl.commands.whatif import clock_platform
from powerccl.commands.whatif import command as whatif_command
from powerccl.platforms.schema import ClockSwitch, encode
from powerccl.traces.folder import read_run

WILD = (float("nan"), math.inf, -math.inf, -1.0, -1e-3, 0.0, 1.0, 99.0, 101.0, 7276.5, 5e4, 1e300)


def figures(found: Any, name: str = "") -> list[tuple[str, float]]:
    """All of them, by the names of their fields."""
    if isinstance(found, dict):
        return [pair for key, value in found.items() for pair in figures(value, key)]
    if isinstance(found, list):
        return [pair for value in found for pair in figures(value, name)]
    return [(name, found)] if isinstance(found, float) else []


def row(kind: type[Any], random: np.random.Generator) -> Any:
    """Of a kind of findings, with wild figures."""
    plain = {"pattern": "all_reduce", "gpu": "GPU-0", "host": "node1", "ranks": [0], "links": "nvlink", "gpus": 2}
    given: dict[str, Any] = {}
    for field in msgspec.structs.fields(kind):
        if field.type is float or float in getattr(field.type, "__args__", ()):
            given[field.name] = float(random.choice(WILD))
        elif field.required:
            given[field.name] = plain.get(field.name, 1)
    return kind(**given)


@pytest.mark.parametrize("seed", range(50))
def test_findings_with_wild_figures_come_out_possible(seed: int) -> None:
    random = np.random.default_rng(seed)
    summary = RunSummary(
        energy=row(Energy, random),
        communication=Communication(),
        clocks=row(Clocks, random),
        shares=row(Shares, random),
        patterns=[row(PatternRow, random) for _ in range(20)],
        gpus=[row(Gpu, random) for _ in range(20)],
    )
    energy = row(EnergyFindings, random)
    energy.kinds = [row(KindEnergy, random) for _ in range(20)]
    for found in (summary, energy, row(World, random)):
        possible.check(found)
        told = figures(msgspec.to_builtins(found))
        assert all(possible.can_be(name, value) for name, value in told), [t for t in told if not possible.can_be(*t)]
        assert not possible.check(found)
    shares = summary.shares
    if shares.exposed_pct is not None and shares.communicating_pct is not None:
        assert shares.exposed_pct <= shares.communicating_pct


def test_what_cannot_be_is_named_and_left_unknown() -> None:
    energy = EnergyFindings(computation_watts=-3.0, joules_total=100.0, joules_communication=120.0)
    assert possible.check(energy) == [
        "computation watts is not known: the result was below zero",
        "joules communication is not known: the result was above joules total",
    ]
    assert energy.computation_watts is energy.joules_communication is None
    world = World(gpus=2, links="nvlink")
    world.communication_s, world.exposed_s = 0.01, 0.03  # the job's own file says more than the trace
    assert "exposed s is not known: the result was above communication s" in possible.check(world)[0]
    link = LinkRow(pattern="all_reduce", size_class_bytes=4, operations=1, busbw_gbs=0.0, time_s=1.0)
    with pytest.raises(ValueError, match="busbw gbs is not known: the result was zero"):
        possible.check(link)
    assert possible.check(Parts(span_s=1.0, communication_s=0.5, exposed_s=0.5 + 1e-9)) == []  # rounding


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return exposed_run(tmp_path_factory.mktemp("possible") / "run")


@pytest.mark.parametrize("seed", range(12))
def test_predictions_on_wild_tables_are_possible_or_not_known(recorded: Path, seed: int) -> None:
    """Times and powers of a profile that has nothing to do with the run, as of other GPUs."""
    random = np.random.default_rng(seed)
    points = [
        msgspec.structs.replace(
            point,
            time_us=float(10 ** random.uniform(0, 7)),
            watts_per_gpu=float(10 ** random.uniform(-1, 5)),
        )
        for point in profile().points
    ]
    calls_us, transition_us = (float(10 ** random.uniform(0, 6)) for _ in range(2))
    switch = ClockSwitch(
        call_us=calls_us, latency_us=calls_us, requests=10, provenance="x", transition_us=transition_us
    )
    found = what_if(read_run(recorded), platform(points=points, clock_switch=switch))
    possible.check(found)
    for forecast in [*found.policies, *(each for gpu in found.gpus for each in gpu.policies)]:
        if math.isnan(forecast.saved_pct.value):
            assert forecast.reason.startswith("not known: ")
            continue
        assert forecast.saved_pct.high <= 100
        assert -100 < forecast.slowdown_pct.value < 100 * 1e7
        assert found.joules / found.covered_s / 2 - forecast.saved_watts > 0 or forecast not in found.policies


def test_an_impossible_prediction_is_printed_as_not_known(recorded: Path, tmp_path: Path) -> None:
    """More energy saved than there was: at its lower clock communication draws what no GPU does."""
    points = [
        msgspec.structs.replace(point, watts_per_gpu=1e-3 if point.clock_mhz < 1590 else 1e5)
        for point in profile().points
    ]
    wild = profile(points=points)
    file = tmp_path / "wild.json"
    file.write_bytes(encode(wild))
    told = tmp_path / "told.json"
    shown = CliRunner().invoke(whatif_command, [str(recorded), "--platform", str(file), "--json", str(told)])
    assert shown.exit_code == 0, shown.output
    assert "nan" not in shown.output.lower()
    found = what_if(read_run(recorded), clock_platform(wild))
    for forecast, written in zip(found.policies, json.loads(told.read_text())["policies"], strict=True):
        assert written["saved_pct"]["value"] is None or written["saved_pct"]["value"] == forecast.saved_pct.value


def test_reasons_of_an_impossible_prediction() -> None:
    limits = possible.Limits(most_watts=100.0, least_times=0.9, most_times=4.0)
    say = possible.of_forecast
    assert say([10, 5, 15], [1, 0, 2], 50.0, limits) == ""
    assert say([101, 5, 102], [1, 0, 2], 50.0, limits) == "the prediction saves more than all of the energy"
    assert say([10, 5, 15], [1, 0, 2], -373.7, limits) == "the predicted power of a GPU is below zero"
    assert say([10, 5, 15], [1, 0, 2], 120.0, limits) == "the predicted power of a GPU is above what it can draw"
    assert (
        say([-5, -9, 1], [50100.7, 0, 6e4], 50.0, limits) == "the predicted time is longer than the GPU's clocks allow"
    )
    assert say([-5, -9, 1], [-40, -50, 0], 50.0, limits) == "the predicted time is shorter than the GPU's clocks allow"
    assert say([math.nan, 5, 15], [1, 0, 2], 50.0, limits) == "the prediction is not a number"
