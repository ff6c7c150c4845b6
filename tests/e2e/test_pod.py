# SPDX-License-Identifier: Apache-2.0
"""The chart's DaemonSet and an injected pod under podman, with the rights, arguments and volumes of the manifests.

The GPUs are emulated. The containers see an NVML without the emulator's mark, so powerccld treats it as a driver: it
needs CAP_SYS_ADMIN, and asks clients for device files. What no podman can show: docs/guides/kubernetes.md.
"""

from __future__ import annotations

import copy
import json
import os
import re
import shutil
import subprocess
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from harness import IDLE_MHZ, EmulatedMachine, eventually
from pods import Node, podman

from powerccl.analysis.summary import summarise
from powerccl.launch.native import NativeFiles
from powerccl.traces.folder import read_run

pytestmark = pytest.mark.large("podman", "POWERCCL_IMAGE")
ROOT = Path(__file__).parents[2]
RENDERED = ROOT / "tests/chart/everything-1.36.yaml"
RUNS = "/var/lib/powerccl/runs"
UID = "12345678-1234-4234-8234-123456789010"
SET_MHZ = 600
MARK = b"powerccl_emulator_version"
Manifest = dict[str, Any]


@pytest.fixture(scope="module")
def place() -> Iterator[Path]:
    """A folder in memory, as /run is."""
    if os.getuid() != 0:
        pytest.skip("needs root")
    folder = Path(tempfile.mkdtemp(prefix="powerccl-pod-", dir="/dev/shm"))
    folder.chmod(0o755)
    yield folder
    shutil.rmtree(folder)


@pytest.fixture(scope="module")
def gpus(native: NativeFiles, place: Path) -> Iterator[EmulatedMachine]:
    """Emulated GPUs, which outlive every container, and a file for each in place of its device file."""
    root = place / "node"
    shutil.copytree(native.root / "emulator", root / "emulator")
    library = root / "emulator/libnvidia-ml.so.1"
    marked = library.read_bytes()
    assert marked.count(MARK) >= 1
    library.write_bytes(marked.replace(MARK, MARK[:-1] + b"X"))
    (root / "gpus").mkdir()
    for number in range(8):
        (root / f"gpus/gpu{number}").touch(0o666)
        (root / f"gpus/gpu{number}").chmod(0o666)
    machine = EmulatedMachine(native, root / "emulator")
    (root / "emulator/gpus.sock").chmod(0o666)
    yield machine
    machine.stop()


@pytest.fixture(scope="module")
def daemonset() -> Manifest:
    (found,) = [each for each in yaml.safe_load_all(RENDERED.read_text()) if each["kind"] == "DaemonSet"]
    spec: Manifest = found["spec"]["template"]["spec"]
    return spec


@pytest.fixture
def node(gpus: EmulatedMachine, place: Path, tmp_path: Path) -> Iterator[Node]:
    manifests = list(yaml.safe_load_all(RENDERED.read_text()))
    configuration = {each["metadata"]["name"]: each["data"] for each in manifests if each["kind"] == "ConfigMap"}
    made = Node(place / "node", configuration, tmp_path)
    yield made
    made.close()
    for name in ("run", "var"):
        shutil.rmtree(place / "node" / name, ignore_errors=True)
    assert eventually(lambda: set(gpus.clocks_mhz()) == {IDLE_MHZ})


def of(pod: Manifest, name: str) -> Manifest:
    (found,) = [each for each in pod["containers"] if each["name"] == name]
    assert isinstance(found, dict)
    return found


def probe(pod: Manifest, name: str) -> subprocess.CompletedProcess[str]:
    """What the kubelet runs to see whether the daemon answers."""
    return podman("exec", name, *of(pod, "powerccld")["livenessProbe"]["exec"]["command"], check=False)


def serving(node: Node, pod: Manifest, container: Manifest | None = None) -> str:
    name = node.start(pod, container or of(pod, "powerccld"))
    assert eventually(lambda: probe(pod, name).returncode == 0), podman("logs", name).stderr
    return name


