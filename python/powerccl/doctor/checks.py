# SPDX-License-Identifier: Apache-2.0
"""Checks of `powerccl doctor`: what one says, and those of GPUs and of the clock daemon. None changes anything.

state: `ok`; `missing` (something works less well or not at all, for want of it); `broken` (a part of powerccl itself
does not work).
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from powerccl.doctor.gpu_power import GpuPower
from powerccl.errors import PowercclError
from powerccl.launch.gpus import Gpus, may_set_clocks
from powerccl.leases.client import GUIDE, NoDaemonError, connect
from powerccl.quantities import byte_size, plural


@dataclass(frozen=True)
class Check:
    """One finding: what was checked, its state, the details, and what to do about it."""

    name: str
    state: str
    found: str
    advice: str = ""

    def as_dict(self) -> dict[str, str]:
        """For JSON."""
        return dataclasses.asdict(self)


def check_gpus(gpus: Gpus, leases: bool = False) -> Iterator[Check]:
    """What can be read and set of the GPUs; `leases`: a clock daemon would set their clocks for this user."""
    if not gpus.names:
        yield Check(
            "GPUs", "missing", gpus.describe(), "install the NVIDIA driver, or use an emulated server: --emulate t4x8"
        )
        return
    word = "emulated, " if gpus.emulated else ""
    yield Check("GPUs", "ok", f"{gpus.describe()} ({word}driver {gpus.driver})")
    if not gpus.clocks_mhz:
        yield Check("clocks", "missing", "NVML lists no clocks", "policies decide clocks here but set none")
        return
    span = f"{min(gpus.clocks_mhz)} to {max(gpus.clocks_mhz)} MHz in {plural(len(gpus.clocks_mhz), 'step')}"
    if gpus.emulated or may_set_clocks():
        yield Check("clocks", "ok", f"{span}; can be set (with --set-clocks)")
    elif leases:
        yield Check("clocks", "ok", f"{span}; can be set through powerccld (with --set-clocks)")
    else:
        advice = "run as root (CAP_SYS_ADMIN), or have powerccld installed, which sets clocks for users"
        yield Check("clocks", "missing", f"{span}; this user may not set them", advice)


def check_energy(gpus: Sequence[GpuPower]) -> Iterator[Check]:
    """Where the energy of each of these GPUs is known from."""
    counted = [gpu.index for gpu in gpus if gpu.counts]
    read = [gpu.index for gpu in gpus if gpu.reads and not gpu.counts]
    unknown = [gpu.index for gpu in gpus if not gpu.counts and not gpu.reads]
    if not gpus:
        return
    if len(counted) == len(gpus):
        yield Check("energy", "ok", "total-energy counter (exact at any sampling interval)")
        return
    parts = [f"energy counter on {len(counted)} of {plural(len(gpus), 'GPU')}"] if counted else []
    if len(read) == len(gpus):
        parts.append("power readings only; energy is integrated from samples")
    elif read:
        parts.append(f"power readings on {_gpu_names(read)}")
    if unknown:
        where = f" on {_gpu_names(unknown)}" if len(unknown) < len(gpus) else ""
        parts.append(f"neither energy counter nor power reading{where}")
        advice = "their energy is not known: check them by nvidia-smi -q -d POWER"
    else:
        advice = "Volta and newer GPUs count it, unless their energy counter stands still"
    yield Check("energy", "missing" if unknown else "ok", "; ".join(parts), advice)


def _gpu_names(indices: Sequence[int]) -> str:
    return f"GPU{'s' if len(indices) > 1 else ''} {', '.join(map(str, indices))}"


def check_power(gpus: Sequence[GpuPower]) -> Iterator[Check]:
    """What an administrator has set that bounds the power of these GPUs."""
    limits = sorted({gpu.limit_w for gpu in gpus if gpu.limit_w is not None})
    lowered = sum(
        gpu.limit_w is not None and gpu.default_limit_w is not None and gpu.limit_w < gpu.default_limit_w
        for gpu in gpus
    )
    if limits:
        watt_range = " to ".join(f"{watts:.0f} W" for watts in dict.fromkeys((limits[0], limits[-1])))
        below = f"; {lowered} of {plural(len(gpus), 'GPU')} below the default" if lowered else ""
        advice = "a profile made with other limits predicts other savings: make one with these" if lowered else ""
        yield Check("power limit", "ok", f"{watt_range}{below}", advice)
    profiles = sorted({name for gpu in gpus for name in gpu.profiles})
    if profiles:
        yield Check(
            "power profile",
            "ok",
            f"{', '.join(profiles)} (NVIDIA's workload power profiles)",
            "it sets clocks and limits too; what PowerCCL measures is with it",
        )
    smoothed = sum(bool(gpu.smoothing) for gpu in gpus)
    if smoothed:
        yield Check(
            "power smoothing",
            "missing",
            f"on for {plural(smoothed, 'GPU')}: they keep up a least power while idle",
            "lower clocks save less there; measure before you rely on them",
        )


def check_ways(names: list[str]) -> Iterator[Check]:
    """What `powerccl run --ways auto` would do on these GPUs; `names` as NVML prints them."""
    from powerccl.platforms.ways import copy_engines_from, tables_for

    if len(names) < 2:  # nothing to communicate with
        return
    tables = tables_for(names)
    if not tables:
        advice = "powerccl profile --ways, which takes some minutes and no right"
        yield Check("ways", "missing", "no table for these GPUs: `run --ways auto` has nothing to go by", advice)
        return
    sizes = copy_engines_from(tables.values())
    uses = [f"from {byte_size(size)} on with {ranks} ranks" for ranks, size in sizes.items()]
    does = f"uses copy engines for FSDP2 {', '.join(uses)}" if uses else "changes nothing here"
    listed = ", ".join(table.name for table in tables.values())
    yield Check("ways", "ok", f"`run --ways auto` {does} ({'tables' if len(tables) > 1 else 'table'} {listed})")


def check_daemon(path: Path) -> Check:
    """Whether a clock daemon listens there and would give this user leases. Jobs that only observe need none."""
    name = "clock daemon"
    try:
        with connect(path, "powerccl doctor") as leases:
            devices = leases.status()
            allowed = leases.may_lease()
    except NoDaemonError as error:
        return Check(name, "missing", error.message, f"{GUIDE}; jobs that only observe need none")
    except PowercclError as error:
        return Check(name, "missing", error.message, error.hint)
    state = f"{leases.server}, {plural(len(devices), 'GPU')}{', dry: sets no clock' if leases.dry else ''}"
    if not allowed:
        advice = "ask the administrator to name you in `users` or `groups` of /etc/powerccl/powerccld.toml"
        return Check(name, "missing", f"{state}; you may have no leases", advice)
    if leases.draining:
        return Check(
            name, "missing", f"{state}; draining: it grants no new leases", "ask the administrator when it will"
        )
    return Check(name, "ok", f"{state}; you may have leases{' and revoke those of others' if leases.admin else ''}")
