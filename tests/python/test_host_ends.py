# SPDX-License-Identifier: Apache-2.0
"""Hosts that were killed, and hosts that nothing sampled, are named."""

from __future__ import annotations

import time
from pathlib import Path

import pytest
import synthetic
from synthetic import MS

from powerccl.traces.folder import read_run
from powerccl.traces.helpers import AGENT, STARTED_AGAIN, HelperLog

WALL_NS = 1_700_000_000_000 * MS
HEAD = "# host: {0}\n# boot_id: {0}\n# start_ns: {1}\n# start_realtime_ns: {2}\n# interval_ns: 100000000\n"


def write_cpu(folder: Path, host: str, start_ns: int, length_ns: int, ended: bool, again_ns: int = 0) -> None:
    """Samples every 100 ms from the same moment on all hosts; `again_ns`: another agent goes on for so long."""
    lines = [HEAD.format(host, start_ns, WALL_NS), "time_ns,domain,energy_uj,cpu_busy_ns,cpu_idle_ns\n"]
    rows = [f"{start_ns + at},cpu,-1,{at},{at}\n" for at in range(0, length_ns + 1, 100 * MS)]
    more = [f"{start_ns + length_ns + at},cpu,-1,{at},{at}\n" for at in range(2000 * MS, again_ns + 1, 100 * MS)]
    end = [f"# ended_ns: {start_ns + length_ns}\n"] if ended else []
    (folder / f"cpu-{host}.csv").write_text("".join([*lines, *rows, *end, *more]))


def problems(folder: Path) -> list[str]:
    """What a report says of the hosts."""
    return [text for text in read_run(folder).problems if any(word in text for word in ("killed", "agent", "went on"))]


@pytest.mark.parametrize(
    ("one", "other", "named"),
    [
        (
            (5000, True, 0),
            (3000, False, 0),
            [
                "node2 was killed, lost power or could not write:"
                " its record ends at second 3.0, 2.00 s before the last host's"
            ],
        ),
        ((5000, True, 0), (5000, True, 0), []),
        ((5000, True, 0), (2000, True, 0), []),  # its part of the job was over
        ((5000, False, 0), (3000, False, 0), []),  # an older agent, or all still run
        ((5000, True, 0), (9000, False, 0), []),  # it still runs
        (
            (9000, True, 0),
            (2000, True, 5000),
            [
                "node2 was killed, lost power or could not write:"
                " its record ends at second 7.0, 2.00 s before the last host's"
            ],
        ),
    ],
    ids=["killed", "both", "earlier", "none", "running", "killed later"],
)
def test_a_killed_host_is_named(
    tmp_path: Path, one: tuple[int, bool, int], other: tuple[int, bool, int], named: list[str]
) -> None:
    for host, start_ns, (length_ms, ended, again_ms) in (("node1", 50_000 * MS, one), ("node2", 900 * MS, other)):
        write_cpu(tmp_path, host, start_ns, length_ms * MS, ended, again_ms * MS)
    synthetic.write_info(tmp_path, 60_000 * MS)
    assert problems(tmp_path) == named


def test_a_host_that_may_still_end_is_not_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its agent ends within seconds of the job, and writes its last line then."""
    write_cpu(tmp_path, "node1", 900 * MS, 5000 * MS, True)
    write_cpu(tmp_path, "node2", 900 * MS, 4500 * MS, False)
    synthetic.write_info(tmp_path, 60_000 * MS)
    monkeypatch.setattr(time, "time_ns", lambda: WALL_NS + 6000 * MS)
    assert problems(tmp_path) == []
    monkeypatch.setattr(time, "time_ns", lambda: WALL_NS + 9000 * MS)
    assert len(problems(tmp_path)) == 1


@pytest.mark.parametrize(
    ("recorded_ms", "named"),
    [
        (5500, ["samples of node2 end at second 3.0; its ranks went on to second 5.5"]),
        (9000, ["samples of node2 end at second 3.0; its ranks went on to second 9.0"]),  # they still run
        (
            4000,  # what a killed agent had not written yet
            [
                "node2 was killed, lost power or could not write:"
                " its record ends at second 4.0, 1.00 s before the last host's"
            ],
        ),
    ],
)
def test_a_host_whose_ranks_outlived_its_agent_was_not_killed(
    tmp_path: Path, recorded_ms: int, named: list[str]
) -> None:
    write_cpu(tmp_path, "node1", 50_000 * MS, 5000 * MS, True)
    write_cpu(tmp_path, "node2", 900 * MS, 3000 * MS, False)
    trace = synthetic.mpi_trace(0, 2, host="node2", start_ns=900 * MS)
    trace.mpi_total((900 + recorded_ms) * MS, "Allreduce", 4, 3 * MS)
    trace.write(tmp_path, "mpi-0.trace")
    synthetic.write_info(tmp_path, 60_000 * MS)
    assert problems(tmp_path) == named


def test_a_host_whose_launcher_saw_the_agents_end_was_not_killed(tmp_path: Path) -> None:
    write_cpu(tmp_path, "node1", 50_000 * MS, 5000 * MS, True)
    write_cpu(tmp_path, "node2", 900 * MS, 3000 * MS, False)
    synthetic.write_info(tmp_path, 60_000 * MS)
    events = HelperLog(tmp_path, "node2")
    events.note(AGENT, "was killed by signal 9")
    assert problems(tmp_path) == []
    events.note(AGENT, STARTED_AGAIN)
    assert len(problems(tmp_path)) == 1


def test_hosts_without_an_agent_are_named(tmp_path: Path) -> None:
    for rank, host in enumerate(("node1", "node2", "node3")):
        trace = synthetic.mpi_trace(rank, 3, host=host, boot_id=f"{rank + 1:02x}" * 16)
        trace.mpi_total(10 * MS, "Allreduce", 4, 3 * MS)
        trace.write(tmp_path, f"mpi-{rank}.trace")
    write_cpu(tmp_path, "node1", 0, 1000 * MS, True)
    synthetic.write_info(tmp_path, 1000 * MS, interval_ms=20)
    assert problems(tmp_path) == [
        "no powerccl-agent ran on node2, node3: `mpiexec powerccl run -- PROGRAM` samples each host of a job"
    ]
