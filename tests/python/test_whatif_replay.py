# SPDX-License-Identifier: Apache-2.0
"""A recorded job again at other clocks: what waits for what, who sends to whom, and when clocks arrive."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from synthetic import MS, TraceWriter
from test_whatif import SLOW, exposed_run, platform

from powerccl.analysis import intervals as iv
from powerccl.analysis.exposure import from_waits
from powerccl.analysis.whatif import policies, slack
from powerccl.analysis.whatif.gathers import Gather, gathered
from powerccl.analysis.whatif.joules import Doing, energy
from powerccl.analysis.whatif.lanes import START, Job, job_of
from powerccl.analysis.whatif.meetings import PAIRS, Meeting, meet
from powerccl.analysis.whatif.paces import Pace
from powerccl.analysis.whatif.percall import CALLBACK_NS, Percall, first_mhz
from powerccl.analysis.whatif.platform import ClockPlatform, Switch
from powerccl.analysis.whatif.power import BURST_NS, Drawn, PowerModel, model
from powerccl.analysis.whatif.replay import Course, moved, run
from powerccl.analysis.whatif.sections import changes
from powerccl.analysis.whatif.slack import Rhythm, rhythm_of
from powerccl.analysis.whatif.steady import evened
from powerccl.analysis.whatif.timeline import GpuTimeline, Operation, timelines, usual
from powerccl.traces import tables
from powerccl.traces.folder import read_run

BIG = 64 << 20
LOW = 480


def line(rank: int, operations: Sequence[Operation], exposed: Sequence[tuple[int, int]]) -> GpuTimeline:
    return GpuTimeline(
        gpu=f"gpu{rank}",
        rank=rank,
        place=rank,
        host="host",
        operations=list(operations),
        calls=[(o.called_ns, o.pattern, o.size_bytes, o.call_id, o.comm) for o in operations],
        exposed=iv.union([a * MS for a, _ in exposed], [b * MS for _, b in exposed]),
    )


def op(call_id: int, start_ms: int, stop_ms: int, called_ms: int = 0, size: int = BIG) -> Operation:
    return Operation(call_id, 0, "all_reduce", size, start_ms * MS, stop_ms * MS, called_ms * MS)


def graph(lines: list[GpuTimeline], transfers_ms: Sequence[int], until_ms: int, on: ClockPlatform) -> Job:
    """The n-th operations of all lines are one."""
    meetings = [
        Meeting([(place, index) for place in range(len(lines))], "all_reduce", BIG, transfer * MS)
        for index, transfer in enumerate(transfers_ms)
    ]
    return job_of(lines, meetings, on, (0, until_ms * MS), [0, until_ms * MS])


def two_ranks(on: ClockPlatform) -> Job:
    """The first computes for 100 ms, the second for 60; the transfer takes 20; then 10 of computation."""
    late, early = line(0, [op(1, 100, 120)], [(100, 120)]), line(1, [op(1, 60, 120)], [(60, 120)])
    return graph([late, early], [20], 130, on)


def lengths_ms(courses: list[Course]) -> list[float]:
    return [course.edges_ns[-1] / MS for course in courses]


def same(job: Job, factors: Sequence[float]) -> list[list[float]]:
    return [[factor] * len(lane.what) for lane, factor in zip(job.lanes, factors, strict=True)]


def test_all_wait_for_the_last_and_nobody_for_who_is_early() -> None:
    job = two_ranks(platform())
    assert lengths_ms(run(job, same(job, [1, 1]), [1.0])) == [130, 130]
    # The early rank has 40 of 60 ms to spare, but for the 10 at the end.
    assert lengths_ms(run(job, same(job, [1, 1.5]), [1.0])) == [130, 135]
    assert lengths_ms(run(job, same(job, [1, 2]), [1.0])) == pytest.approx([150, 160])
    # A slower transfer holds up both.
    found = run(job, same(job, [1, 1]), [1.5])
    assert lengths_ms(found) == [140, 140]
    assert moved(job.lanes[1], found[1]).exposed.tolist() == [[60 * MS, 130 * MS]]


def test_a_wait_that_was_over_in_time_holds_once_communication_is_slow() -> None:
    """Behind 50 ms of computation it waits for what began at 10 and was over at 40."""
    hidden = line(0, [op(1, 10, 40)], [])
    told = replace(hidden, waited=[(50 * MS, 1)])
    on = platform()
    for each, expected in ((hidden, 100), (told, 120)):
        job = graph([each], [30], 100, on)
        assert lengths_ms(run(job, same(job, [1]), [2.0])) == [expected]


def test_operations_of_a_communicator_follow_each_other() -> None:
    both = [op(1, 10, 40), op(2, 45, 75)]
    job = graph([line(0, both, [(50, 75)])], [30, 30], 100, platform())
    (course,) = run(job, same(job, [1]), [2.0, 1.0])
    assert course.starts == [10 * MS, 70 * MS]
    assert course.stops == [70 * MS, 100 * MS]


def test_what_was_taken_for_one_but_cannot_be_ends_all_the_same() -> None:
    """Two ranks that wait for each other's second operation first."""
    lines = [line(rank, [op(1, 10, 30), op(2, 40, 60)], [(10, 30), (40, 60)]) for rank in (0, 1)]
    crossed = [
        Meeting([(0, 0), (1, 1)], "all_reduce", BIG, 20 * MS),
        Meeting([(0, 1), (1, 0)], "all_reduce", BIG, 20 * MS),
    ]
    job = job_of(lines, crossed, platform(), (0, 100 * MS), [0, 100 * MS])
    assert all(length > 0 for length in lengths_ms(run(job, same(job, [1, 1]), [1.0, 1.0])))


