# SPDX-License-Identifier: Apache-2.0
"""What a clock policy did, in plain lines: its windows, clocks and slowdown, or why it lowered no clock."""

from __future__ import annotations

from powerccl.analysis.findings import PolicyOutcome, RunSummary
from powerccl.quantities import change, change_between, exact, mhz, plural, seconds

MOSTLY = 0.5  # of the time at a low clock: less communication than this is worth a line
NOTABLE = 0.01  # of the job's time
LONGEST_CALLS = 2048  # of an iteration that is found (Rhythm::kLongest of native/policy/rhythm.h)


def policy_lines(summary: RunSummary) -> list[str]:
    """Where clocks were lowered and the slowdown, or why none was; no lines where there is nothing to say."""
    found = summary.policy_outcome
    if found is None:
        return _low_beside_computation(summary)
    name = f"{found.policy}, dry run" if found.dry else found.policy
    if not found.calls:
        return [f"{name}: {_no_iteration(summary, found)}"]
    told = _slowdown(found)
    lines = [f"{name}: {_managed(found) or _why_nothing(found)}{f' · {told}' if told else ''}"]
    if found.paused:
        most = f" of {exact(found.budget_pct, '%')}" if found.budget_pct else ""
        lines.append(f"the slowdown exceeded the maximum{most}: the policy was paused when the job ended")
    if found.too_short_s > found.covered_s:
        if found.windows_most:
            lines.append(_too_short(found))
        if found.policy == "exposed":
            lines.append(
                "hint: `--policy fixed` or `auto` can still save energy with one lower clock for the whole job"
            )
    return lines


def _low_beside_computation(summary: RunSummary) -> list[str]:
    """`per-call` has the clock low from a call on, and the host may make calls long before the GPU comes to them."""
    low, communicating = summary.clocks.low_s, summary.clocks.low_communicating_s
    if summary.policy != "per-call" or low is None or communicating is None:
        return []
    if communicating > MOSTLY * low or low < NOTABLE * (summary.wall_s or 0.0):
        return []
    return [
        f"per-call: a low clock was wanted for {seconds(low)} per GPU, with {seconds(communicating)} of communication "
        "in it: the host queues work ahead, and computation before a collective runs at the low clock too"
    ]


def _no_iteration(summary: RunSummary, found: PolicyOutcome) -> str:
    if found.managed:
        return f"clocks lowered in {plural(found.managed, 'iteration')}; after them, the calls did not repeat any more"
    communication = summary.communication
    if communication.captured_calls and not communication.calls:
        return "no clock was lowered: all calls are captured in CUDA graphs, whose replays are not recorded"
    return f"no clock was lowered: no sequence of up to {LONGEST_CALLS} calls repeats"


def _managed(found: PolicyOutcome) -> str:
    parts = []
    if found.windows_most:
        least, most = found.windows_least, found.windows_most
        windows = f"{least} to {plural(most, 'window')}" if least != most else plural(most, "window")
        alike = "" if least == most else " per GPU"
        covered = _of_iteration(found.covered_s, found.iteration_s)
        verb = "covers" if least == most == 1 else "cover"
        parts.append(f"{windows}{alike} {verb} {covered} of an iteration{' on average' if alike else ''}")
    if found.clock_mhz and found.dry and not parts:
        # Lower ones are found by trying them.
        return f"would begin at {mhz(found.clock_mhz)} throughout, and go lower as long as that costs no time"
    if found.clock_mhz:
        parts.append(f"{mhz(found.clock_mhz)} {'outside of windows' if parts else 'throughout'}")
    return ", ".join(parts)


def _why_nothing(found: PolicyOutcome) -> str:
    nothing = "no clock was lowered when the job ended" if found.managed else "no clock was lowered"
    if found.paused:
        return nothing
    reasons = []
    if found.policy != "fixed":
        reasons.append(
            _too_short(found)
            if found.too_short_s
            else "no exposed communication was found that can run at a lower clock"
        )
    if found.policy != "exposed" and not found.dry:
        tried = "no lower clock for the whole job was found" if "clock" in found.parts else "no clock was tried"
        reasons.append(tried)
    return f"{nothing}: " + ", ".join(reasons or ["a dry run tries no clocks"])


def _too_short(found: PolicyOutcome) -> str:
    """The policy's own estimate: less than the report's, since it counts what every iteration has in the same place."""
    part = _of_iteration(found.too_short_s, found.iteration_s)
    return f"the policy estimates that {part} of an iteration are exposed in parts too short for a clock switch"


def _slowdown(found: PolicyOutcome) -> str:
    if not found.managed:
        return f"{plural(found.iterations, 'iteration')} seen"
    # Iterations are counted anew when another sequence of calls repeats, those with a lowered clock are not.
    whole = found.managed > found.iterations
    counted = (
        plural(found.managed, "iteration") if whole else f"{found.managed} of {plural(found.iterations, 'iteration')}"
    )
    before = " before" * (not found.windows_most and not found.clock_mhz)
    counted = f"clocks {'would have been ' * found.dry}lowered in {counted}{before}"
    low, high = found.slowdown_low_pct, found.slowdown_high_pct
    if found.slowdown_pct is None or low is None or high is None:
        return counted if found.dry or found.paused else f"{counted}, slowdown not known yet"
    return f"slowdown {change(found.slowdown_pct)} ({change_between(low, high)}), {counted}"


def _of_iteration(part_s: float, whole_s: float) -> str:
    """`85.0 of 112 ms`."""
    (part, unit), (whole, of_unit) = (seconds(each).rsplit(" ", 1) for each in (part_s, whole_s))
    return f"{part}{'' if unit == of_unit else f' {unit}'} of {whole} {of_unit}"
