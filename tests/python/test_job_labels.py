# SPDX-License-Identifier: Apache-2.0
"""Whose run a run is: layouts of cgroups, mounts and environments, and where the labels are shown.

Sources of the layouts, all public:

* Slurm v2: the hierarchy and names in Slurm's src/plugins/cgroup/v2/cgroup_v2.c; a line of a node in NordicHPC/sonar's
  src/slurm.rs. v1: src/plugins/cgroup/v1/xcgroup.c, treydock/cgroup_exporter's README, and sonar again.
* Kubernetes: kubelet's cgroup names (pkg/kubelet/cm); lines in OpenTelemetry Java's ContainerResourceTest, with the
  colons of containerd without SystemdCgroup. A static pod's UID is the hash of its manifest.
* CRI-O, podman and conmon: the scopes of their source (libpod's conmonScopeUnit); `/container` below them is crun's.
* kind: `kubelet.slice/kubelet-kubepods.slice` below the node's own Docker container.
* Mounts: mountinfo of a pod as in kubelet's makeMounts, lines as in OpenTelemetry's detectors.
* Heterogeneous jobs: Slurm's heterogeneous_jobs page. SLURM_JOB_ID is the first component's, in all components.
"""

from __future__ import annotations

import json
import os
import re
from pathlib import Path

import pytest
from click.testing import CliRunner
from printing import printed
from synthetic import training_run
from test_export import collector_of, scraped, value

from powerccl.analysis.report import report
from powerccl.analysis.summary import summarise
from powerccl.commands import cli
from powerccl.launch import launchers
from powerccl.launch.folder import make_folder
from powerccl.live.labels import labels_here
from powerccl.live.metrics import as_text
from powerccl.live.node import LiveNode
from powerccl.live.processes import Processes
from powerccl.live.top import print_top
from powerccl.reports.report import print_report
from powerccl.reports.report_page import report_page
from powerccl.traces import job_labels
from powerccl.traces.folder import read_run
from powerccl.traces.run_info import RunInfo, parse_run_info, write_run_info

C = "3f2a1b4c5d6e7f8091a2b3c4d5e6f708192a3b4c5d6e7f8091a2b3c4d5e6f708"
D = "05c48c82caff3be3d7f1e896981dd410e81487538936914f32b624d168de9db0"
UID = "87a18a64-b74a-454a-b10b-a4a36059d0a3"
UID_ = UID.replace("-", "_")
STATIC = "c704ef4c297ab11032b83ce52cbfc87b"
V1 = ("cpuset", "cpu,cpuacct", "blkio", "memory", "devices", "freezer", "net_cls", "perf_event", "pids", "name=systemd")


def v1(path: str, **others: str) -> str:
    """The lines of a host with cgroup v1: one for each controller, some with paths of their own."""
    paths = [(controller, others.get(controller, path)) for controller in reversed(V1)]
    return "".join(f"{len(V1) - place}:{controller}:{own}\n" for place, (controller, own) in enumerate(paths))


def slurm(job: str, step: str = "") -> dict[str, str]:
    return {"slurm_raw_job_id": job, **({"slurm_step_id": step} if step else {})}


def container(runtime: str, number: str = C, uid: str = "") -> dict[str, str]:
    pod = {"k8s_pod_uid": uid} if uid else {}
    return {**pod, "container_id": number, **({"container_runtime": runtime} if runtime else {})}


