# SPDX-License-Identifier: Apache-2.0
"""A systemd of our own as process 1 of a few namespaces, on a throw-away copy of this machine's files.

It needs root, systemd's program and a kernel that lets us; nothing is installed, and nothing stays. What it cannot show
is said in docs/guides/install-cluster.md.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

SYSTEMD = Path("/lib/systemd/systemd")

_BOOT = r"""
set -e
top=$1
mount -t tmpfs -o mode=755,size=512m node "$top/node"
mkdir "$top/node/upper" "$top/node/work" "$top/node/root"
root=$top/node/root
mount -t overlay overlay -o "lowerdir=/,upperdir=$top/node/upper,workdir=$top/node/work" "$root"
mount -t tmpfs -o mode=755 dev "$root/dev"
for node in null zero full random urandom tty; do cp -a "/dev/$node" "$root/dev/"; done
mkdir "$root/dev/pts" "$root/dev/shm"
mount -t devpts -o newinstance,ptmxmode=0666 devpts "$root/dev/pts"
mount -t tmpfs -o mode=1777 shm "$root/dev/shm"
mount -t proc proc "$root/proc"
mount --bind "$root/proc/sys" "$root/proc/sys"
mount -o remount,ro,bind "$root/proc/sys"
mount -t sysfs -o ro sysfs "$root/sys"
for folder in run tmp var/tmp var/log etc/systemd usr/local/sbin usr/lib/systemd/system/sysinit.target.wants \
  usr/lib/systemd/system/sockets.target.wants usr/lib/systemd/system/timers.target.wants; do
  mkdir -p "$root/$folder"
  mount -t tmpfs -o mode=755 node "$root/$folder"
done
chmod 1777 "$root/tmp" "$root/var/tmp"
mkdir "$root/run/node"
mount --bind "$top/shared" "$root/run/node"
cp -a "$top/files/." "$root/"
. "$top/cgroups"
: > "$root/etc/fstab"
hostname node
exec env -i container=other PATH=/usr/sbin:/usr/bin:/sbin:/bin chroot "$root" /lib/systemd/systemd \
  --system --unit=node.target --log-target=console --show-status=0
"""

_TARGET = """[Unit]
Requires=systemd-journald.service
After=systemd-journald.service
AllowIsolate=yes
"""


@dataclass
class _Hierarchy:
    """A cgroup hierarchy: where it is mounted, how, and the group in it that is the node's."""

    where: Path
    type: str
    options: str
    group: Path


def _hierarchies(name: str) -> list[_Hierarchy]:
    """All that are mounted, with a new group of that name below this process's."""
    mine = {}
    for line in Path("/proc/self/cgroup").read_text().splitlines():
        _, controllers, path = line.split(":", 2)
        mine[controllers] = path
    found = []
    for line in Path("/proc/self/mounts").read_text().splitlines():
        _, where, kind, options, *_ = line.split()
        if kind not in ("cgroup", "cgroup2"):
            continue
        given = set(options.split(","))
        named = [key for key in mine if key and set(key.split(",")) <= given]
        controllers = named[0] if named and kind == "cgroup" else ""
        option = f"none,{controllers}" if controllers.startswith("name=") else controllers
        group = Path(where) / mine[controllers].lstrip("/") / name
        found.append(_Hierarchy(Path(where), kind, option, group))
    return found


