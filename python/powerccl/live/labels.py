# SPDX-License-Identifier: Apache-2.0
"""Labels of a run in metrics: the exporter's and the report's are the same."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping
from pathlib import Path

from powerccl.traces.job_labels import OF_HOST, OF_SLURM

LONGEST_LABEL = 256
_IN_CONTAINER = re.compile(r"/proc/\d+/root(/.*)", re.DOTALL)


def emulated_label(modelled_by: str) -> str:
    """The emulated platform without its settings, `yes` without a name; empty: real GPUs."""
    return modelled_by.split(":")[0]


def in_container(folder: str) -> bool:
    """Whether a folder is seen through a process of its container."""
    return bool(_IN_CONTAINER.fullmatch(folder))


def run_label(folder: str, run_id: str = "") -> str:
    """What a run is called in metrics: its folder's absolute path, which is no other run's, now and later.

    A name would not do: two jobs of one command have the same. A longer path than a label keeps its end and a digest.
    In a container it is the path there, which two containers may have, and the beginning of the run's id. The path from
    here leads through a process of the job, which may end before the job does.
    """
    path = str(Path(folder).absolute())
    if run_id and (inside := _IN_CONTAINER.fullmatch(path)):
        path = f"{inside[1]}#{run_id[:12]}"
    if len(path) <= LONGEST_LABEL:
        return path
    digest = hashlib.sha256(path.encode("utf-8", "surrogateescape")).hexdigest()[:16]
    return f"{digest}…{path[-(LONGEST_LABEL - len(digest) - 1) :]}"


def labels_here(recorded: Mapping[str, str], of_processes: Mapping[str, str], host_here: bool) -> dict[str, str]:
    """A run's job, pod and container on this host, by run.json and by the run's processes here.

    run.json is of the first rank's host; `host_here`: whether that is this one. Processes that run say which pod and
    container they are in. Of a heterogeneous Slurm job, they may be of another component than the first rank.
    """
    job, known_job = (each.get("slurm_raw_job_id", "") for each in (of_processes, recorded))
    slurm = of_processes if job and job != known_job else recorded
    pods = of_processes if of_processes else recorded if host_here else {}
    labels = {name: of[name] for names, of in ((OF_SLURM, slurm), (OF_HOST, pods)) for name in names if name in of}
    uid, namespace = "k8s_pod_uid", "k8s_namespace_name"
    if namespace in recorded and labels.get(uid) == recorded.get(uid, ""):  # read inside the pod alone
        labels.setdefault(namespace, recorded[namespace])
    return labels
