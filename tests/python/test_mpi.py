# SPDX-License-Identifier: Apache-2.0
"""MPI traces, what is found in them, and how it is shown."""

from __future__ import annotations

import random
import re
from pathlib import Path

import pytest
import synthetic
from printing import printed
from synthetic import MS, mpi_run, mpi_trace, training_run, write_info

from powerccl.analysis.findings import CpuEnergy, MpiSummary, RunSummary, read_summary, write_summary
from powerccl.analysis.mpi import summarise_mpi
from powerccl.analysis.summary import summarise
from powerccl.compare.side_by_side import compare_sides
from powerccl.reports.mpi import processors
from powerccl.reports.terminal import print_summary
from powerccl.traces import mpi_tables, records
from powerccl.traces.cpu import read_cpu
from powerccl.traces.folder import read_run
from powerccl.traces.mpi_functions import COLLECTIVES, FUNCTIONS, function_name
from powerccl.traces.rank import read_rank

ABI = Path(__file__).parents[2] / "native/abi"
RAPL = """# host: node1
# package-0_max_energy_range_uj: 1000000
time_ns,domain,energy_uj,cpu_busy_ns,cpu_idle_ns
0,package-0,900000,-1,-1
0,dram,5000000,-1,-1
0,core,1,-1,-1
0,cpu,-1,1000,1000
1000000000,package-0,400000,-1,-1
1000000000,dram,6000000,-1,-1
1000000000,core,9,-1,-1
2010000000,package-0,700000,-1,-1
2010000000,dram,6500000,-1,-1
2010000000,cpu,-1,1000001000,3000001000
"""


def test_functions_are_those_of_the_wire() -> None:
    definition = (ABI / "mpi_functions.def").read_text()
    found = re.findall(r"^POWERCCL_MPI(?:_C)?\((\w+), *\d+, *(\w+)", definition, re.MULTILINE)
    assert tuple(name for name, _ in found) == FUNCTIONS
    assert {name for name, kind in found if kind.startswith("COLLECTIVE")} == COLLECTIVES
    assert function_name(FUNCTIONS.index("Allreduce")) == "MPI_Allreduce"
    assert function_name(60_000) == "MPI function 60000"


def test_tables_hold_the_latest_sums(tmp_path: Path) -> None:
    run = read_run(mpi_run(tmp_path / "run"))
    assert not run.ranks
    assert [(trace.rank, trace.library, trace.clock_client) for trace in run.mpi] == [
        (0, "mpich 5.0.2", "auto"),
        (1, "mpich 5.0.2", "auto"),
    ]
    totals = mpi_tables.mpi_totals(run)
    assert len(totals) == 6
    row = totals.row(0, named=True)
    assert (row["function"], row["comm_id"], row["comm_name"], row["nranks"]) == ("MPI_Allreduce", 1, "world", 2)
    assert (row["calls"], row["size_class_bytes"], row["call_ns"], row["wait_ns"]) == (1000, 8, 700 * MS, 600 * MS)
    assert [totals.row(2, named=True)[name] for name in ("comm_id", "comm_name", "nranks")] == [0, "", 0]
    process = mpi_tables.mpi_process(run)
    assert process["user_ns"].to_list() == [1095 * MS, 1500 * MS]
    assert run.mpi[0].last_ns() == 2010 * MS


def test_the_latest_sums_count_whatever_their_order(tmp_path: Path) -> None:
    trace = mpi_trace(0, 1)
    trace.mpi_total(30 * MS, "Bcast", 3, 3 * MS)
    trace.mpi_total(30 * MS, "Bcast", 4, 4 * MS)  # at the same time: the one written last
    trace.mpi_total(20 * MS, "Bcast", 2, 2 * MS)
    trace.mpi_total(20 * MS, "Bcast", 7, 7 * MS, thread=1)
    trace.mpi_total(25 * MS, "Bcast", 8, 8 * MS, size=8)
    trace.mpi_total(25 * MS, "Reduce", 9, 9 * MS)
    trace.write(tmp_path, "mpi-0.trace")
    assert sorted(mpi_tables.mpi_totals(read_run(tmp_path))["calls"].to_list()) == [4, 7, 8, 9]