class Node:
    """Booted by the constructor. `files` are written below its root, by absolute path; `shared` is its /run/node."""

    def __init__(self, folder: Path, files: Mapping[str, str | Path]) -> None:
        self.folder = folder
        self.shared = folder / "shared"
        for name in ("node", "shared", "files"):
            (folder / name).mkdir()
        for path, content in {"/etc/systemd/system/node.target": _TARGET, **files}.items():
            target = folder / "files" / path.lstrip("/")
            target.parent.mkdir(parents=True, exist_ok=True)
            if isinstance(content, Path):
                shutil.copy(content, target)
            else:
                target.write_text(content)
        self.hierarchies = _hierarchies(f"powerccl-node-{os.getpid()}")
        (folder / "cgroups").write_text(self._mounts())
        self.log = folder / "boot.log"
        self.process: subprocess.Popen[bytes] | None = None
        self.pid = 0

    def _mounts(self) -> str:
        """Shell commands that mount the cgroup hierarchies as the node sees them."""
        lines = []
        if not any(h.where == Path("/sys/fs/cgroup") for h in self.hierarchies):
            lines.append('mount -t tmpfs -o mode=755 cgroups "$root/sys/fs/cgroup"')
        for h in sorted(self.hierarchies, key=lambda h: len(h.where.parts)):
            option = f"-o {h.options} " if h.options else ""
            lines.append(f'mkdir -p "$root{h.where}"; mount -t {h.type} {option}cgroup "$root{h.where}"')
        return "\n".join(lines) + "\n"

    def boot(self, seconds: float = 20.0) -> bool:
        """Start it. False: this machine does not let us; `log` says why."""
        command = ["unshare", "-m", "-p", "-f", "-C", "-u", "-i", "-n", "--kill-child", "--propagation", "private"]
        with self.log.open("wb") as log:
            try:
                for h in self.hierarchies:
                    h.group.mkdir()
                    for name in ("cpuset.cpus", "cpuset.mems"):  # of the first version: empty, and nothing may enter
                        if h.type == "cgroup" and (h.group / name).exists():
                            (h.group / name).write_text((h.group.parent / name).read_text())
                self.process = subprocess.Popen(
                    [*command, "sh", "-c", _BOOT, "boot", str(self.folder)],
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=log,
                    preexec_fn=self._enter,  # no threads here
                )
            except (OSError, subprocess.SubprocessError) as error:
                log.write(str(error).encode())
                return False
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline and self.process.poll() is None:
            children = Path(f"/proc/{self.process.pid}/task/{self.process.pid}/children").read_text().split()
            self.pid = int(children[0]) if children else 0
            if self.pid and self.run("systemctl", "is-active", "--quiet", "node.target").returncode == 0:
                return self.run("systemctl", "log-target", "journal").returncode == 0
            time.sleep(0.05)
        return False

    def _enter(self) -> None:
        for h in self.hierarchies:
            (h.group / "cgroup.procs").write_text(str(os.getpid()))

    def _command(self, *command: str) -> list[str]:
        into = ["nsenter", "-t", str(self.pid), "-m", "-p", "-u", "-i", "-n", "-C", "-r", "-w"]
        return [*into, "env", "-i", "PATH=/usr/local/sbin:/usr/sbin:/usr/bin:/sbin:/bin", *command]

    def run(self, *command: str) -> subprocess.CompletedProcess[str]:
        """Run a command in it, as root, to its end."""
        return subprocess.run(self._command(*command), capture_output=True, text=True, check=False, timeout=60)

    def start(self, *command: str) -> subprocess.Popen[bytes]:
        """Start a command in it; its output can be read."""
        return subprocess.Popen(self._command(*command), stdin=subprocess.DEVNULL, stdout=subprocess.PIPE)

    def show(self, unit: str, name: str) -> str:
        """A property of a unit."""
        return self.run("systemctl", "show", "--value", "-p", name, unit).stdout.strip()

    def end(self) -> None:
        """Everything in it with it."""
        if self.process:
            self.process.kill()
            self.process.wait()
        for h in self.hierarchies:
            deadline = time.monotonic() + 5
            while h.group.exists() and time.monotonic() < deadline:
                for below in sorted((path for path in h.group.rglob("*") if path.is_dir()), reverse=True):
                    with contextlib.suppress(OSError):
                        below.rmdir()
                with contextlib.suppress(OSError):
                    h.group.rmdir()
                time.sleep(0.02)
