# SPDX-License-Identifier: Apache-2.0
"""Trials on `powerccl-bench serve`: ranks that stay, a fresh instance of NCCL for each configuration.

A configuration that fails or hangs costs its time-out and the server; the next one gets a new server.
"""

from __future__ import annotations

import contextlib
import queue
import subprocess
import threading
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any

import msgspec

from powerccl.bench.process import kill_group, start_group
from powerccl.bench.trials import Sample, TrialFailedError
from powerccl.bench.workload import Case
from powerccl.errors import PowercclError
from powerccl.launch.environment import CHAINED, TUNER, TUNER_TABLE
from powerccl.launch.native import BENCH, NCCL_ADAPTER, NativeFiles
from powerccl.platforms.rules import Rule, inline_rules
from powerccl.quantities import seconds as duration

START_S = 120.0
GRACE_S = 5.0  # a server that is asked to end

# Seconds measured of each case; stretches of it that are timed apart. Energy, of one stretch, is known from updates of
# a counter every 20 to 100 ms.
QUICK_S, THOROUGH_S = 0.06, 0.2
ENERGY_S, THOROUGH_ENERGY_S = 0.5, 0.8
STRETCHES = 3
LEAST_OPERATIONS = 1  # a stretch: what is slow is soon seen to be


class BenchServer:
    """powerccl_bench's serve mode, restarted as often as it takes; a tuning.trials.Bench."""

    def __init__(
        self,
        native: NativeFiles,
        environment: Mapping[str, str],
        gpus: int,
        timeout_s: float,
        log: Path,
        nccl: str = "",
        windows: bool = False,
    ) -> None:
        """`gpus`: ranks, 0 for all there are; `timeout_s`: for one communicator, or one case; `nccl`: the library.

        `windows`: buffers are in symmetric windows.
        """
        self.command = [str(native.path(BENCH)), "serve", "--timeout", str(max(1, round(timeout_s)))]
        self.command += ["-g", str(gpus)] if gpus else []
        self.command += ["--nccl", nccl] if nccl else []
        self.command += ["-R", "2"] if windows else []
        self.plugin = str(native.path(NCCL_ADAPTER))
        self.environment = dict(environment)
        if environment.get(TUNER, self.plugin) != self.plugin:
            self.environment.setdefault(CHAINED[TUNER], environment[TUNER])
        self.timeout_s, self.log = timeout_s, log
        self.about: dict[str, Any] = {}  # what the server says of the machine
        self.servers = self.opened = 0
        self.opening_s = self.closing_s = 0.0  # of which NCCL and the library's loading took so much
        self._process: subprocess.Popen[bytes] | None = None
        self._is_open = False
        self._replies: queue.Queue[dict[str, Any] | None] = queue.Queue()

    def __enter__(self) -> BenchServer:
        self._start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._end(gently=error is None)

    # ---- tuning.trials.Bench

    def open(self, configuration: Mapping[str, str], rules: Sequence[Rule] = ()) -> None:
        """See tuning.trials.Bench."""
        for again in (False, True):
            if self._process is None:
                self._start()
            variables = dict(configuration)
            if rules:
                variables |= {TUNER: self.plugin, TUNER_TABLE: inline_rules(rules)}
            lines = ["clear", *(f"set {name}={value}" for name, value in sorted(variables.items()))]
            self.opened += 1
            try:
                reply = self._ask([*lines, f"open {self.opened}"], "opened")
                self.opening_s += float(reply.get("seconds", 0.0))
                self._is_open = True
                return
            except _ServerEndedError:
                if again:
                    raise
                # It had served as many trials as a process should: a new one takes this.

    def measure(self, case: Case, energy: bool, thorough: bool = False) -> Sample:
        """See tuning.trials.Bench."""
        seconds, stretches = (THOROUGH_S if thorough else QUICK_S) / STRETCHES, STRETCHES
        if energy:
            seconds, stretches = THOROUGH_ENERGY_S if thorough else ENERGY_S, 1
        words = f"iterations={LEAST_OPERATIONS} min_time_s={seconds:.4f} repeat={stretches} warmup=1 check=0"
        point = self._ask([f"measure {case.pattern} {case.size_bytes} {words} energy={int(energy)}"], "point")
        if not point.get("valid", True):
            raise TrialFailedError("the trial's times are invalid: this machine was too slow for the emulator")
        times = tuple(float(each) for each in point.get("times_us") or [point["device_time_us"]])
        joules = point.get("joules_all_gpus") if energy else None
        return Sample(times, None if joules is None else float(joules))

    def close(self) -> None:
        """See tuning.trials.Bench."""
        if not self._is_open:  # after a failure the server has closed it, or has ended
            return
        self._is_open = False
        try:
            self.closing_s += float(self._ask(["close"], "closed").get("seconds", 0.0))
        except TrialFailedError:
            self._end(gently=False)

    # ---- the process

    def _start(self) -> None:
        self.log.parent.mkdir(parents=True, exist_ok=True)
        self._process = start_group(self.command, self.environment, self.log, stdin=subprocess.PIPE)
        self.servers += 1
        self._replies = queue.Queue()
        threading.Thread(target=_read, args=(self._process, self._replies), daemon=True).start()
        try:
            self.about = self._await("ready", START_S)
        except TrialFailedError as error:
            raise PowercclError(f"powerccl-bench did not start: {error.reason}", f"read {self.log}") from error

    def _ask(self, lines: list[str], kind: str) -> dict[str, Any]:
        process = self._process
        if process is None or process.stdin is None:
            raise _ServerEndedError("powerccl-bench is not running")
        try:
            process.stdin.write("".join(f"{line}\n" for line in lines).encode())
            process.stdin.flush()
        except (BrokenPipeError, OSError):
            self._end(gently=False)
            raise _ServerEndedError("powerccl-bench has ended") from None
        return self._await(kind, self.timeout_s + GRACE_S)

    def _await(self, kind: str, seconds: float) -> dict[str, Any]:
        """The next reply of that kind; a failure ends the server, whose ranks may be in any state."""
        deadline = time.monotonic() + seconds
        while True:
            try:
                reply = self._replies.get(timeout=max(0.0, deadline - time.monotonic()))
            except queue.Empty:
                self._end(gently=False)
                raise TrialFailedError(f"no result within {duration(seconds)}", hung=True) from None
            if reply is None:
                self._end(gently=False)
                raise _ServerEndedError("powerccl-bench ended without a message")
            if reply.get("type") == kind:
                return reply
            if reply.get("type") == "refused":
                raise PowercclError(
                    f"powerccl-bench refused: {reply.get('reason')}", "this is a fault of PowerCCL: please report it"
                )
            if reply.get("type") == "failed":
                reason = str(reply.get("reason", "failed"))
                self._is_open = False
                if not reply.get("alive"):  # else all ranks were refused alike, and are fit for the next
                    self._end(gently=False)
                raise TrialFailedError(reason, hung="--timeout" in reason)
            if reply.get("type") == "ended":
                self._end(gently=True)
                raise _ServerEndedError("powerccl-bench has served its trials")

    def _end(self, gently: bool) -> None:
        process, self._process, self._is_open = self._process, None, False
        if process is None:
            return
        if process.stdin:
            with contextlib.suppress(OSError):
                process.stdin.close()
        if gently:
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(GRACE_S)
        kill_group(process)


class _ServerEndedError(TrialFailedError):
    """The server ended without reporting a failure."""


def _read(process: subprocess.Popen[bytes], replies: queue.Queue[dict[str, Any] | None]) -> None:
    assert process.stdout is not None
    for line in process.stdout:
        with contextlib.suppress(msgspec.MsgspecError):
            replies.put(msgspec.json.decode(line, type=dict[str, Any]))
    replies.put(None)
