# SPDX-License-Identifier: Apache-2.0
"""What a kubelet does with a container of a manifest, done by podman: command, rights, variables and volumes.

There is no pod network, no probe and no runtime class. PODMAN names the program, POWERCCL_IMAGE the image.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from support.programs import program

PODMAN = program("podman")
IMAGE = os.environ.get("POWERCCL_IMAGE", "")
Manifest = Mapping[str, Any]


def podman(*arguments: str, check: bool = True, timeout: float = 120) -> subprocess.CompletedProcess[str]:
    """Run podman to its end."""
    done = subprocess.run([PODMAN, *arguments], capture_output=True, text=True, timeout=timeout, check=False)
    assert done.returncode == 0 or not check, (arguments, done.stdout, done.stderr)
    return done


@dataclass
class Node:
    """A node's folders that pods mount: each hostPath is below `root`, and each emptyDir below `volumes`."""

    root: Path
    configuration: Mapping[str, Mapping[str, str]]  # the files of each ConfigMap
    volumes: Path
    downward: dict[str, str] = field(default_factory=dict)  # fields of a pod that its containers' variables name
    names: list[str] = field(default_factory=list)

    def _source(self, volume: Manifest) -> Path:
        if "hostPath" in volume:
            path: Path = self.root / volume["hostPath"]["path"].lstrip("/")
            if volume["hostPath"].get("type") == "DirectoryOrCreate":
                path.mkdir(0o755, parents=True, exist_ok=True)
        elif "configMap" in volume:
            path = self.volumes / volume["configMap"]["name"]
            path.mkdir(exist_ok=True)
            for name, text in self.configuration[volume["configMap"]["name"]].items():
                (path / name).write_text(text)
        else:
            assert "emptyDir" in volume, volume
            path = self.volumes / volume["name"]
            path.mkdir(exist_ok=True)
            path.chmod(0o777)
        return path

    def arguments(self, pod: Manifest, container: Manifest, more: Sequence[str] = ()) -> list[str]:
        """Of `podman run`, for one container of a pod's spec; `more`: in front of the image."""
        name = f"powerccl-{container['name']}-{uuid.uuid4().hex[:8]}"
        self.names.append(name)
        arguments = ["run", "--name", name, "--hostname", name, "--network", "none"]
        if pod.get("hostPID"):
            arguments += ["--pid", "host"]
        rights = {**pod.get("securityContext", {}), **container.get("securityContext", {})}
        # podman's own profile of system calls is its RuntimeDefault.
        assert rights["seccompProfile"] == {"type": "RuntimeDefault"} and not rights.get("privileged")
        arguments += ["--user", f"{rights['runAsUser']}:{rights['runAsGroup']}"]
        arguments += [f"--group-add={group}" for group in rights.get("supplementalGroups", ())]
        if rights.get("readOnlyRootFilesystem"):
            arguments += ["--read-only", "--read-only-tmpfs=false"]
        if not rights["allowPrivilegeEscalation"]:
            arguments += ["--security-opt", "no-new-privileges"]
        arguments += [f"--cap-drop={name}" for name in rights["capabilities"]["drop"]]
        arguments += [f"--cap-add={name}" for name in rights["capabilities"].get("add", ())]
        volumes = {each["name"]: each for each in pod.get("volumes", ())}
        for mount in container.get("volumeMounts", ()):
            source = self._source(volumes[mount["name"]])
            arguments += ["-v", f"{source}:{mount['mountPath']}{':ro' if mount.get('readOnly') else ''}"]
        variables = {each["name"]: self._value(each) for each in container.get("env", ())}
        arguments += [f"--env={name}={value}" for name, value in variables.items()]
        words = [*container["command"], *container.get("args", ())]
        words = [re.sub(r"\$\((\w+)\)", lambda name: variables[name[1]], word) for word in words]
        arguments += [*more, "--entrypoint", json.dumps(words[:1]), IMAGE, *words[1:]]
        return arguments

    def _value(self, variable: Manifest) -> str:
        found = variable.get("value")
        return str(self.downward[variable["valueFrom"]["fieldRef"]["fieldPath"]] if found is None else found)

    def start(self, pod: Manifest, container: Manifest, more: Sequence[str] = ()) -> str:
        """Start a container; its name."""
        podman(*self.arguments(pod, container, ["--detach", *more]))
        return self.names[-1]

    def run(self, pod: Manifest, container: Manifest, more: Sequence[str] = ()) -> subprocess.CompletedProcess[str]:
        """Run a container to its end, whatever its exit code."""
        return podman(*self.arguments(pod, container, more), check=False)

    def close(self) -> None:
        """Remove all containers."""
        for name in self.names:
            podman("rm", "--force", "--time", "0", name, check=False)