def drawn() -> Drawn:
    return Drawn(45.0, 45.0, 0.0, 70.0, 0.0, None, 1590.0, 1.0, False, 1590.0, 0.0, 0.0)


def percall(job: Job, on: ClockPlatform, mine: PowerModel | None = None, ran_mhz: float = 1590.0) -> list[Course]:
    models = [mine or model(drawn(), on) for _ in job.lanes]
    paces = [Pace(np.array([ran_mhz]), np.zeros(1)) for _ in job.lanes]
    begins_at = [next((mhz for mhz in lane.percall_mhz if mhz), 0) for lane in job.lanes]
    leads_to, even = [[0] * len(lane.what) for lane in job.lanes], [[1.0] * len(lane.what) for lane in job.lanes]
    return Percall(job, models, paces, leads_to, begins_at, even, on).run()


def switching(call_ms: float, transition_ms: float) -> ClockPlatform:
    return replace(platform(), switch=Switch(call_us=call_ms * 1e3, transition_us=transition_ms * 1e3))


def iterations(count: int, ranks: int, on: ClockPlatform) -> Job:
    """Each is called for 5 ms after it begins: 60 ms of computation, 40 of communication."""
    operations = [op(n, 100 * n + 60, 100 * n + 100, 100 * n + 5) for n in range(count)]
    stalls = [(100 * n + 60, 100 * n + 100) for n in range(count)]
    return graph([line(rank, operations, stalls) for rank in range(ranks)], [40] * count, 100 * count, on)


def test_a_clock_that_changes_at_once_is_low_from_the_call_to_the_end() -> None:
    (course,) = percall(job := iterations(10, 1, on := switching(0, 0)), on)
    assert job.lanes[0].percall_mhz[0] == LOW
    # The first iteration begins at the low clock, the others at the default one.
    expected = 10 * (55 * SLOW + 5 + 40 + CALLBACK_NS / MS) + 5 * (SLOW - 1)
    assert course.edges_ns[-1] / MS == pytest.approx(expected, rel=1e-3)


