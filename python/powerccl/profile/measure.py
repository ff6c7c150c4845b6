# SPDX-License-Identifier: Apache-2.0
"""The published profiling procedure, driven through powerccl-bench.

First a sweep over pattern, size and clock through plain NCCL. Then, at the highest clock, the same sizes plain and
under `per-call`, with that clock throughout its table. The difference is what PCCL's own events cost. Each point is
written to `<out>.profiling/` when it is measured, so that an interrupted profile can go on.

Clocks are set as `powerccl run --set-clocks` sets them: through leases.
"""

from __future__ import annotations

import contextlib
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from itertools import pairwise
from pathlib import Path
from types import TracebackType

from powerccl.analysis.findings import Clocks
from powerccl.bench.clocks import SweptClocks
from powerccl.bench.process import environment_of, gpus_to_profile, make_work_folder
from powerccl.errors import PowercclError
from powerccl.launch.emulation import platform_name
from powerccl.launch.gpus import Gpus
from powerccl.launch.native import BENCH, find_native
from powerccl.launch.plan import NO_RIGHT, decide_clocks
from powerccl.launch.record import record
from powerccl.launch.request import Request
from powerccl.launch.services import last_line, log_lines
from powerccl.machine import refuse_other
from powerccl.platforms.measurements import (
    BenchHeader,
    BenchPoint,
    empty_profile,
    overhead_samples,
    profile_points,
    read_bench_lines,
)
from powerccl.platforms.policy_table import events_only_table, overhead_points
from powerccl.platforms.schema import ClockSwitch, PlatformProfile
from powerccl.platforms.store import PROFILES, load_profile

POLL_S = 0.2
EMULATED_S = "0.6"  # of a point: energy counters of some emulated servers change every 100 ms, as those of real GPUs

SECONDS_FILE = "seconds"
RESUMES_NOT = "error: --resume:"  # how powerccl-bench begins when it refuses to continue a file
# Of the run that times setting clocks, which takes a few seconds: on a busy machine powerccld is late now and then.
MANAGED_TRIES = 3
LOST_CLOCK, LATE = "cannot set the clock of", "did not answer in time"  # what the runtime says then
GOES_ON = "`powerccl profile --resume` continues with the measurements so far"


