# SPDX-License-Identifier: Apache-2.0
"""Power and clock of GPUs over a stretch of time, read through NVML in a process of its own.

That process sees the environment of the GPUs, emulated ones among them. Energy counters change every 20 to 100 ms, so
power is what the counter gained between the first and the last change inside the stretch.
"""

from __future__ import annotations

import ctypes
import os
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from statistics import fmean, median

import msgspec

from powerccl.errors import PowercclError
from powerccl.launch.gpus import NVML, importable

SM_CLOCK = 1  # NVML_CLOCK_SM
# Between two readings of all GPUs. A read of an H100's counter takes 3 ms. Twice the pause would know the moment of a
# change less exactly, to 7 ms; half of it, to 4 ms instead of 5.
PAUSE_S = 0.002
PATIENCE_S = 30.0


class Reading(msgspec.Struct, frozen=True):
    """A stretch of time, with one value a GPU. None: not known."""

    start_ns: int
    end_ns: int
    watts: list[float | None]
    clocks_mhz: list[float | None]
    read_us: float  # median of one read of one GPU's energy
    power_limit_w: float | None = None  # of the first GPU

    @property
    def mean_watts(self) -> float | None:
        """Of all GPUs; None where one is not known."""
        return _mean(self.watts)

    @property
    def mean_mhz(self) -> float | None:
        """The same of the clocks."""
        return _mean(self.clocks_mhz)


def _mean(values: list[float | None]) -> float | None:
    known = [each for each in values if each is not None]
    return fmean(known) if known and len(known) == len(values) else None


class Reader:
    """The process that reads; it ends with its standard input."""

    def __init__(self, environment: Mapping[str, str], uuids: list[str]) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-m", "powerccl.prove.reading", *uuids],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env=importable(environment),
            start_new_session=True,
        )

    def window(self, seconds: float, wait: Callable[[float], None]) -> Reading:
        """Power and clocks over the next seconds; `wait` passes the time meanwhile."""
        assert self._process.stdin
        try:
            self._process.stdin.write(f"{seconds}\n".encode())
            self._process.stdin.flush()
        except OSError as error:
            raise _ended() from error
        wait(seconds)
        return self._answer()

    def close(self) -> None:
        """End the process."""
        assert self._process.stdin
        assert self._process.stdout
        self._process.stdin.close()
        try:
            self._process.wait(PATIENCE_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._process.stdout.close()

    def _answer(self) -> Reading:
        assert self._process.stdout
        line = self._process.stdout.readline()
        if not line:
            raise _ended()
        return msgspec.json.decode(line, type=Reading)


def _ended() -> PowercclError:
    return PowercclError("cannot read the GPUs' power through NVML", "`powerccl doctor` says what NVML answers")


class _Gpu:
    """One GPU during a stretch."""

    def __init__(self, nvml: ctypes.CDLL, uuid: str) -> None:
        self.nvml, self.device = nvml, ctypes.c_void_p()
        if nvml.nvmlDeviceGetHandleByUUID(uuid.encode(), ctypes.byref(self.device)):
            raise SystemExit(f"NVML does not know {uuid}")
        self.begin()

    def begin(self) -> None:
        self._changes: list[tuple[float, int]] = []  # of the energy counter: when, to how many mJ
        self._last: tuple[float, int] | None = None
        self._powers_mw: list[int] = []
        self._clocks_mhz: list[int] = []
        self.reads_us: list[float] = []

    def read(self) -> None:
        energy_mj, value = ctypes.c_ulonglong(), ctypes.c_uint()
        asked = time.monotonic()
        if self.nvml.nvmlDeviceGetTotalEnergyConsumption(self.device, ctypes.byref(energy_mj)) == 0:
            now = time.monotonic()
            self.reads_us.append((now - asked) * 1e6)
            if self._last and energy_mj.value != self._last[1]:
                self._changes.append(((self._last[0] + now) / 2, energy_mj.value))
            self._last = (now, energy_mj.value)
        elif self.nvml.nvmlDeviceGetPowerUsage(self.device, ctypes.byref(value)) == 0:
            self._powers_mw.append(value.value)
        if self.nvml.nvmlDeviceGetClockInfo(self.device, SM_CLOCK, ctypes.byref(value)) == 0:
            self._clocks_mhz.append(value.value)

    @property
    def watts(self) -> float | None:
        if len(self._changes) > 1:
            (first_s, first_mj), (last_s, last_mj) = self._changes[0], self._changes[-1]
            return (last_mj - first_mj) / 1e3 / (last_s - first_s)
        return fmean(self._powers_mw) / 1e3 if self._powers_mw else None

    @property
    def clock_mhz(self) -> float | None:
        return fmean(self._clocks_mhz) if self._clocks_mhz else None


def _window(gpus: list[_Gpu], seconds: float) -> Reading:
    for gpu in gpus:
        gpu.begin()
    start_ns = time.monotonic_ns()
    end_ns = start_ns + round(seconds * 1e9)
    while time.monotonic_ns() < end_ns:
        for gpu in gpus:
            gpu.read()
        time.sleep(PAUSE_S)
    reads = [each for gpu in gpus for each in gpu.reads_us]
    values = [gpu.watts for gpu in gpus], [gpu.clock_mhz for gpu in gpus]
    limit_mw = ctypes.c_uint()
    limited = gpus[0].nvml.nvmlDeviceGetEnforcedPowerLimit(gpus[0].device, ctypes.byref(limit_mw)) == 0
    read_us = median(reads) if reads else 0.0
    return Reading(start_ns, end_ns, *values, read_us, limit_mw.value / 1e3 if limited else None)


def main() -> None:
    """Answer each line of stdin, a number of seconds, with a Reading."""
    nvml = ctypes.CDLL(NVML)
    if nvml.nvmlInit_v2():
        raise SystemExit("nvmlInit failed")
    gpus = [_Gpu(nvml, uuid) for uuid in sys.argv[1:]]
    try:
        for line in sys.stdin:
            print(msgspec.json.encode(_window(gpus, float(line))).decode(), flush=True)
    except BrokenPipeError:  # who asked was killed meanwhile
        os._exit(1)


if __name__ == "__main__":
    main()
