# SPDX-License-Identifier: Apache-2.0
"""The chart in a real API server: it is installed, and pods are admitted under its policies. No kubelet starts them.

Schemas see no fault in an expression of a policy, and a policy that fails open then injects nothing. KUBE_APISERVER,
ETCD, HELM and KUBECTL name the programs.
"""

from __future__ import annotations

import json
import os
import re
import socket
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from harness import eventually
from support.programs import program

pytestmark = pytest.mark.large("kube-apiserver", "etcd", "helm", "kubectl")
ROOT = Path(__file__).parents[2]
CHART, PODS = ROOT / "packaging/helm/powerccl", ROOT / "tests/chart/pods.yaml"
REPOSITORY = "registry.example.com/powerccl"
NOT_RECORDED = "the pod is not recorded: "
Manifest = dict[str, Any]
# Options of the API server. One of 1.37 that behaves as 1.35 has no v1 of the policy, which it needs itself.
OPTIONS = {"1.37": [], "1.36": ["--emulated-version=1.36"], "without the policy": []}


def free_ports(count: int) -> list[int]:
    sockets = [socket.create_server(("127.0.0.1", 0)) for _ in range(count)]
    ports = [int(each.getsockname()[1]) for each in sockets]
    for each in sockets:
        each.close()
    return ports


class Cluster:
    """An API server with its etcd, and the chart installed in the namespace powerccl."""

    def __init__(self, folder: Path, version: str) -> None:
        self.folder = folder
        store, peer, port = free_ports(3)
        key = folder / "accounts.key"
        subprocess.run(["openssl", "genrsa", "-out", str(key), "2048"], check=True, capture_output=True)
        (folder / "tokens").write_text("secret,admin,admin,system:masters\n")
        etcd = [program("etcd"), "--data-dir", str(folder / "etcd")]
        for option, number in (("client", store), ("peer", peer)):
            etcd += [f"--listen-{option}-urls=http://127.0.0.1:{number}"]
        etcd += [f"--advertise-client-urls=http://127.0.0.1:{store}"]
        server = [program("kube-apiserver"), f"--etcd-servers=http://127.0.0.1:{store}", f"--secure-port={port}"]
        server += [
            "--bind-address=127.0.0.1",
            f"--cert-dir={folder}/certificates",
            f"--token-auth-file={folder}/tokens",
        ]
        server += ["--service-account-issuer=https://kubernetes.default.svc", f"--service-account-key-file={key}"]
        server += [f"--service-account-signing-key-file={key}", "--service-cluster-ip-range=10.96.0.0/16"]
        server += ["--authorization-mode=AlwaysAllow", "--disable-admission-plugins=ServiceAccount", *OPTIONS[version]]
        user = {"name": "x", "user": {"token": "secret"}}
        where = {"server": f"https://127.0.0.1:{port}", "insecure-skip-tls-verify": True}
        config = {
            "apiVersion": "v1",
            "kind": "Config",
            "clusters": [{"name": "x", "cluster": where}],
            "users": [user],
            "contexts": [{"name": "x", "context": {"cluster": "x", "user": "x"}}],
            "current-context": "x",
        }
        (folder / "config").write_text(yaml.safe_dump(config))
        self.environment = {**os.environ, "KUBECONFIG": str(folder / "config")}
        self._processes = []
        for name, command in (("etcd", etcd), ("server", server)):
            with (folder / f"{name}.log").open("wb") as log:
                self._processes.append(subprocess.Popen(command, cwd=folder, stdout=log, stderr=log))

    def _call(self, command: list[str], check: bool, text: str = "") -> subprocess.CompletedProcess[str]:
        done = subprocess.run(
            command, env=self.environment, input=text, capture_output=True, text=True, check=False, timeout=60
        )
        assert done.returncode == 0 or not check, (command, done.stdout, done.stderr)
        return done

    def kubectl(self, *arguments: str, check: bool = True, text: str = "") -> subprocess.CompletedProcess[str]:
        return self._call([program("kubectl"), *arguments], check, text)

    def helm(self, *arguments: str) -> str:
        return self._call([program("helm"), *arguments, "--namespace", "powerccl"], True).stdout

    def create(self, manifest: Manifest, namespace: str) -> subprocess.CompletedProcess[str]:
        return self.kubectl("-n", namespace, "create", "-f", "-", check=False, text=yaml.safe_dump(manifest))

    def close(self) -> None:
        for process in reversed(self._processes):
            process.kill()
            process.wait()


