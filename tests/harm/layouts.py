# SPDX-License-Identifier: Apache-2.0
"""Run folders of ranks on several hosts, written from known numbers: tests/harm/hosts.py reads them."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
WATTS, SECONDS = 50.0, 2.0


@dataclass
class Expected:
    """What a folder's reports must say. `gpus`: of each host, those whose energy is known; `silent`: hosts to name."""

    ranks: int
    gpus: dict[str, int] = field(default_factory=dict)
    silent: tuple[str, ...] = ()
    missing: int = 0  # ranks without a trace
    mpi: int = 0
    watts: float = WATTS


def _synthetic() -> Any:
    return importlib.import_module("synthetic")


class Folder:
    """A run folder that is being written."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.made = _synthetic()
        self.ms = self.made.MS
        path.mkdir(parents=True)
        self.made.write_info(path, int(SECONDS * 1000) * self.ms)

    def job(
        self,
        ranks: dict[str, list[int]],
        size: int,
        comm: int = 0xABCD,
        gpu: int = 0,
        begin_ms: int = 10,
        calls: int = 40,
        uuid: Callable[[str, int], str] | None = None,
        **header: object,
    ) -> None:
        """Ranks by host, on its GPUs from `gpu` on; each makes all-reduces of 10 ms every 20 ms from `begin_ms` on."""
        for host, numbers in ranks.items():
            ahead = int(str(header.get("ahead_ns", 0))) if host == "node2" else 0
            for place, rank in enumerate(numbers):
                begin = begin_ms * self.ms + ahead
                name = self.made.uuid(gpu + place) if uuid is None else uuid(host, gpu + place)
                about = {"host": host, "gpu_uuid": name, "gpu_pci": f"00000000:0{gpu + place}:00.0"}
                about |= {"start_ns": begin, "start_realtime_ns": 10**15 + begin_ms * self.ms, "pid": 100 + place}
                about |= {key: value for key, value in header.items() if key != "ahead_ns"}
                trace = self.made.TraceWriter(rank, size, **about)
                trace.comm(begin, comm_id=comm)
                for call in range(1, calls + 1):
                    now = begin + call * 20 * self.ms
                    trace.call(call, now - self.ms, 1 << 20, flags=0x40)
                    trace.kernel(call, now, now + 10 * self.ms, 1 << 20)
                trace.write(self.path, f"rank-{rank}.{len(list(self.path.glob('rank-*')))}.trace")

    def power(
        self, host: str, gpus: int, boot_id: str = "", ahead_ns: int = 0, uuid: Callable[[str, int], str] | None = None
    ) -> None:
        """Samples of a host's GPUs over the whole run."""
        path = self.made.write_power(self.path, gpus, int(SECONDS * 1000) * self.ms, WATTS, host=host)
        lines = path.read_text().split("\n")
        for index, line in enumerate(lines):
            if line[:1].isdigit():
                time_ns, gpu, name, rest = line.split(",", 3)
                name = name if uuid is None else uuid(host, int(gpu))
                lines[index] = f"{int(time_ns) + ahead_ns},{gpu},{name},{rest}"
        if boot_id:
            lines.insert(1, f"# boot_id: {boot_id}")
            path = path.rename(path.with_name(f"power-{host}-{boot_id[-12:]}.csv"))
        path.write_text("\n".join(lines))

    def mpi(self, ranks: dict[str, list[int]], size: int, later_ns: int = 0) -> None:
        """Processes of MPI by host."""
        for host, numbers in ranks.items():
            for rank in numbers:
                begin = 10 * self.ms + later_ns
                trace = self.made.mpi_trace(
                    rank, size, host=host, start_ns=begin, start_realtime_ns=10**15 + begin, pid=300 + rank
                )
                trace.mpi_total(begin + 900 * self.ms, "Allreduce", 100, 300 * self.ms, (rank + 1) * 50 * self.ms, 0, 8)
                trace.process(begin + 900 * self.ms, 800 * self.ms)
                trace.write(self.path, f"mpi-{rank}.{len(list(self.path.glob('mpi-*')))}.trace")


def _own(host: str, gpu: int) -> str:
    return f"GPU-{host}-{gpu}"


def _none(host: str, gpu: int) -> str:
    return ""