JOB = "/slurm/uid_2101171/job_280678"
BURST = f"/kubepods.slice/kubepods-burstable.slice/kubepods-burstable-pod{UID_}.slice"
BEST = f"/kubepods.slice/kubepods-besteffort.slice/kubepods-besteffort-pod{UID_}.slice"
SERVICE = "/user.slice/user-1000.slice/user@1000.service/user.slice"
NODE = f"/system.slice/docker-{D}.scope/kubelet.slice/kubelet-kubepods.slice/kubelet-kubepods-besteffort.slice"
STEPD = "/system.slice/slurmstepd.scope"
LAYOUTS = {
    "a login shell": ("0::/user.slice/user-1000.slice/session-3.scope\n", {}),
    "a cgroup namespace": ("0::/\n", {}),
    "slurmd itself": ("0::/system.slice/slurmd.service\n", {}),
    "slurm v1, a task": (
        v1(f"{JOB}/step_0/task_3", cpuset=f"{JOB}/step_0", pids="/system.slice/slurmd.service"),
        slurm("280678", "0"),
    ),
    "slurm v1, devices alone": (f"10:devices:{JOB}/step_interactive/task_0\n", slurm("280678", "interactive")),
    "slurm v1, several slurmd of a node": (v1("/slurm_node1/uid_1000/job_16/step_batch"), slurm("16", "batch")),
    "slurm v1, the job's freezer alone": (v1("/", freezer=f"{JOB}"), slurm("280678")),
    "slurm v2, a task": (f"0::{STEPD}/job_1392969/step_0/user/task_0\n", slurm("1392969", "0")),
    "slurm v2, ssh by pam_slurm_adopt": (f"0::{STEPD}/job_42/step_extern/user/task_special\n", slurm("42", "extern")),
    "slurm v2, several slurmd of a node": (
        "0::/system.slice/node1_slurmstepd.scope/job_16/step_batch/user/task_special\n",
        slurm("16", "batch"),
    ),
    "slurm v2, a component of a step": (f"0::{STEPD}/job_17/step_2+1/user/task_0\n", slurm("17", "2")),
    "slurm hybrid": (
        f"6:memory:{JOB}/step_4/task_0\n5:freezer:{JOB}/step_4\n1:name=systemd:/system.slice/slurmd.service\n"
        "0::/system.slice/slurmd.service\n",
        slurm("280678", "4"),
    ),
    # As Slurm 22.05 with cgroup/v1 and several slurmd of a node had it on a hybrid host.
    "slurm hybrid, as it was": (
        "9:name=systemd:/\n8:pids:/\n7:blkio:/\n6:freezer:/slurm_n2/uid_0/job_2/step_1\n5:devices:/\n"
        "4:memory:/slurm_n2/uid_0/job_2/step_1/task_0\n3:cpuset:/\n"
        "2:cpuacct:/slurm_n2/uid_0/job_2/step_1/task_0\n1:cpu:/\n0::/\n",
        slurm("2", "1"),
    ),
    "slurm, a step that is being removed": (f"0::{STEPD}/job_9/step_1/user/task_0 (deleted)\n", slurm("9", "1")),
    "docker v1": (v1(f"/docker/{C}"), container("docker")),
    "docker v2, systemd": (f"0::/system.slice/docker-{C}.scope\n", container("docker")),
    "docker v2, cgroupfs": (f"0::/docker/{C}\n", container("docker")),
    "docker in docker": (f"0::/docker/{D}/docker/{C}\n", container("docker")),
    "containerd, cgroupfs, guaranteed": (v1(f"/kubepods/pod{UID}/{C}"), container("", uid=UID)),
    "containerd, cgroupfs, burstable": (f"0::/kubepods/burstable/pod{UID}/{C}\n", container("", uid=UID)),
    "containerd, systemd, guaranteed": (
        f"0::/kubepods.slice/kubepods-pod{UID_}.slice/cri-containerd-{C}.scope\n",
        container("containerd", uid=UID),
    ),
    "containerd, systemd, burstable": (v1(f"{BURST}/cri-containerd-{C}.scope"), container("containerd", uid=UID)),
    "containerd without SystemdCgroup": (
        f"11:devices:/system.slice/containerd.service/kubepods-pod{UID_}.slice:cri-containerd:{C}\n",
        container("containerd", uid=UID),
    ),
    "docker below kubelet": (f"0::{BURST}/docker-{C}.scope\n", container("docker", uid=UID)),
    "cri-o, besteffort": (f"0::{BEST}/crio-{C}.scope\n", container("cri-o", uid=UID)),
    "cri-o with crun": (f"0::{BEST}/crio-{C}.scope/container\n", container("cri-o", uid=UID)),
    "cri-o, cgroupfs": (f"0::/kubepods/besteffort/pod{UID}/crio-{C}\n", container("cri-o", uid=UID)),
    "cri-o's monitor": (f"0::{BEST}/crio-conmon-{C}.scope\n", {"k8s_pod_uid": UID}),
    "a static pod": (
        f"0::/kubepods.slice/kubepods-burstable.slice/kubepods-burstable-pod{STATIC}.slice/cri-containerd-{C}.scope\n",
        container("containerd", uid=STATIC),
    ),
    "seen from another container": (
        f"0::/../../kubepods-burstable-pod{UID_}.slice/cri-containerd-{C}.scope\n",
        container("containerd", uid=UID),
    ),
    "kind": (
        f"0::{NODE}/kubelet-kubepods-besteffort-pod{UID_}.slice/cri-containerd-{C}.scope\n",
        container("containerd", uid=UID),
    ),
    "podman, root": (f"0::/machine.slice/libpod-{C}.scope/container\n", container("podman")),
    "podman, rootless": (f"0::{SERVICE}/libpod-{C}.scope/container\n", container("podman")),
    "podman, v1": (v1(f"/libpod_parent/libpod-{C}"), container("podman")),
    "podman, in a pod of its own": (
        f"0::/machine.slice/machine-libpod_pod_{D}.slice/libpod-{C}.scope\n",
        container("podman"),
    ),
    "podman's monitor": (f"0::/machine.slice/libpod-conmon-{C}.scope\n", {}),
    "slurm in kubernetes": (
        f"0::{BURST}/cri-containerd-{C}.scope{STEPD}/job_16/step_0/user/task_0\n",
        {**slurm("16", "0"), **container("containerd", uid=UID)},
    ),
    "controllers that differ": (
        f"3:memory:{JOB}/step_0\n2:freezer:/slurm/uid_1/job_5/step_0\n",
        {},
    ),
    "no job of Slurm": ("0::/home/job_16/step_0\n0::/system.slice/job_16.service\n", {}),
    "digits that are no container": (f"0::/user.slice/{C}\n0::/docker/{C[:63]}\n", {}),
    "damaged": ("nonsense\n::\n0:\n\udcff:\udcff:/docker/\n", {}),
}