def test_a_share_is_of_all_threads(tmp_path: Path) -> None:
    """Threads that are all in MPI all the time are there for 100 %, however many they are."""
    trace = mpi_trace(0, 1)
    for thread in range(200):
        trace.mpi_total(1000 * MS, "Sendrecv", 10, 900 * MS, thread=thread)
    trace.write(tmp_path, "mpi-0.trace")
    found = summarise_mpi(read_run(tmp_path), 1.0)
    assert found is not None
    assert found.threads_per_rank == 200
    assert found.time_per_rank_s == pytest.approx(180)
    assert found.share_pct == pytest.approx(90)


def test_size_classes_are_powers_of_two(tmp_path: Path) -> None:
    trace = mpi_trace(0, 1)
    sizes = {0: 0, 1: 1, 3: 2, 1023: 512, 1024: 1024, 1 << 62: 1 << 62}
    for size in sizes:
        trace.mpi_total(20 * MS, "Bcast", 1 if size < 1 << 60 else 0, MS, 0, 0, size)
    trace.write(tmp_path, "mpi-0.trace")
    assert mpi_tables.mpi_totals(read_run(tmp_path))["size_class_bytes"].to_list() == list(sizes.values())


def test_golden_summary(tmp_path: Path) -> None:
    run = summarise(read_run(mpi_run(tmp_path / "run")))
    found = run.mpi
    assert found
    assert run.wall_s == pytest.approx(2.01)
    assert (found.library, found.ranks, found.processes, found.wait_mode) == ("mpich 5.0.2", 2, 2, "auto")
    assert found.time_s == pytest.approx(2 * 0.15 + 0.6)
    assert found.wait_s == pytest.approx(0.6 + 2 * 0.01)
    assert found.transfer_s == pytest.approx(2 * 0.14)
    assert found.sleep_s == pytest.approx(0.54)
    assert found.time_per_rank_s == pytest.approx(0.45)
    assert found.share_pct == pytest.approx(0.45 / 2.01 * 100)
    assert found.cpu_s == pytest.approx(4.0 - 0.54)
    assert found.sleeps == 200
    assert found.oversleep_us == pytest.approx(25)
    assert [(row.function, row.calls, row.bytes) for row in found.rows] == [
        ("MPI_Allreduce", 2000, 16000),
        ("MPI_Sendrecv", 4000, 4000 * 65536),
        ("MPI_Wait", 20, 0),
    ]
    assert found.rows[0].wait_per_rank_s == pytest.approx(0.3)
    assert [(comm.name, comm.nranks, comm.ranks) for comm in found.comms] == [("world", 2, [0, 1]), ("", 0, [0, 1])]
    first, second = found.by_rank
    assert (first.execution_s, second.execution_s) == pytest.approx((2.0 - 0.75, 2.0 - 0.15))
    assert first.wait_s == pytest.approx(0.61)
    (imbalance,) = found.imbalance
    assert (imbalance.function, imbalance.latest_rank, imbalance.calls) == ("MPI_Allreduce", 1, 1000)
    assert imbalance.imbalance_pct == pytest.approx(600 / 700 * 100)
    assert found.energy.joules is None
    assert found.energy.reason
    write_summary(run, tmp_path / "summary.json")
    assert read_summary(tmp_path / "summary.json") == run


def test_a_gpu_job_finds_the_same_with_mpi_beside_it(tmp_path: Path) -> None:
    training_run(tmp_path / "run")
    write_info(tmp_path / "run", 4_000 * MS)  # longer than either
    alone = summarise(read_run(tmp_path / "run"))
    with_mpi = mpi_run(tmp_path / "other")
    for path in with_mpi.glob("mpi-*.trace"):
        path.rename(tmp_path / "run" / path.name)
    both = summarise(read_run(tmp_path / "run"))
    assert both.mpi
    both.mpi = None
    assert both == alone


