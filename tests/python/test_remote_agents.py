# SPDX-License-Identifier: Apache-2.0
"""What a launcher's command says of hosts, and agents that are started by it."""

from __future__ import annotations

import os
import time
from pathlib import Path

import fakes
import pytest

from powerccl.launch.native import NativeFiles
from powerccl.launch.remote_agents import Launch, RemoteAgents, launch_of

HYDRA = "mpiexec -launcher ssh -launcher-exec /x/rsh"


@pytest.mark.parametrize(
    ("command", "words", "hosts", "option"),
    [
        (f"{HYDRA} -hosts a,b:4 -ppn 2 -n 4 sh -c x", HYDRA, "a b", "-hosts"),
        (
            "mpirun --mca plm_rsh_agent /x/rsh --host a:2,b:2 -np 4 sh -hosts c",
            "mpirun --mca plm_rsh_agent /x/rsh",
            "a b",
            "--host",
        ),
        ("mpirun -np 4 --hostfile FILE sh", "mpirun", "a b", "--host"),
        ("mpiexec -f FILE -n 4 sh", "mpiexec", "a b", "-host"),
        ("mpirun --map-by node --bind-to core --host=env,b -np 2 sh", "mpirun", "env b", "--host"),
        ("mpiexec -env node core -launcher env -hosts env -n 2 sh", "mpiexec -launcher env", "env", "-hosts"),
    ],
)
def test_hosts_of_a_launcher(tmp_path: Path, command: str, words: str, hosts: str, option: str) -> None:
    """Values of options may name programs."""
    for name in ("node", "core", "env"):
        fakes.write_program(tmp_path / name, "#!/bin/sh\n")
    (tmp_path / "hosts").write_text("# nodes\na slots=2\n\nb:2\n")
    path = {"PATH": f"{tmp_path}:{os.environ['PATH']}"}
    found = launch_of(command.replace("FILE", str(tmp_path / "hosts")).split(), path)
    assert found == Launch(words.split(), hosts.split(), option)


@pytest.mark.parametrize("command", ["sh -hosts a,b", "mpiexec -n 4 sh -hosts a,b", "mpiexec -f /nowhere -n 4 sh"])
def test_commands_that_name_no_hosts(command: str) -> None:
    assert launch_of(command.split(), dict(os.environ)) is None


def test_agents_end_with_their_input_and_hosts_without_are_named(tmp_path: Path) -> None:
    """The launcher is a stand-in: it fails for one host, and has nothing to do on another."""
    (tmp_path / "bin").mkdir()
    fakes.write_program(
        tmp_path / "bin/powerccl-agent", '#!/bin/sh\necho ready\ncat > /dev/null\necho end > "$2/$HOST"\n'
    )
    launcher = tmp_path / "mpiexec"
    fakes.write_program(
        launcher,
        '#!/bin/sh\nexport HOST=$2\ncase $2 in\n  down) echo "ssh: connect to host down: no route" >&2; exit 255 ;;\n'
        '  same) exit 0 ;;\nesac\nshift 4\nexec "$@"\n',
    )
    said: list[str] = []
    launch = Launch([str(launcher)], ["localhost", "one", "down", "same", "two"], "-hosts")
    agents = RemoteAgents(NativeFiles(tmp_path), tmp_path, 20, launch)
    agents.start(dict(os.environ), said.append)
    assert said == ["down is not sampled: ssh: connect to host down: no route"]
    began = time.monotonic()
    agents.end(said.append)
    assert time.monotonic() - began < 5
    assert len(said) == 1
    assert sorted(path.name for path in tmp_path.glob("[ot][nw]*")) == ["one", "two"]