def job(command: list[str], gpu_files: tuple[int, ...] = (0, 1), **environment: str) -> tuple[Manifest, Manifest]:
    """A pod that may use some of the GPUs, as an ordinary user of the socket's group without any right."""
    rights = {
        "runAsUser": 1000,
        "runAsGroup": 1000,
        "supplementalGroups": [2000],
        "readOnlyRootFilesystem": True,
        "allowPrivilegeEscalation": False,
        "capabilities": {"drop": ["ALL"]},
        "seccompProfile": {"type": "RuntimeDefault"},
    }
    volumes = [
        {"name": "powerccl-leases", "hostPath": {"path": "/run/powerccl", "type": "DirectoryOrCreate"}},
        {"name": "emulator", "hostPath": {"path": "/emulator"}},
        {"name": "runs", "emptyDir": {}},
        *({"name": f"gpu{n}", "hostPath": {"path": f"/gpus/gpu{n}"}} for n in gpu_files),
    ]
    mounts = [
        {"name": "powerccl-leases", "mountPath": "/run/powerccl", "readOnly": True},
        {"name": "emulator", "mountPath": "/emulator"},
        {"name": "runs", "mountPath": "/runs"},
        *({"name": f"gpu{n}", "mountPath": f"/gpus/gpu{n}"} for n in gpu_files),
    ]
    variables = {
        "LD_LIBRARY_PATH": "/emulator",
        "POWERCCL_EMULATOR_SOCKET": "/emulator/gpus.sock",
        "POWERCCL_LEASE_SOCKET": "/run/powerccl/powerccld.sock",
        "CUDA_VISIBLE_DEVICES": ",".join(map(str, gpu_files)),
        **environment,
    }
    container = {
        "name": "trainer",
        "command": command,
        "securityContext": rights,
        "volumeMounts": mounts,
        "env": [{"name": name, "value": value} for name, value in variables.items()],
    }
    return {"containers": [container], "volumes": volumes}, container


CLOCKED = ["powerccl", "run", "--runs-dir", "/runs", "--clock", str(SET_MHZ), "--", "sleep", "120"]


def leased(node: Node, gpus: EmulatedMachine) -> str:
    """A pod that holds the clocks of GPUs 0 and 1."""
    name = node.start(*job(CLOCKED))
    assert eventually(lambda: gpus.clocks_mhz() == [SET_MHZ] * 2 + [IDLE_MHZ] * 6), podman("logs", name).stderr
    return name


def kill(*names: str) -> None:
    """As the kernel does for want of memory: the container's process ends, and nothing cleans up."""
    podman("kill", "--signal", "KILL", *names)
    podman("wait", *names)


def in_state_folder(pod: Manifest) -> Manifest:
    """The pod with its state file beside the socket, which is the chart's default."""
    changed = copy.deepcopy(pod)
    arguments = of(changed, "powerccld")["args"]
    arguments[-1] = "/run/powerccl/leases"
    return changed


def test_a_pod_gets_the_clocks_of_its_own_gpus(node: Node, gpus: EmulatedMachine, daemonset: Manifest) -> None:
    daemon = serving(node, daemonset)
    trainer = leased(node, gpus)
    shown = probe(daemonset, daemon).stdout
    assert shown.count(f"{SET_MHZ}") >= 2, shown
    command = ["powerccl", "run", "--runs-dir", "/runs", "--clock", str(SET_MHZ), "--", "true"]
    pod, container = job(command, (3,), CUDA_VISIBLE_DEVICES="3,4")
    refused = node.run(pod, container)
    assert refused.returncode == 125 and "/gpus/gpu4" in refused.stderr, refused.stderr
    assert gpus.clocks_mhz() == [SET_MHZ] * 2 + [IDLE_MHZ] * 6
    # A user outside the group.
    pod, container = job(command, (3,))
    container["securityContext"]["supplementalGroups"] = []
    refused = node.run(pod, container)
    assert refused.returncode == 125 and "permission" in refused.stderr, refused.stderr
    podman("rm", "--force", "--time", "0", trainer)
    assert eventually(lambda: set(gpus.clocks_mhz()) == {IDLE_MHZ})


