# SPDX-License-Identifier: Apache-2.0
"""Copies of an NVML library that lack functions, as older drivers do."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

# What every NVML has; without one of these there is no GPU to read.
NEEDED = ("nvmlInit_v2", "nvmlShutdown", "nvmlDeviceGetCount_v2", "nvmlDeviceGetHandleByIndex_v2")
# What PowerCCL does without, function by function.
OPTIONAL = (
    *("nvmlSystemGetDriverVersion", "nvmlSystemGetNVMLVersion", "nvmlDeviceGetIndex", "nvmlDeviceGetPciInfo_v3"),
    *("nvmlDeviceGetName", "nvmlDeviceGetMinorNumber", "nvmlDeviceGetMigMode", "nvmlDeviceGetArchitecture"),
    *("nvmlDeviceGetSupportedMemoryClocks", "nvmlDeviceGetSupportedGraphicsClocks", "nvmlDeviceGetMaxClockInfo"),
    *("nvmlDeviceSetGpuLockedClocks", "nvmlDeviceResetGpuLockedClocks", "nvmlDeviceGetClockInfo"),
    *("nvmlDeviceGetCurrentClocksEventReasons", "nvmlDeviceGetCurrentClocksThrottleReasons"),
    *("nvmlDeviceGetPowerUsage", "nvmlDeviceGetEnforcedPowerLimit", "nvmlDeviceGetPowerManagementDefaultLimit"),
    *("nvmlDeviceGetPowerManagementLimitConstraints", "nvmlDeviceGetFieldValues", "nvmlDeviceGetUtilizationRates"),
    *("nvmlDeviceGetTotalEnergyConsumption", "nvmlDeviceGetTemperature"),
)


def copy_without(library: Path, functions: Iterable[str], folder: Path) -> Path:
    """A copy of the library in that folder. A function under another name is one that the loader does not find."""
    data = library.read_bytes()
    for name in functions:
        # Without the byte before it: linkers keep a name as the end of a longer one.
        data = data.replace(name.encode() + b"\0", b"X" + name.encode()[1:] + b"\0")
    folder.mkdir(exist_ok=True)
    copy = folder / "libnvidia-ml.so.1"
    copy.write_bytes(data)
    return copy