def test_drivers_serve_one_gpu_after_the_other() -> None:
    """A GPU's clock is up again as much later as there are GPUs before it; each change takes all of the next call."""
    courses = percall(iterations(10, 4, on := switching(5, 10)), on)
    first = [next(time for time, mhz in course.clocks if time > 0 and mhz == 0) / MS for course in courses]
    assert np.diff(first) == pytest.approx([5, 5, 5], abs=0.1)
    assert len({round(length) for length in lengths_ms(courses)}) == 1


def test_a_change_that_is_replaced_on_its_way_never_arrives() -> None:
    """Transitions as long as an iteration: the default is asked for, but always given up for the next call's clock."""
    courses = percall(iterations(10, 2, on := switching(1, 150)), on)
    assert all(time >= course.edges_ns[-1] for course in courses for time, _ in course.clocks[1:])
    assert courses[0].switches > 10
    assert lengths_ms(courses)[0] == pytest.approx(10 * (60 * SLOW + 40), rel=0.01)


def test_both_ends_of_an_exchange_end_together(tmp_path: Path) -> None:
    """Rank 0 sends to 1 and 2 to 3, all of one communicator and size; one receive ends 50 us late on its clock."""
    folder = tmp_path / "pairs"
    folder.mkdir()
    for rank in range(4):
        trace = TraceWriter(rank, 4)
        trace.comm(1 * MS)
        for number in range(6):
            # Each pair's exchanges are at times of their own, and the sender comes first.
            stop = (100 * number + 30 + (rank // 2) * 13) * MS
            start = stop - (20 if rank % 2 == 0 else 10) * MS
            late = 50_000 if rank == 3 else 0
            trace.call(number + 1, start - MS, 2 << 20, "send_receive", 0x40, parts=(1 - rank % 2, rank % 2))
            trace.kernel(number + 1, start, stop + late, 2 << 20, "send_receive", delay_ns=0)
        trace.write(folder)
    recorded = read_run(folder)
    lines = timelines(recorded, {})
    met = meet(recorded, lines)
    assert sorted(sorted(place for place, _ in meeting.members) for meeting in met) == [[0, 1]] * 6 + [[2, 3]] * 6
    assert {round(o.waiting_ns / MS) for o in lines[0].operations} == {10}
    assert {o.waiting_ns for o in lines[1].operations} == {0}
    assert {round(meeting.transfer_ns / MS) for meeting in met} == {10}


def test_a_machine_that_was_disturbed_is_no_job_that_changes() -> None:
    steps = [50] * 100 + [65] * 20 + [50] * 200
    begins = np.cumsum(steps)
    held_up = line(0, [op(n, int(b), int(b) + 20) for n, b in enumerate(begins)], [])
    assert changes(held_up, (0, 10**12)) == []
    other = np.cumsum([50] * 100 + [65] * 200)
    (at_ns,) = changes(line(0, [op(n, int(b), int(b) + 20) for n, b in enumerate(other)], []), (0, 10**12))
    assert at_ns / MS == pytest.approx(5000, abs=200)


def test_an_iteration_is_found_on_a_machine_that_is_disturbed() -> None:
    def called(gaps: Sequence[int], count: int, disturbed: int) -> GpuTimeline:
        steps = np.tile(gaps, count)
        steps[len(gaps) * 7 : len(gaps) * 7 + disturbed] += 9
        at = np.cumsum(steps)
        return line(0, [op(n, int(a) + 1, int(a) + 2, int(a)) for n, a in enumerate(at)], [])

    # Four equal buckets behind each other, then the forward pass.
    assert usual(called([14, 14, 14, 70], 40, 0), (0, 10**12)) == 4
    assert usual(called([14, 14, 14, 70], 40, 6), (0, 10**12)) == 4
    assert usual(called([5, 5, 5, 5, 5, 5, 5, 5, 5, 70], 40, 3), (0, 10**12)) == 10


def usually(offset: list[float], duration: list[float], length: float, deviation: float = 0.0) -> slack.Usual:
    count = len(offset)
    return slack.Usual(
        length, np.array(offset), np.array(duration), np.full(count, deviation), np.ones(count, dtype=np.bool_)
    )


def stretches(*may: float, computed: list[float] | None = None) -> slack.Stretches:
    return slack.Stretches(np.array(may), np.array(may), np.array(computed or [0.0] * len(may)))


def looked_again(mine: slack.Usual, transfer: float, before: float, too_long: bool = False) -> float:
    return float(slack.again(mine, np.array([transfer]), stretches(before), True, too_long).may[0])


def test_slack_is_what_is_waited_beyond_the_transfer() -> None:
    """40 ms of computation, then 60 of which 20 are transfer; 0.05 % of all is kept, three quarters taken at once."""
    mine = usually([40.0], [60.0], 100.0)
    assert looked_again(mine, 20.0, 1.0) == pytest.approx(1 + 0.75 * (60 - 20 - 0.05) / 40)
    # What differs from one iteration to the next is no slack: where it may be chance, more than that is kept.
    some = usually([40.0], [60.0], 100.0, deviation=5.0)
    assert looked_again(some, 20.0, 1.0) == pytest.approx(1 + 0.75 * (60 - 20 - 0.05 - 10) / 40)
    unsure = usually([40.0], [60.0], 100.0, deviation=10.0)
    assert looked_again(unsure, 20.0, 1.0) == pytest.approx(1 + 0.75 * 9.8 / 40)
    # Where iterations take too long it is given back.
    assert looked_again(mine, 20.0, 1.5, too_long=True) == pytest.approx(1.5 * 0.8)
    assert looked_again(mine, 80.0, 1.0) == 1.0


def test_how_late_a_rank_is_does_not_show_so_what_was_found_before_holds() -> None:
    mine = usually([40.0], [60.0], 100.0, deviation=1.0)
    late = slack.Stretches(np.array([1.0]), np.array([1.1]), np.zeros(1))
    assert slack.again(mine, np.array([60.0]), late, True, False).may[0] == 1.0
    late = slack.Stretches(np.array([1.05]), np.array([1.1]), np.zeros(1))
    assert slack.again(mine, np.array([60.0]), late, True, False).may[0] == 1.05
    assert slack.again(mine, np.array([60.0]), late, True, True).may[0] == 1.0


def test_stages_are_as_long_as_is_worth_a_change_of_clock() -> None:
    mine = usually([20.0, 50.0, 80.0], [10.0, 10.0, 20.0], 100.0)
    wishes = stretches(1.5, 1.2, 1.0)
    assert slack.arranged(mine, wishes, 0.1, 1.0, True).tolist() == [1.5, 1.2, 1.0]
    # Changes of 20 ms: no stage under 40, and the least of what is in one holds.
    assert slack.arranged(mine, wishes, 0.1, 20.0, True).tolist() == [1.2, 1.2, 1.0]
    # Without marks one for all of it.
    assert slack.arranged(mine, wishes, 0.1, 1.0, False).tolist() == [1.0, 1.0, 1.0]


def test_where_an_iteration_has_one_clock_a_little_of_it_may_be_late() -> None:
    mine = usually([20.0, 50.0, 80.0], [10.0, 10.0, 20.0], 100.0)
    wishes = stretches(1.5, 1.3, 1.0, computed=[15.0, 24.0, 3.0])
    found = slack.arranged(mine, wishes, 0.1, 100.0, True)
    # 3 of 42 ms, late by 1.5 % of those 42.
    assert found.tolist() == pytest.approx([1 + 0.015 * 42 / 3] * 3, abs=1e-3)
    # Not where much of it would be.
    half = stretches(1.5, 1.2, 1.0, computed=[15.0, 9.0, 21.0])
    assert slack.arranged(mine, half, 0.1, 100.0, True).tolist() == pytest.approx([1.0] * 3, abs=1e-3)


def test_the_replay_of_a_recording_takes_as_long_as_it_did(tmp_path: Path) -> None:
    recorded = read_run(exposed_run(tmp_path / "run"))
    lines = timelines(recorded, from_waits(tables.waits(recorded)))
    span = (lines[0].operations[0].start_ns, lines[0].operations[-1].stop_ns)
    job = job_of(lines, meet(recorded, lines), platform(), span, list(span))
    courses = run(job, same(job, [1, 1]), [1.0] * len(job.meetings))
    assert lengths_ms(courses) == pytest.approx([(span[1] - span[0]) / MS] * 2, rel=1e-3)


def pipeline(count: int, later_ms: int = 0) -> list[GpuTimeline]:
    """Of two ranks' iterations of 100 ms one ends with its operation at 95 ms, the other at 55; both begin at 20."""
    return [
        line(rank, [op(n, 100 * n + 20 + rank * later_ms, 100 * n + stop, size=0) for n in range(count)], [])
        for rank, stop in ((0, 95), (1, 55))
    ]


def test_ranks_that_end_apart_and_begin_together_are_let_go_on_by_the_host() -> None:
    begins = [np.arange(1, 6)] * 2
    found = gathered(pipeline(6), begins, [0.0, 45 / 65], (0, 600 * MS))
    assert [gather.at_ns for gather in found.each] == [(100 * n + 120) * MS - 1 for n in range(5)]
    assert {gather.waited_ns for gather in found.each} == {(0, 40 * MS)}
    assert found.idle == pytest.approx((0, 5 / 25))  # of the 25 ms that are left
    # A GPU that was not seen idle computes for that long; and who begins apart was not let go on together.
    assert not gathered(pipeline(6), begins, [0.0, 0.1], (0, 600 * MS)).each
    assert not gathered(pipeline(6, later_ms=30), begins, [0.0, 45 / 65], (0, 600 * MS)).each
    assert not gathered(pipeline(6)[:1], begins[:1], [0.0], (0, 600 * MS)).each


def apart(on: ClockPlatform) -> Job:
    """Their operations are no meetings; what they wait for is each other's host."""
    lines = pipeline(3)
    meetings = [Meeting([(place, n)], "all_reduce", 0, (75, 35)[place] * MS) for place in (0, 1) for n in range(3)]
    # Where computation goes on behind its operation.
    lines = [
        replace(each, exposed=iv.union([o.start_ns for o in each.operations], [o.stop_ns for o in each.operations]))
        for each in lines
    ]
    gathers = tuple(Gather((100 * n + 120) * MS - 1, (0, 40 * MS)) for n in range(2))
    return job_of(lines, meetings, on, (0, 300 * MS), [0, 300 * MS], gathers)


def test_what_waits_for_the_host_follows_the_last() -> None:
    job = apart(platform())
    found = run(job, same(job, [1, 1]), [1.0] * 6)
    assert lengths_ms(found) == pytest.approx([300, 300], abs=0.01)
    assert np.diff(found[1].waits).ravel() / MS == pytest.approx([40, 40], abs=0.01)
    # The last takes 20 ms longer in each iteration: the other waits for that, too.
    slower = run(job, same(job, [1, 1]), [95 / 75] * 3 + [1.0] * 3)
    assert np.diff(slower[1].waits).ravel() / MS == pytest.approx([60, 60], abs=0.01)
    assert slower[1].starts == pytest.approx(slower[0].starts, abs=0.01 * MS)
    event_by_event = percall(job, platform())
    assert np.diff(event_by_event[1].waits).ravel() / MS == pytest.approx([40, 40], abs=0.01)


def test_who_waits_for_the_host_draws_what_an_idle_gpu_does() -> None:
    on = platform()
    mine = model(drawn(), on)
    for mhz, watts in ((0, mine.idle()), (LOW, float(mine.watts(LOW, np.zeros(1))[0]))):
        doing = Doing(
            computing=iv.EMPTY,
            communicating=iv.EMPTY,
            clocks=[(0.0, mhz)],
            edges_ns=[0.0, 1e9],
            waits=iv.union([0], [10**9]),
            rests=(np.zeros(0), np.zeros(0)),
        )
        assert energy(doing, mine, on)[0].sum() == pytest.approx(watts)


def test_communication_beside_computation_behind_a_low_clock_comes_on_top_of_what_that_draws() -> None:
    on = platform()
    behind_mhz = 900.0
    mine = replace(model(replace(drawn(), limited=True), on), behind_mhz=behind_mhz)
    watts = []
    for talks in (iv.EMPTY, iv.union([0], [10**9])):
        doing = Doing(
            computing=iv.union([0], [10**9]),
            communicating=talks,
            clocks=[(0.0, LOW), (1e7, 0)],
            edges_ns=[0.0, 1e7, 1e9],
            waits=iv.EMPTY,
            rests=(np.zeros(0), np.zeros(0)),
            resets_behind=True,
        )
        watts.append(float(energy(doing, mine, on)[0][1]) / 0.99)
    assert watts[0] == pytest.approx(float(mine.watts(behind_mhz, np.ones(1))[0]), rel=1e-3)
    assert watts[1] - watts[0] == pytest.approx(mine.communication_w, rel=1e-3)


def freed_while_communicating(transition_ms: float, peak_mhz: float) -> float:
    """How long it takes: computation under a power limit, a call with a clock, one without, computation; ms."""
    on = switching(0, transition_ms)
    job = graph([line(0, [op(1, 60, 100), op(2, 100, 120, size=1)], [(60, 120)])], [40, 20], 400, on)
    assert [mhz > 0 for mhz in job.lanes[0].percall_mhz] == [True, False]
    limited = replace(drawn(), limited=True, compute_mhz=1000.0, peak_mhz=peak_mhz)
    mine = replace(model(limited, on), behind_mhz=900.0)
    return lengths_ms(percall(job, on, mine, ran_mhz=1000.0))[0]


def test_a_governor_that_has_wound_up_lets_computation_burst() -> None:
    """A clock that is freed during communication has a governor that has wound up by the end of it, and a low mean."""
    times = 0.15 + 0.85 * 1000 / 1400
    sooner_ms = freed_while_communicating(10, 1000) - freed_while_communicating(10, 1400)
    assert sooner_ms == pytest.approx(BURST_NS / MS * (1 / times - 1), rel=1e-3)
    # Freed while it computes, it goes on as its limit allows.
    assert freed_while_communicating(30, 1000) == freed_while_communicating(30, 1400)


def test_what_a_governor_adds_is_gone_at_one_clock() -> None:
    """Exchanges are of one kind whatever their size, an all-reduce is of another."""
    pair = replace(op(1, 10, 20), pattern=PAIRS)
    operations = [pair, replace(pair, call_id=2, start_ns=30 * MS, stop_ns=40 * MS, size_bytes=1), op(3, 50, 60)]
    job = graph([line(0, operations, [(10, 20), (30, 40), (50, 60)])], [10] * 3, 100, platform())
    (lane,) = job.lanes
    deviation = np.array([1.0, 5.0, 7.0])
    assert slack.at_one_clock(lane, rhythm_of(lane, 3), deviation).tolist() == [1, 1, 7]


def test_a_host_that_waits_calls_no_later_than_its_kernel_begins() -> None:
    """Where iterations become shorter, so long behind the call before would be behind the kernel's end in the end."""
    on, count, operations = switching(0, 1), 12, list[Operation]()
    for start in range(60, 60 + 100 * count, 100):  # a call with a clock, then one without
        operations += [op(start, start, start + 20, start), op(start + 1, start + 20, start + 40, start, size=1)]
    stalls = [(start, start + 40) for start in range(60, 60 + 100 * count, 100)]
    job = graph([line(0, operations, stalls)], [20] * 2 * count, 100 * count, on)
    limited = replace(drawn(), limited=True, compute_mhz=1000.0, peak_mhz=1400.0)
    (course,) = percall(job, on, replace(model(limited, on), behind_mhz=1000.0), ran_mhz=1000.0)
    assert course.edges_ns[-1] < 0.97 * 100 * count * MS
    assert [mhz for _, mhz in course.clocks[-6:]] == [LOW, 0] * 3


def test_a_burst_draws_what_its_clock_does() -> None:
    on = platform()
    limited = replace(drawn(), limited=True, peak_mhz=1400.0)
    mine = replace(model(limited, on), behind_mhz=900.0)
    doing = Doing(
        computing=iv.union([20 * MS], [100 * MS]),
        communicating=iv.union([0], [20 * MS]),
        clocks=[(0.0, LOW), (10.0 * MS, 0)],
        edges_ns=[0.0, 20.0 * MS, 20.0 * MS + BURST_NS, 100.0 * MS],
        waits=iv.EMPTY,
        rests=(np.array([50.0 * MS]), np.zeros(1)),
        resets_behind=True,
    )
    _, burst, later = energy(doing, mine, on)[0].tolist()
    assert burst / BURST_NS * 1e9 == pytest.approx(float(mine.watts(1400.0, np.ones(1))[0]), rel=1e-3)
    assert later / (80 * MS - BURST_NS) * 1e9 == pytest.approx(limited.computing_w, rel=1e-3)


def test_a_short_transfer_before_a_long_wait_is_left_out_of_its_window() -> None:
    on = replace(platform(), managed={"all_reduce": [(0, 0, 900)]})
    assert on.clocks_mhz[0] * policies.MUCH_HIGHER < 900
    waits = replace(op(2, 22, 60), least_ns=2 * MS)
    found = policies.windows(line(0, [op(1, 20, 22), waits], [(20, 60)]), on, 1, (0, 100 * MS), 2)
    assert (found.mhz.tolist(), found.spans.tolist()) == ([on.clocks_mhz[0]], [[22 * MS, 58 * MS]])
    # One that is not short keeps its own clock for both.
    longer = [op(1, 20, 32), replace(waits, start_ns=32 * MS)]
    found = policies.windows(line(0, longer, [(20, 60)]), on, 1, (0, 100 * MS), 2)
    assert (found.mhz.tolist(), found.spans.tolist()) == ([900], [[20 * MS, 60 * MS]])


def test_percall_far_below_a_power_limit_computes_evenly() -> None:
    """60 and 40 ms by turns, as a governor has it, are 50 each; what takes far longer is other work."""
    took, operations, now = [60, 40, 60, 40, 200, 60, 40, 60, 40], [], 0
    for number, ms in enumerate(took):
        operations.append(op(number, now + ms, now + ms + 10))
        now += ms + 10
    job = graph(
        [line(0, operations, [(o.start_ns // MS, o.stop_ns // MS) for o in operations])], [10] * 9, now, platform()
    )
    (lane,) = job.lanes
    even = evened(lane, rhythm_of(lane, 1))
    assert lengths_ms(run(job, [even], [1.0] * 9)) == [now]
    starts = [item for item, what in enumerate(lane.what) if what == START]
    assert [even[item] * ms for item, ms in zip(starts, took, strict=True)] == pytest.approx(
        [*[50] * 4, 200, *[50] * 4]
    )


def test_percall_begins_with_an_iterations_first_clock() -> None:
    """A stretch that begins with an iteration's second call is of a job that began with its first."""
    small = platform().percall_mhz("all_reduce", BIG)
    lane = replace(two_ranks(platform()).lanes[0], percall_mhz=[300, small, 300, small])
    rhythm = Rhythm(2, np.array([1, 0, 1, 0]), np.array([0, 1, 1, 2]))
    assert first_mhz(lane, rhythm) == small
    assert first_mhz(lane, None) == 300
    assert first_mhz(replace(lane, percall_mhz=[0, 0, 300, 0]), rhythm) == 300
    assert first_mhz(replace(lane, percall_mhz=[0] * 4), rhythm) == 0