def _simple(jobs: list[dict[str, list[int]]], sizes: list[int], missing: int = 0) -> Callable[[Folder], Expected]:
    """Jobs beside each other, each with GPUs of its own; UUIDs are unique."""

    def make(folder: Folder) -> Expected:
        gpus: dict[str, int] = {}
        for number, (ranks, size) in enumerate(zip(jobs, sizes, strict=True)):
            for host, numbers in ranks.items():
                folder.job({host: numbers}, size, 0xA000 + number, gpus.get(host, 0), uuid=_own)
                gpus[host] = gpus.get(host, 0) + len(numbers)
        for host, count in gpus.items():
            folder.power(host, count, uuid=_own)
        return Expected(sum(len(each) for job in jobs for each in job.values()), gpus, missing=missing)

    return make


def same_uuids(folder: Folder) -> Expected:
    """Two hosts whose GPUs have the same UUIDs."""
    for host in ("node1", "node2"):
        folder.job({host: [0, 1]}, 2)
        folder.power(host, 2)
    return Expected(4, {"node1": 2, "node2": 2})


def same_host_names(folder: Folder) -> Expected:
    """Two hosts of one name."""
    for boot in (1, 2):
        folder.job({"node1": [0, 1]}, 2, boot, boot_id=f"{boot:032x}")
        folder.power("node1", 2, boot_id=f"{boot:032x}")
    return Expected(4, {"node1": 2, "node1~2": 2})


def no_uuids(folder: Folder) -> Expected:
    """NVML is not to be had in the job: its GPUs are known by PCI addresses, which the hosts share."""
    for host in ("node1", "node2"):
        folder.job({host: [0, 1]}, 2, int(host[-1]), uuid=_none)
        folder.power(host, 2, uuid=_own)
    return Expected(4, {"node1": 2, "node2": 2})


def neither_uuids_nor_samples_of_them(folder: Folder) -> Expected:
    """Samples do not name UUIDs either."""
    for host in ("node1", "node2"):
        folder.job({host: [0, 1]}, 2, 7, uuid=_none)
        folder.power(host, 2, uuid=_none)
    return Expected(4, {"node1": 2, "node2": 2})


def only_samples(folder: Folder) -> Expected:
    """No trace was left on the second host."""
    folder.job({"node1": [0, 1]}, 2, uuid=_own)
    folder.power("node1", 2, uuid=_own)
    folder.power("node2", 2, uuid=_own)
    return Expected(2, {"node1": 2}, silent=("node2",))


def only_samples_anywhere(folder: Folder) -> Expected:
    """No trace was left at all."""
    folder.power("node1", 2)
    folder.power("node2", 2)
    return Expected(0, {"node1": 2, "node2": 2})


def no_samples_of_one(folder: Folder) -> Expected:
    """The second host was not sampled."""
    for host in ("node1", "node2"):
        folder.job({host: [0, 1]}, 2, uuid=_own)
    folder.power("node1", 2, uuid=_own)
    return Expected(4, {"node1": 2}, silent=("node2",))


def no_run_json(folder: Folder) -> Expected:
    """Command and times of the run are not known."""
    expected = same_uuids(folder)
    (folder.path / "run.json").unlink()
    return expected


def other_clock(folder: Folder) -> Expected:
    """The second host has been up for a day longer."""
    ahead_ns = 86_400 * 10**9
    for host in ("node1", "node2"):
        folder.job({host: [0, 1]}, 2, uuid=_own, ahead_ns=ahead_ns)
        folder.power(host, 2, uuid=_own, ahead_ns=ahead_ns if host == "node2" else 0)
    return Expected(4, {"node1": 2, "node2": 2})


def one_after_another(folder: Folder) -> Expected:
    """Two jobs of a command, on other GPUs each."""
    for job in (0, 1):
        folder.job({"node1": [0, 1]}, 2, job, gpu=2 * job, begin_ms=10 + 1000 * job, uuid=_own)
    folder.power("node1", 4, uuid=_own)
    return Expected(2, {"node1": 4})


def elastic(sizes: list[int]) -> Callable[[Folder], Expected]:
    """All ranks on one host, with another number of them after a restart."""

    def make(folder: Folder) -> Expected:
        for start, size in enumerate(sizes):
            begin_ms = 10 + 600 * start
            folder.job({"node1": [*range(size)]}, size, start, begin_ms=begin_ms, calls=20, uuid=_own, starts=start + 1)
        folder.power("node1", max(sizes), uuid=_own)
        return Expected(max(sizes), {"node1": max(sizes)})

    return make


