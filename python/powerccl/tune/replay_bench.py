# SPDX-License-Identifier: Apache-2.0
"""Trials on whole iterations: `powerccl-bench scenario`, a process for each measurement."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import fmean
from typing import Any

from powerccl.analysis.programs.program import Recorded
from powerccl.bench.process import kill_group
from powerccl.bench.trials import Sample, TrialFailedError
from powerccl.bench.workload import Case
from powerccl.errors import PowercclError
from powerccl.files import decode_json, read_bytes
from powerccl.launch.native import BENCH, NativeFiles
from powerccl.launch.services import last_line
from powerccl.platforms.rules import Rule
from powerccl.quantities import seconds as duration
from powerccl.tune.replay import scenario_text, split

# An energy counter moves every 20 to 100 ms: of two seconds that is 5 % at worst.
QUICK_S, THOROUGH_S = 2.0, 4.0
WARM_UP = 3  # iterations
STRETCHES = 3
START_S = 60.0  # that ranks and communicators may take to come up
OFF = 0.02  # a replay that is farther from the recorded time has its computation stretched


class ReplayBench:
    """Replays an iteration under one configuration after the other; a tuning.trials.Bench."""

    def __init__(
        self,
        native: NativeFiles,
        environment: Mapping[str, str],
        recorded: Recorded,
        about: Mapping[str, Any],
        folder: Path,
        timeout_s: float,
        nccl: str = "",
        products: str = "",
    ) -> None:
        """`about`: what powerccl-bench says of the machine; `timeout_s`: of one measurement beyond what it measures.

        `products`: the shape of the matrix products that stand for computation; empty: powerccl-bench's own.
        """
        self.command = [str(native.path(BENCH)), "scenario"]
        self.more = ["-g", str(about.get("ranks", 0)), *(["--nccl", nccl] if nccl else [])]
        self.more += ["--products", products] if products else []
        self.environment, self.recorded, self.about = dict(environment), recorded, dict(about)
        self.folder, self.timeout_s = folder, timeout_s
        self.servers = self.opened = 0
        self.opening_s = self.closing_s = 0.0
        self.stretch = 1.0
        self._configuration: dict[str, str] = {}

    # ---- tuning.trials.Bench

    def open(self, configuration: Mapping[str, str], rules: Sequence[Rule] = ()) -> None:
        """See tuning.trials.Bench. Rules are for a search of their own."""
        self._configuration = dict(configuration)
        self.opened += 1

    def measure(self, case: Case, energy: bool, thorough: bool = False) -> Sample:
        """See tuning.trials.Bench: the iteration, whatever the case."""
        report = self._replay(self._configuration, THOROUGH_S if thorough else QUICK_S)
        joules = report["summary"].get("joules_per_iteration")
        return Sample(_stretches(report), None if joules is None or not energy else float(joules))

    def close(self) -> None:
        """See tuning.trials.Bench."""

    # ---- the replay

    def calibrate(self) -> tuple[float, float]:
        """Stretch computation so that the replay takes as long as the iteration took; that and what it takes, in ms.

        A record does not tell how much of the time of computation it lost to collectives; the replay loses it again.

        Raises:
            PowercclError: the replay fails, or is no likeness of the iteration.
        """
        wanted = self.recorded.time_us / 1e3
        for _ in range(2):
            try:
                taken = fmean(_stretches(self._replay({}, QUICK_S))) / 1e3
            except TrialFailedError as error:
                raise PowercclError(f"the iteration cannot be replayed: {error.reason}", f"read {self._log}") from error
            if abs(taken / wanted - 1) <= OFF:
                break
            self.stretch *= max(0.1, 1 + (wanted - taken) / (self.recorded.programs[0].work_us * self.stretch / 1e3))
        return wanted, taken

    @property
    def _log(self) -> Path:
        return self.folder / "bench.log"

    def _replay(self, configuration: Mapping[str, str], seconds: float) -> dict[str, Any]:
        variables, ways = split(configuration)
        scenario, out = self.folder / f"step-{os.getpid()}.scn", self.folder / f"step-{os.getpid()}.json"
        scenario.write_text(scenario_text(self.recorded, ways, self.stretch))
        out.unlink(missing_ok=True)
        how = ["--compute", "matmul", "--seconds", f"{seconds:g}", "-w", str(WARM_UP), "--json", str(out)]
        command = [*self.command, str(scenario), *self.more, *how]
        self.servers += 1
        with self._log.open("ab") as log:
            process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env={**self.environment, **variables},
                start_new_session=True,
            )
            limit = START_S + seconds + self.timeout_s
            try:
                code = process.wait(limit)
            except subprocess.TimeoutExpired:
                raise TrialFailedError(f"no result within {duration(limit)}", hung=True) from None
            finally:
                if process.poll() is None:
                    kill_group(process)
        if code:
            raise TrialFailedError(
                f"powerccl-bench ended with code {code}: {last_line(self._log)[:200] or 'no message'}"
            )
        return decode_json(read_bytes(out), dict[str, Any])


def _stretches(report: Mapping[str, Any]) -> tuple[float, ...]:
    """Microseconds of an iteration, a mean for each third of those behind the warm-up."""
    times = [float(each["step_ms"]) * 1e3 for each in report["results"] if not each.get("warmup")]
    if not times:
        raise TrialFailedError("no iteration was measured")
    size = max(1, len(times) // STRETCHES)
    return tuple(fmean(times[i : i + size]) for i in range(0, size * min(STRETCHES, len(times)), size))
