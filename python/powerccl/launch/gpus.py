# SPDX-License-Identifier: Apache-2.0
"""The machine's GPUs through NVML, by ctypes: enough to know a platform by, light enough for `powerccl run`."""

from __future__ import annotations

import ctypes
import dataclasses
import json
import os
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

NVML = "libnvidia-ml.so.1"
CUDA = "libcuda.so.1"
_NAME_BYTES = 96  # NVML_DEVICE_NAME_V2_BUFFER_SIZE
_CAP_SYS_ADMIN = 21


@dataclass
class Gpus:
    """What NVML says; `reason` says why there is nothing."""

    names: list[str] = field(default_factory=list)
    driver: str = ""
    emulated: bool = False
    reason: str = ""
    # SM clocks of the first GPU that lists them, at its highest memory clock.
    clocks_mhz: list[int] = field(default_factory=list)

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
        return Gpus(reason=f"no NVIDIA driver on this machine ({error})")
    try:
        return _query(nvml)
    except AttributeError as error:  # a function that this libnvidia-ml lacks
        return Gpus(reason=f"this NVML is too old: {error}")


def _query(nvml: ctypes.CDLL) -> Gpus:
    status = int(nvml.nvmlInit_v2())
    if status:
        return Gpus(reason=f"nvmlInit failed with error {status}")
    gpus = Gpus(emulated=hasattr(nvml, "powerccl_emulator_version"))
    text = ctypes.create_string_buffer(_NAME_BYTES)
    if _succeeds(nvml, "nvmlSystemGetDriverVersion", text, ctypes.c_uint(_NAME_BYTES)):
        gpus.driver = text.value.decode("utf-8", "replace")
    count = ctypes.c_uint()
    if nvml.nvmlDeviceGetCount_v2(ctypes.byref(count)) != 0:
        gpus.reason = "NVML cannot count the GPUs"
    for index in range(count.value):
        device = ctypes.c_void_p()
        if nvml.nvmlDeviceGetHandleByIndex_v2(ctypes.c_uint(index), ctypes.byref(device)) != 0:
            continue
        if _succeeds(nvml, "nvmlDeviceGetName", device, text, ctypes.c_uint(_NAME_BYTES)):
            gpus.names.append(text.value.decode("utf-8", "replace"))
        gpus.clocks_mhz = gpus.clocks_mhz or _clocks_mhz(nvml, device)
    nvml.nvmlShutdown()
    if not gpus.names and not gpus.reason:
        gpus.reason = "NVML finds no GPU"
    return gpus


def _succeeds(nvml: ctypes.CDLL, function: str, *arguments: object) -> bool:
    """Whether this NVML has the function, and a call of it succeeds."""
    ask = getattr(nvml, function, None)
    return ask is not None and ask(*arguments) == 0


def nvlink_generation(library: str = NVML) -> int:
    """Version of the first GPU's NVLink, as NVML counts (4: Ampere's, 6: Hopper's); 0 without an active link."""
    try:
        nvml = ctypes.CDLL(library)
        if nvml.nvmlInit_v2():
            return 0
        device, active, version = ctypes.c_void_p(), ctypes.c_uint(), ctypes.c_uint()
        generation = 0
        if (
            nvml.nvmlDeviceGetHandleByIndex_v2(ctypes.c_uint(0), ctypes.byref(device)) == 0
            and nvml.nvmlDeviceGetNvLinkState(device, ctypes.c_uint(0), ctypes.byref(active)) == 0
            and active.value
            and nvml.nvmlDeviceGetNvLinkVersion(device, ctypes.c_uint(0), ctypes.byref(version)) == 0
        ):
            generation = version.value
        nvml.nvmlShutdown()
    except (OSError, AttributeError):
        return 0
    return generation


def query_gpus_in(environment: Mapping[str, str]) -> Gpus:
    """query_gpus in a process with that environment: how emulated GPUs are seen from outside."""
    try:
        return Gpus(**_ask_in(environment, "nvml"))
    except (OSError, subprocess.TimeoutExpired, ValueError, TypeError) as error:
        return Gpus(reason=f"cannot query NVML: {error}")


def visible_gpus_in(environment: Mapping[str, str]) -> list[str]:
    """UUIDs of the GPUs that a program with that environment would use, as CUDA_VISIBLE_DEVICES says; never raises."""
    try:
        uuids = _ask_in(environment, "cuda")
    except (OSError, subprocess.TimeoutExpired, ValueError):
        return []
    return [str(each) for each in uuids]


def importable(environment: Mapping[str, str]) -> dict[str, str]:
    """The environment in which another Python imports this package."""
    package = str(Path(__file__).resolve().parents[2])
    path = os.pathsep.join(filter(None, [package, environment.get("PYTHONPATH", "")]))
    return {**environment, "PYTHONPATH": path}


def _ask_in(environment: Mapping[str, str], what: str) -> Any:
    done = subprocess.run(
        [sys.executable, "-m", "powerccl.launch.gpus", what],
        capture_output=True,
        encoding="utf-8",
        errors="replace",
        timeout=30,
        env=importable(environment),
        check=False,
    )
    return json.loads(done.stdout)


def _cuda_uuids() -> list[str]:
    import uuid

    try:
        cuda = ctypes.CDLL(CUDA)
        count, device, identity = ctypes.c_int(), ctypes.c_int(), ctypes.create_string_buffer(16)
        if cuda.cuInit(0) or cuda.cuDeviceGetCount(ctypes.byref(count)):
            return []
        uuids = []
        for index in range(count.value):
            if cuda.cuDeviceGet(ctypes.byref(device), index) or cuda.cuDeviceGetUuid(identity, device):
                return []
            uuids.append(f"GPU-{uuid.UUID(bytes=identity.raw)}")
    except (OSError, AttributeError):
        return []
    return uuids


def _clocks_mhz(nvml: ctypes.CDLL, device: ctypes.c_void_p) -> list[int]:
    memory_mhz = (ctypes.c_uint * 64)()
    count = ctypes.c_uint(64)
    listed = _succeeds(nvml, "nvmlDeviceGetSupportedMemoryClocks", device, ctypes.byref(count), memory_mhz)
    if not listed or not count.value:
        return []
    highest = ctypes.c_uint(max(memory_mhz[: count.value]))
    clocks_mhz = (ctypes.c_uint * 1024)()
    count = ctypes.c_uint(1024)
    listed = _succeeds(nvml, "nvmlDeviceGetSupportedGraphicsClocks", device, highest, ctypes.byref(count), clocks_mhz)
    return sorted(clocks_mhz[: count.value]) if listed else []


def may_set_clocks() -> bool:
    """Whether this process has the right NVML asks of who locks clocks: CAP_SYS_ADMIN, as root has."""
    try:
        status = Path("/proc/self/status").read_text(encoding="utf-8")
    except OSError:
        return False
    for line in status.splitlines():
        if line.startswith("CapEff:"):
            return bool(int(line.split()[1], 16) >> _CAP_SYS_ADMIN & 1)
    return False


if __name__ == "__main__":
    print(json.dumps(_cuda_uuids() if "cuda" in sys.argv else dataclasses.asdict(query_gpus())))
