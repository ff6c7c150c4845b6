# SPDX-License-Identifier: Apache-2.0
"""Whose run a run is: the Slurm job, the Kubernetes pod and the container of a process.

The kernel's word comes first: the process's cgroups name the Slurm job and the container, and its mounts name the pod.
Then comes the environment, which may be a copy of another job's: where it contradicts the kernel, it is ignored. What
neither tells is absent. A host name is no evidence of a pod's name: pods of an indexed Job have other host names.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterable, Mapping
from pathlib import Path

from powerccl import clean

# Each label and what it names. Names of pods and containers are OpenTelemetry's (k8s.pod.name, container.id).
LABELS = {
    "slurm_cluster": "cluster",
    "slurm_job_id": "job as `squeue` shows it: `16`, `16_1` for an array task, `16+1` for a heterogeneous component",
    "slurm_raw_job_id": "the job's own number, as `sacct` has it in `JobIDRaw`",
    "slurm_array_job_id": "array job",
    "slurm_array_task_id": "task of the array job",
    "slurm_step_id": "step: a number, `batch`, `interactive` or `extern`",
    "slurm_restart_count": "times that Slurm requeued the job; absent: none, or not known",
    "slurm_job_name": "name of the job",
    "slurm_user": "user of the job",
    "slurm_account": "account that the job is charged to",
    "slurm_partition": "partition",
    "k8s_namespace_name": "namespace of the pod",
    "k8s_pod_name": "pod",
    "k8s_pod_uid": "the pod's UID; of a static pod, the hash of its manifest",
    "k8s_container_name": "container in the pod",
    "container_id": "the container's id, 64 hexadecimal digits",
    "container_runtime": "`docker`, `containerd`, `cri-o` or `podman`",
}
OF_SLURM = tuple(name for name in LABELS if name.startswith("slurm_"))
OF_HOST = tuple(name for name in LABELS if name not in OF_SLURM)  # each host of a run has its own
LONGEST = 256  # characters of a value: a pod's name has 253 at most, and a longer value fills a collector's memory

_ID = re.compile(r"\d{1,10}")
_DNS = re.compile(r"[a-z0-9]([a-z0-9.-]{0,251}[a-z0-9])?")
_UID = r"[0-9a-f]{8}(?:[-_][0-9a-f]{4}){3}[-_][0-9a-f]{12}|[0-9a-f]{32}"
_NAME = re.compile(r".{1,256}", re.DOTALL)
# Each label's variables; the first that is set counts. Slurm's are those of its batch scripts and steps. Those of pods
# are set in the pod's manifest, from the downward API; a container's own name has to be written there.
_VARIABLES = {
    "slurm_cluster": ("SLURM_CLUSTER_NAME", _NAME),
    "slurm_raw_job_id": ("SLURM_JOB_ID", _ID),
    "slurm_array_job_id": ("SLURM_ARRAY_JOB_ID", _ID),
    "slurm_array_task_id": ("SLURM_ARRAY_TASK_ID", _ID),
    "slurm_step_id": ("SLURM_STEP_ID", _ID),
    "slurm_restart_count": ("SLURM_RESTART_COUNT", _ID),
    "slurm_job_name": ("SLURM_JOB_NAME", _NAME),
    "slurm_user": ("SLURM_JOB_USER", _NAME),
    "slurm_account": ("SLURM_JOB_ACCOUNT", _NAME),
    "slurm_partition": ("SLURM_JOB_PARTITION", _NAME),
    "k8s_namespace_name": ("POD_NAMESPACE", _DNS),
    "k8s_pod_name": ("POD_NAME", _DNS),
    "k8s_pod_uid": ("POD_UID", re.compile(_UID)),
    "k8s_container_name": ("CONTAINER_NAME", _DNS),
}
# Of a heterogeneous job, SLURM_JOB_ID is the first component's in all components.
_HET_SIZE, _HET_GROUP = "SLURM_HET_SIZE", "SLURM_JOB_ID_HET_GROUP_"
_IN_POD = "KUBERNETES_SERVICE_HOST"  # kubelet sets it in each container
READ = frozenset({_HET_SIZE, _IN_POD, *(variable for variable, _ in _VARIABLES.values())})

# cgroup v1: /slurm/uid_1000/job_16/step_0/task_0, below another root with CgroupPrepend or several slurmd of a node.
# cgroup v2: /system.slice/slurmstepd.scope/job_16/step_0/user/task_0. A step of several components is step_0+1.
_SLURM = re.compile(r"(?:/uid_\d+|slurmstepd\.scope)/job_(\d{1,10})(?:/step_([0-9a-z]{1,11})(?:\+\d+)?)?(?=/|$)")
_POD = re.compile(rf"[/-]pod({_UID})(?:\.slice)?(?=[/:]|$)")
_CONTAINER = re.compile(r"[/:](?:(docker|cri-containerd|nerdctl|crio|libpod)[-/:])?([0-9a-f]{64})(?:\.scope)?(?=/|$)")
_RUNTIMES = {
    "docker": "docker",
    "cri-containerd": "containerd",
    "nerdctl": "containerd",
    "crio": "cri-o",
    "libpod": "podman",
}
# kubelet mounts this file from /var/lib/kubelet/pods/<uid>/containers/<name>/<hash>.
_TERMINATION_LOG = re.compile(rf"/pods/({_UID})/containers/([a-z0-9-]{{1,63}})/[0-9a-f]+ /dev/termination-log ")
_NAMESPACE = Path("/var/run/secrets/kubernetes.io/serviceaccount/namespace")


def of_cgroups(text: str) -> dict[str, str]:
    """The labels that a process's cgroups tell; `text` is /proc/PID/cgroup, of v1, v2 or both.

    Controllers that name different jobs or containers tell nothing of them. Of nested containers, the innermost counts.
    """
    paths = [line.split(":", 2)[2].removesuffix(" (deleted)") for line in text.splitlines() if line.count(":") >= 2]
    jobs = [matches[-1] for path in paths if (matches := _SLURM.findall(path))]
    pods = [matches[-1] for path in paths if (matches := _POD.findall(path))]
    # Without a runtime's name, 64 digits are a container below a pod alone.
    nested = [[each for each in _CONTAINER.findall(path) if each[0] or _POD.search(path)] for path in paths]
    containers = [matches[-1] for matches in nested if matches]
    job = _same(job for job, _ in jobs)
    labels = {
        "slurm_raw_job_id": job,
        "slurm_step_id": _same(step for _, step in jobs if step and job),
        "k8s_pod_uid": _same(pods).replace("_", "-"),
        "container_id": _same(container for _, container in containers),
        "container_runtime": _RUNTIMES.get(_same(runtime for runtime, _ in containers if runtime), ""),
    }
    return {name: value for name, value in labels.items() if value}


def of_mounts(text: str) -> dict[str, str]:
    """The pod and container that a process's mounts tell; `text` is /proc/PID/mountinfo."""
    containers = set(_TERMINATION_LOG.findall(text))
    if len(containers) != 1:
        return {}
    uid, name = containers.pop()
    return {"k8s_pod_uid": uid, "k8s_container_name": name}


