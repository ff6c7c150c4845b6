# SPDX-License-Identifier: Apache-2.0
"""What NVML reports of the power of this machine's GPUs, and what bounds it: limits, profiles, power smoothing.

The bounds are set by administrators and read only here. They change what a GPU draws, and with it what lower clocks
save.
"""

from __future__ import annotations

import ctypes
import time
from dataclasses import dataclass
from typing import Any

from powerccl.launch.gpus import NVML

PROFILES = (  # nvmlPowerProfileType_t
    *("Max-P", "Max-Q", "Compute", "Memory bound", "Network", "Balanced", "LLM inference", "LLM training"),
    *("RBM", "DCPCIE", "HMMA sparse", "HMMA dense", "Sync balanced", "HPC", "MIG"),
)
_SMOOTHING_ENABLED = 256  # NVML_FI_PWR_SMOOTHING_ENABLED
_MASK_WORDS = 8  # nvmlMask255_t
_NOT_AVAILABLE = 2**32 - 1  # how NVML marks a value that it does not have
# How long an energy counter may stand still. Counters of today move every 20 to 100 ms. At half, a counter that was
# read late seems to stand still. At double, doctor waits longer on machines whose counters do.
_COUNTER_S = 0.3


class _CurrentProfiles(ctypes.Structure):
    _fields_ = [  # nvmlWorkloadPowerProfileCurrentProfiles_v1_t
        ("version", ctypes.c_uint),
        ("known", ctypes.c_uint * _MASK_WORDS),
        ("requested", ctypes.c_uint * _MASK_WORDS),
        ("enforced", ctypes.c_uint * _MASK_WORDS),
    ]


class _FieldValue(ctypes.Structure):
    _fields_ = [  # nvmlFieldValue_t
        ("field_id", ctypes.c_uint),
        ("scope_id", ctypes.c_uint),
        ("timestamp", ctypes.c_longlong),
        ("latency_us", ctypes.c_longlong),
        ("value_type", ctypes.c_uint),
        ("status", ctypes.c_int),
        ("value", ctypes.c_uint),
        ("value_rest", ctypes.c_uint),
    ]


@dataclass(frozen=True)
class GpuPower:
    """Of one GPU. None: not known, as where driver or GPU do not have it.

    counts: whether its energy counter moves. reads: whether it tells its power.
    """

    limit_w: float | None = None
    default_limit_w: float | None = None
    profiles: tuple[str, ...] = ()  # workload power profiles that are enforced
    smoothing: bool | None = None
    counts: bool = False
    reads: bool = False
    index: int = 0  # as NVML counts


def query_power(library: str = NVML) -> list[GpuPower]:
    """What bounds the power of each GPU; empty without NVML. Never raises."""
    try:
        nvml = ctypes.CDLL(library)
        return read_power(nvml)
    except (OSError, AttributeError):
        return []


def read_power(nvml: Any) -> list[GpuPower]:
    """The same of an opened NVML.

    Raises:
        AttributeError: it has not even the functions that every NVML has.
    """
    if nvml.nvmlInit_v2():
        return []
    readings: list[GpuPower] = []
    count = ctypes.c_uint()
    if nvml.nvmlDeviceGetCount_v2(ctypes.byref(count)) == 0:
        for index in range(count.value):
            device = ctypes.c_void_p()
            if nvml.nvmlDeviceGetHandleByIndex_v2(ctypes.c_uint(index), ctypes.byref(device)) == 0:
                readings.append(
                    GpuPower(
                        _watts(nvml, "nvmlDeviceGetEnforcedPowerLimit", device),
                        _watts(nvml, "nvmlDeviceGetPowerManagementDefaultLimit", device),
                        _profiles(nvml, device),
                        _smoothing(nvml, device),
                        _counts(nvml, device),
                        _watts(nvml, "nvmlDeviceGetPowerUsage", device) is not None,
                        index,
                    )
                )
    nvml.nvmlShutdown()
    return readings


def _watts(nvml: Any, function: str, device: ctypes.c_void_p) -> float | None:
    milliwatts = ctypes.c_uint()
    ask = getattr(nvml, function, None)
    if ask is None or ask(device, ctypes.byref(milliwatts)) != 0 or milliwatts.value in (0, _NOT_AVAILABLE):
        return None
    return milliwatts.value / 1000


def _counts(nvml: Any, device: ctypes.c_void_p) -> bool:
    """Whether the total-energy counter moves: a GPU always draws power, and some drivers answer with a constant."""
    first, now = ctypes.c_ulonglong(), ctypes.c_ulonglong()
    ask = getattr(nvml, "nvmlDeviceGetTotalEnergyConsumption", None)
    if ask is None or ask(device, ctypes.byref(first)) != 0:
        return False
    end_s = time.monotonic() + _COUNTER_S
    while time.monotonic() < end_s:
        if ask(device, ctypes.byref(now)) == 0 and now.value > first.value:
            return True
        time.sleep(0.01)
    return False


def _profiles(nvml: Any, device: ctypes.c_void_p) -> tuple[str, ...]:
    ask = getattr(nvml, "nvmlDeviceWorkloadPowerProfileGetCurrentProfiles", None)
    current = _CurrentProfiles(version=ctypes.sizeof(_CurrentProfiles) | 1 << 24)
    if ask is None or ask(device, ctypes.byref(current)) != 0:
        return ()
    bits = [32 * word + bit for word in range(_MASK_WORDS) for bit in range(32) if current.enforced[word] >> bit & 1]
    return tuple(PROFILES[bit] if bit < len(PROFILES) else f"profile {bit}" for bit in bits)


def _smoothing(nvml: Any, device: ctypes.c_void_p) -> bool | None:
    ask = getattr(nvml, "nvmlDeviceGetFieldValues", None)
    field = _FieldValue(field_id=_SMOOTHING_ENABLED)
    if ask is None or ask(device, ctypes.c_int(1), ctypes.byref(field)) != 0 or field.status != 0:
        return None
    return bool(field.value)
