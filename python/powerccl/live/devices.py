# SPDX-License-Identifier: Apache-2.0
"""What the drivers and daemons of this node say of its devices now: who holds a clock, and a GPU's readings."""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from powerccl.errors import PowercclError
from powerccl.leases.client import SOCKET, SOCKET_VARIABLE, Device, Totals, connect
from powerccl.live import processes
from powerccl.live.snapshot import LiveGpu
from powerccl.traces.plausible import MOST_WATTS
from powerccl.traces.power import MOST_CLOCK_MHZ

MOST_CELSIUS = 255


class LeaseTable:
    """Who holds the clocks of this node's devices, asked of the daemons that jobs name and of the system's."""

    def __init__(self) -> None:
        self.problem = ""
        self._asked_s = float("-inf")
        self._devices: dict[Path, dict[str, Device]] = {}
        self.daemon: tuple[list[Device], Totals] | None = None  # of the machine's daemon; None: it did not answer

    def devices(self, sockets: set[Path], now_s: float | None = None) -> dict[Path, dict[str, Device]]:
        """By socket, the devices that are held or wait to be restored, at most SCAN_EVERY_S ago.

        Two daemons may speak of the same GPU: of emulated servers, each has its own.
        """
        now_s = time.monotonic() if now_s is None else now_s
        if now_s - self._asked_s < processes.SCAN_EVERY_S:
            return self._devices
        self._asked_s, self._devices, self.problem, self.daemon = now_s, {}, "", None
        machine = Path(os.environ.get(SOCKET_VARIABLE) or SOCKET)
        for path in {*sockets, machine}:
            if not path.exists():
                continue
            try:
                with connect(path, "powerccl top") as leases:
                    answer = leases.status_and_totals()
                self._devices[path] = {d.device: d for d in answer[0] if d.held or d.pending}
                if path == machine:
                    self.daemon = answer
            except (PowercclError, OSError) as error:
                self.problem = f"leases: {error}"
        return self._devices


class NvmlReadings:
    """GPUs of this machine as NVML reports them now: for jobs that have no agent. NVML is loaded when first asked."""

    def __init__(self) -> None:
        self._handles: dict[str, Any] | None = None
        self._names: dict[str, str] = {}

    def read(self, uuid: str) -> LiveGpu | None:
        """One GPU; None where NVML does not know it."""
        import pynvml

        if self._handles is None:
            self._handles = {}
            try:
                pynvml.nvmlInit()
                for index in range(pynvml.nvmlDeviceGetCount()):
                    handle = pynvml.nvmlDeviceGetHandleByIndex(index)
                    self._handles[str(pynvml.nvmlDeviceGetUUID(handle))] = (index, handle)
            except pynvml.NVMLError:
                return None
        if uuid not in self._handles:
            return None
        index, handle = self._handles[uuid]

        def asked(call: Callable[..., Any], *arguments: object) -> Any:
            try:
                return call(handle, *arguments)
            except pynvml.NVMLError:
                return None

        def known(most: float, call: Callable[..., Any], *arguments: object) -> Any:
            """A reading; NVML marks values that it does not have by ones in all bits."""
            value = asked(call, *arguments)
            return value if value is not None and value <= most else None

        power_mw = known(MOST_WATTS * 1e3, pynvml.nvmlDeviceGetPowerUsage)
        used = asked(pynvml.nvmlDeviceGetUtilizationRates)
        return LiveGpu(
            gpu=uuid,
            index=index,
            host=socket.gethostname(),
            name=str(asked(pynvml.nvmlDeviceGetName) or ""),
            power_w=power_mw / 1e3 if power_mw else None,
            clock_mhz=known(MOST_CLOCK_MHZ, pynvml.nvmlDeviceGetClockInfo, pynvml.NVML_CLOCK_SM),
            temperature_c=known(MOST_CELSIUS, pynvml.nvmlDeviceGetTemperature, pynvml.NVML_TEMPERATURE_GPU),
            utilization_pct=None if used is None or used.gpu > 100 else int(used.gpu),
            age_s=0.0,
            source="nvml",
        )
