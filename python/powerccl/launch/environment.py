# SPDX-License-Identifier: Apache-2.0
"""The environment a job gets; variables are listed in native/abi/environment.def."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from powerccl.launch.native import EMULATED_LIBRARIES, NCCL_ADAPTER, NativeFiles
from powerccl.traces.run_info import read_run_id

# What `run.json` keeps of the environment: what changes how a job communicates or which GPUs it sees.
RECORDED_PREFIXES = (
    "NCCL_",
    "POWERCCL_",
    "CUDA_",
    "TORCH_",
    "SLURM_JOB",
    "SLURM_NTASKS",
    "SLURM_NNODES",
    "OMP_",
    "OMPI_MCA_",
    "MPIR_CVAR_",
    "I_MPI_",
    "MV2_",
    "UCX_",
)
RECORDED = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "MASTER_ADDR", "LD_PRELOAD", "LD_LIBRARY_PATH")

SLOWDOWN_VARIABLE = "POWERCCL_MAX_SLOWDOWN"
LEAST_BUDGET_PCT = 0.2  # a smaller one is taken as this (kLeastBudget in native/job/policy/learning_policy.h)
SLOWDOWN_RANGE_PCT = (0.0, 100.0)  # that the runtime takes (native/job/base/environment.cpp)
DEFAULT_SLOWDOWN_PCT = 1.0

# NCCL loads one plugin of each kind. Ours takes its place and loads the user's in turn.
PROFILER = "NCCL_PROFILER_PLUGIN"
TUNER = "NCCL_TUNER_PLUGIN"
TUNER_TABLE = "POWERCCL_TUNER_TABLE"
LOCAL_FOLDER = "POWERCCL_LOCAL_FOLDER"
CHAINED = {PROFILER: "POWERCCL_CHAINED_PROFILER", TUNER: "POWERCCL_CHAINED_TUNER"}

# File names of the libraries whose calls ours interpose.
CALLED = ("libnccl", "libcuda", "libmpi")


def with_plugin(base: Mapping[str, str], kind: str, native: NativeFiles) -> dict[str, str]:
    """The environment with our library as NCCL's plugin of that kind, in front of the one that it names so far."""
    adapter = str(native.path(NCCL_ADAPTER))
    environment = {**base, kind: adapter}
    if base.get(kind, adapter) != adapter:
        environment.setdefault(CHAINED[kind], base[kind])
    return environment


def emulated_environment(base: Mapping[str, str], native: NativeFiles, listening: Path) -> dict[str, str]:
    """The environment in which libcuda, libnvidia-ml and libnccl are the emulator's."""
    libraries = str(native.path(EMULATED_LIBRARIES[0]).parent)
    others = base.get("LD_LIBRARY_PATH", "")
    return {
        **base,
        "LD_LIBRARY_PATH": f"{libraries}:{others}" if others else libraries,
        "POWERCCL_EMULATOR_SOCKET": str(listening),
    }


def job_environment(
    base: Mapping[str, str],
    native: NativeFiles,
    folder: Path,
    policy: str,
    table: Path | None,
    clocks: str,
    slowdown_pct: float | None = None,
    local: Path | None = None,
) -> dict[str, str]:
    """The environment that lets the adapters see a job and write into its run folder.

    `slowdown_pct`: what policies that learn may cost; None leaves what the user's environment says. `local`: the folder
    of this node that takes the records while the job runs.
    """
    environment = {
        **with_plugin(base, PROFILER, native),
        "POWERCCL_RUN_FOLDER": str(folder),
        "POWERCCL_POLICY": policy,
        "POWERCCL_CLOCKS": clocks,
    }
    environment["POWERCCL_RUN_ID"] = read_run_id(folder)
    for name in ("POWERCCL_POLICY_TABLE", LOCAL_FOLDER):  # an outer run's
        environment.pop(name, None)
    if local:
        environment[LOCAL_FOLDER] = str(local)
    if table:
        environment["POWERCCL_POLICY_TABLE"] = str(table)
    if slowdown_pct is not None:
        environment[SLOWDOWN_VARIABLE] = f"{slowdown_pct:g}"
    return environment


def slowdown_budget_pct(environment: Mapping[str, str]) -> float:
    """The slowdown that the runtime lets policies that learn cost: what it takes no number for is its default."""
    try:
        value = float(environment.get(SLOWDOWN_VARIABLE, ""))
    except ValueError:
        return DEFAULT_SLOWDOWN_PCT
    least, most = SLOWDOWN_RANGE_PCT
    return value if least <= value <= most else DEFAULT_SLOWDOWN_PCT


def preload_wanted(environment: Mapping[str, str], asked: bool = True) -> bool:
    """Whether libraries of ours may go into LD_PRELOAD: not with `--no-preload`, nor with POWERCCL_PRELOAD=0."""
    return asked and environment.get("POWERCCL_PRELOAD", "") not in ("0", "no", "off", "false")


def can_preload(library: Path) -> bool:
    """Whether LD_PRELOAD can name a library: it has no way to write a blank or a colon."""
    return ":" not in str(library) and not any(letter.isspace() for letter in str(library))


def with_preload(environment: Mapping[str, str], libraries: Sequence[Path], wanted: Sequence[Path]) -> dict[str, str]:
    """The environment with `wanted` preloaded last, and no others of `libraries`, which an outer run may have left.

    A library that must come first (AddressSanitizer's runtime, another MPI tool) stays where the user put it.
    An NCCL, CUDA or MPI that the user preloads comes behind these: calls would never reach them otherwise.
    """
    names = {str(library) for library in libraries}
    before = environment.get("LD_PRELOAD", "").replace(":", " ").split()
    kept = [name for name in before if name not in names]
    added = [str(library) for library in wanted if can_preload(library)]
    if not added and kept == before:
        return dict(environment)
    place = next((i for i, name in enumerate(kept) if Path(name).name.startswith(CALLED)), len(kept))
    preloaded = {**environment, "LD_PRELOAD": ":".join([*kept[:place], *added, *kept[place:]])}
    if not preloaded["LD_PRELOAD"]:
        del preloaded["LD_PRELOAD"]
    return preloaded


def with_sanitizers(environment: Mapping[str, str], base: Mapping[str, str]) -> dict[str, str]:
    """The environment in which programs built with AddressSanitizer start although a library comes before theirs.

    Ours interpose no function that AddressSanitizer does. A library that the user preloads may, so its check
    is left on then. What the user says about it comes later, and wins.
    """
    if base.get("LD_PRELOAD") or not environment.get("LD_PRELOAD"):
        return dict(environment)
    options = environment.get("ASAN_OPTIONS", "")
    return {**environment, "ASAN_OPTIONS": ":".join(filter(None, ("verify_asan_link_order=0", options)))}


def recorded(environment: Mapping[str, str]) -> dict[str, str]:
    """The part of the environment that run.json keeps; nothing that may hold a secret."""
    return {
        name: value
        for name, value in sorted(environment.items())
        if name in RECORDED or name.startswith(RECORDED_PREFIXES)
    }
