# SPDX-License-Identifier: Apache-2.0
"""Measure a machine: power and time by clock, the cost of clock calls, what they stall, and what `auto` saves.

Clocks are set through leases alone (bench/clocks.py). powerccld restores them when this process ends, however it ends.
"""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from statistics import fmean, median

import msgspec

from powerccl import __version__
from powerccl.bench.clocks import SweptClocks
from powerccl.bench.process import kill_group
from powerccl.bench.server import BenchServer
from powerccl.bench.trials import Sample, TrialFailedError
from powerccl.bench.workload import Case
from powerccl.errors import PowercclError
from powerccl.estimate import Estimate
from powerccl.files import read_json
from powerccl.launch.gpus import Gpus, visible_gpus_in
from powerccl.launch.native import BENCH, NativeFiles
from powerccl.launch.services import last_line
from powerccl.patterns import bus_factor
from powerccl.platforms.measurements import BenchHeader
from powerccl.platforms.schema import ClockSwitch, GpuPower, Point
from powerccl.prove import loads
from powerccl.prove.file import LoadPoint, Proof, Restored, Stall, Training, Transition
from powerccl.prove.loads import Load, Pace
from powerccl.prove.loop import Loop
from powerccl.prove.reading import Reader, Reading
from powerccl.prove.switches import Switch, busy_share, calls_of, stall_of, transition_ms, transition_of

IDLE = "idle"
TIMEOUT_S = 60.0  # of a collective
MOST_S = 570.0  # no training run begins that would end behind it: an administrator was promised ten minutes
# Of a window, at least so much in iterations: GPUs without work for a fiftieth of it would draw up to 2 % less.
BUSY = 0.98
TRIES = 3


class _Summary(msgspec.Struct):
    iterations: int
    run_s: float
    run_joules_all_gpus: float | None = None


class _Scenario(msgspec.Struct):
    summary: _Summary


