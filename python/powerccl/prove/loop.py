# SPDX-License-Identifier: Apache-2.0
"""A load that runs until it is ended: a scenario of powerccl-bench, whose iterations are read as they end."""

from __future__ import annotations

import contextlib
import subprocess
import threading
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from types import TracebackType

import msgspec

from powerccl.bench.process import end_group, start_group
from powerccl.errors import PowercclError
from powerccl.launch.native import BENCH, NativeFiles
from powerccl.launch.services import last_line
from powerccl.platforms.measurements import BenchHeader
from powerccl.prove.loads import Load

START_S = 120.0  # libraries, contexts and communicators of eight GPUs take ten seconds or so
END_S = 10.0
POLL_S = 0.02
ENDLESS = "10000000"
FIRST = 3  # iterations after which a load runs as it will


class Iteration(msgspec.Struct, frozen=True):
    """One iteration (docs/reference/bench.md); host times in ns. `step_ms`: of the rank that took longest."""

    start_ns: int
    end_ns: int
    step_ms: float
    exposed_ms_of_ranks: list[float | None] = []

    @property
    def collective_ms(self) -> float:
        """Of an iteration of collectives alone: their time from the last rank's arrival, which waited for no other."""
        known = [each for each in self.exposed_ms_of_ranks if each]
        return min(known, default=self.step_ms)


class _Line(msgspec.Struct):
    type: str = ""


class Loop:
    """powerccl-bench at work on the first `gpus` GPUs. It ends when the `with` does, or when this process dies."""

    def __init__(
        self, native: NativeFiles, environment: Mapping[str, str], load: Load, gpus: int, folder: Path
    ) -> None:
        file, self.log = folder / f"{load.name}.scn", folder / f"{load.name}.log"
        file.write_text(load.scenario)
        self.load, self._environment = load, dict(environment)
        self._command = [str(native.path(BENCH)), "scenario", str(file), "-g", str(gpus), *load.options]
        # Its standard output is a pipe to this process: powerccl-bench ends when that process has died.
        self._command += ["--iterations", ENDLESS, "--no-energy"]
        self.header: BenchHeader | None = None
        self._iterations: list[Iteration] = []
        self._process: subprocess.Popen[bytes] | None = None
        self._ended = False

    def start(self, wait: Callable[[float], None]) -> None:
        """Start it, and return when it runs.

        Raises:
            PowercclError: it cannot be executed, ended, or needs more than two minutes to start.
        """
        self._process = start_group(self._command, self._environment, self.log)
        threading.Thread(target=self._read, args=(self._process,), daemon=True).start()
        deadline = time.monotonic() + START_S
        while len(self._iterations) < FIRST:
            if self._ended or time.monotonic() > deadline:
                raise self.failure()
            wait(POLL_S)

    def failure(self) -> PowercclError:
        """Why it is not running."""
        words = last_line(self.log) or "no message"
        return PowercclError(f"the load {self.load.name} does not run: {words}", f"read {self.log}")

    def between(self, start_ns: int, end_ns: int) -> list[Iteration]:
        """The iterations that began and ended between two moments, as far as they are known by now.

        Raises:
            PowercclError: the load has ended.
        """
        if self._ended:
            raise self.failure()
        return [each for each in self._iterations if start_ns <= each.start_ns and each.end_ns <= end_ns]

    def __enter__(self) -> Loop:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._process:
            end_group(self._process, END_S)

    def _read(self, process: subprocess.Popen[bytes]) -> None:
        assert process.stdout is not None
        for line in process.stdout:
            with contextlib.suppress(msgspec.MsgspecError):
                kind = msgspec.json.decode(line, type=_Line).type
                if kind == "iteration":
                    self._iterations.append(msgspec.json.decode(line, type=Iteration))
                elif kind == "header":
                    self.header = msgspec.json.decode(line, type=BenchHeader)
        self._ended = True