class Profiling:
    """One machine being profiled. Leases and maybe an emulated server are behind it, until `stack` is closed."""

    def __init__(
        self,
        emulate: str,
        patterns: list[str],
        sizes: list[int],
        clocks: list[int],
        set_clocks: bool,
        name: str,
        out: Path | None,
        resume: bool,
        say: Callable[[str], None],
        stack: contextlib.ExitStack,
    ) -> None:
        self.native = find_native()
        self.program = str(self.native.path(BENCH))
        self.emulate = emulate
        self.patterns, self.sizes = patterns, sizes
        self.set_clocks = set_clocks
        self.say = say
        self.leased: SweptClocks | None = None  # how clocks are set; None: they are not
        self.seconds_before = 0.0
        self._started = time.monotonic()
        self.environment = environment_of(self.native, self.emulate, stack)
        gpus = gpus_to_profile(self.emulate, self.environment, "--emulate t4x8")
        self.name = name or (platform_name(self.emulate) if self.emulate else _platform_name(gpus))
        self.out = out or PROFILES.place(self.name, Path())
        self.work = self.out.with_suffix(".profiling")
        if resume:
            self._refuse_other(gpus)
        self._prepare(resume)
        self.clocks = self._clocks(gpus, clocks, stack)
        stack.push(self._keep_seconds)

    def _keep_seconds(
        self, _: type[BaseException] | None, error: BaseException | None, __: TracebackType | None
    ) -> None:
        """What it has taken so far, for --resume."""
        if error is not None and self.work.is_dir():
            spent = self.seconds_before + time.monotonic() - self._started
            (self.work / SECONDS_FILE).write_text(f"{spent:.1f}")

    def _clocks(self, gpus: Gpus, wanted: list[int], stack: contextlib.ExitStack) -> list[int]:
        """Clocks to sweep; none when they may not be set."""
        clocks, _ = decide_clocks("per-call", gpus.emulated, self.set_clocks, self.environment)
        why = ""
        if self.environment.get("POWERCCL_CLOCKS") in ("dry", "none"):
            why = f"POWERCCL_CLOCKS={self.environment['POWERCCL_CLOCKS']}"
        elif not gpus.emulated and not self.set_clocks:
            why = "--set-clocks is missing"
        elif clocks == "dry":
            why = NO_RIGHT
        if not why and not gpus.clocks_mhz and not wanted:
            raise PowercclError("NVML lists no clocks for this GPU", "list clocks yourself: --clocks 1590,900,450")
        if not why:
            self.leased = SweptClocks(self.native, self.work, self.environment, gpus.emulated, self.say)
            stack.callback(self.leased.close)
            if self.leased.dry:
                self.leased.release()
                why = "powerccld on this host sets no clocks (it runs dry)"
        if self.leased is None or why:
            self.say(f"{why}: profiling the present clock only, so the profile has no minimum clocks")
            return []
        return self.leased.choose(gpus.clocks_mhz, wanted)

    def _refuse_other(self, gpus: Gpus) -> None:
        """Refuse to replace a finished profile of another machine; an unfinished one, powerccl-bench refuses itself.

        Raises:
            PowercclError: the file is such a profile.
        """
        if not self.out.is_file() or any(self.work.glob("*.jsonl")):
            return
        try:
            kept = load_profile(str(self.out.absolute()))
        except PowercclError:
            return  # nothing of a profile is lost
        here = {"name": self.name, "GPUs": gpus.describe(), "emulated": str(gpus.emulated)}
        there = {"name": kept.name, "GPUs": f"{kept.gpus} x {kept.gpu}", "emulated": str(kept.emulated)}
        refuse_other(
            f"--resume: {self.out}", there, here, "omit --resume to replace it, or name another file with --out"
        )

    def _prepare(self, resume: bool) -> None:
        if not resume and any(self.work.glob("*.jsonl")):
            self.say("starting a new profile; --resume would continue the interrupted one")
        make_work_folder(self.work, resume)
        with contextlib.suppress(OSError, ValueError):
            self.seconds_before = float((self.work / SECONDS_FILE).read_text())

    @property
    def total(self) -> int:
        """Points to measure in all."""
        each = len(self.patterns) * len(self.sizes)
        return each * (max(len(self.clocks), 1) + 2)

    def measure(self, moved: Callable[[str, int], None]) -> PlatformProfile:
        """Measure everything that is not yet on disk; `moved(stage, points)` receives the progress.

        Raises:
            PowercclError: powerccl-bench failed; what it had measured is kept for --resume.
        """
        each = len(self.patterns) * len(self.sizes)
        sweep = self._sweep("points", self.clocks, lambda done: moved("plain NCCL, every clock", done))
        swept = each * max(len(self.clocks), 1)
        header, points = sweep
        plain = self._sweep("plain", self.clocks[:1], lambda done: moved("plain NCCL, top clock", swept + done))[1]
        provenance = "emulated" if header.emulated else "measured"
        clocks_set = any(point.clock_requested_mhz for point in points)
        switch: ClockSwitch | None = None
        if self.leased:
            with _resumable():
                switch = self.leased.switch_cost(self.clocks[-1], provenance) if clocks_set else None
            self.leased.release()  # the ranks' own leases come next
        profiled = profile_points(points, provenance)
        if not profiled:
            raise PowercclError("powerccl-bench measured nothing", f"read {self.work}/points.log")
        seen = [point.clock_mhz for point in profiled]
        profile = empty_profile(self.name, header, seen, clocks_set)
        if self.clocks and not clocks_set:
            profile.clocks_reason = "the driver refused to set them"
        profile.points = profiled
        moved("with PCCL's events", swept + each)
        managed, traced, dry = self._managed(profile, provenance)
        profile.clock_switch = switch or (traced if clocks_set else None)
        profile.overhead_samples = overhead_samples(plain, managed, provenance)
        profile.overhead = overhead_points(profile.overhead_samples, profile.tolerance_pct / 100)
        if dry:
            profile.notes.append(
                "clocks were not set (dry), so overhead points do not include the cost of driver calls"
            )
        moved("done", self.total)
        return profile

    def _arguments(self, file: Path) -> Iterator[list[str]]:
        """powerccl-bench commands that together measure all patterns and sizes into one file."""
        base = ["-c", "0", "-n", "5", "--json-lines", str(file), "--resume"]
        if self.emulate:
            base += ["--min-time", EMULATED_S]
        for first, last, factor in _runs_of_sizes(self.sizes):
            yield [*self.patterns, "-b", str(first), "-e", str(last), "-f", str(factor), *base]

    def _sweep(
        self, stem: str, clocks: list[int], moved: Callable[[int], None]
    ) -> tuple[BenchHeader, list[BenchPoint]]:
        file, log = self.work / f"{stem}.jsonl", self.work / f"{stem}.log"
        more = ["--clocks", ",".join(map(str, clocks))] if clocks else []
        for arguments in self._arguments(file):
            self._watch_bench([*arguments, *more], log, bool(clocks), lambda: moved(_count_lines(file)))
        header, points = read_bench_lines(file)
        if header is None:
            raise PowercclError("powerccl-bench wrote no measurements", f"read {log}")
        return header, points

    def _watch_bench(self, arguments: list[str], log: Path, sets_clocks: bool, look: Callable[[], None]) -> None:
        """Runs powerccl-bench to its end; `look` is called now and then."""
        leased = self.leased if sets_clocks else None
        wait = leased.attend if leased else time.sleep
        bench = self._start_bench([self.program, *arguments], log, leased)
        try:
            while bench.poll() is None:
                look()
                with _resumable():
                    wait(POLL_S)
        except BaseException:
            if leased:
                leased.release()  # powerccl-bench may be waiting for an answer
            _end(bench)
            raise
        self._check(bench.returncode, log)

    def _start_bench(self, command: list[str], log: Path, leased: SweptClocks | None) -> subprocess.Popen[bytes]:
        with contextlib.ExitStack() as stack:
            inherited = []
            if leased:
                inherited.append(stack.enter_context(leased.connect_bench()).fileno())
                command = [*command, "--clock-socket", str(inherited[0])]
            output = stack.enter_context(log.open("ab"))
            return subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                env=self.environment,
                start_new_session=True,
                pass_fds=inherited,
            )

    def _managed(self, profile: PlatformProfile, provenance: str) -> tuple[list[BenchPoint], ClockSwitch | None, bool]:
        """The sizes with each call managed at the maximum clock; what a clock request cost; whether it ran dry."""
        file = self.work / "managed.jsonl"
        switch: ClockSwitch | None = None
        dry = False
        for arguments in self._arguments(file):
            clocks = self._managed_run(profile, arguments, file)
            dry = dry or clocks.dry > 0
            if clocks.mean_call_us is not None and clocks.mean_latency_us is not None:
                switch = ClockSwitch(
                    call_us=round(clocks.mean_call_us, 1),
                    latency_us=round(clocks.mean_latency_us, 1),
                    requests=clocks.requests,
                    provenance=provenance,
                )
        return read_bench_lines(file)[1], switch, dry

    def _managed_run(self, profile: PlatformProfile, arguments: list[str], file: Path) -> Clocks:
        """One bench of it, all of whose requests set a clock: what they came to."""
        from powerccl.analysis.summary import summarise
        from powerccl.traces.folder import read_run

        before = file.read_bytes() if file.exists() else b""
        for _ in range(MANAGED_TRIES):
            request = Request(
                command=[self.program, *arguments],
                policy="per-call",
                emulate=self.emulate,
                set_clocks=bool(self.clocks),
                table_text=events_only_table(profile, self.patterns),
                name="events",
                runs=self.work / "runs",
                output="output.log",
            )
            recorded = record(request, lambda _: None)
            assert recorded.folder is not None
            clocks = summarise(read_run(recorded.folder)).clocks
            if not (profile.clocks_set and (clocks.without_lease or clocks.failed)):
                self._check(recorded.ended.code, recorded.folder / request.output)
                return clocks
            file.write_bytes(before)  # times of calls that set nothing are among those added
            said = log_lines(recorded.folder / request.output)
            reasons = [line.partition(LOST_CLOCK)[2].strip() for line in said if LOST_CLOCK in line]
            if not any(LATE in reason for reason in reasons):
                break
        raise PowercclError(
            f"clocks could no longer be set while setting them was timed: {clocks.without_lease + clocks.failed} of "
            f"{clocks.requests} requests set none{': ' + reasons[-1] if reasons else ''}",
            GOES_ON,
        )

    def _check(self, code: int, log: Path) -> None:
        if code == 0:
            return
        if code in (-signal.SIGINT, 128 + signal.SIGINT):
            raise KeyboardInterrupt
        words = last_line(log)
        if RESUMES_NOT in words:  # the files in our folder are of another machine, or of no known one
            raise PowercclError(
                f"cannot resume the interrupted profile here: {words.partition(RESUMES_NOT)[2].strip()}",
                "omit --resume to start a new one, or name another file with --out",
            )
        raise PowercclError(
            f"powerccl-bench ended with exit code {code}: {words or 'no message'}",
            f"read {log}; `powerccl profile --resume` continues from here",
        )


