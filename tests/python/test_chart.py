# SPDX-License-Identifier: Apache-2.0
"""packaging/helm/powerccl: rights and parts of what it renders.

CI has no helm, so tests/chart keeps what tools/render-chart rendered. A digest says when that is stale. Where helm is
installed, the files are rendered again and compared. tests/e2e/test_api_server.py tries the policies.
"""

from __future__ import annotations

import functools
import hashlib
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import kubernetes_validate
import pytest
import yaml
from support.programs import program

ROOT = Path(__file__).parents[2]
CHART, RENDERED = ROOT / "packaging/helm/powerccl", ROOT / "tests/chart"
MANIFESTS = sorted(RENDERED.glob("*-1.*.yaml"))
VERSIONS = [f"1.{minor}" for minor in range(29, 38)]
HELM = program("helm")
CRDS = ("ServiceMonitor", "PodMonitor")  # of the Prometheus operator, not of Kubernetes

# It reads megabytes of schemas for each manifest.
kubernetes_validate.utils.schema_contents = functools.cache(kubernetes_validate.utils.schema_contents)

Manifest = dict[str, Any]


def manifests(file: Path) -> list[Manifest]:
    return [each for each in yaml.safe_load_all(file.read_text()) if each]


def one(file: Path, kind: str) -> Manifest:
    (found,) = [each for each in manifests(file) if each["kind"] == kind]
    return found


def pod_of(file: Path) -> Manifest:
    spec: Manifest = one(file, "DaemonSet")["spec"]["template"]["spec"]
    return spec


def container(file: Path, name: str) -> Manifest:
    (found,) = [each for each in pod_of(file)["containers"] if each["name"] == name]
    assert isinstance(found, dict)
    return found


def test_rendered_files_are_of_this_chart() -> None:
    """As tools/render-chart adds them up: another chart has to be rendered again."""
    values = RENDERED / "everything-values.yaml"
    files = sorted(str(path.relative_to(ROOT)) for path in [*CHART.rglob("*"), values] if path.is_file())
    digest = hashlib.sha256(b"".join((ROOT / name).read_bytes() for name in files)).hexdigest()
    assert (RENDERED / "sources.sha256").read_text().strip() == digest, "run tools/render-chart"


@pytest.mark.parametrize("file", MANIFESTS, ids=lambda file: file.stem)
def test_rights_are_the_least(file: Path) -> None:
    pod = pod_of(file)
    assert pod["hostPID"] is True and pod["automountServiceAccountToken"] is False
    assert not {"hostNetwork", "hostIPC", "shareProcessNamespace"} & set(pod)
    assert pod["securityContext"] == {"seccompProfile": {"type": "RuntimeDefault"}}
    with_group = file.stem.startswith("everything")  # the socket is given to one
    expected = {
        "powerccld": ["SYS_ADMIN", *(["CHOWN"] if with_group else [])],
        "exporter": ["SYS_PTRACE", "DAC_READ_SEARCH", "SETUID", "SETGID", "KILL"],
    }
    assert {each["name"] for each in pod["containers"]} == set(expected)
    for each in pod["containers"]:
        assert each["securityContext"] == {
            "runAsUser": 0,
            "runAsGroup": 0,
            "readOnlyRootFilesystem": True,
            "allowPrivilegeEscalation": False,
            "capabilities": {"drop": ["ALL"], "add": expected[each["name"]]},
        }
        assert each["resources"]["limits"]["memory"] and each["livenessProbe"]
    paths = {each["hostPath"]["path"] for each in pod["volumes"] if "hostPath" in each}
    emulator = {"/var/lib/powerccl", "/emulator", "/gpus"} if with_group else set()
    assert paths == {"/run/powerccl"} | emulator
    (leases,) = [each for each in container(file, "exporter")["volumeMounts"] if each["name"] == "leases"]
    assert leases["readOnly"] is True


@pytest.mark.parametrize("file", MANIFESTS, ids=lambda file: file.stem)
def test_names_refer_to_what_is_there(file: Path) -> None:
    """Selectors select the pods, volumes exist, and the configuration's ports and files are those of the arguments."""
    found = manifests(file)
    template = one(file, "DaemonSet")["spec"]["template"]
    labels = template["metadata"]["labels"].items()
    for each in found:
        selector = each.get("spec", {}).get("selector", {})
        assert selector.get("matchLabels", selector).items() <= labels, each["kind"]
        assert each["metadata"].get("namespace", "powerccl") == "powerccl"
    volumes = {each["name"] for each in template["spec"]["volumes"]}
    for each in template["spec"]["containers"]:
        assert {mount["name"] for mount in each["volumeMounts"]} <= volumes
    exporter = container(file, "exporter")
    (port,) = [each["containerPort"] for each in exporter["ports"]]
    assert f"0.0.0.0:{port}" in exporter["args"]
    assert one(file, "Service")["spec"]["ports"][0]["port"] == port
    assert one(file, "ConfigMap")["data"].keys() == {"powerccld.toml"}
    state = "/var/lib/powerccl" if file.stem.startswith("everything") else "/run/powerccl"
    assert container(file, "powerccld")["args"][-1] == f"{state}/leases"


def test_policies_go_with_versions() -> None:
    """1.29 has no policy; from 1.36 on, both are stable."""
    kinds = {file.stem: {each["kind"] for each in manifests(file)} for file in MANIFESTS}
    policies = {"MutatingAdmissionPolicy", "ValidatingAdmissionPolicy"}
    policies |= {f"{name}Binding" for name in policies}
    assert not kinds["default-1.29"] & policies
    assert kinds["default-1.36"] >= policies
    assert kinds["everything-1.36"] >= policies | set(CRDS)
    binding = one(RENDERED / "everything-1.36.yaml", "MutatingAdmissionPolicyBinding")["spec"]["matchResources"]
    assert binding["namespaceSelector"] == {"matchLabels": {"powerccl.io/inject": "enabled"}}


