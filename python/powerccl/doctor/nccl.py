# SPDX-License-Identifier: Apache-2.0
"""The checks of `powerccl doctor` that are about NCCL: its versions, what works with each, and other plugins."""

from __future__ import annotations

import contextlib
import os
import re
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path

from powerccl.doctor.checks import Check
from powerccl.launch.environment import CHAINED, PROFILER, TUNER
from powerccl.launch.native import NCCL_ADAPTER, NativeFiles
from powerccl.quantities import plural

# The newest profiler interface that each NCCL speaks and what PowerCCL sees through it, newest first.
SEEN = (
    (23100, 7, "calls and kernels, also symmetric ones, and copy engines"),
    (22900, 6, "calls, kernels and copy engines"),
    (22800, 5, "calls and kernels"),
    (22700, 4, "kernels; calls only once they are launched"),
    (21800, 0, "calls and kernels through preloaded functions"),
)
OLDEST_CHAINED = {PROFILER: 4, TUNER: 3}
SYMBOL = {PROFILER: "ncclProfiler_v", TUNER: "ncclTunerPlugin_v"}
KIND = {PROFILER: "profiler", TUNER: "tuner"}

SHM = Path("/dev/shm")
# What NCCL needs there for a rank and communicator that it times kernels of (native/job/adapters/nccl/profiler.cpp).
POOL_BYTES = 36 << 20
COMMUNICATORS = 4  # of a job with tensor, data and pipeline parallelism, and one for all


def check_nccl(native: NativeFiles | None, gpus: int, environment: Mapping[str, str] = os.environ) -> Iterator[Check]:
    """NCCLs that a job may load, other plugins in the environment, and shared memory for `gpus` ranks."""
    versions = {path: version for path in _libraries() if (version := _version(path))}
    for path, version in versions.items():
        yield check_version(path, version)
    if not versions:
        yield Check(
            "NCCL",
            "missing",
            "the loader and this Python find no libnccl.so.2",
            "a job may have its own; else: pip install nvidia-nccl-cu13",
        )
    adapter = str(native.root / NCCL_ADAPTER) if native else ""
    for variable in (PROFILER, TUNER):
        value = environment.get(CHAINED[variable]) or environment.get(variable, "")
        if value not in ("", "none", adapter):
            yield check_plugin(variable, value)
    if gpus > 1:
        yield check_shared_memory(SHM, gpus)


def check_version(path: str, version: int) -> Check:
    """What works with an NCCL."""
    text = f"{version // 10000}.{version % 10000 // 100}.{version % 100} in {path}"
    interface, seen = next(((v, what) for least, v, what in SEEN if version >= least), (0, ""))
    if not seen:
        return Check("NCCL", "missing", f"{text}; too old to be recorded", "use NCCL 2.18 or newer")
    by = f"profiler plugin v{interface}: {seen}" if interface else seen
    advice = ""
    if version >= 23100:
        advice = (
            "timing kernels cost 4 to 13 % of short collectives in 2.31.2 (NVIDIA/nccl#2355); PowerCCL samples those"
        )
    elif version < 22800:
        advice = "NCCL 2.28 and newer tell when calls are made"
    return Check("NCCL", "ok", f"{text}; {by}", advice)


def check_plugin(variable: str, value: str) -> Check:
    """Whether the user's own profiler or tuner can be loaded behind PowerCCL's."""
    kind = KIND[variable]
    versions = _interfaces(value, kind, SYMBOL[variable])
    name = f"your {kind}"
    if versions is None:
        return Check(name, "missing", f"{variable}={value} cannot be loaded", "NCCL would not find it either")
    usable = [version for version in versions if version >= OLDEST_CHAINED[variable]]
    if not usable:
        interface = f"v{max(versions)}" if versions else f"no {kind}"
        return Check(
            name,
            "missing",
            f"{value} is {interface}; PowerCCL passes on v{OLDEST_CHAINED[variable]} and newer",
            f"it is left out under `powerccl run`; without it, unset {variable}",
        )
    listed = ", ".join(f"v{version}" for version in usable)
    return Check(name, "ok", f"{value} ({listed}); PowerCCL loads it in turn")


def check_shared_memory(folder: Path, gpus: int) -> Check:
    """Whether NCCL has room for what it needs to time kernels."""
    name = "shared memory"
    try:
        usage = os.statvfs(folder)
    except OSError as error:
        return Check(name, "missing", f"{folder}: {error.strerror}", "NCCL needs it; mount a tmpfs there")
    total, needed = usage.f_blocks * usage.f_frsize, POOL_BYTES * gpus * COMMUNICATORS
    text = f"{total >> 20} MiB in {folder}" if total else f"no limit in {folder}"
    if not total or total >= needed:
        return Check(name, "ok", text)
    return Check(
        name,
        "missing",
        f"{text}; to time kernels NCCL needs {POOL_BYTES >> 20} MiB for each rank and communicator, and crashes "
        f"without (NVIDIA/nccl#2326). Where it is too small, PowerCCL times with CUDA events",
        f"for {plural(gpus, 'GPU')}: docker run --ipc=host, or --shm-size={-(-needed >> 30)}g",
    )


def _libraries() -> list[str]:
    """libnccl.so.2 as this Python's packages carry it, and as the loader finds it."""
    folders = [Path(entry) for entry in sys.path if entry]
    packaged: list[str] = []
    for folder in folders:
        with contextlib.suppress(OSError):  # a folder that this user may not read
            packaged += map(str, folder.glob("nvidia/nccl*/lib/libnccl.so.2"))
    return list(dict.fromkeys([*packaged, "libnccl.so.2"]))


def _version(path: str) -> int:
    """ncclGetVersion, in a process of its own: loading a foreign libnccl is its business, not ours."""
    code = (
        "import ctypes,sys;v=ctypes.c_int();l=ctypes.CDLL(sys.argv[1]);l.ncclGetVersion(ctypes.byref(v));print(v.value)"
    )
    answer = _in_python(code, path)
    return int(answer) if answer and answer.isdigit() else 0


def _interfaces(value: str, kind: str, symbol: str) -> list[int] | None:
    """Versions of NCCL's interface that a plugin has, found by NCCL's rules; None: it cannot be opened."""
    names = [value]
    if "/" not in value and not re.fullmatch(r"lib.*\.so", value):
        names.append(f"libnccl-{kind}-{value}.so")
    code = (
        "import ctypes,sys;l=ctypes.CDLL(sys.argv[1]);"
        "print(*[n for n in range(1,20) if hasattr(l,sys.argv[2]+str(n))] or ['none'])"
    )
    for name in names:
        answer = _in_python(code, name, symbol)
        if answer:
            return [int(word) for word in answer.split() if word.isdigit()]
    return None


def _in_python(code: str, *arguments: str) -> str:
    try:
        done = subprocess.run(
            [sys.executable, "-c", code, *arguments],
            capture_output=True,
            encoding="utf-8",
            errors="replace",
            timeout=20,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return done.stdout.strip() if done.returncode == 0 else ""
