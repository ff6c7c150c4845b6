# SPDX-License-Identifier: Apache-2.0
"""One powerccld a socket, whatever lies there; and what `--check` and a start refuse alike."""

from __future__ import annotations

import os
import socket
import struct
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest
from daemon_process import NOBODY, Daemon
from harness import eventually
from lease_client import Client


def another(daemon: Daemon, state: str, *options: str) -> subprocess.Popen[str]:
    """A daemon with the same socket and a state file of its own."""
    return subprocess.Popen(
        [*daemon.command, "--state", str(daemon.folder / state), *options],
        env=dict(daemon.environment),
        stdin=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
    )


def refused(process: subprocess.Popen[str]) -> str:
    """What a daemon says that does not come up."""
    _, said = process.communicate(timeout=30)
    assert process.returncode == 1, said
    return said


def served_by(daemon: Daemon) -> int:
    """The process that listens."""
    with Client(daemon.socket).socket as connection:
        return int(struct.unpack("3i", connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12))[0])


@pytest.mark.parametrize("state", ["leases", "other"])
def test_a_second_daemon_does_not_take_the_socket(daemon: Daemon, state: str) -> None:
    daemon.start()
    assert daemon.process
    assert "another powerccld" in refused(another(daemon, state)).splitlines()[-1]
    assert "another powerccld" in refused(another(daemon, state, "--private"))
    assert served_by(daemon) == daemon.process.pid


def test_nor_one_without_the_lock(daemon: Daemon) -> None:
    """As a daemon of an older version has none, and as somebody may remove it."""
    daemon.start()
    assert daemon.process
    Path(f"{daemon.socket}.lock").unlink()
    assert "another powerccld listens" in refused(another(daemon, "other"))
    assert served_by(daemon) == daemon.process.pid


def test_of_many_at_once_one_serves(daemon: Daemon) -> None:
    daemon.start()
    for round_ in range(3):
        daemon.kill()  # leaves socket and lock
        started = [another(daemon, f"state-{index}") for index in range(4)]
        assert eventually(lambda begun=started: sum(each.poll() is None for each in begun) == 1, 20)  # type: ignore[misc]
        (living,) = (each for each in started if each.poll() is None)
        assert eventually(daemon.listens)
        assert served_by(daemon) == living.pid, round_
        living.terminate()
        assert living.wait(30) == 0
        assert not daemon.socket.exists()
        daemon.restart()


def test_what_is_not_its_own_stays(daemon: Daemon) -> None:
    daemon.start()
    daemon.socket.unlink()
    daemon.socket.write_text("somebody else's")
    assert daemon.kill(15) == 0
    assert daemon.socket.read_text() == "somebody else's"
    done = another(daemon, "leases")
    assert done.wait(30) == 2
    daemon.socket.unlink()


def link(lock: Path, folder: Path) -> None:
    (folder / "victim").write_text("x")
    lock.symlink_to(folder / "victim")


def fifo(lock: Path, folder: Path) -> None:
    os.mkfifo(lock)


def foreign(lock: Path, folder: Path) -> None:
    lock.write_text("")
    os.chown(lock, NOBODY, NOBODY)


@pytest.mark.parametrize(
    ("put", "said"),
    [(link, "is a symbolic link"), (fifo, "is not a regular file"), (foreign, f"belongs to user {NOBODY}")],
)
def test_a_lock_that_is_none(daemon: Daemon, put: Callable[[Path, Path], None], said: str) -> None:
    if os.getuid() != 0:
        pytest.skip("needs root to give a file away")
    daemon.start()
    daemon.kill()
    lock = Path(f"{daemon.socket}.lock")
    lock.unlink()
    put(lock, daemon.folder)
    assert said in refused(another(daemon, "leases"))
    lock.unlink()


def test_in_a_folder_for_all(daemon: Daemon) -> None:
    """As in /tmp, where nobody may remove what is another's."""
    daemon.folder.chmod(0o1777)
    daemon.start()
    assert "another powerccld" in refused(another(daemon, "other"))
    assert daemon.kill(15) == 0
    daemon.folder.chmod(0o777)
    assert another(daemon, "other").wait(30) == 2
    daemon.folder.chmod(0o755)