def test_injected_parts_pass_the_level_restricted() -> None:
    """Of Pod Security. What also lowers clocks needs a hostPath, which that level refuses."""
    policy = one(RENDERED / "default-1.36.yaml", "MutatingAdmissionPolicy")["spec"]
    assert policy["failurePolicy"] == "Ignore"
    text = " ".join(policy["mutations"][0]["jsonPatch"]["expression"].replace("dyn(", "").replace(")", "").split())
    init = re.search(r"/spec/initContainers/-', value: (\{.*?\})\}, JSONPatch", text)
    assert init
    found = yaml.safe_load(init[1])
    assert found["securityContext"] == {
        "allowPrivilegeEscalation": False,
        "capabilities": {"drop": ["ALL"]},
        "readOnlyRootFilesystem": True,
        "runAsGroup": 65532,
        "runAsNonRoot": True,
        "runAsUser": 65532,
        "seccompProfile": {"type": "RuntimeDefault"},
    }
    volume = "[JSONPatch{op: 'add', path: '/spec/volumes/-', value: {\"hostPath\""
    assert text.count("hostPath") == 1 and f"(variables.clocks ? {volume}" in text


def test_values_are_explained_and_have_a_schema() -> None:
    """Each value, and each of a group's, has a comment above it, but for groups whose values have."""
    lines = (CHART / "values.yaml").read_text().splitlines()
    for before, line, after in zip(lines, lines[1:], [*lines[2:], ""], strict=False):
        if re.match(r"(  )?[A-Za-z]+:", line):
            assert before.lstrip().startswith("#") or after.lstrip().startswith("#"), line
    schema = yaml.safe_load((CHART / "values.schema.json").read_text())
    values = yaml.safe_load((CHART / "values.yaml").read_text())
    assert set(schema["properties"]) == set(values) | {"global"}
    for name, group in values.items():
        if isinstance(group, dict) and "properties" in schema["properties"][name]:
            assert set(schema["properties"][name]["properties"]) == set(group), name


def test_versions_are_the_projects() -> None:
    about = yaml.safe_load((CHART / "Chart.yaml").read_text())
    project = (ROOT / "pyproject.toml").read_text()
    assert f'version = "{about["appVersion"]}"' in project


def faults(file: Path, version: str) -> list[str]:
    """What Kubernetes' own schema of a version refuses."""
    found = []
    for each in manifests(file):
        if each["kind"] in CRDS:
            continue
        try:
            kubernetes_validate.validate(each, version, strict=True)
        except (kubernetes_validate.ValidationError, kubernetes_validate.SchemaNotFoundError) as error:
            found.append(f"{each['kind']}: {error.message}")
    return found


@pytest.mark.parametrize("file", MANIFESTS, ids=lambda file: file.stem)
def test_rendered_files_are_valid(file: Path) -> None:
    oldest = file.stem.split("-")[1]
    for version in VERSIONS[VERSIONS.index(oldest) :]:
        assert faults(file, version) == []


@pytest.mark.large("helm")
def test_rendering_again_changes_nothing(tmp_path: Path) -> None:
    copy = tmp_path / "checkout"
    shutil.copytree(CHART, copy / "packaging/helm/powerccl")
    shutil.copytree(RENDERED, copy / "tests/chart")
    (copy / "tools").mkdir()
    shutil.copy(ROOT / "tools/render-chart", copy / "tools")
    subprocess.run([str(copy / "tools/render-chart")], check=True)
    for file in [*MANIFESTS, RENDERED / "sources.sha256"]:
        assert (copy / "tests/chart" / file.name).read_text() == file.read_text(), file.name


@pytest.mark.large("helm")
@pytest.mark.parametrize("version", VERSIONS)
def test_each_version_is_rendered_for(version: str, tmp_path: Path) -> None:
    """[chart.versions.faults == 0]: with the policies that a cluster of that version serves."""
    subprocess.run([str(ROOT / "tools/render-chart"), version, str(tmp_path)], check=True)
    files = list(tmp_path.iterdir())
    assert len(files) == 3
    for file in files:
        assert faults(file, version) == [], file.name
    served = [each["apiVersion"] for each in manifests(tmp_path / f"default-{version}.yaml")]
    mutating = [each.split("/")[1] for each in served if each.startswith("admissionregistration")]
    minor = int(version.split(".")[1])
    beta = "v1" if minor >= 36 else "v1beta1" if minor >= 34 else "v1alpha1"
    assert mutating == [beta] * 2 * (minor >= 32) + ["v1"] * 2 * (minor >= 30)


@pytest.mark.large("helm")
def test_lint_and_wrong_values() -> None:
    done = subprocess.run([HELM, "lint", "--strict", str(CHART)], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout
    for wrong, words in (
        ("daemon.enable=true", "enable"),
        ("exporter.port=http", "integer"),
        ("daemon.hostPath=run", "pattern"),
        ("daemon.enabled=false,exporter.enabled=false", "enable one of them"),
        ("serviceMonitor.enabled=true,service.enabled=false", "needs service.enabled"),
    ):
        command = [HELM, "template", "x", str(CHART), "--kube-version", "1.36.0", "--set", wrong]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        assert done.returncode != 0 and words in done.stderr, (wrong, done.stderr)
