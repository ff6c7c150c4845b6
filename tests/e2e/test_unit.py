# SPDX-License-Identifier: Apache-2.0
"""packaging/systemd/powerccld.service under a systemd that runs, on emulated GPUs."""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import lease_client as wire
import pytest
from harness import IDLE_MHZ, EmulatedMachine, eventually
from systemd_node import SYSTEMD, Node

from powerccl.launch.native import NativeFiles

UNIT = Path(__file__).parents[2] / "packaging/systemd/powerccld.service"
SET_MHZ = 600
# The GPUs are emulated, and a hang is noticed in less time than 10 s. All else is as shipped.
DROP_IN = """[Service]
Environment=LD_LIBRARY_PATH=/run/node/emulator POWERCCL_EMULATOR_SOCKET=/run/node/gpus.sock
WatchdogSec=1500ms
"""
HOLD = """
import sys, time
sys.path.insert(0, sys.argv[1])
from pathlib import Path
import lease_client as wire
client = wire.Client(Path("/run/powerccl/powerccld.sock"))
status = client.send(wire.STATUS)
device = client.socket.recv(8192)[24:72].split(b"\\0")[0].decode()
assert client.set(client.lease(device), int(sys.argv[2])).status == wire.OK
print("holds", flush=True)
time.sleep(60)
"""


@pytest.fixture(scope="module")
def gpus(native: NativeFiles) -> Iterator[tuple[EmulatedMachine, Path]]:
    """An emulated machine, and the folder of the node that it is for."""
    if os.getuid() != 0 or not SYSTEMD.exists() or not shutil.which("nsenter"):
        pytest.skip("needs root and systemd")
    folder = Path(tempfile.mkdtemp(prefix="powerccl-node-", dir="/dev/shm"))
    (folder / "gpus").mkdir()
    machine = EmulatedMachine(native, folder / "gpus")
    yield machine, folder
    machine.stop()
    shutil.rmtree(folder)


@pytest.fixture(scope="module")
def node(native: NativeFiles, gpus: tuple[EmulatedMachine, Path]) -> Iterator[Node]:
    """A node with the unit installed, and not started."""
    _, folder = gpus
    made = Node(
        folder,
        {
            "/etc/systemd/system/powerccld.service": UNIT,
            "/etc/systemd/system/powerccld.service.d/emulated.conf": DROP_IN,
            "/usr/local/sbin/powerccld": native.path("bin/powerccld"),
            "/etc/powerccl/powerccld.toml": "",
        },
    )
    shutil.copytree(native.root / "emulator", made.shared / "emulator")
    shutil.copy(Path(wire.__file__), made.shared)  # where this checkout lies may not be seen in there
    (made.shared / "gpus.sock").hardlink_to(folder / "gpus/gpus.sock")
    try:
        if not made.boot():
            pytest.skip(f"systemd cannot be process 1 of a namespace here: {made.log.read_text()[-500:]}")
        yield made
    finally:
        made.end()


class Service:
    """powerccld.service in the node, and somebody who lowers a clock."""

    def __init__(self, node: Node, machine: EmulatedMachine) -> None:
        self.node = node
        self.machine = machine
        self.holders: list[subprocess.Popen[bytes]] = []

    def start(self) -> None:
        """Start it: systemctl waits for its READY=1."""
        done = self.node.run("systemctl", "start", "powerccld")
        assert done.returncode == 0, self.journal()

    def journal(self) -> str:
        """All that it and systemd said of it."""
        return self.node.run("journalctl", "-u", "powerccld", "--no-pager", "-o", "cat").stdout

    def lower(self) -> None:
        """Somebody takes a lease and lowers a clock."""
        python = shutil.which("python3", path="/usr/bin") or "python3"
        holder = self.node.start(python, "-c", HOLD, "/run/node", str(SET_MHZ))
        self.holders.append(holder)
        assert holder.stdout
        assert holder.stdout.readline() == b"holds\n", self.journal()
        assert SET_MHZ in self.machine.clocks_mhz()

    def usual(self, seconds: float = 10) -> bool:
        """Whether all clocks become usual, though the holder lives."""
        return eventually(lambda: self.machine.clocks_mhz() == [IDLE_MHZ] * 8, seconds)

    def is_(self, **wanted: str) -> bool:
        """Whether these properties become so."""
        return eventually(lambda: all(self.node.show("powerccld", name) == is_ for name, is_ in wanted.items()), 20)


@pytest.fixture
def service(node: Node, gpus: tuple[EmulatedMachine, Path]) -> Iterator[Service]:
    """Not started, with nothing left of the test before."""
    node.run("systemctl", "reset-failed", "powerccld")
    made = Service(node, gpus[0])
    yield made
    node.run("systemctl", "stop", "powerccld")
    for holder in made.holders:
        holder.kill()
        holder.wait()
    assert made.usual()


def test_it_starts_stops_and_puts_clocks_back(service: Service) -> None:
    service.start()
    assert service.is_(ActiveState="active", SubState="running", NRestarts="0")
    service.lower()
    assert service.node.run("systemctl", "stop", "powerccld").returncode == 0
    assert service.machine.clocks_mhz() == [IDLE_MHZ] * 8, "back when stop says so"
    assert service.is_(ActiveState="inactive", Result="success", ExecMainStatus="0")
    assert service.node.run("test", "-f", "/run/powerccl/leases").returncode == 0, "the state file outlives it"


def test_an_idle_one_is_left_alone(service: Service) -> None:
    """It reports to the watchdog though nobody wants anything of it."""
    service.start()
    time.sleep(2.5)
    assert service.node.show("powerccld", "NRestarts") == "0", service.journal()


def test_killed_it_is_restarted_and_clocks_are_put_back(service: Service) -> None:
    service.start()
    service.lower()
    service.node.run("systemctl", "kill", "-s", "KILL", "powerccld")
    assert service.usual()
    assert service.is_(ActiveState="active", NRestarts="1")
    assert "restoring the clock of" in service.journal()


def test_one_that_hangs_is_ended_and_clocks_are_put_back(service: Service) -> None:
    service.start()
    service.lower()
    service.node.run("systemctl", "kill", "-s", "STOP", "powerccld")
    assert service.usual(20)
    assert service.is_(ActiveState="active", NRestarts="1")
    assert "Watchdog timeout" in service.journal()


def test_a_wrong_configuration_is_not_tried_again(service: Service) -> None:
    service.node.run("sh", "-c", "echo 'wrong = 1' > /etc/powerccl/powerccld.toml")
    try:
        assert service.node.run("systemctl", "start", "powerccld").returncode != 0
        assert service.is_(ActiveState="failed", ExecMainStatus="2", NRestarts="0")
    finally:
        service.node.run("sh", "-c", ": > /etc/powerccl/powerccld.toml")


def test_what_it_may(service: Service) -> None:
    """Directives that the kernel shows, of the running daemon."""
    service.start()
    pid = service.node.show("powerccld", "MainPID")
    status = dict(
        line.split(":\t", 1)
        for line in service.node.run("cat", f"/proc/{pid}/status").stdout.splitlines()
        if ":\t" in line
    )
    assert (status["CapEff"], status["CapBnd"]) == ("0000000000200001", "0000000000200001"), "SYS_ADMIN and CHOWN"
    assert (status["NoNewPrivs"], status["Seccomp"]) == ("1", "2")
    mounts = service.node.run("cat", f"/proc/{pid}/mounts").stdout.splitlines()
    options = {line.split()[1]: line.split()[3].split(",") for line in mounts}
    assert "ro" in options["/"]
    assert "ro" in options["/run"]
    assert "rw" in options["/run/powerccl"]
