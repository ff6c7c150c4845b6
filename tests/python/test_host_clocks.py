# SPDX-License-Identifier: Apache-2.0
"""Clocks of several hosts: traces of a known offset and drift are aligned, and who comes last is known across hosts."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import pytest
import synthetic
from synthetic import MS

from powerccl.analysis.report import report
from powerccl.reports.host_clocks import host_clock_lines
from powerccl.traces import records
from powerccl.traces.folder import RunData, read_run

OFFSET_NS = 200 * MS
DRIFT = 50e-6
US = 1_000
FIRST_NS = 5_000 * MS


@dataclass
class Job:
    """All-reduces of two ranks a host. Of each host: how far its clock is ahead at time 0, and how much faster."""

    clocks: Sequence[tuple[int, float]] = ((0, 0.0), (OFFSET_NS, DRIFT))
    calls: int = 400
    every_ns: int = 25 * MS
    late_rank: int = -1  # which comes `late_ns` after the others
    late_ns: int = 0
    transfer_us: tuple[float, float] = (60.0, 400.0)
    communicators: dict[int, int] = field(default_factory=dict)  # of a host, else all have one
    on_host: bool = False  # kernels are timed with CUDA events: their times are the host's

    def host_ns(self, host: int, time_ns: float) -> int:
        offset, drift = self.clocks[host]
        return round(time_ns * (1 + drift)) + offset

    def write(self, folder: Path) -> Path:
        folder.mkdir(parents=True)
        chance = random.Random(7)
        hosts = len(self.clocks)
        traces = []
        for rank in range(2 * hosts):
            named = {"host": f"node{rank // 2 + 1}", "gpu_uuid": f"GPU-{rank}", "boot_id": f"{rank // 2 + 1:02x}" * 16}
            start = self.host_ns(rank // 2, 4_000 * MS)
            traces.append(synthetic.TraceWriter(rank, 2 * hosts, local_rank=rank % 2, start_ns=start, **named))
            comm_id = self.communicators.get(rank // 2, 0xABCD)
            traces[-1].comm(start + MS, comm_id=comm_id)
        for number in range(1, self.calls + 1):
            base = FIRST_NS + number * self.every_ns
            begins = [base + chance.uniform(0, 200 * US) for _ in traces]
            if self.late_rank >= 0:
                begins[self.late_rank] = base + 200 * US + self.late_ns
            end = max(begins) + chance.uniform(*self.transfer_us) * US
            for rank, (trace, begin) in enumerate(zip(traces, begins, strict=True)):
                host = rank // 2
                trace.call(number, self.host_ns(host, begin - 50 * US), 1 << 20, flags=0x40)
                stop = end + chance.uniform(0, 8 * US)  # the last messages of a ring
                times = self.host_ns(host, begin), self.host_ns(host, stop)
                ahead_ns, flags = (0, records.FLAG_HOST_TIMES) if self.on_host else (synthetic.GPU_AHEAD_NS, 0)
                trace.kernel(number, *times, 1 << 20, delay_ns=0, ahead_ns=ahead_ns, flags=flags)
        for trace in traces:
            trace.write(folder)
        synthetic.write_info(folder, FIRST_NS + (self.calls + 2) * self.every_ns)
        return folder


def worst_error_us(run: RunData, job: Job) -> float:
    """How far aligned times are from those of the first host's clock, at the beginning and at the end."""
    assert run.host_clocks
    worst = 0.0
    for number, clock in enumerate(run.host_clocks.clocks, 1):
        for time_ns in (FIRST_NS, FIRST_NS + job.calls * job.every_ns):
            worst = max(worst, abs(clock.one(job.host_ns(number, time_ns)) - job.host_ns(0, time_ns)) / 1e3)
    return worst