def test_layouts_of_cgroups() -> None:
    """[cluster.labels.wrong == 0]: wrong is a label that differs, is missing, or is given where none is known."""
    wrong = {name: found for name, (text, known) in LAYOUTS.items() if (found := job_labels.of_cgroups(text)) != known}
    assert wrong == {}
    assert len(LAYOUTS) >= 12


def test_what_the_mounts_of_a_pod_tell() -> None:
    lines = (
        f"1 0 259:1 /var/lib/kubelet/pods/{UID}/etc-hosts /etc/hosts rw,noatime - xfs /dev/nvme0n1p1 rw\n"
        f"2 0 259:1 {{}}/kubelet/pods/{UID}/containers/trainer/d52bb0e5 /dev/termination-log rw - xfs /dev/a rw\n"
    )
    known = {"k8s_pod_uid": UID, "k8s_container_name": "trainer"}
    assert job_labels.of_mounts(lines.format("/var/lib")) == job_labels.of_mounts(lines.format("")) == known
    assert job_labels.of_mounts("1 0 0:27 / /dev/shm rw - tmpfs tmpfs rw\n") == {}


BATCH = {"SLURM_JOB_ID": "16", "SLURM_JOB_NAME": "train", "SLURM_JOB_USER": "alice", "SLURM_CLUSTER_NAME": "test"}
ARRAY = {**BATCH, "SLURM_JOB_ID": "17", "SLURM_ARRAY_JOB_ID": "16", "SLURM_ARRAY_TASK_ID": "1", "SLURM_STEP_ID": "0"}
HET = {
    **BATCH,
    "SLURM_HET_SIZE": "2",
    "SLURM_JOB_ID_HET_GROUP_0": "16",
    "SLURM_JOB_ID_HET_GROUP_1": "17",
    "SLURM_STEP_ID": "3",
}
POD = {"KUBERNETES_SERVICE_HOST": "10.0.0.1", "POD_NAME": "train-0-x7k2p", "POD_NAMESPACE": "ml"}


