# SPDX-License-Identifier: Apache-2.0
"""Clock calls beside a running load: the call's own time, when a clock has changed, and what stalled."""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean, median

from powerccl.estimate import Estimate
from powerccl.prove import loads
from powerccl.prove.file import Calls, Stall, Transition
from powerccl.prove.loads import Load
from powerccl.prove.loop import Iteration, Loop
from powerccl.prove.rig import Rig

LEAST_CHANGE = 0.03  # of an iteration's time: a smaller one could be noise
# Of a call's return: a fortieth of the transitions that are reported. Twice as much moves them by a twentieth.
SURE_MS = 0.5
SUREST = 3  # so many count where fewer are that sure, as on a busy host
WITHIN = 0.25  # of the change: an iteration so near to its new time has it


@dataclass(frozen=True)
class Switch:
    """A clock call, on the host's clock: after `before_ns` the clock was another, until `end_ns` it is the target."""

    target_mhz: int
    before_ns: int
    asked_ns: int
    call_us: float  # the driver's own time
    answered_ns: int
    end_ns: int

    @property
    def unsure_ms(self) -> float:
        """The call returned between its own length and the answer. A busy host moves these apart."""
        return (self.answered_ns - self.asked_ns) / 1e6 - self.call_us / 1e3

    @property
    def returned_ns(self) -> int:
        """The middle of that."""
        return self.answered_ns - round(self.unsure_ms * 1e6 / 2)


def busy_share(iterations: Sequence[Iteration]) -> float:
    """Of the time from the first one's start to the last one's end, what was in iterations; 0 without two."""
    if len(iterations) < 2:
        return 0.0
    return sum(each.step_ms for each in iterations) * 1e6 / (iterations[-1].end_ns - iterations[0].start_ns)


def calls_of(times_us: Sequence[float]) -> Calls | None:
    """Median and 99th percentile; None without calls."""
    if not times_us:
        return None
    ordered = sorted(times_us)
    at_99 = ordered[min(len(ordered) - 1, math.ceil(0.99 * len(ordered)) - 1)]
    return Calls(round(median(ordered), 1), round(at_99, 1), len(ordered))


