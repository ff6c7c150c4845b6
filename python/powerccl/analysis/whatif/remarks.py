# SPDX-License-Identifier: Apache-2.0
"""What is to be said beside the figures of a prediction."""

from __future__ import annotations

from powerccl.analysis.exposure import ESTIMATED, Exposure
from powerccl.analysis.whatif import policies
from powerccl.analysis.whatif.findings import WhatIf
from powerccl.analysis.whatif.platform import ClockPlatform
from powerccl.analysis.whatif.power import MEMORY_BOUND_SHARE
from powerccl.analysis.whatif.scene import Gpu
from powerccl.analysis.whatif.timeline import GpuTimeline
from powerccl.quantities import exact, microseconds, plural, seconds, watts

MEMORY_SHARES = (0.05, 0.30)  # what computation's share that does not follow the clock may be
CLOCK_DOUBT = 0.02  # of a clock: how far one may be off that makes the same progress as a power governor


def remark(found: WhatIf, gpus: list[Gpu], windows: list[policies.Windows], platform: ClockPlatform) -> None:
    """Why a policy would do nothing, or pause."""
    by_call, by_phase, by_job, _ = found.policies
    live = [call for gpu in gpus for call in gpu.line.calls]
    managed = sum(platform.percall_mhz(pattern, size) > 0 for _, pattern, size, _, _ in live)
    if not live:
        by_call.remarks.append("does nothing: all calls are in CUDA graphs, whose replays it does not see")
    elif not managed:
        by_call.remarks.append("does nothing: no call is above its overhead point")
    elif managed < len(live):
        by_call.remarks.append(f"{managed:,} of {plural(len(live), 'call')} are above their overhead point")
    seen = {(id(gpu), operation.call_id) for gpu in gpus for operation in gpu.line.operations}
    unseen = sum(
        platform.percall_mhz(pattern, size) > 0 and (id(gpu), call_id) not in seen
        for gpu in gpus
        for _, pattern, size, call_id, _ in gpu.line.calls
    )
    if unseen:
        by_call.remarks.append(
            f"{unseen:,} of the calls whose clock it would lower have no recorded kernel and are left out"
        )
    count = sum(len(w.spans) for w in windows)
    short, used = sum(w.short for w in windows), sum(int((w.mhz > 0).sum()) for w in windows)
    needed_ms = platform.switch.window_us(max(1, len(gpus))) / 1e3
    if not count:
        by_phase.remarks.append("does nothing: no communication is exposed")
    elif not used and live and all(operation.called_ns < 0 for gpu in gpus for operation in gpu.line.operations):
        by_phase.remarks.append(
            "does nothing: CUDA graphs run beside other calls, so their calls come at no fixed place of an iteration"
        )
    elif not used and not any(gpu.calls for gpu in gpus):
        by_phase.remarks.append("does nothing: no repeating iteration was found")
    elif not used and short == count:
        by_phase.remarks.append(f"does nothing: no exposed window outlasts a switch ({seconds(needed_ms / 1e3)})")
    elif not used:
        by_phase.remarks.append("does nothing: the profile has no lower clock for the exposed communication")
    elif used < count:
        by_phase.remarks.append(f"{used:,} of {count:,} exposed windows outlast a switch ({seconds(needed_ms / 1e3)})")
    if by_job.clock_mhz is None and by_job.low_clock_pct == 0:
        by_job.remarks.append(
            f"does nothing: every lower clock exceeds the maximum slowdown of {exact(found.budget_pct, '%')}"
        )
    elif by_job.clock_mhz is None:
        by_job.remarks.append("lowers clocks only on GPUs that wait for others")
    for forecast in (by_call, by_phase):
        if not forecast.within_budget:
            then = " and would pause" if forecast.policy == "exposed" else ", which it does not observe"
            forecast.remarks.append(f"exceeds the maximum slowdown of {exact(found.budget_pct, '%')}{then}")


def say(
    found: WhatIf,
    gpus: list[Gpu],
    lines: list[GpuTimeline],
    platform: ClockPlatform,
    seen: Exposure,
    unknown: bool,
) -> None:
    """What the prediction assumes, and what was not recorded; `unknown`: some peers that ranks wait for were not."""
    low, high = MEMORY_SHARES
    found.assumptions += [
        f"{exact(MEMORY_BOUND_SHARE * 100, '%')} of computation's time does not follow the clock"
        f" ({exact(low * 100)} to {exact(high * 100, '%')} in the intervals)",
    ]
    if unknown:
        found.assumptions.append("peers that were not timed, or run on another host, are late because they compute")
    if any(forecast.clock_mhz for forecast in found.policies):
        found.assumptions.append(
            f"the policy finds the clock for the whole job to {exact(CLOCK_DOUBT * 100, '%')} (in the intervals)"
        )
    if seen.source == ESTIMATED or seen.told_pct < 100:
        found.assumptions.append(f"exposed communication: {seen.why}")
    if all(gpu.drawn.idle_w is None for gpu in gpus):
        found.assumptions.append(
            "a GPU without work draws half of communication's constant power (no idle GPU was sampled)"
        )
    switch = platform.switch
    if not switch.transition_known:
        found.assumptions.append(
            f"the clock changes {microseconds(switch.transition_us)} after the driver call (not in the profile)"
        )
    limited = any(gpu.drawn.limited for gpu in gpus)
    if limited and platform.behind_watts is None:
        found.assumptions.append("a low clock before it does not change computation under a power limit")
    elif limited:
        found.assumptions.append(
            f"computation after a low clock draws {watts(platform.behind_watts)}, as its limit allows"
        )
    if not platform.kelvin_per_watt:
        found.assumptions.append("the lower leakage of a cooler GPU is not counted (not in the profile)")
    if not found.notes and not any(gpu.calls for gpu in gpus):
        found.notes.append("no repeating iteration was found: exposed, fixed and auto learn nothing from such a job")
    if len(gpus) < len(lines):
        found.notes.append(f"power is known for {len(gpus)} of {plural(len(lines), 'GPU')}; the others are left out")
    if found.calls and found.operations < 0.95 * found.calls:
        found.notes.append(
            f"{found.operations:,} of {plural(found.calls, 'call')} were timed or waited for; others count as hidden"
            " (POWERCCL_KERNEL_EVENTS=all times every call)"
        )
