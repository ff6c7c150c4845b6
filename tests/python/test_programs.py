# SPDX-License-Identifier: Apache-2.0
"""A recorded iteration as a program, and what it takes with other costs."""

from __future__ import annotations

import polars as pl
import pytest

from powerccl.analysis.programs.calls import NoProgramError
from powerccl.analysis.programs.program import Collective, Program
from powerccl.analysis.programs.recording import program_of_a_rank
from powerccl.ways.replay import Cost, replay

US = 1000  # ns
ITERATIONS = 20


def gather(released_us: float, needed_us: float | None, comm: int = 0) -> Collective:
    return Collective("all_gather", 1 << 20, (0, 1), 500.0, released_us, needed_us, comm=comm)


def computing(work_us: float, *collectives: Collective) -> Program:
    return Program(0, work_us, 0.0, list(collectives))


def time_us(program: Program, *costs: Cost) -> float:
    return replay(program, costs or [Cost(of.transfer_us, of.transfer_us, 0.0) for of in program.collectives]).time_us


def test_an_exposed_collective_costs_all_of_its_time() -> None:
    program = computing(1000.0, gather(1000.0, 1000.0))
    found = replay(program, [Cost(500.0, 500.0, 100.0)])
    assert found.time_us == pytest.approx(1500.0)
    assert found.exposed_us == pytest.approx(500.0)
    assert found.beside == [pytest.approx(0.0)]  # what computation would lose beside it does not matter


def test_a_hidden_collective_costs_what_computation_loses() -> None:
    program = computing(1000.0, gather(0.0, 1000.0))
    found = replay(program, [Cost(400.0, 500.0, 100.0)])
    assert found.time_us == pytest.approx(1100.0)
    assert found.exposed_us == 0.0
    assert found.beside == [pytest.approx(1.0)]


def test_what_is_half_hidden_goes_on_faster_once_computation_waits() -> None:
    """Beside 250 us of computation half of it is done; the rest takes 100 us of the 200 it takes alone."""
    found = replay(computing(1000.0, gather(750.0, 1000.0)), [Cost(200.0, 500.0, 0.0)])
    assert found.time_us == pytest.approx(1100.0)
    assert found.beside == [pytest.approx(0.5)]


def test_collectives_of_one_communicator_follow_each_other() -> None:
    first, second = gather(0.0, None), gather(0.0, 600.0)
    assert time_us(computing(1000.0, first, second)) == pytest.approx(1400.0)
    other = gather(0.0, 600.0, comm=1)
    assert time_us(computing(1000.0, first, other)) == pytest.approx(1000.0)


def test_the_next_iteration_may_be_gathered_for_in_this_one() -> None:
    """It is needed 200 us into the next iteration, so that 300 of its 500 us are hidden in this one."""
    assert time_us(computing(1000.0, gather(700.0, 1200.0))) == pytest.approx(1000.0)
    assert time_us(computing(1000.0, gather(900.0, 1200.0))) == pytest.approx(1200.0)


def test_a_step_that_can_never_end_is_refused() -> None:
    """The first of a communicator is released behind what waits for the second."""
    with pytest.raises(NoProgramError, match="wait for each other"):
        time_us(computing(1000.0, gather(900.0, None), gather(100.0, 500.0)))


def test_a_step_without_computation_is_refused() -> None:
    with pytest.raises(NoProgramError, match="takes no time"):
        time_us(computing(-5.0, gather(0.0, 0.0)))


class Tables:
    """Tables of a job whose iteration computes 300 us, gathers 500 us while it computes 700, and waits for the rest."""

    def __init__(self, called_before_us: float = 1000.0, ranks: int = 1, waiting_us: float = 0.0) -> None:
        self.rows: list[dict[str, object]] = []
        for rank in range(ranks):
            for i in range(ITERATIONS):
                begin = 1_000_000_000 + i * 1300 * US  # 300 + 700 of computation, of which the last 300 waited
                start, stop = begin + 300 * US, begin + 1300 * US
                self.rows.append(
                    {
                        "rank": rank,
                        "gpu": f"GPU-{rank}",
                        "comm": 0,
                        "ranks": 2,
                        "call_id": i + 1,
                        "called_ns": start - int(called_before_us * US),
                        "start_ns": start,
                        "stop_ns": stop,
                        "stall_ns": begin + 1000 * US,
                        "waiting_ns": int(waiting_us * US),
                    }
                )

    @property
    def tables(self) -> tuple[pl.DataFrame, pl.DataFrame, pl.DataFrame]:
        frame = pl.DataFrame(self.rows).with_columns(pattern=pl.lit("all_gather"), bytes=pl.lit(1 << 20))
        common = ["rank", "gpu", "call_id"]
        calls = frame.select(*common, "comm", "pattern", "bytes", start_ns="called_ns", captured=pl.lit(value=False))
        kernels = frame.select(
            *common,
            *("comm", "ranks", "pattern", "bytes", "start_ns", "stop_ns", "waiting_ns"),
            duration_ns=pl.col("stop_ns") - pl.col("start_ns"),
        )
        waits = frame.select(*common, "stall_ns", stream=pl.lit(7), resume_ns="stop_ns")
        return calls, kernels, waits