def test_clocks_are_restored_when_the_pod_ends(node: Node, gpus: EmulatedMachine, daemonset: Manifest) -> None:
    """SIGTERM, then terminationGracePeriodSeconds: an upgrade of the chart, or its removal."""
    daemon = serving(node, daemonset)
    leased(node, gpus)
    podman("stop", "--time", str(daemonset["terminationGracePeriodSeconds"]), daemon)
    assert set(gpus.clocks_mhz()) == {IDLE_MHZ}
    assert podman("inspect", "--format", "{{.State.ExitCode}}", daemon).stdout.strip() == "0"


@pytest.mark.parametrize("state", ["beside the socket", "on a disk"])
def test_clocks_are_restored_after_kill_9(
    state: str, node: Node, gpus: EmulatedMachine, daemonset: Manifest, record_property: Any
) -> None:
    """Of the daemon's container and the job's: a new container restores what the state file marks."""
    pod = daemonset if state == "on a disk" else in_state_folder(daemonset)
    daemon = serving(node, pod)
    trainer = leased(node, gpus)
    kill(daemon, trainer)
    assert gpus.clocks_mhz()[:2] == [SET_MHZ] * 2  # nothing else restores them
    begin_s = time.monotonic()
    node.start(pod, of(pod, "powerccld"))
    assert eventually(lambda: set(gpus.clocks_mhz()) == {IDLE_MHZ})
    record_property("restored_s", time.monotonic() - begin_s)


def test_clocks_are_restored_after_a_reboot(
    node: Node, gpus: EmulatedMachine, daemonset: Manifest, place: Path
) -> None:
    """Containers and /run are gone, the disk stays, and the GPUs kept their locks: with stateHostPath."""
    daemon = serving(node, daemonset)
    trainer = leased(node, gpus)
    kill(daemon, trainer)
    podman("rm", "--force", daemon, trainer)
    shutil.rmtree(place / "node/run")
    assert gpus.clocks_mhz()[:2] == [SET_MHZ] * 2
    node.start(daemonset, of(daemonset, "powerccld"))
    assert eventually(lambda: set(gpus.clocks_mhz()) == {IDLE_MHZ})


@pytest.mark.parametrize(
    ("capabilities", "words"),
    [
        (["CHOWN"], "cannot lease GPUs: locking clocks needs CAP_SYS_ADMIN, which this process does not have"),
        (["SYS_ADMIN"], "cannot set its group"),
    ],
)
def test_without_a_right_it_refuses_in_one_line(
    capabilities: list[str], words: str, node: Node, gpus: EmulatedMachine, daemonset: Manifest
) -> None:
    container = copy.deepcopy(of(daemonset, "powerccld"))
    container["securityContext"]["capabilities"]["add"] = capabilities
    done = node.run(daemonset, container)
    warnings = ("is not on a file system in memory", "connections can be taken at a time")  # of this machine
    errors = [line for line in done.stderr.splitlines() if not any(each in line for each in warnings)]
    assert done.returncode == 1 and len(errors) == 1 and words in errors[0], done.stderr
    assert set(gpus.clocks_mhz()) == {IDLE_MHZ}


def test_a_root_file_system_that_is_read_only(node: Node, gpus: EmulatedMachine, daemonset: Manifest) -> None:
    """And no other right than those of the manifest, in the daemon and in the exporter."""
    for name, rights in (("powerccld", 1 << 21 | 1 << 0), ("exporter", 1 << 19 | 1 << 7 | 1 << 6 | 1 << 5 | 1 << 2)):
        started = node.start(daemonset, of(daemonset, name))
        status = podman("exec", started, "cat", "/proc/self/status").stdout
        found = dict(line.split(":\t", 1) for line in status.splitlines() if ":\t" in line)
        assert int(found["CapBnd"], 16) == rights and found["NoNewPrivs"] == "1" and found["Seccomp"] == "2"
        assert podman("exec", started, "touch", "/usr/written", check=False).returncode != 0


def logged(name: str) -> str:
    done = podman("logs", name)
    return done.stdout + done.stderr


def manual_pod() -> Manifest:
    """The pod that the guide shows in full."""
    page = (ROOT / "docs/guides/kubernetes.md").read_text()
    (found,) = re.findall(r"```yaml\n(apiVersion: v1\nkind: Pod\n.*?)```", page, re.DOTALL)
    made: Manifest = yaml.safe_load(found)
    return made


