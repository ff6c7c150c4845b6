# SPDX-License-Identifier: Apache-2.0
"""Which of a host's GPUs a job could see, by what its environment says.

A host samples all of its GPUs. Where no rank left a trace, nothing names the GPUs that the job used, and those that it
could see count as its own. `powerccl run` notes the variables, and they are read here. A GPU that a container or a
cgroup keeps from the job is not sampled at all, so no variable has to say so.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

# The key in the head of power-<host>.csv: a JSON object of those of VARIABLES that were set.
HEAD_KEY = "job_environment"
CUDA, ORDER = "CUDA_VISIBLE_DEVICES", "CUDA_DEVICE_ORDER"
CONTAINER = "NVIDIA_VISIBLE_DEVICES"
# Of the step first: a step may have fewer GPUs than its job.
SLURM = ("SLURM_STEP_GPUS", "SLURM_JOB_GPUS")
VARIABLES = (CUDA, ORDER, CONTAINER, *SLURM)
# In place of a variable: each of several launchers of this host may have had its own.
SEVERAL = "several"
_INDEX = re.compile(r"\s*\+?(\d{1,9})\s*")


@dataclass(frozen=True)
class Sampled:
    """One sampled GPU: its number as NVML counts, its UUID in the file, and its model."""

    index: int
    uuid: str
    model: str


@dataclass(frozen=True)
class Visible:
    """The GPUs of a host that a job could see, by their index; `note`: of what else the energy of these GPUs is."""

    indices: frozenset[int]
    note: str = ""


def noted(environment: Mapping[str, str], several: bool) -> dict[str, str]:
    """What of a job's environment says which GPUs it sees; `several`: other ranks of this host may have another one."""
    values = {name: environment[name] for name in VARIABLES if name in environment}
    return {**values, SEVERAL: "1"} if several else values


def visible_in(about: Mapping[str, str], environment: Mapping[str, str]) -> Visible:
    """Of the GPUs in the head of a file of samples; `environment`: the job's, where the head does not have it."""
    gpus = []
    for key, uuid in about.items():
        if number := re.fullmatch(r"gpu(\d{1,6})_uuid", key):
            gpus.append(Sampled(int(number[1]), uuid, about.get(f"gpu{number[1]}_name", "")))
    try:
        source = json.loads(about[HEAD_KEY]) if HEAD_KEY in about else environment
    except ValueError:
        source = {}
    return visible({str(key): str(value) for key, value in source.items()} if isinstance(source, Mapping) else {}, gpus)


def visible(environment: Mapping[str, str], gpus: Sequence[Sampled]) -> Visible:
    """Which of the sampled GPUs the job could see."""
    every = frozenset(gpu.index for gpu in gpus)
    slurm = next((environment[name] for name in SLURM if environment.get(name)), "")
    several = SEVERAL in environment
    if slurm and (several or CUDA not in environment):
        return _by_slurm(slurm, every)
    if CUDA in environment:
        chosen = _by_cuda(environment[CUDA], environment.get(ORDER, ""), gpus, every)
        differ = several and chosen.indices != every
        return _of_node(every, f"ranks of one host may each have another {CUDA}") if differ else chosen
    listed = environment.get(CONTAINER, "")
    # CDI sets `void`, by which Kubernetes puts in GPUs: all that are seen are the job's.
    if listed in ("", "all", "void"):
        return Visible(every)
    # Where a container's runtime has acted on it, so many GPUs are seen; else it is of a container that the job starts.
    if listed == "none" or len(set(listed.split(","))) != len(every):
        return _of_node(every, f"{CONTAINER} is {listed}, and other GPUs can be seen")
    return Visible(every)


def _of_node(every: frozenset[int], why: str) -> Visible:
    return Visible(every, f"energy is of all GPUs of the node, since the job's own are not known: {why}")


def _by_cuda(listed: str, order: str, gpus: Sequence[Sampled], every: frozenset[int]) -> Visible:
    """As CUDA reads CUDA_VISIBLE_DEVICES: up to the first entry that names no GPU."""
    ordered = sorted(gpus, key=lambda gpu: gpu.index)  # NVML counts by PCI address
    by_address = order == "PCI_BUS_ID" or len({gpu.model for gpu in gpus}) < 2
    indices: set[int] = set()
    note = ""
    for entry in listed.split(","):
        number = _INDEX.fullmatch(entry)
        if number:
            if int(number[1]) >= len(ordered):
                break
            if not by_address:
                return _of_node(every, f"{CUDA} counts GPUs of several models by speed, without {ORDER}=PCI_BUS_ID")
            indices.add(ordered[int(number[1])].index)
            continue
        instance = entry.startswith("MIG-")
        if instance and not entry.startswith("MIG-GPU-") and len(ordered) != 1:
            return _of_node(every, f"{CUDA} names an instance of MIG, and not its GPU")
        # MIG-GPU-<uuid>/<instance>/<instance>, before driver 470
        name = entry.removeprefix("MIG-").split("/")[0].lower()
        named = [gpu for gpu in ordered if name.startswith("gpu-") and gpu.uuid.lower().startswith(name)]
        if instance:
            named = named or ordered * (not name.startswith("gpu-"))
            note = "energy is of whole GPUs, of which the job sees instances of MIG"
        if len(named) != 1:
            break
        indices.add(named[0].index)
    return Visible(frozenset(indices), note)


def _by_slurm(listed: str, every: frozenset[int]) -> Visible:
    """By Slurm's numbers of a job's GPUs on the host. Where a cgroup keeps others away, all that are seen are those."""
    chosen = numbers(listed)
    if chosen is None:
        return _of_node(every, f"Slurm lists them as {listed}")
    if len(chosen) >= len(every):
        return Visible(every)
    if chosen <= every:
        return Visible(frozenset(chosen))
    return _of_node(every, f"Slurm lists them as {listed}, which this host does not have")


def numbers(listed: str) -> set[int] | None:
    """`0,2-3` as numbers; None: it is something else."""
    chosen: set[int] = set()
    for part in listed.split(","):
        ends = re.fullmatch(r"(\d{1,4})(?:-(\d{1,4}))?", part)
        if not ends:
            return None
        chosen |= set(range(int(ends[1]), int(ends[2] or ends[1]) + 1))
    return chosen
