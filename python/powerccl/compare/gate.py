# SPDX-License-Identifier: Apache-2.0
"""Whether a side needs more energy than a limit allows, beyond what chance explains: an energy gate for CI.

Over several runs, Welch's interval covers what changes from start to start. With one run of each side, the fifths of
the run tell how much stretches of it differ. Jobs drift and have slow noise, so longer stretches differ as much as
shorter ones. The standard deviation of the fifths is therefore taken for that of the run, without the root of five.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import msgspec
import numpy as np

from powerccl import clean
from powerccl.compare.member import ENERGY_OF_RUN, ENERGY_OF_STEP, REPLAY, RUN, Member
from powerccl.compare.significance import FIFTHS, FIFTHS_FROM, Change, Value, change, judged, quantile
from powerccl.errors import PowercclError
from powerccl.quantities import change as change_text
from powerccl.quantities import change_between, exact

PASSED, FAILED, UNDECIDED = "passed", "failed", "not decided"
EXIT_CODE = 3  # of `powerccl compare` where the gate failed; 1 and 2 are errors
# Standard deviation from start to start on the same GPUs, percent of the energy of a step, which one run cannot show.
# Five starts of FSDP2 on four H100s had 0.15; this is the 90 % upper bound of five. At half, one run of each side
# decides limits from 0.4 % on, which is closer than starts are known; at double, only from 1.7 % on.
START_PCT = 0.3
SEVERAL = "several runs of each side, in turns, and name them all: A1,A2,A3 B1,B2,B3"


class Gate(msgspec.Struct, kw_only=True):
    """What the gate decided. `why`: of what is not decided. `change`: of side B against side A."""

    outcome: str
    limit_pct: float
    what: str = ""  # energy of an iteration, of a step, or of the whole run; empty: none is known
    change: Change = msgspec.field(default_factory=Change)
    why: str = ""
    hint: str = ""

    @property
    def sentence(self) -> str:
        """The decision in one line."""
        measured = ""
        if self.change.pct is not None:
            measured = f"{self.what} {change_text(self.change.pct)}"
            if self.change.low_pct is not None and self.change.high_pct is not None:
                measured += f" (95 %: {change_between(self.change.low_pct, self.change.high_pct)})"
            measured += f", limit {exact(self.limit_pct, '%')}"
        parts = [f"energy gate {self.outcome}", *filter(None, [measured, self.why])]
        return f"{parts[0]}: {'; '.join(parts[1:])}" if parts[1:] else parts[0]


def parse_limit(text: str) -> float:
    """The percentage of `--fail-above`.

    Raises:
        PowercclError: it is none.
    """
    try:
        limit_pct = float(text.strip().removesuffix("%"))
    except ValueError:
        limit_pct = math.nan
    if not 0 <= limit_pct <= 1000:
        raise PowercclError(f"--fail-above takes a percentage, not '{text}'", "such as --fail-above 2%")
    return limit_pct


def change_of(before: Sequence[Value], after: Sequence[Value]) -> Change:
    """How the energy differs, with an interval that also holds for one run of each side; a value a run."""
    if not (len(before) == len(after) == 1):
        return change(before, after)
    first, second = before[0], after[0]
    if not (first.fifths and second.fifths) or min(*first.fifths, *second.fifths) <= 0:
        return Change(pct=change(before, after).pct, basis="one run each, without repeats enough to judge by")
    variances = [float(np.log(each.fifths).var(ddof=1)) for each in (first, second)]
    starts = 2 * math.log1p(START_PCT / 100) ** 2
    total = sum(variances) + starts
    # Welch and Satterthwaite; what is known of starts counts as exact.
    freedom = total**2 / (sum(each**2 for each in variances) / (FIFTHS - 1)) if any(variances) else math.inf
    difference = math.log(second.value / first.value)
    half = quantile(min(freedom, 1e9)) * math.sqrt(total)
    return judged(math.expm1(difference) * 100, difference - half, difference + half, "fifths of one run each")


def decide(measured: Change, limit_pct: float) -> str:
    """The outcome: failed above the limit beyond chance, not decided if both zero and the limit may be true."""
    pct, low_pct, high_pct = measured.pct, measured.low_pct, measured.high_pct
    if pct is None or low_pct is None or high_pct is None:
        return UNDECIDED
    if low_pct > 0:
        return FAILED if pct > limit_pct else PASSED
    return UNDECIDED if high_pct > limit_pct else PASSED


def judge(before: Sequence[Member], after: Sequence[Member], limit_pct: float, same_work: bool) -> Gate:
    """Judge side B, `after`, against side A. `same_work`: both sides made as many calls."""
    members = [*before, *after]
    gate = Gate(outcome=UNDECIDED, limit_pct=limit_pct)
    if {member.kind for member in members} - {RUN, REPLAY}:
        raise PowercclError("--fail-above is for run folders and replays of scenarios", "leave it out for sweeps")
    if len({member.emulated for member in members}) > 1:
        gate.why, gate.hint = "the sides are not of the same GPUs, real or emulated", "record both on the same machine"
        return gate
    steps = [key for key in members[0].values if key.what in ENERGY_OF_STEP]
    key = next((key for key in steps if all(key in member.values for member in members)), None)
    if key is None:
        if missing := [member.path.name for member in members if ENERGY_OF_RUN not in member.values]:
            gate.why = f"the energy of {', '.join(missing)} is not known"
            gate.hint = "the caveats above name what is missing; record it again"
            return gate
        if failed := [member.path.name for member in members if member.failed]:
            gate.why, gate.hint = f"{', '.join(failed)} did not end with exit code 0", "record it again"
            return gate
        if not same_work:
            gate.why = "the sides have no step in common, and did different amounts of work"
            gate.hint = "record jobs of as many iterations"
            return gate
    chosen = key or ENERGY_OF_RUN
    gate.what = chosen.what if key else f"{chosen.what} of the whole run"
    single = len(before) == len(after) == 1
    if single and before[0].gpus != after[0].gpus:
        gate.why, gate.hint = (
            "one run each, on different GPUs, which differ in power by themselves",
            f"record {SEVERAL}",
        )
        return gate
    gate.change = change_of(*([member.values[chosen] for member in side] for side in (before, after)))
    gate.outcome = decide(gate.change, limit_pct)
    if gate.outcome == UNDECIDED:
        gate.hint = f"record longer runs, or {SEVERAL}" if single and key else f"record {SEVERAL}"
        if gate.change.low_pct is not None:
            gate.why = "the interval contains both 0 and the limit"
        elif single and key:
            gate.why = f"one run each, with fewer than {FIFTHS_FROM} steps"
        else:
            gate.why = "one run each, without steps" if single else gate.change.basis
    return gate


def annotation(gate: Gate, sides: str) -> str:
    """A line that GitHub shows beside the job: a notice if the gate passed, else an error."""
    text = clean.lines(f"{sides}: {gate.sentence}").replace("%", "%25").replace("\r", "%0D").replace("\n", "%0A")
    return f"::{'notice' if gate.outcome == PASSED else 'error'} title=Energy gate::{text}"