def test_the_guides_pod_is_recorded_and_leases_clocks(
    node: Node, gpus: EmulatedMachine, daemonset: Manifest, tmp_path: Path
) -> None:
    """By the container's own Python, from the copy of the init container; a benchmark is in torchrun's place."""
    daemon = serving(node, daemonset)
    manifest = manual_pod()
    about, spec = manifest["metadata"], manifest["spec"]
    node.downward |= {"metadata.name": about["name"], "metadata.namespace": about["namespace"], "metadata.uid": UID}
    (init,), (trainer,) = spec["initContainers"], spec["containers"]
    copied = node.run(spec, init)
    assert copied.returncode == 0, copied.stderr
    script = f"printf 'compute 150\\nall_reduce 70M\\n' > {RUNS}/step.scn; powerccl-bench scenario {RUNS}/step.scn"
    command = trainer["command"]
    trainer["command"] = [*command[: command.index("--") + 1], "sh", "-c", script]
    # Without the image's own PowerCCL, and root's rights are not the page's.
    emulated, container = job([], PATH="/usr/bin:/bin", KUBERNETES_SERVICE_HOST="10.0.0.1")
    trainer["securityContext"] = container["securityContext"]
    trainer["env"] += container["env"]
    trainer["volumeMounts"] += container["volumeMounts"][1:]
    spec["volumes"] += emulated["volumes"][1:]
    done = node.run(spec, trainer)
    assert done.returncode == 0, done.stderr
    (run,) = tmp_path.glob("powerccl-runs/*-train-0")
    info = json.loads((run / "run.json").read_text())
    assert info["labels"]["k8s_pod_name"] == "train-0" and info["labels"]["k8s_namespace_name"] == "ml"
    assert info["labels"]["k8s_container_name"] == "trainer" and info["clocks"] == "lease"
    assert summarise(read_run(run)).patterns[0].pattern == "all_reduce"
    assert "train-0" in logged(daemon), logged(daemon)


def test_the_exporter_names_the_pods_of_all_users(node: Node, gpus: EmulatedMachine, daemonset: Manifest) -> None:
    """Each job once, with pod, namespace and container, under any user."""
    serving(node, daemonset)
    exporter = node.start(daemonset, of(daemonset, "exporter"))
    script = "printf 'compute 150\\nall_reduce 70M\\n' > /runs/$POD_NAME.scn; exec powerccl run -q --runs-dir /runs "
    script += "--policy observe -- powerccl-bench scenario /runs/$POD_NAME.scn --iterations 1000"
    users = {"train-root": 0, "train-user": 1000}
    for number, (name, user) in enumerate(users.items()):
        files = (2 * number, 2 * number + 1)
        pod, container = job(
            ["sh", "-c", script], files, POD_NAME=name, POD_NAMESPACE="ml", KUBERNETES_SERVICE_HOST="1"
        )
        container["securityContext"] |= {"runAsUser": user, "runAsGroup": user}
        # As a kubelet mounts it: the host's path has the pod's UID and the container's name.
        log = node.volumes / f"pods/{UID[:-1]}{number}/containers/trainer/abcdef"
        log.parent.mkdir(parents=True)
        log.touch()
        node.start(pod, container, ["-v", f"{log}:/dev/termination-log"])
    fetch = "import urllib.request as u; print(u.urlopen('http://127.0.0.1:19487/metrics').read().decode())"

    def found() -> dict[str, list[str]]:
        shown = podman("exec", exporter, "python3", "-c", fetch, check=False).stdout
        lines = [line for line in shown.splitlines() if line.startswith("powerccl_job_info")]
        return {name: [line for line in lines if f'k8s_pod_name="{name}"' in line] for name in users}

    assert eventually(lambda: all(found().values())), logged(exporter)
    time.sleep(10)  # two scans later, each process of the jobs was seen
    for number, (name, lines) in enumerate(found().items()):
        assert len(lines) == 1, lines
        for label in ('k8s_namespace_name="ml"', 'k8s_container_name="trainer"', f'k8s_pod_uid="{UID[:-1]}{number}"'):
            assert label in lines[0], (name, lines)