def _same(values: Iterable[str]) -> str:
    """The value that all have; empty if they differ, or if there is none."""
    different = set(values)
    return different.pop() if len(different) == 1 else ""


def of_environment(environment: Mapping[str, str], kernel: Mapping[str, str] | None = None) -> dict[str, str]:
    """All labels of a process: `kernel` is what its cgroups and mounts tell."""
    kernel = kernel or {}
    said = {
        name: value
        for name, (variable, form) in _VARIABLES.items()
        if form.fullmatch(value := clean.field(environment.get(variable, "")))
    }
    component = _component(environment, kernel.get("slurm_raw_job_id", ""))
    leader = said.get("slurm_raw_job_id", "")
    if not leader or (component is None and not _agree(said, kernel, "slurm_raw_job_id")):
        leader = ""
        said = {name: value for name, value in said.items() if name not in OF_SLURM}
    in_pod = _IN_POD in environment or "k8s_pod_uid" in kernel
    if not in_pod or not _agree(said, kernel, "k8s_pod_uid"):
        said = {name: value for name, value in said.items() if name in OF_SLURM}
    labels = {**said, **kernel}
    if leader and component is not None:
        labels["slurm_job_id"] = f"{leader}+{component}"
    elif labels.keys() >= {"slurm_array_job_id", "slurm_array_task_id"}:
        labels["slurm_job_id"] = f"{labels['slurm_array_job_id']}_{labels['slurm_array_task_id']}"
    elif leader:  # a cgroup alone does not tell whether its job is a task of an array
        labels["slurm_job_id"] = leader
        if _HET_SIZE in environment and "slurm_raw_job_id" not in kernel:
            del labels["slurm_raw_job_id"]  # which component this is, only the cgroup tells
    return {name: labels[name] for name in LABELS if labels.get(name)}