@pytest.fixture(scope="module", params=OPTIONS)
def cluster(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    made = Cluster(tmp_path_factory.mktemp("cluster"), request.param)
    try:
        prepare(made, request.param)
        yield made
        made.helm("uninstall", "powerccl")
    finally:
        made.close()


def prepare(made: Cluster, param: str) -> None:
    """Install the chart as the guide does, and make namespaces of each level of Pod Security."""
    ready = eventually(lambda: made.kubectl("get", "--raw", "/readyz", check=False).stdout == "ok", 120)
    assert ready, (made.folder / "server.log").read_text()[-2000:]
    made.kubectl("create", "namespace", "powerccl")
    made.kubectl("label", "namespace", "powerccl", "pod-security.kubernetes.io/enforce=privileged")
    notes = made.helm("install", "powerccl", str(CHART), "--set", f"image.repository={REPOSITORY}")
    assert "powerccl.io/inject: record" in notes
    if param == "without the policy":  # as in an older cluster
        made.kubectl("delete", "mutatingadmissionpolicybinding", "powerccl-inject")
    for namespace in ("ml", "baseline", "restricted"):
        made.kubectl("create", "namespace", namespace)
    for level in ("baseline", "restricted"):
        made.kubectl("label", "namespace", level, f"pod-security.kubernetes.io/enforce={level}")
    runtime = {"apiVersion": "node.k8s.io/v1", "kind": "RuntimeClass", "metadata": {"name": "nvidia"}}
    made.create({**runtime, "handler": "nvidia"}, "powerccl")
    # A new policy has effect some seconds later.
    probe: Manifest = {"metadata": {"name": "probe", "annotations": {"powerccl.io/inject": "no"}}}
    probe |= {"apiVersion": "v1", "kind": "Pod", "spec": {"containers": [{"name": "x", "image": "x"}]}}
    dry = ("create", "-n", "ml", "--dry-run=server", "-f", "-")
    text = yaml.safe_dump(probe)
    assert eventually(lambda: NOT_RECORDED in made.kubectl(*dry, text=text).stderr)


def guides_pod() -> Manifest:
    """The pod that the guide shows to write by hand."""
    page = (ROOT / "docs/guides/kubernetes.md").read_text()
    (found,) = re.findall(r"```yaml\n(apiVersion: v1\nkind: Pod\n.*?)```", page, re.DOTALL)
    made: Manifest = yaml.safe_load(found)
    return made


def admitted(cluster: Cluster) -> dict[str, tuple[Manifest, str]]:
    """The pods of tests/chart/pods.yaml as the server would keep them, and its warnings."""
    found = {}
    for pod in yaml.safe_load_all(PODS.read_text()):
        command = ("create", "--dry-run=server", "-o", "json", "-f", "-")
        done = cluster.kubectl(*command, text=yaml.safe_dump(pod))
        found[pod["metadata"]["name"]] = (json.loads(done.stdout), done.stderr)
    return found


def parts(pod: Manifest) -> Manifest:
    """What the policy adds, without what the server fills in."""
    (container,), (init,) = pod["spec"]["containers"], pod["spec"]["initContainers"]
    own = [each for each in pod["spec"]["volumes"] if each["name"].startswith("powerccl")]
    return {
        "command": container["command"],
        "mounts": container["volumeMounts"],
        "env": [
            each for each in container["env"] if each.get("value") or each["valueFrom"]["fieldRef"].pop("apiVersion", 1)
        ],
        "init": {name: init[name] for name in ("name", "image", "command", "securityContext", "volumeMounts")},
        "volumes": sorted(own, key=lambda each: str(each["name"])),
    }


def test_pods_are_injected_as_the_guide_shows(cluster: Cluster, request: pytest.FixtureRequest) -> None:
    if "without" in request.node.name:
        hints = dict.fromkeys(("train-0", "some"), "docs/guides/kubernetes.md says what to write by hand")
    else:
        hints = {}
    hints |= {"entrypoint": "write the entrypoint of the image as command", "mistyped": "write record or set-clocks"}
    pods = admitted(cluster)
    for name, (pod, warnings) in pods.items():
        assert (NOT_RECORDED in warnings) == (name in hints) and hints.get(name, "") in warnings, (name, warnings)
        injected = pod["metadata"].get("annotations", {}).get("powerccl.io/injected")
        assert injected == (None if name in hints else {"train-0": "trainer", "some": "b"}.get(name)), name
    if "without" in request.node.name:
        return
    assert parts(pods["train-0"][0]) == parts(guides_pod())
    some = pods["some"][0]["spec"]
    b = some["containers"][1]
    assert [each["name"] for each in some["initContainers"]] == ["before", "powerccl"]
    assert b["env"][0] == {"name": "POD_NAME", "value": "mine"} and len(b["env"]) == 4
    assert b["command"][-2:] == ["--", "b"] and "--set-clocks" not in b["command"] and b["args"] == ["x"]
    assert [each["name"] for each in b["volumeMounts"]] == ["data", "powerccl", "powerccl-runs"]
    assert not any("hostPath" in each for each in some["volumes"])
    assert "command" not in some["containers"][2] and some["containers"][0]["command"] == ["a"]


def test_levels_of_pod_security(cluster: Cluster, request: pytest.FixtureRequest) -> None:
    """The DaemonSet's pods need `privileged`. An injected pod passes `restricted`, unless it lowers clocks."""
    template = json.loads(cluster.kubectl("-n", "powerccl", "get", "daemonset", "powerccl", "-o", "json").stdout)
    spec = template["spec"]["template"]["spec"]
    daemon = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "node"}, "spec": spec}
    assert cluster.create(daemon, "powerccl").returncode == 0
    refused = cluster.create(daemon, "baseline")
    assert "violates PodSecurity" in refused.stderr and "SYS_ADMIN" in refused.stderr
    if "without" in request.node.name:
        return
    rights = {
        "allowPrivilegeEscalation": False,
        "capabilities": {"drop": ["ALL"]},
        "runAsNonRoot": True,
        "seccompProfile": {"type": "RuntimeDefault"},
    }
    container = {"name": "trainer", "image": "x", "command": ["train"], "securityContext": rights}
    for level in ("baseline", "restricted"):
        for value in ("record", "set-clocks"):
            about = {"name": value, "annotations": {"powerccl.io/inject": value}}
            pod = {"apiVersion": "v1", "kind": "Pod", "metadata": about, "spec": {"containers": [container]}}
            done = cluster.create(pod, level)
            assert (done.returncode == 0) == (value == "record"), done.stderr
            assert value == "record" or "hostPath" in done.stderr


def test_an_upgrade_and_its_way_back(cluster: Cluster) -> None:
    """To all values but those of the Prometheus operator, whose kinds this server lacks."""
    values = str(ROOT / "tests/chart/everything-values.yaml")
    without = "serviceMonitor.enabled=false,podMonitor.enabled=false"
    cluster.helm("upgrade", "powerccl", str(CHART), "--values", values, "--set", without)
    where = (
        "-n",
        "powerccl",
        "get",
        "daemonset",
        "powerccl",
        "-o",
        "jsonpath={.spec.template.spec.containers[0].args}",
    )
    assert "/var/lib/powerccl/leases" in cluster.kubectl(*where).stdout
    cluster.helm("rollback", "powerccl", "1")
    assert "/run/powerccl/leases" in cluster.kubectl(*where).stdout
