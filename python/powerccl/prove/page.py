# SPDX-License-Identifier: Apache-2.0
"""What a proof means for its machine: half a page of text."""

from __future__ import annotations

from collections.abc import Iterator

from powerccl.estimate import Estimate
from powerccl.prove.file import LoadPoint, Proof
from powerccl.prove.fit import KEPT_GBS, memory_share
from powerccl.quantities import NOT_KNOWN, plural

SLOWER_PCT = 1.0  # a load that takes this much longer is called as fast


def page_of(proof: Proof, file: str) -> str:
    """The text, with the name of the file."""
    return "\n".join(_lines(proof, file)) + "\n"


def _lines(proof: Proof, file: str) -> Iterator[str]:
    emulated = "emulated " if proof.emulated else ""
    yield f"{emulated}{proof.gpus} x {proof.gpu}" + (", quick figures" if proof.quick else "")
    if proof.dry:
        yield "  dry: no clock was set; everything is at the clock that was there"
    yield f"  {_calls(proof)}"
    for stall in proof.stalls:
        yield f"  {_stalls(stall.load, stall.ms_per_call)}"
    if proof.transitions:
        slow, quick = (pick(proof.transitions, key=lambda each: each.median_ms) for pick in (max, min))
        yield (
            f"  a clock settles {quick.median_ms:.3g} to {slow.median_ms:.3g} ms behind its call, "
            f"{max(each.worst_ms for each in proof.transitions):.3g} ms at worst"
        )
    for load in dict.fromkeys(each.load for each in proof.loads):
        yield f"  {_of_load(load, [each for each in proof.loads if each.load == load])}"
    yield f"  {_training(proof)}"
    if proof.restored:
        back = "every clock is back" if proof.restored.all_back else "CLOCKS DIFFER from those before"
        yield f"  {back}: {_clocks(proof.restored.before_mhz)} MHz before, {_clocks(proof.restored.after_mhz)} after"
    yield f"  took {proof.seconds:.0f} s; {file} has all figures"


def _calls(proof: Proof) -> str:
    if proof.calls is None:
        read = NOT_KNOWN if proof.read_us is None else f"{proof.read_us / 1e3:.3g} ms"
        return f"reading one GPU's energy takes {read}; what a clock call takes is not known"
    calls = proof.calls
    return (
        f"a clock call takes {calls.median_us / 1e3:.3g} ms, {calls.p99_us / 1e3:.3g} ms at the 99th percentile "
        f"of {plural(calls.calls, 'call')}"
    )


def _stalls(load: str, cost: Estimate) -> str:
    if cost.low <= 0:
        return f"no stall of a running {load} was seen; a clock call adds {max(cost.high, 0):.2g} ms at most"
    return f"a clock call stalls a running {load} for {cost.value:.3g} ms [{cost.low:.2f}, {cost.high:.2f}]"


def _of_load(load: str, points: list[LoadPoint]) -> str:
    top = points[0]
    watts = NOT_KNOWN if top.watts is None else f"{top.watts:.0f} W"
    at = f"{top.sm_clock_mhz or top.clock_mhz:.0f} MHz"
    if len(points) == 1 or top.watts is None:
        return f"{load}: {watts} at {at}"
    if load == "idle":
        low = points[-1]
        return f"{load}: {watts} at {at}, {low.watts or 0:.0f} W at {low.clock_mhz} MHz"
    share = memory_share(points, top.clock_mhz)
    stays = "" if share is None else f"; {share * 100:.0f} % of its time follows no clock"
    kept = [each for each in points if _as_fast(each, top)]
    low = kept[-1] if kept else top
    if low.clock_mhz == top.clock_mhz or low.watts is None:
        return f"{load}: {watts} at {at}, and slower at every lower clock{stays}"
    saved = (1 - low.watts / top.watts) * 100
    return f"{load}: {watts} at {at}; as fast down to {low.clock_mhz} MHz, where it draws {saved:.0f} % less{stays}"


def _as_fast(point: LoadPoint, top: LoadPoint) -> bool:
    if point.time_ms is None or top.time_ms is None:
        return False
    limit = 1 / KEPT_GBS - 1 if point.load == "all-reduce" else SLOWER_PCT / 100
    return point.time_ms <= top.time_ms * (1 + limit)


def _training(proof: Proof) -> str:
    training = proof.training
    if training is None:
        return "energy of the training step: not known"
    if training.saved_pct is None or training.slowdown_pct is None:
        return f"the training step takes {training.step_ms.value:.1f} ms and {training.joules.value:.1f} J"
    saved, slower = training.saved_pct, training.slowdown_pct
    return (
        f"auto saved {saved.value:.1f} % [{saved.low:.1f}, {saved.high:.1f}] of the training step's energy at "
        f"{slower.value:+.1f} % [{slower.low:+.1f}, {slower.high:+.1f}] of time, its learning included "
        f"({plural(saved.n, 'turn')} of {training.seconds:.0f} s)"
    )


def _clocks(clocks: list[float | None]) -> str:
    known = [each for each in clocks if each is not None]
    if not known:
        return NOT_KNOWN
    low, high = min(known), max(known)
    return f"{low:.0f}" if round(low) == round(high) else f"{low:.0f} to {high:.0f}"