def two_jobs(folder: Path, later_ns: int) -> MpiSummary:
    """A command whose second MPI job began so much later than the first, which took 2 s."""
    mpi_run(folder)
    for rank in range(2):
        data = bytearray((folder / f"mpi-{rank}.trace").read_bytes())
        data[48:56] = (10 * MS + later_ns).to_bytes(8, "little")  # start_realtime_ns
        (folder / f"mpi-{rank}.999.trace").write_bytes(data)
    found = summarise(read_run(folder)).mpi
    assert found
    return found


def test_two_jobs_beside_each_other_have_their_own_ranks(tmp_path: Path) -> None:
    found = two_jobs(tmp_path, 1000 * MS)
    assert (found.ranks, found.processes) == (4, 4)
    assert [row.rank for row in found.by_rank] == [0, 1, 2, 3]
    assert found.rank_name(3) == "1 on node1 (2)"
    assert [comm.ranks for comm in found.comms if comm.nranks] == [[0, 1], [2, 3]]
    assert sorted(each.latest_rank for each in found.imbalance if each.function == "MPI_Allreduce") == [1, 3]


def test_two_jobs_of_one_command_are_added_up(tmp_path: Path) -> None:
    found = two_jobs(tmp_path, 3000 * MS)
    assert (found.ranks, found.processes) == (2, 4)
    assert found.by_rank[0].span_s == pytest.approx(4.0)
    assert found.imbalance[0].calls == 2000


def test_a_collective_of_which_a_rank_is_missing_is_not_compared(tmp_path: Path) -> None:
    (mpi_run(tmp_path, 3) / "mpi-1.trace").unlink()
    found = summarise(read_run(tmp_path)).mpi
    assert found
    assert found.imbalance == []
    assert found.comms[0].ranks == [0, 2]


def test_energy_of_the_processors(tmp_path: Path) -> None:
    found = summarise(read_run(mpi_run(tmp_path, cpu=RAPL))).mpi
    assert found
    assert found.energy.domains == {"node1 package-0": pytest.approx(0.8), "node1 dram": pytest.approx(1.5)}
    assert found.energy.joules == pytest.approx(2.3)
    assert found.energy.average_watts == pytest.approx(2.3 / 2.01)
    assert found.energy.idle_pct == pytest.approx(75)


def test_each_package_is_added_once_and_wraps_alone(tmp_path: Path) -> None:
    """As powerccl-agent names domains; parts of a package but DRAM are in it already."""
    begins = {"package-0": 900000, "package-0/core": 5, "package-0/dram": 10, "package-1-die-1": 0, "psys": 0}
    ends = {"package-0": 100000, "package-0/core": 9, "package-0/dram": 300010, "package-1-die-1": 500000, "psys": 9}
    text = "# host: node1\n" + "".join(f"# {name}_max_energy_range_uj: 1000000\n" for name in begins)
    text += "time_ns,domain,energy_uj,cpu_busy_ns,cpu_idle_ns\n"
    text += "".join(f"0,{name},{energy_uj},-1,-1\n" for name, energy_uj in begins.items())
    text += "".join(f"2010000000,{name},{energy_uj},-1,-1\n" for name, energy_uj in ends.items())
    found = summarise(read_run(mpi_run(tmp_path, cpu=text))).mpi
    assert found
    assert found.energy.domains == {
        "node1 package-0": pytest.approx(0.2),
        "node1 package-0/dram": pytest.approx(0.3),
        "node1 package-1-die-1": pytest.approx(0.5),
    }
    assert found.energy.joules == pytest.approx(1.0)


def test_counters_that_stand_still_are_no_zero_joules(tmp_path: Path) -> None:
    text = "# host: node1\ntime_ns,domain,energy_uj,cpu_busy_ns,cpu_idle_ns\n"
    found = summarise(read_run(mpi_run(tmp_path, cpu=text + "0,package-0,7,-1,-1\n2010000000,package-0,7,-1,-1\n"))).mpi
    assert found
    assert found.energy.joules is None
    assert "do not move" in found.energy.reason