@pytest.mark.parametrize(
    ("environment", "kernel", "known"),
    [
        ({}, {}, {}),
        (BATCH, {}, {"slurm_job_id": "16", "slurm_raw_job_id": "16", "slurm_step_id": None}),
        (BATCH, slurm("16", "batch"), {"slurm_job_id": "16", "slurm_step_id": "batch", "slurm_job_name": "train"}),
        (ARRAY, {}, {"slurm_job_id": "16_1", "slurm_raw_job_id": "17", "slurm_array_task_id": "1"}),
        (ARRAY, slurm("17", "0"), {"slurm_job_id": "16_1", "slurm_step_id": "0", "slurm_user": "alice"}),
        ({**ARRAY, "SLURM_RESTART_COUNT": "2"}, {}, {"slurm_restart_count": "2"}),
        # A cgroup alone does not tell whether its job is a task of an array.
        ({}, slurm("17", "0"), {"slurm_job_id": None, "slurm_raw_job_id": "17", "slurm_step_id": "0"}),
        # The environment is a copy of another job's.
        (ARRAY, slurm("99", "0"), {"slurm_job_id": None, "slurm_raw_job_id": "99", "slurm_user": None}),
        (HET, slurm("17", "3"), {"slurm_job_id": "16+1", "slurm_raw_job_id": "17"}),
        (HET, slurm("16", "3"), {"slurm_job_id": "16+0", "slurm_raw_job_id": "16"}),
        (HET, {}, {"slurm_job_id": "16", "slurm_raw_job_id": None, "slurm_step_id": "3"}),
        ({**HET, "SLURM_HET_SIZE": "9" * 30}, slurm("16"), {"slurm_job_id": "16"}),
        ({**BATCH, "SLURM_JOB_ID": "16; rm -r /"}, {}, {"slurm_job_id": None, "slurm_user": None}),
        ({"SLURM_ARRAY_JOB_ID": "16", "SLURM_ARRAY_TASK_ID": "1"}, {}, {"slurm_job_id": None}),
        ({**BATCH, "SLURM_JOB_NAME": "a\x1b[2J"}, {}, {"slurm_job_name": "a\\x1b[2J"}),
        ({**BATCH, "SLURM_JOB_NAME": "x" * 300}, {}, {"slurm_job_name": None, "slurm_job_id": "16"}),
        (POD, {}, {"k8s_pod_name": "train-0-x7k2p", "k8s_namespace_name": "ml", "k8s_pod_uid": None}),
        ({**POD, "HOSTNAME": "train-0", "POD_NAME": ""}, {}, {"k8s_pod_name": None, "k8s_namespace_name": "ml"}),
        (POD, container("containerd", uid=UID), {"k8s_pod_name": "train-0-x7k2p", "k8s_pod_uid": UID}),
        ({**POD, "POD_UID": UID}, {"k8s_pod_uid": STATIC}, {"k8s_pod_name": None, "k8s_pod_uid": STATIC}),
        ({**POD, "CONTAINER_NAME": "a"}, {"k8s_container_name": "b"}, {"k8s_container_name": "b"}),
        ({**POD, "POD_NAME": "Not a pod"}, {}, {"k8s_pod_name": None}),
        ({"POD_NAME": "train", "CONTAINER_NAME": "main"}, {}, {"k8s_pod_name": None, "k8s_container_name": None}),
        ({**POD, **ARRAY}, {}, {"slurm_job_id": "16_1", "k8s_pod_name": "train-0-x7k2p"}),
    ],
)
def test_environment_and_kernel(
    environment: dict[str, str], kernel: dict[str, str], known: dict[str, str | None]
) -> None:
    found = job_labels.of_environment(environment, kernel)
    assert {name: found.get(name) for name in known} == known
    assert found.keys() <= job_labels.LABELS.keys()
    assert all(found.values())


@pytest.mark.parametrize(
    ("labels", "words"),
    [
        ({}, []),
        (job_labels.of_environment({**ARRAY, "SLURM_RESTART_COUNT": "2"}), ["Slurm job 16_1.0, restart 2"]),
        (slurm("42", "extern"), ["Slurm job 42.extern"]),
        ({**container("docker"), **slurm("7")}, ["Slurm job 7", f"container {C[:12]}"]),
        (job_labels.of_environment({**POD, "CONTAINER_NAME": "main"}), ["pod ml/train-0-x7k2p", "container main"]),
        (container("containerd", uid=UID), [f"pod {UID}", f"container {C[:12]}"]),
    ],
)
def test_in_words(labels: dict[str, str], words: list[str]) -> None:
    assert job_labels.in_words(labels) == words


