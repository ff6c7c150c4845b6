# SPDX-License-Identifier: Apache-2.0
"""Measure a machine, part by part, into a proof."""

from __future__ import annotations

import time
from statistics import median

from powerccl import __version__
from powerccl.bench.server import BenchServer
from powerccl.bench.trials import Sample, TrialFailedError
from powerccl.bench.workload import Case
from powerccl.errors import PowercclError
from powerccl.patterns import bus_factor
from powerccl.platforms.schema import ClockSwitch, GpuPower, Point
from powerccl.prove import loads
from powerccl.prove.calls import busy_share, calls_of, measure_stall, measure_transitions
from powerccl.prove.file import LoadPoint, Proof, Restored
from powerccl.prove.loads import Load
from powerccl.prove.loop import Loop
from powerccl.prove.reading import Reading
from powerccl.prove.rig import Rig
from powerccl.prove.training import measure_training

IDLE = "idle"
TIMEOUT_S = 60.0  # of a collective
# Of a window, at least so much in iterations: GPUs without work for a fiftieth of it would draw up to 2 % less.
BUSY = 0.98
TRIES = 3


def measure(rig: Rig) -> Proof:
    """All parts of a proof, but the platform.

    Raises:
        PowercclError: a load does not run, or a lease was lost.
    """
    started = time.monotonic()
    supported = rig.machine.clocks_mhz or [0]
    proof = Proof(
        name=f"{rig.machine.name.removeprefix('NVIDIA ').replace(' ', '-').lower()}x{rig.count}",
        gpu=rig.machine.name,
        gpus=rig.count,
        emulated=rig.machine.emulated,
        clock_max_mhz=max(supported),
        clock_min_mhz=min(supported),
        clocks_set=not rig.dry,
        clocks_reason="a dry run" if rig.dry else "",
        created_at=time.strftime("%Y-%m-%d"),
        powerccl=__version__,
        dry=rig.dry,
        quick=rig.pace == loads.QUICK,
    )
    with rig.lease(0):
        all_reduce, before = _curves(rig, proof)
    proof.power_limit_w = before.power_limit_w
    if not rig.dry:
        with rig.lease(1):  # of one GPU: each call is one call of the driver
            proof.transitions = measure_transitions(rig)
            stalled = [(all_reduce, rig.count)] if all_reduce else []
            proof.stalls = [measure_stall(rig, *each) for each in [*stalled, (loads.PRODUCT, 1)]]
    proof.training = measure_training(rig, started)
    if not rig.dry:
        rig.say("reading the restored clocks back")
        with rig.loop(loads.COPY, rig.count):
            rig.wait(rig.pace.settle_s)
            proof.restored = Restored(before.clocks_mhz, rig.window().clocks_mhz)
    proof.read_us = round(median(rig.reads_us), 1) if rig.reads_us else None
    proof.versions = rig.header.versions if rig.header else {}
    _as_profile(rig, proof, all_reduce)
    proof.seconds = round(time.monotonic() - started, 1)
    return proof


def _curves(rig: Rig, proof: Proof) -> tuple[Load | None, Reading]:
    """Power and time of each load by clock. Returns the all-reduce, and the first load at the default clock."""
    all_reduce = _idle(rig, proof)
    before: Reading | None = None
    for load in filter(None, (loads.COPY, loads.PRODUCT, loads.DECODE, all_reduce)):
        rig.say(f"power and time of the load {load.name}")
        with rig.loop(load, rig.count) as loop:
            rig.wait(rig.pace.settle_s)
            before = before or rig.window()
            for clock in rig.clocks(rig.pace.shares):
                rig.set(clock)
                rig.wait(rig.pace.settle_s)
                proof.loads.append(_at(rig, clock, loop))
            rig.set(0)
    assert before
    return all_reduce, before


def _idle(rig: Rig, proof: Proof) -> Load | None:
    """Power of GPUs with a context and without work; and the all-reduce, whose time it needs."""
    rig.say("power of idle GPUs")
    log, samples = rig.folder / "idle.log", list[Sample]()
    with BenchServer(rig.native, rig.environment, rig.count, TIMEOUT_S, log) as server:
        try:
            server.open({})
            for clock in rig.clocks(rig.pace.shares):
                rig.set(clock)
                # A GPU that is idle for long falls asleep.
                samples.append(server.measure(Case("all_reduce", loads.ALL_REDUCE_BYTES), energy=False))
                rig.wait(rig.pace.settle_s)
                proof.loads.append(_point(IDLE, clock, rig.window(), []))
            rig.set(0)
        except TrialFailedError as error:
            raise PowercclError(f"NCCL's all-reduce failed: {error.reason}", f"read {log}") from error
    return loads.all_reduce(samples[0].time_us) if rig.count > 1 else None


def _at(rig: Rig, clock: int, loop: Loop) -> LoadPoint:
    """The load as it is now. A host that was late left GPUs without work: it gets another try."""
    tries = []
    for _ in range(TRIES):
        reading = rig.window()
        rig.wait(loads.LATE_S)
        iterations = loop.between(reading.start_ns, reading.end_ns)
        steps_ms = [each.collective_ms if loop.load.collective else each.step_ms for each in iterations]
        point = _point(loop.load.name, clock, reading, steps_ms)
        tries.append((busy_share(iterations), point))
        if tries[-1][0] >= BUSY:
            break
    return max(tries, key=lambda each: each[0])[1]


def _point(load: str, clock: int, reading: Reading, steps_ms: list[float]) -> LoadPoint:
    mhz, watts = reading.mean_mhz, reading.mean_watts
    return LoadPoint(
        load=load,
        clock_mhz=clock or round(mhz or 0),
        sm_clock_mhz=None if mhz is None else round(mhz, 1),
        watts=None if watts is None else round(watts, 2),
        time_ms=round(median(steps_ms), 4) if steps_ms else None,
        iterations=len(steps_ms),
    )


def _as_profile(rig: Rig, proof: Proof, all_reduce: Load | None) -> None:
    """What a platform profile has of it: the all-reduce, clock calls, and idle GPUs."""
    provenance = "emulated" if proof.emulated else "measured"
    idle = next(each.watts for each in proof.loads if each.load == IDLE)
    proof.gpu_power = GpuPower(provenance=provenance, idle_watts=idle)
    proof.calls = calls_of(rig.calls_us)
    if proof.calls:
        us, transitions = proof.calls.median_us, proof.transitions
        proof.clock_switch = ClockSwitch(
            call_us=us,
            latency_us=us,
            requests=proof.calls.calls,
            provenance=provenance,
            transition_us=round(median(each.median_ms for each in transitions) * 1e3) if transitions else None,
        )
    for each in proof.loads if all_reduce else ():
        if all_reduce and each.load == all_reduce.name and each.time_ms:
            us = each.time_ms * 1e3 / loads.operations(all_reduce)
            gbs = bus_factor("all_reduce", proof.gpus) * loads.ALL_REDUCE_BYTES / us / 1e3
            proof.points.append(
                Point(
                    pattern="all_reduce",
                    size_bytes=loads.ALL_REDUCE_BYTES,
                    clock_mhz=each.clock_mhz,
                    time_us=round(us, 3),
                    busbw_gbs=round(gbs, 4),
                    provenance=provenance,
                    watts_per_gpu=each.watts,
                    sm_clock_mhz=each.sm_clock_mhz,
                )
            )
