# SPDX-License-Identifier: Apache-2.0
"""The machine that is measured: its clocks by leases (bench/clocks.py), its loads, and its readings."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

from powerccl.bench.clocks import SweptClocks
from powerccl.errors import PowercclError
from powerccl.launch.gpus import Gpus
from powerccl.launch.native import NativeFiles
from powerccl.platforms.measurements import BenchHeader
from powerccl.prove.loads import Load, Pace
from powerccl.prove.loop import Loop
from powerccl.prove.reading import Reader, Reading


@dataclass
class Rig:
    """`count`: GPUs that CUDA shows; `folder`: for what is only needed meanwhile; `dry`: no clock is set."""

    native: NativeFiles
    environment: dict[str, str]
    machine: Gpus
    count: int
    pace: Pace
    dry: bool
    folder: Path
    say: Callable[[str], None]
    reader: Reader
    header: BenchHeader | None = None  # of the first load
    calls_us: list[float] = field(default_factory=list)  # of each call so far, in the driver
    reads_us: list[float] = field(default_factory=list)
    _leased: SweptClocks | None = None

    @contextlib.contextmanager
    def lease(self, most: int) -> Iterator[None]:
        """Hold the first `most` GPUs, or all with 0; behind it their clocks are the default again."""
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

    def clocks(self, shares: tuple[float, ...]) -> list[int]:
        """Supported clocks nearest to shares of the highest, falling; 0 where the clock stays as it is."""
        if self._leased is None:
            return [0]
        supported = self.machine.clocks_mhz
        if not supported:
            raise PowercclError("NVML lists no clocks for this GPU", "add --dry, which measures at the present clock")
        top = max(supported)
        nearest = {min(supported, key=lambda clock: abs(clock - top * share)) for share in shares}
        return self._leased.choose(supported, sorted(nearest, reverse=True))

    def set(self, mhz: int) -> list[float]:
        """Set a clock, 0: the default; what the driver took for each GPU, in microseconds. A dry run sets none."""
        calls_us = [] if self._leased is None else self._leased.set(mhz)
        self.calls_us += calls_us
        return calls_us

    def wait(self, seconds: float) -> None:
        """Pass the time, and keep the leases."""
        (self._leased.attend if self._leased else time.sleep)(seconds)

    def window(self) -> Reading:
        """Power and clocks, as they are now."""
        reading = self.reader.window(self.pace.window_s, self.wait)
        self.reads_us += [reading.read_us] if reading.read_us else []
        return reading

    @contextlib.contextmanager
    def loop(self, load: Load, gpus: int) -> Iterator[Loop]:
        """The load, running on the first GPUs. Its work is measured out at the default clock."""
        self.set(0)
        with Loop(self.native, self.environment, load, gpus, self.folder) as loop:
            loop.start(self.wait)
            self.header = self.header or loop.header
            yield loop
