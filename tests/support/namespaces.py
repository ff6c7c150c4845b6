# SPDX-License-Identifier: Apache-2.0
"""Two hosts in one machine: network namespaces joined by a veth pair whose both ends send at a given rate.

The namespaces have no names: they go with their last process, and all processes are in a PID namespace that ends
with the one that asked for it, whatever ends that (`alone`). So nothing is left behind, and nothing outside is touched:
the veth pair is made inside.
"""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

ADDRESSES = ("10.213.0.1", "10.213.0.2")  # seen by nobody else
INTERFACES = ("pcclA", "pcclB")
PROGRAMS = ("ip", "tc", "unshare", "nsenter", "setpriv", "mount")
# What may pass at once: with less, a kernel on two busy cores sends less than the rate; messages up to about this size
# are faster than the network would let them be.
BURST_BYTES = 128 << 10


class NetworksError(Exception):
    """It cannot be done on this machine; says why."""


def alone(command: list[str]) -> int:
    """Run a command as the first process of a PID namespace; its exit code. What it started ends with it or with us.

    An MPI launcher's proxies make sessions of their own and outlive it when it is killed at the wrong moment.

    Raises:
        NetworksError: a program is missing, or this is not root.
    """
    missing = [program for program in PROGRAMS if shutil.which(program) is None]
    if missing:
        raise NetworksError(f"{', '.join(missing)} not found: install iproute2 and util-linux")
    apart = ["unshare", "--pid", "--fork", "--kill-child=KILL", "--mount-proc"]
    if os.geteuid() != 0 or subprocess.run([*apart, "true"], capture_output=True, check=False).returncode:
        raise NetworksError("namespaces cannot be made here: it takes root (CAP_SYS_ADMIN and CAP_NET_ADMIN)")
    child = subprocess.Popen(["setpriv", "--pdeathsig=KILL", *apart, *command])
    try:
        return child.wait()
    finally:
        child.kill()


@dataclass(frozen=True)
class Host:
    """One of the two: the process that holds its namespaces, its address and its interface."""

    pid: int
    address: str
    interface: str

    def enter(self, *command: str) -> list[str]:
        """The command, to be run there."""
        return ["nsenter", f"--target={self.pid}", "--net", "--mount", "--", *command]


@contextmanager
def two_hosts() -> Iterator[tuple[Host, Host]]:
    """Two hosts that reach each other and nothing else, until the `with` ends.

    Raises:
        NetworksError: they could not be set up.
    """
    holders: list[subprocess.Popen[bytes]] = []
    try:
        for address, interface in zip(ADDRESSES, INTERFACES, strict=True):
            holders.append(_hold())
            _wait_apart(holders[-1].pid, address, interface)
        hosts = [Host(each.pid, *rest) for each, *rest in zip(holders, ADDRESSES, INTERFACES, strict=True)]
        one, other = hosts
        # Made inside the first host, so that the machine's own namespace never has either end.
        run(one.enter("ip", "link", "add", one.interface, "type", "veth", "peer", "name", other.interface))
        run(one.enter("ip", "link", "set", other.interface, "netns", str(other.pid)))
        for host in hosts:
            run(host.enter("ip", "address", "add", f"{host.address}/24", "dev", host.interface))
            run(host.enter("ip", "link", "set", host.interface, "up"))
            run(host.enter("ip", "link", "set", "lo", "up"))
        yield one, other
    finally:
        for each in holders:
            each.kill()
            each.wait()


def shape(hosts: tuple[Host, Host], mbit_per_s: int) -> None:
    """Let both ends send at most so fast (token bucket; no delay is added)."""
    for host in hosts:
        rate = ("rate", f"{mbit_per_s}mbit", "burst", str(BURST_BYTES), "latency", "20ms")
        run(host.enter("tc", "qdisc", "replace", "dev", host.interface, "root", "tbf", *rate))


def _hold() -> subprocess.Popen[bytes]:
    """A process with namespaces of its own; /sys shows their interfaces, for libraries that look there."""
    inside = "mount -t sysfs sysfs /sys && exec sleep infinity"
    return subprocess.Popen(["unshare", "--net", "--mount", "sh", "-c", inside], stderr=subprocess.PIPE)


def _wait_apart(pid: int, address: str, interface: str) -> None:
    host = Host(pid, address, interface)
    for _ in range(100):
        if Path(f"/proc/{pid}/stat").read_text().split()[2] == "Z":
            raise NetworksError("a network namespace cannot be made here: it takes CAP_SYS_ADMIN and CAP_NET_ADMIN")
        if Path(f"/proc/{pid}/comm").read_text().strip() == "sleep":
            run(host.enter("true"))
            return
        time.sleep(0.02)
    raise NetworksError("namespaces did not come up within 2 s")


def run(command: list[str]) -> None:
    """Run a command of the setup.

    Raises:
        NetworksError: it failed; the text has its message.
    """
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise NetworksError(f"{shlex.join(command)}: {done.stderr.strip() or done.returncode}")