def none(pattern: str, size: float) -> float:
    return 0.0


def test_a_recorded_iteration_is_found_again() -> None:
    """Iterations are cut behind their collectives: computation goes on for 300 us before the next begins."""
    found = program_of_a_rank(*Tables().tables, none)
    assert found.time_us == pytest.approx(1300.0)
    (program,) = found.programs
    assert program.work_us == pytest.approx(1000.0)
    assert program.exposed_us == pytest.approx(300.0)
    (gather,) = program.collectives
    assert gather.released_us == pytest.approx(300.0)
    assert gather.needed_us == pytest.approx(1000.0)
    assert (gather.pattern, gather.bytes) == ("all_gather", 1 << 20)
    assert gather.transfer_us == pytest.approx(1000.0)
    assert not gather.hosted
    assert time_us(program) == pytest.approx(1300.0)


def test_computation_is_what_it_would_be_without_losses() -> None:
    """Of 200 us that a call costs all beside computation, it costs 140 where 70 % of it is."""
    found = program_of_a_rank(*Tables().tables, lambda pattern, size: 200.0)
    assert found.programs[0].work_us == pytest.approx(860.0)
    assert time_us(found.programs[0], Cost(1000.0, 1000.0, 200.0)) == pytest.approx(1300.0)


def test_a_wait_long_before_the_first_kernel_changes_nothing() -> None:
    calls, kernels, waits = Tables().tables
    early = waits.head(1).with_columns(call_id=0, stall_ns=0, resume_ns=900_000_000)
    found = program_of_a_rank(
        calls, kernels, pl.concat([early, waits], how="vertical_relaxed"), lambda pattern, size: 200.0
    )
    assert found.programs[0].work_us == pytest.approx(860.0)


def test_what_waits_for_the_host_loses_nothing() -> None:
    found = program_of_a_rank(*Tables(called_before_us=20.0).tables, lambda pattern, size: 200.0)
    assert found.programs[0].collectives[0].hosted
    assert found.programs[0].work_us == pytest.approx(1000.0)


def test_the_time_for_other_ranks_is_told_apart() -> None:
    (gather,) = program_of_a_rank(*Tables(waiting_us=250.0).tables, none).programs[0].collectives
    assert gather.transfer_us == pytest.approx(750.0)
    assert gather.waited_us == pytest.approx(250.0)


def test_without_marks_there_is_no_step() -> None:
    calls, kernels, waits = Tables().tables
    with pytest.raises(NoProgramError, match="no marks"):
        program_of_a_rank(calls, kernels, waits.clear(), none)


def test_two_streams_that_compute_are_refused() -> None:
    calls, kernels, waits = Tables().tables
    with pytest.raises(NoProgramError, match="several streams compute"):
        program_of_a_rank(calls, kernels, pl.concat([waits, waits.with_columns(stream=pl.lit(8))]), none)


def test_few_iterations_are_refused() -> None:
    calls, kernels, waits = (table.head(4) for table in Tables().tables)
    with pytest.raises(NoProgramError):
        program_of_a_rank(calls, kernels, waits, none)


def test_a_pause_of_the_marks_counts_for_nothing() -> None:
    """In half of the iterations no wait was recorded: they would be computation alone."""
    calls, kernels, waits = Tables().tables
    burst = waits.with_columns(burst=pl.lit(1), pauses=pl.col("call_id") >= ITERATIONS // 2)
    found = program_of_a_rank(calls, kernels, burst.filter(pl.col("call_id") <= ITERATIONS // 2), none)
    assert found.programs[0].exposed_us == pytest.approx(300.0)
    assert len(found.edges_ns) <= ITERATIONS // 2


def test_a_job_that_changes_is_what_it_mostly_was() -> None:
    """Its last iterations communicate half as much: there are fewer of them."""
    calls, kernels, waits = Tables().tables
    last = pl.col("call_id") > ITERATIONS - 6
    half = pl.when(last).then(1 << 19).otherwise(1 << 20).alias("bytes")
    found = program_of_a_rank(calls.with_columns(half), kernels.with_columns(half), waits, none)
    assert found.programs[0].collectives[0].bytes == 1 << 20
