# SPDX-License-Identifier: Apache-2.0
"""Joules of training steps, measured inside the job.

A step is too short to be measured alone: energy counters move every 20 to 100 ms. So figures are means over windows of
a second or more, which begin and end with a step. Windows follow each other, so that their sum is the run's energy.
"""

from __future__ import annotations

import contextlib
import functools
import os
import sys
import time
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import ParamSpec

from powerccl.host_clock import monotonic_ns
from powerccl.integrations.sources import FolderSource, NvmlSource, Readings

P = ParamSpec("P")
RUN_FOLDER = "POWERCCL_RUN_FOLDER"
# Step ends that wait for their energy: a million take 100 MB, and come up where samples have ended.
MOST_WAITING = 100_000
# s that `close` waits for the last samples: the agent writes every half second. At half, a run's last second is not
# counted every other time. At double, jobs without samples end later.
CLOSE_S = 1.0
FIRST_LOOK_S = 0.02  # between two looks while `close` waits


@dataclass(frozen=True)
class _End:
    """The end of a step: host ns, and the steps and tokens until then. `tokens` None: not all steps gave them."""

    time_ns: int
    steps: int
    tokens: float | None


@dataclass(frozen=True)
class _Mark:
    """An end whose energy is known."""

    end: _End
    readings: Readings