def _component(environment: Mapping[str, str], raw_job_id: str) -> int | None:
    """Which component of its heterogeneous job a process is of; None: of no such job, or not known."""
    size = environment.get(_HET_SIZE, "")
    groups = range(int(size)) if re.fullmatch(r"\d{1,3}", size) else ()
    return next((n for n in groups if raw_job_id and environment.get(f"{_HET_GROUP}{n}") == raw_job_id), None)


def _agree(said: Mapping[str, str], kernel: Mapping[str, str], name: str) -> bool:
    """Whether the environment does not contradict the kernel."""
    return name not in said or name not in kernel or said[name] == kernel[name]


def is_read(variable: str) -> bool:
    """Whether labels depend on an environment variable."""
    return variable in READ or variable.startswith(_HET_GROUP)


def of_process(process: Path, environment: Mapping[str, str]) -> dict[str, str]:
    """The labels of a process; `process` is its folder in /proc."""
    kernel = of_cgroups(_read(process / "cgroup")) | of_mounts(_read(process / "mountinfo"))
    return of_environment(environment, kernel)


def of_this_process(environment: Mapping[str, str]) -> dict[str, str]:
    """Our own labels. The namespace is read from the pod's service account, too."""
    labels = of_process(Path("/proc/self"), environment)
    namespace = _read(_NAMESPACE).strip()
    in_pod = _IN_POD in environment or "k8s_pod_uid" in labels
    if in_pod and "k8s_namespace_name" not in labels and _DNS.fullmatch(namespace):
        labels["k8s_namespace_name"] = namespace
    return labels


def _read(path: Path) -> str:
    with contextlib.suppress(OSError):
        return path.read_text("utf-8", "replace")
    return ""


def common(all_labels: Iterable[Mapping[str, str]]) -> dict[str, str]:
    """The labels that several processes have in common. Where two differ, which is the run's is not known."""
    each = list(all_labels)
    return {name: value for name in LABELS if (value := _same(labels.get(name, "") for labels in each))}


def sound(labels: Mapping[str, str]) -> dict[str, str]:
    """Labels as a file has them: known names, and values fit to be shown."""
    return {name: clean.field(labels[name])[:LONGEST] for name in LABELS if labels.get(name)}


def slurm_name(environment: Mapping[str, str], step: bool = True) -> str:
    """A Slurm job as part of a folder's name, such as `slurm-16_1.0`; empty outside Slurm.

    By the environment alone, which all components of a heterogeneous job have in common.
    """
    labels = of_environment(environment)
    if "slurm_job_id" not in labels:
        return ""
    with_step = f".{labels['slurm_step_id']}" if step and "slurm_step_id" in labels else ""
    return f"slurm-{labels['slurm_job_id']}{with_step}"


def in_words(labels: Mapping[str, str]) -> list[str]:
    """A run's job and pod in few words each: `Slurm job 16_1.0, restart 2`, `pod ml/train-0`, `container main`."""
    words = []
    if job := labels.get("slurm_job_id") or labels.get("slurm_raw_job_id"):
        step = f".{labels['slurm_step_id']}" if "slurm_step_id" in labels else ""
        restart = f", restart {count}" if (count := labels.get("slurm_restart_count", "0")) != "0" else ""
        words.append(f"Slurm job {job}{step}{restart}")
    pod = labels.get("k8s_pod_name") or labels.get("k8s_pod_uid", "")
    if pod:
        words.append(f"pod {'/'.join(filter(None, (labels.get('k8s_namespace_name', ''), pod)))}")
    container = labels.get("k8s_container_name") or labels.get("container_id", "")[:12]  # as `docker ps` cuts it
    if container:
        words.append(f"container {container}")
    return words
