# SPDX-License-Identifier: Apache-2.0
"""The machine's GPUs through NVML, by ctypes: enough to know a platform by, light enough for `powerccl run`."""

from __future__ import annotations

import ctypes
from dataclasses import dataclass, field
from pathlib import Path

NVML = "libnvidia-ml.so.1"
_NAME_BYTES = 96
_CAP_SYS_ADMIN = 21


@dataclass
class Gpus:
    """What NVML says; `reason` says why there is nothing."""

    names: list[str] = field(default_factory=list)
    driver: str = ""
    emulated: bool = False
    reason: str = ""

    @property
    def name(self) -> str:
        """Name of the first GPU, empty if there is none."""
        return self.names[0] if self.names else ""

    def describe(self) -> str:
        """`8 x Tesla T4`, or why there is none."""
        if not self.names:
            return self.reason or "no GPU"
        kinds = {name: self.names.count(name) for name in self.names}
        return " + ".join(f"{count} x {name}" for name, count in kinds.items())


def query_gpus(library: str = NVML) -> Gpus:
    """Names and driver of this machine's GPUs; never raises."""
    try:
        nvml = ctypes.CDLL(library)
    except OSError as error:
        return Gpus(reason=f"no NVIDIA driver here ({error})")
    status = int(nvml.nvmlInit_v2())
    if status:
        return Gpus(reason=f"nvmlInit failed with error {status}")
    found = Gpus(emulated=hasattr(nvml, "powerccl_emulator_version"))
    text = ctypes.create_string_buffer(_NAME_BYTES)
    if nvml.nvmlSystemGetDriverVersion(text, ctypes.c_uint(_NAME_BYTES)) == 0:
        found.driver = text.value.decode("utf-8", "replace")
    count = ctypes.c_uint()
    if nvml.nvmlDeviceGetCount_v2(ctypes.byref(count)) != 0:
        found.reason = "NVML cannot count the GPUs"
    for index in range(count.value):
        device = ctypes.c_void_p()
        if nvml.nvmlDeviceGetHandleByIndex_v2(ctypes.c_uint(index), ctypes.byref(device)) != 0:
            continue
        if nvml.nvmlDeviceGetName(device, text, ctypes.c_uint(_NAME_BYTES)) == 0:
            found.names.append(text.value.decode("utf-8", "replace"))
    nvml.nvmlShutdown()
    if not found.names and not found.reason:
        found.reason = "NVML finds no GPU"
    return found


def may_set_clocks() -> bool:
    """Whether this process has the right NVML asks of who locks clocks: CAP_SYS_ADMIN, as root has."""
    try:
        status = Path("/proc/self/status").read_text()
    except OSError:
        return False
    for line in status.splitlines():
        if line.startswith("CapEff:"):
            return bool(int(line.split()[1], 16) >> _CAP_SYS_ADMIN & 1)
    return False