class Proving:
    """One machine that is measured. What was started is ended by `stack`."""

    def __init__(
        self,
        native: NativeFiles,
        environment: Mapping[str, str],
        gpus: Gpus,
        pace: Pace,
        dry: bool,
        folder: Path,
        say: Callable[[str], None],
        stack: contextlib.ExitStack,
    ) -> None:
        """`environment`: in which the GPUs are seen; `folder`: for what is only needed meanwhile."""
        self.native, self.environment, self.machine = native, dict(environment), gpus
        self.pace, self.dry, self.folder, self.say = pace, dry, folder, say
        self.uuids = visible_gpus_in(environment)
        if not self.uuids:
            raise PowercclError("CUDA finds no GPU to measure", "check CUDA_VISIBLE_DEVICES")
        self.gpus = len(self.uuids)
        self._started = time.monotonic()
        self.reader = Reader(environment, self.uuids)
        stack.callback(self.reader.close)
        self._leased: SweptClocks | None = None
        self._header: BenchHeader | None = None
        self._calls_us: list[float] = []
        self._reads_us: list[float] = []
        self._before: Reading | None = None
        self._loads: list[LoadPoint] = []
        self._all_reduce: Load | None = None
        self.clocks: list[int] = []

    def run(self) -> Proof:
        """All of it.

        Raises:
            PowercclError: a load does not run, or a lease was lost.
        """
        with self._lease(0):
            self.clocks = self._clocks()
            self._curves()
        transitions, stalls = ([], []) if self.dry else self._switches()
        training = self._train()
        restored = None if self.dry else self._restored()
        return self._proof(transitions, stalls, training, restored)

    # ---- clocks

    @contextlib.contextmanager
    def _lease(self, most: int) -> Iterator[None]:
        """Hold the first `most` GPUs, or all; their clocks are the default again behind it."""
        if self.dry:
            yield
            return
        leased = SweptClocks(self.native, self.folder, self.environment, self.machine.emulated, self.say, most)
        try:
            if leased.dry:
                raise PowercclError("powerccld on this host sets no clocks (it runs dry)", "add --dry, which sets none")
            self._leased = leased
            yield
        finally:
            self._leased = None
            leased.close()

    def _clocks(self) -> list[int]:
        if self._leased is None:
            return [0]  # as found
        supported = self.machine.clocks_mhz
        if not supported:
            raise PowercclError("NVML lists no clocks for this GPU", "add --dry, which measures at the present clock")
        return self._leased.choose(supported, _nearest(supported, self.pace.shares))

    def _set(self, mhz: int) -> list[float]:
        """Set it; what the driver took for each GPU, in microseconds. Nothing is set in a dry run."""
        calls_us = [] if self._leased is None else self._leased.set(mhz)
        self._calls_us += calls_us
        return calls_us

    def _wait(self, seconds: float) -> None:
        if self._leased is not None:
            self._leased.attend(seconds)
        else:
            time.sleep(seconds)

    def _window(self, seconds: float) -> Reading:
        reading = self.reader.window(seconds, self._wait)
        if reading.read_us:
            self._reads_us.append(reading.read_us)
        return reading

    # ---- power and time by clock

    def _curves(self) -> None:
        self._all_reduce = self._idle()
        for load in filter(None, (loads.COPY, loads.PRODUCT, loads.DECODE, self._all_reduce)):
            self.say(f"power and time of the load {load.name}")
            with self._loop(load, self.gpus) as loop:
                if self._before is None:
                    self._wait(self.pace.settle_s)
                    self._before = self._window(self.pace.window_s)
                for clock in self.clocks:
                    self._set(clock)
                    self._wait(self.pace.settle_s)
                    self._at(clock, loop)
                self._set(0)

    def _at(self, clock: int, loop: Loop) -> None:
        """The load as it is now. A host that was late left GPUs without work: it gets another try."""
        best, busiest = None, -1.0
        for _ in range(TRIES):
            reading = self._window(self.pace.window_s)
            self._wait(loads.LATE_S)
            iterations = loop.between(reading.start_ns, reading.end_ns)
            busy = busy_share(iterations)
            if busy > busiest:
                best, busiest = (reading, [each.step_ms for each in iterations]), busy
            if busy >= BUSY:
                break
        if best:
            self._keep(loop.load.name, clock, *best)

    def _idle(self) -> Load | None:
        """Power of GPUs with a context and without work, at each clock; and the all-reduce whose time it needs."""
        self.say("power of idle GPUs")
        log = self.folder / "idle.log"
        case = Case("all_reduce", loads.ALL_REDUCE_BYTES)
        samples: list[Sample] = []
        with BenchServer(self.native, self.environment, self.gpus, TIMEOUT_S, log) as server:
            try:
                server.open({})
                for clock in self.clocks:
                    self._set(clock)
                    samples.append(server.measure(case, energy=False))  # a GPU that is idle for long falls asleep
                    self._wait(self.pace.settle_s)
                    self._keep(IDLE, clock, self._window(self.pace.window_s), [])
                self._set(0)
            except TrialFailedError as error:
                raise PowercclError(f"NCCL's all-reduce failed: {error.reason}", f"read {log}") from error
        return loads.all_reduce(samples[0].time_us) if self.gpus > 1 else None

    def _keep(self, load: str, clock: int, reading: Reading, steps: list[float]) -> None:
        seen = reading.mean_mhz
        self._loads.append(
            LoadPoint(
                load=load,
                clock_mhz=clock or round(seen or 0),
                sm_clock_mhz=_rounded(seen, 1),
                watts=_rounded(reading.mean_watts, 2),
                time_ms=round(median(steps), 4) if steps else None,
                iterations=len(steps),
            )
        )

    @contextlib.contextmanager
    def _loop(self, load: Load, gpus: int) -> Iterator[Loop]:
        self._set(0)  # its work is measured out at the default clock
        with Loop(self.native, self.environment, load, gpus, self.folder) as loop:
            loop.start(self._wait)
            self._header = self._header or loop.header
            yield loop

    # ---- what a clock call costs and does

    def _switches(self) -> tuple[list[Transition], list[Stall]]:
        transitions: list[Transition] = []
        stalls: list[Stall] = []
        with self._lease(1):  # of one GPU: each call is one driver call
            self.say("transitions to five clocks")
            transitions = self._transitions()
            for load, gpus in ((self._all_reduce, self.gpus), (loads.PRODUCT, 1)):
                if load is not None:
                    self.say(f"stall of the load {load.name} by clock calls")
                    stalls.append(self._stall(load, gpus))
        return transitions, stalls

    def _transitions(self) -> list[Transition]:
        assert self._leased is not None
        targets = self._leased.choose(self.machine.clocks_mhz, _nearest(self.machine.clocks_mhz, loads.TARGET_SHARES))
        switches: list[Switch] = []
        with self._loop(loads.SHORT, 1) as loop:
            before_ns = time.monotonic_ns()
            self._set(targets[-1])
            self._wait(self.pace.dwell_s)
            # Each target comes from another one each time: by strides through the list.
            strides = [1 + turn % (len(targets) - 1) for turn in range(self.pace.visits)] if len(targets) > 1 else []
            for target in (targets[stride * (n + 1) % len(targets)] for stride in strides for n in range(len(targets))):
                asked_ns = time.monotonic_ns()
                (call_us,) = self._set(target)
                answered_ns = time.monotonic_ns()
                self._wait(self.pace.dwell_s)
                switches.append(Switch(target, before_ns, asked_ns, call_us, answered_ns, time.monotonic_ns()))
                before_ns = asked_ns
            self._wait(loads.LATE_S)
            taken: dict[int, list[tuple[float, float]]] = {target: [] for target in targets}
            for switch in switches:
                old = loop.between(switch.before_ns, switch.asked_ns)
                new = loop.between(switch.asked_ns, switch.end_ns)
                taken_ms = transition_ms(old, new, switch.returned_ns)
                if taken_ms is not None:
                    taken[switch.target_mhz].append((switch.unsure_ms, taken_ms))
        return [transition_of(target, each) for target, each in taken.items() if each]

    def _stall(self, load: Load, gpus: int) -> Stall:
        """Turns without calls and with them. Calls go between the two highest clocks, which hardly differ in time."""
        assert self._leased is not None
        top, below = self._leased.choose(self.machine.clocks_mhz, sorted(self.machine.clocks_mhz)[-1:-3:-1])
        quiet: list[list[float]] = []
        called: list[tuple[list[float], int]] = []
        with self._loop(load, gpus) as loop:
            for turn in range(self.pace.turns + 1):
                self._set(top if turn % 2 == 0 else below)
                self._wait(self.pace.settle_s)
                quiet.append(self._steps(loop, self.pace.turn_s))
                if turn == self.pace.turns:
                    break
                # Each call changes the clock, and is inside of an iteration that is counted whole.
                start_ns = time.monotonic_ns()
                self._wait(loads.EDGE_S)
                calls = round(self.pace.turn_s / self.pace.every_s)
                for call in range(calls):
                    self._set(below if (turn + call) % 2 == 0 else top)
                    self._wait(self.pace.every_s)
                self._wait(loads.EDGE_S)
                called.append((self._steps_since(loop, start_ns), calls))
            self._set(0)
        return stall_of(load.name, quiet, called)

    def _steps(self, loop: Loop, seconds: float) -> list[float]:
        start_ns = time.monotonic_ns()
        self._wait(seconds)
        return self._steps_since(loop, start_ns)

    def _steps_since(self, loop: Loop, start_ns: int) -> list[float]:
        end_ns = time.monotonic_ns()
        self._wait(loads.LATE_S)
        return [each.step_ms for each in loop.between(start_ns, end_ns)]

    # ---- training

    def _train(self) -> Training | None:
        self.say("the training step" + ("" if self.dry else " without a policy and under auto, in turns"))
        runs: dict[str, list[tuple[float, float | None]]] = {"observe": [], "auto": []}
        policies = ["observe"] if self.dry else ["observe", "auto"]
        needed_s = len(policies) * (self.pace.train_s + loads.START_S)
        for pair in range(self.pace.pairs):
            if pair and time.monotonic() - self._started + needed_s > MOST_S:
                break
            for policy in policies if pair % 2 == 0 else reversed(policies):
                runs[policy].append(self._train_once(policy, f"{policy}-{pair}"))
        plain, managed = runs["observe"], runs["auto"]
        if any(joules is None for _, joules in plain + managed):
            return None
        step_ms, joules = [step for step, _ in plain], [each or 0 for _, each in plain]
        pairs = [] if self.dry else list(zip(plain, managed, strict=True))
        saved = [(1 - (auto[1] or 0) / (alone[1] or 1)) * 100 for alone, auto in pairs]
        slower = [(auto[0] / alone[0] - 1) * 100 for alone, auto in pairs]
        return Training(
            step_ms=_spread(step_ms, "ms"),
            joules=_spread(joules, "J"),
            saved_pct=_spread(saved, "%") if saved else None,
            slowdown_pct=_spread(slower, "%") if slower else None,
            seconds=self.pace.train_s,
        )

    def _train_once(self, policy: str, name: str) -> tuple[float, float | None]:
        """Milliseconds and joules of a step, the policy's learning included."""
        scenario, out, log = (self.folder / f"{name}{ending}" for ending in (".scn", ".json", ".log"))
        scenario.write_text(loads.STEP.scenario)
        bench = [str(self.native.path(BENCH)), "scenario", str(scenario), "-g", str(self.gpus), *loads.STEP.options]
        bench += ["--seconds", f"{self.pace.train_s:g}", "--json", str(out)]
        run = ["run", "--policy", policy, "--runs-dir", str(self.folder), "--name", name]
        run += ["--set-clocks"] if policy != "observe" else []
        command = [sys.executable, "-m", "powerccl.prove.follow", str(os.getpid()), *run, "--", *bench]
        package = str(Path(__file__).resolve().parents[2])
        path = os.pathsep.join(filter(None, [package, self.environment.get("PYTHONPATH", "")]))
        with log.open("wb") as output:
            process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                env={**self.environment, "PYTHONPATH": path},
                start_new_session=True,
            )
            try:
                code = process.wait()
            except BaseException:
                process.terminate()
                with contextlib.suppress(subprocess.TimeoutExpired):
                    process.wait(10)
                kill_group(process)
                raise
        if code:
            raise PowercclError(f"the training step under {policy} ended with {code}: {last_line(log)}", f"read {log}")
        summary = read_json(out, _Scenario).summary
        joules = summary.run_joules_all_gpus
        each = None if joules is None else joules / summary.iterations
        return summary.run_s * 1e3 / summary.iterations, each

    # ---- the end

    def _restored(self) -> Restored | None:
        self.say("reading the restored clocks back")
        if self._before is None:
            return None
        with Loop(self.native, self.environment, loads.COPY, self.gpus, self.folder) as loop:
            loop.start(self._wait)
            self._wait(self.pace.settle_s)
            after = self._window(self.pace.window_s)
        return Restored(self._before.clocks_mhz, after.clocks_mhz)

    def _proof(
        self,
        transitions: list[Transition],
        stalls: list[Stall],
        training: Training | None,
        restored: Restored | None,
    ) -> Proof:
        header = self._header
        provenance = "emulated" if self.machine.emulated else "measured"
        supported = self.machine.clocks_mhz or self.clocks
        idle = [each for each in self._loads if each.load == IDLE]
        calls = calls_of(self._calls_us)
        return Proof(
            name=_name(self.machine.name, self.gpus),
            gpu=self.machine.name,
            gpus=self.gpus,
            emulated=self.machine.emulated,
            clock_max_mhz=max(supported),
            clock_min_mhz=min(supported),
            clocks_set=not self.dry,
            clocks_reason="a dry run" if self.dry else "",
            versions=header.versions if header else {},
            created_at=time.strftime("%Y-%m-%d"),
            seconds=round(time.monotonic() - self._started, 1),
            points=self._points(provenance),
            clock_switch=ClockSwitch(
                call_us=calls.median_us,
                latency_us=calls.median_us,
                requests=calls.calls,
                provenance=provenance,
                transition_us=median(each.median_ms for each in transitions) * 1e3 if transitions else None,
            )
            if calls
            else None,
            gpu_power=GpuPower(provenance=provenance, idle_watts=idle[0].watts) if idle else None,
            powerccl=__version__,
            dry=self.dry,
            memory_clock_mhz=self.reader.about.memory_mhz,
            power_limit_w=self.reader.about.power_limit_w,
            read_us=round(median(self._reads_us), 1) if self._reads_us else None,
            calls=calls,
            transitions=transitions,
            stalls=stalls,
            loads=self._loads,
            training=training,
            restored=restored,
        )

    def _points(self, provenance: str) -> list[Point]:
        """The all-reduce as a platform profile has it."""
        load = self._all_reduce
        if load is None:
            return []
        count, points = loads.operations(load), []
        for each in self._loads:
            if each.load == load.name and each.time_ms:
                us = each.time_ms * 1e3 / count
                gbs = bus_factor("all_reduce", self.gpus) * loads.ALL_REDUCE_BYTES / us / 1e3
                points.append(
                    Point(
                        pattern="all_reduce",
                        size_bytes=loads.ALL_REDUCE_BYTES,
                        clock_mhz=each.clock_mhz,
                        time_us=round(us, 3),
                        busbw_gbs=round(gbs, 4),
                        provenance=provenance,
                        watts_per_gpu=each.watts,
                        joules_per_gpu=None if each.watts is None else round(each.watts * us / 1e6, 6),
                        sm_clock_mhz=each.sm_clock_mhz,
                        iterations=each.iterations * count,
                    )
                )
        return points


def _name(gpu: str, gpus: int) -> str:
    return f"{gpu.removeprefix('NVIDIA ').replace(' ', '-').lower()}x{gpus}"


def _nearest(supported: list[int], shares: tuple[float, ...]) -> list[int]:
    """The supported clocks nearest to shares of the highest, falling."""
    top = max(supported)
    return sorted({min(supported, key=lambda clock: abs(clock - top * share)) for share in shares}, reverse=True)


def _rounded(value: float | None, digits: int) -> float | None:
    return None if value is None else round(value, digits)


def _spread(values: list[float], unit: str) -> Estimate:
    """The mean, from the least to the most."""
    return Estimate(round(fmean(values), 3), round(min(values), 3), round(max(values), 3), len(values), unit)