class StepMeter:
    """Joules a step and a token, of the job's GPUs on this host.

        meter = StepMeter()
        for batch in loader:
            ...
            wandb.log({"loss": loss, **meter.step(tokens=batch.numel())})

    Create it in the process that logs, on rank 0. Under `powerccl run` it reads the samples of the run folder.
    Elsewhere it reads NVML's energy counters, and says so on stderr. Nothing it does raises: on a fault it writes one
    line to stderr and returns nothing from then on.
    """

    def __init__(
        self, window_s: float = 0.0, prefix: str = "powerccl/", environment: Mapping[str, str] = os.environ
    ) -> None:
        """`window_s`: the least length of a window; 0: 1 s under `powerccl run`, 10 s elsewhere. Never less.

        `prefix`: of the figures' names. `environment`: where POWERCCL_RUN_FOLDER and LOCAL_WORLD_SIZE are.
        """
        self.steps = 0
        self._prefix = prefix
        self._tokens: float | None = 0.0
        self._waiting: deque[_End] = deque(maxlen=MOST_WAITING)
        self._last: _Mark | None = None  # the end of the last window
        self._joules, self._measured_s, self._measured_steps = 0.0, 0.0, 0
        self._measured_tokens: float | None = 0.0
        self._looked_ns = 0
        self._local_size = 0
        self._source: FolderSource | NvmlSource | None = None
        try:
            self._local_size = int(environment.get("LOCAL_WORLD_SIZE", "") or 0)
            self._source = _source(environment)
            self._window_ns = max(int(window_s * 1e9), self._source.window_ns)
        except Exception as error:
            self._end_with(error)

    def step(self, tokens: float | None = None) -> dict[str, float]:
        """Call it at the end of each step. Returns the figures of a window where one has ended, else nothing.

        `tokens`: that this rank processed in the step; the other ranks of this host are taken to have as many. Under
        tensor or context parallelism, divide them by the number of ranks that share them. None: joules a token are not
        known.
        """
        if self._source is None:
            return {}
        try:
            now_ns = monotonic_ns()
            self.steps += 1
            self._tokens = None if tokens is None or self._tokens is None else self._tokens + float(tokens)
            self._waiting.append(_End(now_ns, self.steps, self._tokens))
            if now_ns - self._looked_ns < self._source.look_ns:
                return {}
            return self._look(self._source, now_ns, self._window_ns)
        except Exception as error:
            return self._end_with(error)

    def close(self) -> dict[str, float]:
        """Measure the last steps, and return means over all windows: `mean_joules_per_step` and so on.

        Under `powerccl run` it waits up to a second for the last samples. Nothing: no window has ended.
        """
        source = self._source
        if source is None:
            return {}
        try:
            last_ns = self._waiting[-1].time_ns if self._waiting else 0
            deadline = time.monotonic() + CLOSE_S * isinstance(source, FolderSource)
            while True:
                self._look(source, last_ns, 0)
                if source.known_ns() >= last_ns or time.monotonic() > deadline:
                    break
                time.sleep(FIRST_LOOK_S)
            self._source = None
            if not self._measured_steps:
                _say(f"no joules in the tracker: no second of steps was covered by the {source.name}")
                return {}
            return self._figures("mean_", self._joules, self._measured_s, self._measured_steps, self._measured_tokens)
        except Exception as error:
            return self._end_with(error)

    def _look(self, source: FolderSource | NvmlSource, now_ns: int, window_ns: int) -> dict[str, float]:
        self._looked_ns = now_ns
        source.look(now_ns)
        known_ns = source.known_ns()
        ended = [end for end in self._waiting if end.time_ns <= known_ns]
        if self._last is None:
            marks = (_Mark(end, readings) for end in ended if (readings := source.at(end.time_ns)))
            self._last = next(marks, None)
        if self._last is None or not ended or ended[-1].time_ns - self._last.end.time_ns < max(window_ns, 1):
            return {}
        readings = source.at(ended[-1].time_ns)
        # A GPU always draws power: until each counter has moved, the window's energy is not known.
        if readings is None or any(self._last.readings.get(gpu) == joules for gpu, joules in readings.items()):
            return {}
        latest = _Mark(ended[-1], readings)
        while self._waiting and self._waiting[0].time_ns <= latest.end.time_ns:
            self._waiting.popleft()
        source.trim(latest.end.time_ns)
        begin, self._last = self._last, latest
        if begin.readings.keys() != readings.keys():  # another set of GPUs, or a counter that began from elsewhere
            return {}
        return self._window(source, begin, latest)

    def _window(self, source: FolderSource | NvmlSource, begin: _Mark, end: _Mark) -> dict[str, float]:
        joules = sum(end.readings.values()) - sum(begin.readings.values())
        seconds, steps = (end.end.time_ns - begin.end.time_ns) / 1e9, end.end.steps - begin.end.steps
        tokens = None
        if end.end.tokens is not None and begin.end.tokens is not None:
            tokens = (end.end.tokens - begin.end.tokens) * (source.ranks or self._local_size or 1)
        self._joules += joules
        self._measured_s += seconds
        self._measured_steps += steps
        known = tokens is not None and self._measured_tokens is not None
        self._measured_tokens = self._measured_tokens + tokens if known else None  # type: ignore[operator]
        figures = self._figures("", joules, seconds, steps, tokens)
        figures[f"{self._prefix}joules"] = self._joules
        slowdown = source.slowdown_pct()
        if slowdown is not None:
            figures[f"{self._prefix}slowdown_pct"] = slowdown
        return figures

    def _figures(self, which: str, joules: float, seconds: float, steps: int, tokens: float | None) -> dict[str, float]:
        figures = {"joules_per_step": joules / steps, "watts": joules / seconds, "step_s": seconds / steps}
        if tokens:
            figures["joules_per_token"] = joules / tokens
        return {f"{self._prefix}{which}{name}": value for name, value in figures.items()}

    def _end_with(self, error: Exception) -> dict[str, float]:
        """Say once why there is nothing more."""
        self._source = None
        _say(_lost(error))
        return {}


def _source(environment: Mapping[str, str]) -> FolderSource | NvmlSource:
    folder = environment.get(RUN_FOLDER, "")
    if folder:
        return FolderSource(Path(folder), environment)
    source = NvmlSource(environment)
    _say(
        f"this job does not run under `powerccl run`: joules come from the {source.name},"
        f" in windows of {source.window_ns // 10**9} s"
    )
    return source


def guarded(hook: Callable[P, None]) -> Callable[P, None]:
    """A callback's hook that never raises into the training loop."""

    @functools.wraps(hook)
    def call(*arguments: P.args, **named: P.kwargs) -> None:
        try:
            hook(*arguments, **named)
        except Exception as error:
            _say(_lost(error))

    return call


def _lost(error: Exception) -> str:
    return f"no joules in the tracker: {' '.join(str(error).split()) or type(error).__name__}"


@functools.cache
def _say(text: str) -> None:
    """One line on stderr, which may be closed; the same line once."""
    with contextlib.suppress(Exception):
        sys.stderr.write(f"powerccl: {text}\n")
