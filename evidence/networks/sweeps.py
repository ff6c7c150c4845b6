# SPDX-License-Identifier: Apache-2.0
"""The same collectives over each network: powerccl-bench-mpi, one rank a host, into files for `powerccl compare`."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from support.namespaces import Host, NetworksError, shape, two_hosts

TESTS = ("allreduce", "reduce_scatter", "latency")
# First size, last size, factor, iterations: what takes microseconds is repeated often, what takes half a second is not.
SWEEPS = (("4", "64K", "4", "300"), ("256K", "64M", "4", "5"))
SHORT = (("4", "64K", "64", "50"), ("1M", "4M", "4", "3"))
TEST_LIMIT_S = 120
Json = dict[str, Any]


def measure(
    program: Path, mpiexec: str, mbits: list[int], rounds: int, out: Path, short: bool, say: Callable[[str], None]
) -> dict[int, list[Path]]:
    """Sweep every network in turns, so that what drifts on the machine meets all alike; the files of each, by Mbit/s.

    Raises:
        NetworksError: namespaces cannot be had, or a test failed.
    """
    files: dict[int, list[Path]] = {mbit: [] for mbit in mbits}
    with two_hosts() as hosts:
        launcher = _launcher(out, hosts)
        for number in range(1, rounds + 1):
            for mbit in mbits if number % 2 else reversed(mbits):
                shape(hosts, mbit)
                say(f"round {number} of {rounds}, {name(mbit)}")
                merged: Json = {}
                for test in TESTS:
                    for first, last, factor, iterations in SHORT if short else SWEEPS:
                        found = _one(program, mpiexec, launcher, hosts, out, test, first, last, factor, iterations)
                        merged = {**found, "results": [*merged.get("results", []), *found["results"]]}
                path = out / f"{name(mbit).replace(' ', '').replace('/', 'p')}-{number}.json"
                kind = {"mode": "collective", "test": ",".join(TESTS), "network": f"veth, tbf {name(mbit)}"}
                path.write_text(json.dumps({**merged, **kind, "command": [program.name, *TESTS]}, indent=1) + "\n")
                files[mbit].append(path)
        launcher.unlink()
    return files


def name(mbit: int) -> str:
    """A rate as people say it."""
    return f"{mbit / 1000:g} Gbit/s" if mbit >= 1000 else f"{mbit} Mbit/s"


def _launcher(out: Path, hosts: tuple[Host, Host]) -> Path:
    """Hydra's remote shell: HOST COMMAND... is run in the namespaces of HOST."""
    path = out / "remote-shell"
    cases = "".join(f"  {host.address}) pid={host.pid} ;;\n" for host in hosts)
    path.write_text(
        '#!/bin/sh\nwhile [ "${1#-}" != "$1" ]; do shift; done\nhost=$1; shift\n'
        f'case $host in\n{cases}  *) echo "no host $host" >&2; exit 1 ;;\nesac\n'
        'exec nsenter --target=$pid --net --mount -- sh -c "$*"\n'
    )
    path.chmod(0o755)
    return path


def _one(
    program: Path,
    mpiexec: str,
    launcher: Path,
    hosts: tuple[Host, Host],
    out: Path,
    test: str,
    first: str,
    last: str,
    factor: str,
    iterations: str,
) -> Json:
    result = out / "one.json"
    result.unlink(missing_ok=True)
    start = [mpiexec, "-launcher", "rsh", "-launcher-exec", str(launcher), "-localhost", hosts[0].address]
    start += ["-hosts", ",".join(host.address for host in hosts), "-ppn", "1", "-n", str(len(hosts))]
    sizes = ["-b", first, "-e", last, "-f", factor, "-n", iterations, "-w", "1", "--json", str(result)]
    # Both ranks are on one kernel, which UCX and libfabric would notice and use memory: TCP over our interfaces only.
    only_tcp = {
        "UCX_TLS": "tcp,self",
        "UCX_NET_DEVICES": ",".join(host.interface for host in hosts),
        "FI_PROVIDER": "tcp",
        "MPIR_CVAR_NOLOCAL": "1",
    }
    command = hosts[0].enter(*start, str(program), test, *sizes)
    try:
        done = subprocess.run(
            command, env={**os.environ, **only_tcp}, capture_output=True, text=True, timeout=TEST_LIMIT_S, check=False
        )
    except subprocess.TimeoutExpired as error:
        raise NetworksError(f"{test} from {first} to {last} did not end within {TEST_LIMIT_S} s") from error
    if done.returncode or not result.exists():
        raise NetworksError(f"{test} from {first} to {last} failed: {(done.stderr or done.stdout).strip()[-400:]}")
    found: Json = json.loads(result.read_text())
    result.unlink()
    if any(row.get("wrong") for row in found["results"]):
        raise NetworksError(f"{test}: wrong results")
    return found


def mpich() -> str:
    """MPICH's mpiexec (Hydra): the one beside this Python, else Debian's.

    Raises:
        NetworksError: there is none.
    """
    for path in (Path(sys.executable).parent / "mpiexec.hydra", Path("/usr/bin/mpiexec.hydra")):
        if path.exists():
            return str(path)
    raise NetworksError("no mpiexec.hydra: `make setup` installs MPICH beside this Python")