def one_restarts(folder: Folder) -> Expected:
    """`torchrun --standalone` on two nodes, one of which starts its ranks again."""
    for start in (1, 2):
        folder.job({"node1": [0, 1]}, 2, start, begin_ms=600 * start - 590, calls=20, uuid=_own, starts=start)
    folder.job({"node2": [0, 1]}, 2, 7, uuid=_own, starts=1)
    for host in ("node1", "node2"):
        folder.power(host, 2, uuid=_own)
    return Expected(4, {"node1": 2, "node2": 2})


def moved(folder: Folder) -> Expected:
    """A rank that an elastic launcher starts again on another host."""
    folder.job({"node1": [0], "node2": [1]}, 2, 1, calls=20, uuid=_own, starts=1)
    folder.job({"node1": [0], "node3": [1]}, 2, 2, begin_ms=800, calls=20, uuid=_own, starts=2)
    for host in ("node1", "node2", "node3"):
        folder.power(host, 1, uuid=_own)
    return Expected(2, {"node1": 1, "node2": 1, "node3": 1})


def containers(folder: Folder) -> Expected:
    """Two containers of one host: two names, one kernel, one agent."""
    boot = "ab" * 16
    folder.job({"box1": [0], "box2": [1]}, 2, boot_id=boot, uuid=lambda host, gpu: _own("", int(host[-1]) - 1))
    folder.power("box1", 2, boot_id=boot, uuid=lambda host, gpu: _own("", gpu))
    return Expected(2, {"box1": 1, "box2": 1})


def mpi_beside(folder: Folder) -> Expected:
    """An MPI job on each host."""
    for host in ("node1", "node2"):
        folder.mpi({host: [0, 1]}, 2)
    return Expected(0, mpi=4)


def mpi_one_job(folder: Folder) -> Expected:
    """One MPI job, with three ranks and one."""
    folder.mpi({"node1": [0, 1, 2], "node2": [3]}, 4)
    return Expected(0, mpi=4)


def mpi_one_after_another(folder: Folder) -> Expected:
    """Two MPI jobs of a command."""
    for job in (0, 1):
        folder.mpi({"node1": [0, 1]}, 2, job * 10**9)
    return Expected(0, mpi=2)


def nccl_and_mpi(folder: Folder) -> Expected:
    """MPI on both hosts, NCCL on the second alone."""
    for host in ("node1", "node2"):
        folder.mpi({host: [0, 1]}, 2)
    folder.job({"node2": [0, 1]}, 2, uuid=_own)
    folder.power("node2", 2, uuid=_own)
    return Expected(2, {"node2": 2}, mpi=4)


LAYOUTS: dict[str, Callable[[Folder], Expected]] = {
    "one job on two hosts": _simple([{"node1": [0, 1], "node2": [2, 3]}], [4]),
    "one job on four hosts": _simple([{f"node{n}": [n - 1] for n in range(1, 5)}], [4]),
    "one job, uneven": _simple([{"node1": [0, 1, 2], "node2": [3]}], [4]),
    "a job on each host": _simple([{"node1": [0, 1]}, {"node2": [0, 1]}], [2, 2]),
    "a job on each of four hosts": _simple([{f"node{n}": [0, 1]} for n in range(1, 5)], [2] * 4),
    "jobs of other sizes": _simple([{"node1": [0]}, {"node2": [0, 1, 2]}, {"node3": [0, 1]}], [1, 3, 2]),
    "two jobs on two hosts each": _simple([{"node1": [0], "node2": [1]}, {"node1": [0], "node2": [1]}], [2, 2]),
    "two jobs on one host": _simple([{"node1": [0, 1]}, {"node1": [0, 1]}], [2, 2]),
    "ranks from 4 on": _simple([{"node1": [4, 5], "node2": [6, 7]}], [8], missing=4),
    "a trace of one job is missing": _simple([{"node1": [0, 1]}, {"node2": [0]}], [2, 2], missing=1),
    "same uuids": same_uuids,
    "same host names": same_host_names,
    "no uuids": no_uuids,
    "neither uuids nor samples of them": neither_uuids_nor_samples_of_them,
    "only samples of a host": only_samples,
    "only samples": only_samples_anywhere,
    "no samples of a host": no_samples_of_one,
    "no run.json": no_run_json,
    "another clock": other_clock,
    "one after another": one_after_another,
    "elastic, fewer": elastic([4, 3]),
    "elastic, more": elastic([2, 4]),
    "one of two restarts": one_restarts,
    "a rank moves": moved,
    "containers": containers,
    "mpi beside each other": mpi_beside,
    "mpi on two hosts": mpi_one_job,
    "mpi one after another": mpi_one_after_another,
    "nccl and mpi": nccl_and_mpi,
}