@pytest.mark.parametrize(
    "job",
    [
        Job(),
        Job(late_rank=3, late_ns=10 * MS),  # one host always comes last: bounds are tight on one side alone
        Job(late_rank=0, late_ns=10 * MS),
        Job(clocks=((0, 0.0), (-3_000 * MS, -DRIFT)), late_rank=2, late_ns=3 * MS),
        Job(clocks=((0, 0.0), (86_400_000 * MS, 120e-6), (77 * MS, 0.0), (-2_000 * MS, -80e-6)), calls=200),
        Job(calls=12, every_ns=2 * MS),
    ],
    ids=["random", "second late", "first late", "behind", "four hosts", "short"],
)
def test_offset_and_drift_are_found(tmp_path: Path, job: Job) -> None:
    run = read_run(job.write(tmp_path / "run"))
    assert run.host_clocks
    assert len(run.host_clocks.aligned) == len(job.clocks) - 1
    error_us = worst_error_us(run, job)
    assert error_us <= 20
    assert all(error_us <= clock.error_ns / 1e3 + 8 for clock in run.host_clocks.clocks)
    assert all(clock.bound_ns <= 1.1 * job.late_ns + 600 * US for clock in run.host_clocks.clocks)
    if job.calls * job.every_ns >= 5_000 * MS:
        for clock, (_, drift) in zip(run.host_clocks.clocks, job.clocks[1:], strict=True):
            assert clock.drift * 1e6 == pytest.approx(drift * 1e6, abs=1.5)


@pytest.mark.parametrize("on_host", [False, True])
def test_straggler_on_another_host_is_named(tmp_path: Path, on_host: bool) -> None:
    apart = ((0, 0.0), (500_000_000 * MS, DRIFT))  # as hosts that were started days apart
    made = report(Job(clocks=apart, late_rank=3, late_ns=10 * MS, on_host=on_host).write(tmp_path / "run"))
    peers = made.findings.peers
    assert peers.matched_pct == 100
    late = next(row for row in peers.ranks if row.steady)
    assert (late.rank, late.host) == (3, "node2")
    assert late.behind_us == pytest.approx(10_000, rel=0.05)
    # Each of the others waits, in every call, for that long and for what it came early.
    waited_s = [row.waiting_s for row in made.findings.ranks if row.rank != 3]
    assert all(each == pytest.approx(400 * 0.0101, rel=0.05) for each in waited_s)
    (line,) = host_clock_lines(peers.hosts)
    assert line.startswith("the clock of node2 is aligned with node1 by 400 collectives: error ")
    assert float(line.partition("drift ")[2].split()[0]) == pytest.approx(50, abs=1)


def test_records_that_are_read_again_have_the_reference_clock_too(tmp_path: Path) -> None:
    folder = Job(late_rank=3, late_ns=10 * MS).write(tmp_path / "run")
    at_once, in_turn = report(folder).findings, report(folder, kept_records=1).findings
    assert in_turn.peers == at_once.peers
    assert [row.waiting_s for row in in_turn.ranks] == pytest.approx([row.waiting_s for row in at_once.ranks])


def test_hosts_without_a_collective_in_common_are_named(tmp_path: Path) -> None:
    made = report(Job(communicators={1: 0x1234}).write(tmp_path / "run"))
    assert host_clock_lines(made.findings.peers.hosts) == [
        "times of hosts are not compared: node2: it has 0 timed collectives in common with node1"
    ]


def test_containers_of_one_machine_have_one_clock(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    folder.mkdir()
    for rank, host in enumerate(("box1", "box2")):
        trace = synthetic.TraceWriter(rank, 2, host=host, boot_id="ab" * 16, start_ns=FIRST_NS, gpu_uuid=f"GPU-{rank}")
        trace.comm(FIRST_NS)
        for call in range(1, 21):
            begin = FIRST_NS + call * 10 * MS
            trace.call(call, begin, 8)
            trace.kernel(call, begin + rank * MS, begin + 2 * MS, 8, delay_ns=0)
        trace.write(folder)
    synthetic.write_info(folder, FIRST_NS + 1000 * MS)
    made = report(folder)
    assert made.findings.peers.hosts == []
    assert [row.rank for row in made.findings.peers.ranks if row.steady] == [1]
