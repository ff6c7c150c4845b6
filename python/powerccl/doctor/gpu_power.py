# SPDX-License-Identifier: Apache-2.0
"""What bounds the power of this machine's GPUs, through NVML: limits, workload power profiles, power smoothing.

All of it is set by administrators and read only here. It changes what a GPU draws, and with it what lower clocks save.
"""

from __future__ import annotations

import ctypes
from dataclasses import dataclass
from typing import Any

from powerccl.launch.gpus import NVML

PROFILES = (  # nvmlPowerProfileType_t
    *("Max-P", "Max-Q", "Compute", "Memory bound", "Network", "Balanced", "LLM inference", "LLM training"),
    *("RBM", "DCPCIE", "HMMA sparse", "HMMA dense", "Sync balanced", "HPC", "MIG"),
)
_SMOOTHING_ENABLED = 256  # NVML_FI_PWR_SMOOTHING_ENABLED
_MASK_WORDS = 8  # nvmlMask255_t


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
    """Of one GPU. None: not known, as where driver or GPU do not have it."""

    limit_w: float | None = None
    default_limit_w: float | None = None
    profiles: tuple[str, ...] = ()  # workload power profiles that are enforced
    smoothing: bool | None = None


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
    readings, count = [], ctypes.c_uint()
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
                    )
                )
    nvml.nvmlShutdown()
    return readings


def _watts(nvml: Any, function: str, device: ctypes.c_void_p) -> float | None:
    milliwatts = ctypes.c_uint()
    ask = getattr(nvml, function, None)
    return milliwatts.value / 1000 if ask is not None and ask(device, ctypes.byref(milliwatts)) == 0 else None


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
