# SPDX-License-Identifier: Apache-2.0
"""One job over several hosts, which are namespaces, and recorded clocks that are put apart afterwards.

All emulated GPUs are of one server, whose collectives join ranks of all hosts. Each host has a launcher that gives its
ranks what torchrun would.
"""

from __future__ import annotations

import json
import os
import shlex
import statistics
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from powerccl.launch.native import NativeFiles
from powerccl.traces import records
from powerccl.traces.folder import RunData
from powerccl.traces.rank import RankTrace, read_rank
from support.hosts import Node

END_S = 120
LOST_S = 30  # what a rank waits at a barrier of powerccl-bench for the ranks of a host that was killed
RANKS = 2  # of each host
MPIEXEC = Path(sys.executable).parent / "mpiexec.hydra"  # of the MPICH beside this Python
# MPICH's ranks share no memory between hosts, although these have one kernel.
OVER_TCP = {"MPIR_CVAR_NOLOCAL": "1", "FI_PROVIDER": "tcp", "UCX_TLS": "tcp,self", "UCX_NET_DEVICES": "eth0"}
STEP = {"SLURM_JOB_ID": "7", "SLURM_STEP_ID": "0", "SLURM_JOB_START_TIME": "1000", "SLURM_CLUSTER_NAME": "lab"}


def mpiexec(shell: Path, hosts: Sequence[str], ranks: int) -> list[str]:
    """MPICH's launcher on node1, with a rank on each host; `shell` stands for ssh."""
    words = [str(MPIEXEC), "-launcher", "ssh", "-launcher-exec", str(shell), "-localhost", "node1", "-iface", "eth0"]
    return [*words, "-hosts", ",".join(hosts), "-ppn", "1", "-n", str(ranks)]


def start(
    native: NativeFiles, nodes: Sequence[Node], place: Path, gpus: dict[str, str], scenario: str, iterations: int
) -> list[subprocess.Popen[bytes]]:
    """Each host's launcher, as `srun powerccl run -- torchrun` starts them; runs are below `place`."""
    (place / "step.scn").write_text(scenario)
    kept = {name: os.environ[name] for name in ("PATH", "HOME", "LANG", "PYTHONPATH") if name in os.environ}
    bench = [str(native.path("bin/powerccl-bench")), "scenario", str(place / "step.scn"), "--rendezvous", str(place)]
    job = shlex.join([*bench, "--iterations", str(iterations), "--timeout", str(LOST_S)])
    started = []
    for number, node in enumerate(nodes):
        ranks = [f"RANK={rank} LOCAL_RANK={rank} {job} &" for rank in range(number * RANKS, (number + 1) * RANKS)]
        command = [f"{Path(sys.executable).parent}/powerccl", "run", "--quiet", "--policy", "observe", "--"]
        shell = shlex.join([*command, "sh", "-c", f"{' '.join(ranks)} wait"])
        environment = {**kept, "POWERCCL_NATIVE": str(native.root), **gpus, **STEP, "SLURM_PROCID": str(number)}
        environment |= {"SLURM_NODEID": str(number), "SLURM_LOCALID": "0", "SLURM_STEP_NUM_TASKS": str(len(nodes))}
        environment |= {"WORLD_SIZE": str(len(nodes) * RANKS), "TORCHELASTIC_RUN_ID": "7", "MASTER_PORT": "29500"}
        with (place / f"{node.name}.out").open("wb") as out:
            enter = node.enter("sh", "-c", f"cd {shlex.quote(str(place))} && exec {shell}")
            started.append(subprocess.Popen(enter, env=environment, stdin=subprocess.DEVNULL, stdout=out, stderr=out))
    return started


def finished(started: Sequence[subprocess.Popen[bytes]], place: Path) -> Path:
    """The run folder, once all launchers have ended.

    Raises:
        RuntimeError: one failed, or there is not one folder.
    """
    codes = [process.wait(END_S) for process in started]
    made = sorted((place / "runs").glob("[!.]*/"))
    if any(codes) or len(made) != 1:
        said = "".join(path.read_text()[-2000:] for path in place.glob("*.out"))
        raise RuntimeError(f"exit codes {codes}, {len(made)} run folders: {said}")
    return made[0]


def injected_us(folder: Path) -> float:
    """How much longer the last rank computed than the next to last, by powerccl-bench's own times; the median."""
    later: list[float] = []
    for path in folder.parent.parent.glob("*.out"):
        for line in path.read_text().splitlines():
            if line.startswith('{"type": "iteration"'):
                times = sorted(json.loads(line)["compute_ms_of_ranks"])
                later.append((times[-1] - times[-2]) * 1e3)
    return statistics.median(later)


def put_apart(folder: Path, host: str, offset_ns: int, drift: float) -> None:
    """Let a host's traces be of a clock that is so far ahead at the run's start, and so much faster."""
    origin = 0
    for path in sorted(folder.glob("*.trace")):
        header = np.fromfile(path, records.HEADER, 1)
        if bytes(header["host"][0]).rstrip(b"\0").decode() != host:
            continue
        origin = origin or int(header["start_ns"][0])
        raw = bytearray(path.read_bytes())
        header["start_ns"] = _moved(header["start_ns"], origin, offset_ns, drift)
        raw[: header.nbytes] = header.tobytes()
        begin = int(header["header_bytes"][0])
        rows = np.frombuffer(raw, records.RECORD, (len(raw) - begin) // records.RECORD_BYTES, begin)
        for kind, names in records.HOST_TIMES.items():
            of_kind = np.flatnonzero(rows["kind"] == kind)
            typed = rows[of_kind].view(records.LAYOUTS[kind])
            for name in names:
                typed[name] = np.where(typed[name] > 0, _moved(typed[name], origin, offset_ns, drift), 0)
            rows[of_kind] = typed.view(records.RECORD)
        path.write_bytes(bytes(raw))


def _moved(times: Any, origin: int, offset_ns: int, drift: float) -> Any:
    since = times.astype(np.int64) - origin
    return (times.astype(np.int64) + offset_ns + np.rint(since * drift).astype(np.int64)).astype(np.uint64)


def error_us(run: RunData, as_recorded: Path, offset_ns: int, drift: float) -> float:
    """How far a run's aligned times are from those of one clock, at worst; the recorded times are of one."""
    if run.host_clocks is None or len(run.host_clocks.aligned) != len(run.host_clocks.clocks):
        return float("inf")
    worst = 0.0
    true = {trace.path.name: trace for trace in read_run_of(as_recorded)}
    for clock in run.host_clocks.clocks:
        times = [trace for trace in true.values() if trace.host == clock.host]
        origin = min(trace.start_ns for trace in times)
        for time_ns in (origin, max(trace.last_ns() for trace in times)):
            moved = time_ns + (offset_ns + round((time_ns - origin) * drift) if clock.host == "node2" else 0)
            worst = max(worst, abs(clock.one(moved) - time_ns) / 1e3)
    return worst


def read_run_of(folder: Path) -> list[RankTrace]:
    """The traces as they are, without an alignment."""
    return [read_rank(path) for path in sorted(folder.glob("*.trace"))]