WRONG = {
    "a relative path": ('[socket]\npath = "d.sock"', "socket.path does not begin with /"),
    "a long path": (f'[socket]\npath = "/{"x" * 110}"', "socket.path is longer than"),
    "no folder": ('[socket]\npath = "/nowhere/d.sock"', "its folder /nowhere: No such file"),
    "a control character": ('[socket]\npath = "/tmp/a\\u001bb"', "socket.path holds a control character"),
    "no mode": ('[socket]\nmode = "rw"', "socket.mode must be an octal mode"),
    "no group": ('[socket]\ngroup = "no-such-group"', "is no group of this system"),
    "no user": ('[access]\nusers = ["no-such-user"]', "names user `no-such-user`"),
    "a relative state": ('[state]\nfile = "leases"', "state.file does not begin with /"),
    "no state folder": ('[state]\nfile = "/nowhere/leases"', "its folder /nowhere: No such file"),
    "a folder as state": ('[state]\nfile = "/tmp"', "exists and is not a regular file"),
    "a state that is the socket": ('[socket]\npath = "{0}/x"\n[state]\nfile = "{0}/x"', "is also the socket"),
    "a state that is the lock": ('[socket]\npath = "{0}/x"\n[state]\nfile = "{0}/x.lock"', "is also the socket"),
    "only a %": ('[gpu]\ndevice_files = "%"', "gpu.device_files does not begin with /"),
    "two %": ('[gpu]\ndevice_files = "/dev/nvidia%%"', "gpu.device_files must contain one %"),
    "no %": ('[gpu]\ndevice_files = "/dev/nvidia0"', "gpu.device_files must contain one %"),
    "devices nowhere": ('[gpu]\ndevice_files = "/nowhere/nvidia%"', "there is no folder /nowhere"),
    "out of range": ("[access]\nsessions = 0", "access.sessions is not between 1 and 4096"),
    "no number": ('[access]\nsessions = "9"', "access.sessions is not a whole number"),
    "a key twice": ("[gpu]\nmin_mhz = 1\nmin_mhz = 2", ":3: "),
    "an unknown key": ("[gpu]\nmax_mzh = 5", ":2: unknown key `gpu.max_mzh`"),
    "no level": ('[log]\nlevel = "loud"', "log.level must be"),
}


@pytest.mark.parametrize("name", WRONG)
def test_what_is_wrong_is_refused_by_check_and_start(daemon: Daemon, name: str) -> None:
    text, said = WRONG[name]
    config = daemon.folder / "config"
    config.write_text(text.replace("{0}", str(daemon.folder)))
    command = daemon.command
    command += [] if "[socket]\npath" in text else ["--socket", str(daemon.socket)]
    command += [] if "[state]\nfile" in text else ["--state", str(daemon.folder / "leases")]
    for options in ([*command, "--check"], command):
        done = subprocess.run(options, capture_output=True, text=True, check=False, timeout=30)
        assert done.returncode == 2, done.stderr
        assert said in done.stderr


def test_check_of_what_is_well(daemon: Daemon) -> None:
    config = daemon.folder / "config"
    config.write_text(f'[socket]\npath = "{daemon.socket}"\n[state]\nfile = "{daemon.folder}/leases"\n')
    command = [str(daemon.native.path("bin/powerccld")), "--check", "--config"]
    assert subprocess.run([*command, str(config)], check=False).returncode == 0
    missing = subprocess.run([*command, "/nowhere"], capture_output=True, text=True, check=False)
    assert missing.returncode == 2
    assert "cannot be opened" in missing.stderr
    os.mkfifo(daemon.folder / "fifo")
    piped = subprocess.run(
        [*command, str(daemon.folder / "fifo")], capture_output=True, text=True, check=False, timeout=9
    )
    assert (piped.returncode, "not a regular file" in piped.stderr) == (2, True)
    assert subprocess.run([command[0], "--nonsense"], capture_output=True, check=False).returncode == 2
