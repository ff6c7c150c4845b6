# SPDX-License-Identifier: Apache-2.0
"""No figure that cannot be: neither of predictions on wild platforms nor of findings with wild numbers in them."""

from __future__ import annotations

import math
from typing import Any

import msgspec
import numpy as np
import pytest

from powerccl.analysis import possible
from powerccl.analysis.attribution.kind_energy import EnergyFindings, KindEnergy
from powerccl.analysis.findings import Clocks, Communication, Energy, Gpu, PatternRow, RunSummary, Shares
from powerccl.analysis.report_findings import LinkRow, Parts
from powerccl.study.worlds import World

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
    link = LinkRow(pattern="all_reduce", size_class_bytes=4, operations=1, busbw_gbs=-1.0)
    with pytest.raises(ValueError, match="busbw gbs is not known: the result was below zero"):
        possible.check(link)
    assert possible.check(Parts(span_s=1.0, communication_s=0.5, exposed_s=0.5 + 1e-9)) == []  # rounding