def test_no_energy_is_told_of_counters_that_cannot_be_read(tmp_path: Path) -> None:
    text = (
        "# host: node1\n# energy_reason: energy_uj is for root only\ntime_ns,domain,energy_uj,cpu_busy_ns,cpu_idle_ns\n"
    )
    found = summarise(read_run(mpi_run(tmp_path, cpu=text + "0,cpu,-1,0,0\n2010000000,cpu,-1,100,300\n"))).mpi
    assert found
    assert found.energy.joules is None
    assert found.energy.reason == "energy_uj is for root only"
    assert found.energy.idle_pct == 75


def test_cpu_samples_damaged(tmp_path: Path) -> None:
    path = tmp_path / "cpu-node1.csv"
    path.write_text(RAPL.replace("0,dram,5000000", "zero,dram,5000000") + "3,pack")
    log = read_cpu(path)
    assert len(log.samples) == 9
    assert any("last line cut off" in problem for problem in log.problems)
    assert any("1 line skipped that cannot be parsed" in problem for problem in log.problems)
    path.write_text("domain,joules\npackage-0,4\n")
    assert "no column time_ns" in read_cpu(path).problems[0]
    path.write_bytes(b"")
    assert len(read_cpu(path).samples) == 0


def test_damaged_traces_never_fail(tmp_path: Path) -> None:
    random.seed(11)
    good = (mpi_run(tmp_path) / "mpi-0.trace").read_bytes()
    for _ in range(60):
        damaged = bytearray(good)
        for _ in range(60):
            damaged[random.randrange(4096, len(damaged))] = random.randrange(256)
        (tmp_path / "mpi-0.trace").write_bytes(damaged[: random.randrange(4096, len(damaged))])
        (tmp_path / "cpu-node1.csv").write_bytes(RAPL.encode()[: random.randrange(200)] + random.randbytes(100))
        summarise(read_run(tmp_path))


def test_impossible_numbers_are_left_out(tmp_path: Path) -> None:
    trace = mpi_trace(0, 1)
    trace.mpi_total(20 * MS, "Bcast", 1, 1 << 63)
    trace.mpi_total(20 * MS, "Bcast", 1, 5 * MS, 9 * MS)
    trace.mpi_call("Bcast", 9 * MS, 8 * MS)
    rank = read_rank(trace.write(tmp_path, "mpi-0.trace"))
    assert len(rank.kinds[records.MPI_TOTAL]) == 1
    assert len(rank.problems) == 2
    assert mpi_tables.mpi_totals(read_run(tmp_path))["wait_ns"].to_list() == [5 * MS]


def test_a_trace_without_any_record(tmp_path: Path) -> None:
    synthetic.TraceWriter(0, 1).write(tmp_path, "mpi-0.trace")
    write_info(tmp_path, 100 * MS)
    found = summarise(read_run(tmp_path)).mpi
    assert found
    assert (found.calls, found.cpu_s, found.by_rank[0].execution_s) == (0, None, None)
    assert "No rank recorded anything" in shown_of(summarise(read_run(tmp_path)))


def test_two_runs_are_compared(tmp_path: Path) -> None:
    folder = str(mpi_run(tmp_path / "run"))
    rows = {row.what: row for row in compare_sides([folder, folder], Path).rows}
    assert rows["CPU time of the ranks"].cells[1].value == pytest.approx(3.46)
    assert rows["time in MPI, per rank"].changes[0].pct == 0


def shown_of(run: RunSummary, width: int = 120) -> str:
    return printed(print_summary, run, width=width)


def test_summary_in_the_terminal(tmp_path: Path) -> None:
    shown = shown_of(summarise(read_run(mpi_run(tmp_path / "run"))))
    assert "2 MPI ranks · mpich 5.0.2 · waits auto · exit 0" in shown
    assert "22 % of the run in MPI" in shown
    lines = {line.split()[0]: line.split() for line in shown.splitlines() if line.strip()}
    assert " ".join(lines["MPI_Allreduce"][1:]) == "8 B 2,000 400 ms 300 ms 270 ms 100 ms 400 µs"
    assert "MPI_Allreduce on world: 86 % of its time; rank 1 comes last (it waited 0 s, others up to 600 ms)" in shown
    assert "energy, " not in shown  # nothing of GPUs where there are none
    assert "NCCL" not in shown
    assert "communication" not in shown


