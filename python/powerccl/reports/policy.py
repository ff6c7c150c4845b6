# SPDX-License-Identifier: Apache-2.0
"""What a clock policy did, in plain lines: its clocks and slowdown, or why it lowered no clock."""

from __future__ import annotations

from powerccl.analysis.findings import PolicyOutcome, RunSummary
from powerccl.quantities import change, change_between, mhz, plural, seconds

MOSTLY = 0.5  # of the time at a low clock: less communication than this is worth a line
NOTABLE = 0.01  # of the job's time
LONGEST_CALLS = 2048  # of an iteration that is found (IterationDetector::kLongest in native/job/policy)


def policy_lines(summary: RunSummary) -> list[str]:
    """Where clocks were lowered and the slowdown, or why none was; no lines where there is nothing to say."""
    learned = summary.policy_outcome
    if learned is None:
        return _low_beside_computation(summary)
    name = f"{learned.policy}, dry run" if learned.dry else learned.policy
    if not learned.calls:
        return [f"{name}: {_no_iteration(summary, learned)}"]
    return [f"{name}: {_clock(learned)} · {_slowdown(learned)}"]


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


def _no_iteration(summary: RunSummary, learned: PolicyOutcome) -> str:
    if learned.managed:
        return (
            f"clocks lowered in {plural(learned.managed, 'iteration')}; after them, the calls did not repeat any more"
        )
    communication = summary.communication
    if communication.captured_calls and not communication.calls:
        return "no clock was lowered: all calls are captured in CUDA graphs, whose replays are not recorded"
    return f"no clock was lowered: no sequence of up to {LONGEST_CALLS} calls repeats"


def _clock(learned: PolicyOutcome) -> str:
    if not learned.clock_mhz:
        return "no clock was lowered when the job ended" if learned.managed else "no clock was lowered"
    least, most = learned.clock_least_mhz, learned.clock_most_mhz
    clocks = mhz(most) if least == most else f"{least} to {mhz(most)}"
    # A dry run sets no clock, so it never learns whether a lower one costs time.
    return f"would begin at {clocks}, and go lower as long as that costs no time" if learned.dry else clocks


def _slowdown(learned: PolicyOutcome) -> str:
    if not learned.managed:
        return f"{plural(learned.iterations, 'iteration')} seen"
    # Iterations are counted from zero when another sequence of calls repeats, those with a lowered clock are not.
    whole = learned.managed > learned.iterations
    counted = plural(learned.managed if whole else learned.iterations, "iteration")
    counted = counted if whole else f"{learned.managed} of {counted}"
    counted = f"clocks {'would have been ' * learned.dry}lowered in {counted}"
    low, high = learned.slowdown_low_pct, learned.slowdown_high_pct
    if learned.slowdown_pct is None or low is None or high is None:
        return counted if learned.dry else f"{counted}, slowdown not known yet"
    return f"slowdown {change(learned.slowdown_pct)} ({change_between(low, high)}), {counted}"