@pytest.mark.parametrize(
    ("environment", "folder"),
    [
        ({**ARRAY, "SLURM_STEP_NUM_TASKS": "1"}, "slurm-16_1.0-train-"),  # srun -n1 powerccl run -- torchrun
        ({**ARRAY, "SLURM_STEP_NUM_TASKS": "4", "SLURM_PROCID": "2"}, "slurm-16_1.0-train-"),
        (BATCH, "slurm-16-train-"),
        ({**HET, "SLURM_STEP_NUM_TASKS": "4", "SLURM_PROCID": "2"}, "slurm-16.3-train-"),  # of all components
        ({**BATCH, "OMPI_COMM_WORLD_SIZE": "4", "PMIX_NAMESPACE": "prterun-n1-99@1"}, "slurm-16-train-"),
        ({**ARRAY, "PMI_SIZE": "4", "PMI_RANK": "0", "MPI_LOCALRANKID": "0"}, "slurm-16_1-train-"),
        ({"OMPI_COMM_WORLD_SIZE": "4", "PMIX_NAMESPACE": "prterun-n1-99@1"}, "mpi-prterun-n1-99-1-train-"),
        ({"SLURM_JOB_ID": "../x", "SLURM_STEP_ID": "0", "SLURM_STEP_NUM_TASKS": "4"}, "slurm-train-"),
    ],
)
def test_a_folder_is_named_by_the_job_that_people_know(
    tmp_path: Path, environment: dict[str, str], folder: str
) -> None:
    job = job_labels.slurm_name(environment)
    made = make_folder(tmp_path, "train", launchers.detect_launcher(environment), job)
    assert made.parent == tmp_path
    assert re.fullmatch(re.escape(folder) + r"[0-9a-f]{6}", made.name)


def test_two_runs_of_one_step_have_two_folders(tmp_path: Path) -> None:
    assert len({make_folder(tmp_path, "train", None, "slurm-16.0") for _ in range(3)}) == 3


def labelled(folder: Path, labels: dict[str, str], **info: object) -> Path:
    path = folder / "run.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), "user": "alice", "labels": labels, **info}))
    return folder


def test_each_output_names_the_job(tmp_path: Path) -> None:
    labels = job_labels.of_environment({**ARRAY, **POD, "SLURM_RESTART_COUNT": "2"})
    folder = labelled(training_run(tmp_path / "run", ranks=2, iterations=3), labels)
    made = report(folder)
    summary = made.findings.summary
    assert (summary.labels, summary.user) == (labels, "alice")
    said = "Slurm job 16_1.0, restart 2 · pod ml/train-0-x7k2p · user alice · on "
    assert said in printed(print_report, made.findings)
    assert said in report_page(made)
    done = CliRunner().invoke(cli, ["report", str(folder), "--json", "-"])
    assert json.loads(done.stdout)["summary"]["labels"] == labels
    node, collector = collector_of(folder)
    assert "Slurm job 16_1.0, restart 2 · pod ml/train-0-x7k2p" in printed(print_top, node.look())
    samples = scraped(as_text(collector))
    assert value(samples, "powerccl_job_info", **labels) == 1
    (info,) = (dict(own) for name, own in samples if name == "powerccl_job_info")
    assert info["run"] == str(folder)
    assert not job_labels.LABELS.keys() & info.keys() - labels.keys(), "what is not known is absent"
    done = CliRunner().invoke(cli, ["top", "--once", str(folder), "--json", "-"])
    assert json.loads(done.stdout)["jobs"][0]["labels"] == labels


def test_a_run_outside_of_all_that_says_nothing_more(tmp_path: Path) -> None:
    folder = training_run(tmp_path / "run", ranks=1, iterations=2)
    assert summarise(read_run(folder)).labels == {}
    made = report(labelled(folder, {}))
    assert "user alice" not in printed(print_report, made.findings)
    assert "user alice · on " in report_page(made)