def test_several_communicators_are_listed(tmp_path: Path) -> None:
    for rank in range(4):
        trace = mpi_trace(rank, 4)
        trace.mpi_comm(20 * MS, 1, 50 + rank // 2, 2)
        trace.mpi_total(100 * MS, "Bcast", 10, (rank // 2 + 1) * MS, MS, comm=1)
        trace.mpi_total(100 * MS, "Barrier", 10, 5 * MS)
        trace.write(tmp_path, f"mpi-{rank}.trace")
    run = summarise(read_run(tmp_path))
    shown = [" ".join(line.split()) for line in shown_of(run, 80).splitlines()]
    assert "world 4 40 5.00 ms 0 s" in shown
    assert "rank 2 and others 2 20 2.00 ms 1.00 ms" in shown
    assert "rank 0 and others 2 20 1.00 ms 1.00 ms" in shown


def test_a_gpu_job_shows_both(tmp_path: Path) -> None:
    folder = training_run(tmp_path / "run")
    for path in mpi_run(tmp_path / "other").glob("mpi-*.trace"):
        path.rename(folder / path.name)
    shown = shown_of(summarise(read_run(folder)))
    assert "communicating 82 %" in shown
    assert "MPI_Allreduce" in shown
    assert "2 ranks · policy observe · nccl 2.28.9 profiler v5 · 2 MPI ranks · mpich 5.0.2" in shown


def test_processors_are_told_of_at_any_width(tmp_path: Path) -> None:
    for width in (60, 120):
        assert "energy not known: " in shown_of(summarise(read_run(mpi_run(tmp_path / f"run-{width}"))), width)
    assert processors(CpuEnergy(reason="for root only", idle_pct=75.2)) == (
        "processors: idle 75 % of the time; energy not known: for root only"
    )
    told = processors(CpuEnergy(joules=120.0, average_watts=60.0, hosts=2, idle_pct=10))
    assert told == "processors of 2 hosts: idle 10 % of the time; 120 J (60.0 W), packages and DRAM"


@pytest.mark.parametrize("width", [40, 60, 80, 120, 200])
@pytest.mark.parametrize("ranks", [1, 2, 300])
def test_no_line_is_wider_than_the_terminal(tmp_path: Path, width: int, ranks: int) -> None:
    shown = shown_of(summarise(read_run(mpi_run(tmp_path / "run", ranks))), width)
    assert max(len(line) for line in shown.splitlines()) <= width


def test_how_ranks_waited_is_told_and_is_no_warning(tmp_path: Path) -> None:
    folder = mpi_run(tmp_path / "run")
    trace = mpi_trace(0, 2)
    trace.note(20 * MS, "umwait, sleep (16 us late)")
    trace.note(30 * MS, "3 MPI calls left out: too many kinds")
    trace.write(folder, "mpi-0.trace")
    run = summarise(read_run(folder))
    assert run.notes == ["3 MPI calls left out: too many kinds"]
    assert "waits auto: umwait, sleep (16 µs late)" in shown_of(run)


def test_processes_that_did_not_find_each_other(tmp_path: Path) -> None:
    for pid in (1, 2):
        mpi_trace(0, 1, pid=pid).write(tmp_path, f"mpi-0.{pid}.trace")
    write_info(tmp_path, 100 * MS, command=["/usr/bin/mpiexec", "-n", "2", "./a"])
    assert any("each alone in its MPI_COMM_WORLD" in note for note in summarise(read_run(tmp_path)).notes)
    write_info(tmp_path, 100 * MS, command=["parallel", "./a"])
    assert summarise(read_run(tmp_path)).notes == []


def test_why_nothing_was_recorded_is_shown(tmp_path: Path) -> None:
    cause = "Nothing was recorded: app is statically linked."
    write_info(tmp_path, 100 * MS, unrecorded=cause)
    run = summarise(read_run(tmp_path))
    assert run.unrecorded == cause
    assert shown_of(run).count(cause) == 1
    assert "100 ms · exit 0" in shown_of(run)
    assert "policy" not in shown_of(run)