@contextlib.contextmanager
def _resumable() -> Iterator[None]:
    try:
        yield
    except PowercclError as error:
        raise PowercclError(f"lost control of the clocks: {error}", GOES_ON) from error


def _platform_name(gpus: Gpus) -> str:
    model = gpus.name.lower().removeprefix("nvidia ").removeprefix("tesla ").replace(" ", "-")
    return f"{model}-x{len(gpus.names)}"


def _runs_of_sizes(sizes: list[int]) -> list[tuple[int, int, int]]:
    """Sizes as few (first, last, factor) runs: one if they grow by a whole factor, else one a size."""
    if len(sizes) > 1 and sizes[1] % sizes[0] == 0:
        factor = sizes[1] // sizes[0]
        if factor > 1 and all(b == a * factor for a, b in pairwise(sizes)):
            return [(sizes[0], sizes[-1], factor)]
    return [(size, size, 2) for size in sizes]


def _count_lines(file: Path) -> int:
    """Points in a file that is being written; its first line is the header."""
    try:
        return max(0, file.read_bytes().count(b"\n") - 1)
    except OSError:
        return 0


def _end(process: subprocess.Popen[bytes]) -> None:
    """End powerccl-bench so that it resets the clocks it has set."""
    process.send_signal(signal.SIGINT)
    try:
        process.wait(10)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