def test_run_json_records_our_own_labels(tmp_path: Path) -> None:
    own = job_labels.of_this_process(ARRAY)
    write_run_info(tmp_path, RunInfo(["a"], user="alice", labels=own))
    read = parse_run_info((tmp_path / "run.json").read_bytes())
    assert read.labels == own
    hostile = {"slurm_job_id": "1\n2", "slurm_user": "x" * 999, "made_up": "1", "k8s_pod_name": ""}
    write_run_info(tmp_path, RunInfo(["a"], labels=hostile))
    read = parse_run_info((tmp_path / "run.json").read_bytes())
    assert read.labels == {"slurm_job_id": "1\\x0a2", "slurm_user": "x" * job_labels.LONGEST}


def process(proc: Path, pid: int, cgroup: str, environment: dict[str, str]) -> None:
    folder = proc / str(pid)
    folder.mkdir(parents=True)
    (folder / "environ").write_bytes(b"\0".join(os.fsencode(f"{name}={text}") for name, text in environment.items()))
    (folder / "cgroup").write_text(cgroup)


def test_jobs_seen_from_outside(tmp_path: Path) -> None:
    run = {"POWERCCL_RUN_FOLDER": str(tmp_path)}
    process(tmp_path / "proc", 10, LAYOUTS["containerd, systemd, burstable"][0], {**run, **POD})
    process(tmp_path / "proc", 11, LAYOUTS["containerd, systemd, burstable"][0], {**run, **POD})
    process(tmp_path / "proc", 12, f"0::{BURST}/cri-containerd-{D}.scope\n", {**run, **POD, "POD_NAME": "other"})
    processes = Processes(tmp_path / "proc")
    (job,) = processes.jobs(0.0).values()
    assert job.pids == [10, 11, 12]
    one = {**container("containerd", uid=UID), "k8s_pod_name": "train-0-x7k2p", "k8s_namespace_name": "ml"}
    assert processes.labels_of([10, 11]) == one
    # Two containers of a run on one host: which is the run's is not known.
    assert processes.labels_of([10, 11, 12]) == {
        "k8s_namespace_name": "ml",
        "k8s_pod_uid": UID,
        "container_runtime": "containerd",
    }


def test_a_node_shows_what_its_processes_are_in(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = labelled(training_run(tmp_path / "run", ranks=1, iterations=2), job_labels.of_environment(ARRAY))
    process(tmp_path / "proc", 10, v1(f"/docker/{C}"), {"POWERCCL_RUN_FOLDER": str(folder), **ARRAY})
    monkeypatch.setattr("powerccl.live.node.Processes", lambda: Processes(tmp_path / "proc"))
    node = LiveNode()
    expected = {**job_labels.of_environment(ARRAY), **container("docker")}
    assert [job.labels for job in node.look().jobs] == [expected]
    (tmp_path / "proc/10/environ").unlink()
    monkeypatch.setattr(node._processes, "jobs", lambda _: {})
    assert [job.labels for job in node.look().jobs] == [expected], "its processes have ended"


def test_labels_on_this_host() -> None:
    recorded = {**job_labels.of_environment(HET, slurm("16", "3")), "k8s_pod_name": "a", "k8s_namespace_name": "ml"}
    slurm_alone = {name: text for name, text in recorded.items() if name in job_labels.OF_SLURM}
    assert labels_here(recorded, {}, host_here=True) == recorded
    assert labels_here(recorded, {}, host_here=False) == slurm_alone
    of_other = job_labels.of_environment(HET, slurm("17", "3"))
    assert labels_here(recorded, of_other, host_here=False)["slurm_job_id"] == "16+1"
    assert labels_here(recorded, {"k8s_pod_name": "b"}, host_here=False)["k8s_pod_name"] == "b"
    assert labels_here(recorded, {"k8s_pod_name": "b"}, host_here=False)["slurm_job_id"] == "16+0"
    own = {"k8s_pod_uid": UID}
    assert "k8s_namespace_name" not in labels_here(recorded, own, host_here=True)
    assert labels_here({**recorded, **own}, own, host_here=True)["k8s_namespace_name"] == "ml"


def test_the_reference_has_each_label() -> None:
    page = (Path(__file__).parents[2] / "docs/reference/labels.md").read_text()
    rows = re.findall(r"^\| `(\w+)` \| (.*?) \|", page, re.MULTILINE)
    assert {name: text for name, text in rows if name in job_labels.LABELS} == job_labels.LABELS
    for variable, _ in job_labels._VARIABLES.values():
        assert f"`{variable}`" in page