def transition_ms(old: Sequence[Iteration], new: Sequence[Iteration], returned_ns: int) -> tuple[float, float] | None:
    """From a call's return until iterations take their new time, and how unsure that is; None: they do not tell.

    `old` came before the call, `new` from then on. The last iteration at the old time is cut where the clock changed:
    what it took says how much of it ran at either clock. Where hosts are busy, it began some time before the next one.
    """
    if len(old) < 4 or len(new) < 8:
        return None
    before, after = (median(each.step_ms for each in part[len(part) // 2 :]) for part in (old, new))
    change = abs(after - before)
    if change < LEAST_CHANGE * min(before, after):
        return None
    # The clock changed where fewest iterations before are at the new time and fewest behind are not. One by one, they
    # would not do: some are late for reasons of their own.
    near = [abs(each.step_ms - after) < WITHIN * change for each in new]
    misses = [sum(near[:i]) + near[i:].count(False) for i in range(len(near))]
    first = misses.index(min(misses))
    if first == 0:
        return max(0.0, (new[0].start_ns - returned_ns) / 1e6), 0.0
    cut = new[first - 1]
    at_old_ms = (cut.step_ms - after) / (1 - after / before)
    at_old_ms = min(max(at_old_ms, 0.0), cut.step_ms)
    slack_ms = max(0.0, (new[first].start_ns - cut.start_ns) / 1e6 - cut.step_ms)
    return max(0.0, (cut.start_ns - returned_ns) / 1e6 + slack_ms / 2 + at_old_ms), slack_ms


def transition_of(target_mhz: int, found_ms: Sequence[tuple[float, float]]) -> Transition:
    """Of a target's transitions, each with how uncertain the moment of its call is; the uncertain ones do not count."""
    ordered = sorted(found_ms)
    kept = [taken for place, (uncertain, taken) in enumerate(ordered) if uncertain <= SURE_MS or place < SUREST]
    return Transition(target_mhz, round(median(kept), 2), round(max(kept), 2), len(kept))


def stall_of(load: str, quiet: Sequence[Sequence[float]], called: Sequence[tuple[Sequence[float], int]]) -> Stall:
    """The time that iterations took beyond that of the quiet turns around them, by calls: the median turn.

    `quiet`: iterations of turns without calls, one more than `called`, which has iterations and their calls. Quiet
    turns are in turn at either of the clocks between which the calls go.
    """
    each_call = []
    for turn, (steps, calls) in enumerate(called):
        usual = (fmean(quiet[turn]) + fmean(quiet[turn + 1])) / 2
        each_call.append((sum(steps) - len(steps) * usual) / calls)
    each_call.sort()
    # Of eight turns, the median is between the second and the seventh in 93 of 100 cases, whatever a turn's noise is.
    out = len(each_call) // 5
    low, high = each_call[out], each_call[-1 - out]
    estimate = Estimate(round(median(each_call), 3), round(low, 3), round(high, 3), len(each_call), "ms")
    return Stall(load, estimate, sum(calls for _, calls in called), round(fmean(map(fmean, quiet)), 3))


def measure_transitions(rig: Rig) -> list[Transition]:
    """Of one GPU to each of five clocks."""
    rig.say("transitions to five clocks")
    targets, switches = rig.clocks(loads.TARGET_SHARES), list[Switch]()
    with rig.loop(loads.SHORT, 1) as loop:
        before_ns = time.monotonic_ns()
        rig.set(targets[-1])
        rig.wait(rig.pace.dwell_s)
        # Each target comes from another one each time: by strides through the list.
        strides = [1 + visit % max(len(targets) - 1, 1) for visit in range(rig.pace.visits)]
        for target in (targets[stride * (n + 1) % len(targets)] for stride in strides for n in range(len(targets))):
            asked_ns = time.monotonic_ns()
            (call_us,) = rig.set(target)
            answered_ns = time.monotonic_ns()
            rig.wait(rig.pace.dwell_s)
            switches.append(Switch(target, before_ns, asked_ns, call_us, answered_ns, time.monotonic_ns()))
            before_ns = asked_ns
        rig.wait(loads.LATE_S)
        taken: dict[int, list[tuple[float, float]]] = {target: [] for target in targets}
        for switch in switches:
            old = loop.between(switch.before_ns, switch.asked_ns)
            new = loop.between(switch.asked_ns, switch.end_ns)
            changed = transition_ms(old, new, switch.returned_ns)
            if changed is not None:
                taken[switch.target_mhz].append((switch.unsure_ms + changed[1], changed[0]))
    return [transition_of(target, each) for target, each in taken.items() if each]


def measure_stall(rig: Rig, load: Load, gpus: int) -> Stall:
    """Turns without calls and with them. Calls go between the two highest clocks, which hardly differ in time."""
    rig.say(f"stall of the load {load.name} by clock calls")
    pace, quiet, called = rig.pace, list[list[float]](), list[tuple[list[float], int]]()
    calls = round(pace.turn_s / pace.every_s)
    top = max(rig.machine.clocks_mhz)
    highest = [rig.clocks((clock / top,))[0] for clock in sorted(rig.machine.clocks_mhz)[-1:-3:-1]]
    with rig.loop(load, gpus) as loop:
        for turn in range(pace.turns + 1):
            rig.set(highest[turn % len(highest)])
            rig.wait(pace.settle_s)
            start_ns = time.monotonic_ns()
            rig.wait(pace.turn_s)
            quiet.append(_steps_ms(rig, loop, start_ns))
            if turn == pace.turns:
                break
            # Each call changes the clock, and is inside of an iteration that is counted whole.
            start_ns = time.monotonic_ns()
            rig.wait(loads.EDGE_S)
            for call in range(calls):
                rig.set(highest[(turn + call + 1) % len(highest)])
                rig.wait(pace.every_s)
            rig.wait(loads.EDGE_S)
            called.append((_steps_ms(rig, loop, start_ns), calls))
        rig.set(0)
    return stall_of(load.name, quiet, called)


def _steps_ms(rig: Rig, loop: Loop, start_ns: int) -> list[float]:
    end_ns = time.monotonic_ns()
    rig.wait(loads.LATE_S)
    return [each.step_ms for each in loop.between(start_ns, end_ns)]
