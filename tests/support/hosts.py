# SPDX-License-Identifier: Apache-2.0
"""Hosts of one machine, as namespaces: each has a name, an address, a boot id, processes and /dev/shm of its own.

A host's monotonic clock may be ahead of the machine's, as if it had been up for longer.

The file system is shared, as a cluster's parallel file system is. All processes of a host end with it. A host ends with
the process that asked for it, whatever ends that.
"""

from __future__ import annotations

import contextlib
import os
import subprocess
import time
import uuid
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from support.namespaces import NetworksError, run

NETWORK = "10.214.0"  # seen by nobody else
APART = ("unshare", "--net", "--uts", "--ipc", "--pid", "--mount", "--fork", "--kill-child=KILL", "--mount-proc")
UP_S = 10.0


@dataclass(frozen=True)
class Node:
    """One host: its name, the first process of its namespaces, and its address."""

    name: str
    pid: int
    address: str
    own_clock: bool = False

    def enter(self, *command: str) -> list[str]:
        """The command, to be run there in the present folder."""
        spaces = ["--net", "--uts", "--ipc", "--pid", "--mount", *(["--time"] if self.own_clock else [])]
        return ["nsenter", f"--target={self.pid}", *spaces, f"--wd={Path.cwd()}", "--", *command]


@contextmanager
def hosts(names: Sequence[str], folder: Path, ahead_s: Mapping[str, int] | None = None) -> Iterator[list[Node]]:
    """Hosts that reach each other and nothing else, until the `with` ends; what they need is kept in `folder`.

    `ahead_s`: how many seconds a host's clock is ahead.

    Raises:
        NetworksError: they could not be set up.
    """
    if os.geteuid() != 0:
        raise NetworksError("namespaces cannot be made here: it takes root (CAP_SYS_ADMIN and CAP_NET_ADMIN)")
    addresses = [f"{NETWORK}.{number}" for number in range(1, len(names) + 1)]
    known = folder / "hosts"
    lines = [f"{address} {name}" for address, name in zip(addresses, names, strict=True)]
    known.write_text("\n".join(["127.0.0.1 localhost", *lines, ""]))
    holders = [subprocess.Popen(["setpriv", "--pdeathsig=KILL", "unshare", "--net", "sleep", "infinity"])]
    switch = ("nsenter", f"--target={holders[0].pid}", "--net", "--")
    try:
        _wait(lambda: _space(holders[0].pid) != _space(os.getpid()))
        run([*switch, "ip", "link", "add", "br0", "type", "bridge"])
        run([*switch, "ip", "link", "set", "br0", "up"])
        found = []
        for number, (name, address) in enumerate(zip(names, addresses, strict=True)):
            ahead = (ahead_s or {}).get(name, 0)
            holder = _hold(name, folder, known, number, ahead)
            holders.append(holder)
            node = Node(name, _first_process(holder), address, bool(ahead))
            port = f"port{number}"
            run([*switch, "ip", "link", "add", port, "type", "veth", "peer", "name", "eth0", "netns", str(node.pid)])
            run([*switch, "ip", "link", "set", port, "master", "br0", "up"])
            run(node.enter("ip", "address", "add", f"{address}/24", "dev", "eth0"))
            run(node.enter("ip", "link", "set", "eth0", "up"))
            found.append(node)
        yield found
    finally:
        for holder in reversed(holders):
            holder.kill()
            holder.wait()


def _hold(name: str, folder: Path, known: Path, number: int, ahead_s: int) -> subprocess.Popen[bytes]:
    boot_id = folder / f"boot-{number}"
    boot_id.write_text(f"{uuid.uuid4()}\n")
    # The first process of a PID namespace inherits orphans: a shell that waits reaps them.
    inside = (
        f"hostname {name} && ip link set lo up && mount -t tmpfs shm /dev/shm && chmod 1777 /dev/shm"
        f" && mount --bind {known} /etc/hosts && mount --bind {boot_id} /proc/sys/kernel/random/boot_id"
        " && echo ready && trap : CHLD && while :; do sleep 1000 & wait $!; done"
    )
    clock = ["--time", f"--monotonic={ahead_s}", f"--boottime={ahead_s}"] if ahead_s else []
    command = ["setpriv", "--pdeathsig=KILL", *APART, *clock, "sh", "-c", inside]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stdin=subprocess.DEVNULL)


def _first_process(holder: subprocess.Popen[bytes]) -> int:
    assert holder.stdout
    if holder.stdout.readline() != b"ready\n":
        raise NetworksError("a host's namespaces cannot be made here")
    return int(Path(f"/proc/{holder.pid}/task/{holder.pid}/children").read_text().split()[0])


def _space(pid: int) -> str:
    with contextlib.suppress(OSError):
        return str(Path(f"/proc/{pid}/ns/net").readlink())
    return ""


def _wait(condition: object) -> None:
    deadline = time.monotonic() + UP_S
    while not condition():  # type: ignore[operator]
        if time.monotonic() > deadline:
            raise NetworksError(f"namespaces did not come up within {UP_S:.0f} s")
        time.sleep(0.02)
