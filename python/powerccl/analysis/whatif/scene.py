# SPDX-License-Identifier: Apache-2.0
"""A stretch of a run with all that is known of it, replayed under each policy."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from powerccl.analysis.energy import EnergyCurve
from powerccl.analysis.whatif import policies, slack
from powerccl.analysis.whatif.gathers import gathered
from powerccl.analysis.whatif.joules import Doing, doing_of
from powerccl.analysis.whatif.lanes import START, Job, Lane, job_of
from powerccl.analysis.whatif.lots import lots_of
from powerccl.analysis.whatif.meetings import Meeting
from powerccl.analysis.whatif.paces import Pace
from powerccl.analysis.whatif.percall import Percall, first_mhz
from powerccl.analysis.whatif.platform import ClockPlatform
from powerccl.analysis.whatif.power import Drawn, PowerModel
from powerccl.analysis.whatif.replay import Course, moved, run
from powerccl.analysis.whatif.steady import evened
from powerccl.analysis.whatif.timeline import GpuTimeline, numbers_of

Values = npt.NDArray[np.float64]


@dataclass
class Gpu:
    """A GPU whose power is known."""

    line: GpuTimeline
    curve: EnergyCurve
    drawn: Drawn
    calls: int  # of its iteration, 0: none was found

    def places(self) -> tuple[npt.NDArray[np.int64], int]:
        """Of its operations in the iteration, and how many there are: one where none was found."""
        number = numbers_of(self.line)
        return (number % self.calls, self.calls) if self.calls else (np.zeros(len(number), dtype=np.int64), 1)


@dataclass
class Way:
    """How a job is run outside of windows: one clock (0: the default), and by lane and place how much more slowly.

    `lots`: the same by lane and operation, in place of it.
    """

    mhz: int = 0
    stretches: list[Values | None] | None = None
    lots: list[Values | None] | None = None


class Scene:
    """The stretch's graph, and what comes of it; GPUs in the order of `gpus`."""

    def __init__(
        self,
        gpus: list[Gpu],
        meetings: list[Meeting],
        platform: ClockPlatform,
        span: tuple[int, int],
        edges_ns: list[int],
        paces: list[Pace],
        marked: bool,
    ) -> None:
        lines = [gpu.line for gpu in gpus]
        begins = [np.flatnonzero(gpu.places()[0] == 0)[1:] if gpu.calls else np.zeros(0, np.int64) for gpu in gpus]
        found = gathered(lines, begins, [float(pace.idle[0]) for pace in paces], span)
        if found.each:
            paces = [pace.idling(share) for pace, share in zip(paces, found.idle, strict=True)]
        self.gpus, self.platform, self.paces, self.marked = gpus, platform, paces, marked
        self.job: Job = job_of(lines, meetings, platform, span, edges_ns, found.each)
        self.rhythms = [
            slack.rhythm_of(lane, gpu.calls) if gpu.calls and lane.line.operations else None
            for lane, gpu in zip(self.job.lanes, gpus, strict=True)
        ]
        # Of each item, the place of the operation that computation leads to.
        self.leads_to = [
            self._leads_to(lane, rhythm) for lane, rhythm in zip(self.job.lanes, self.rhythms, strict=True)
        ]
        self.idle = [
            pace.idle[rhythm.place] if rhythm is not None else np.full(len(lane.before), pace.idle[0])
            for lane, rhythm, pace in zip(self.job.lanes, self.rhythms, paces, strict=True)
        ]
        self.hosts: dict[str, int] = {}
        for gpu in gpus:
            self.hosts[gpu.line.host] = self.hosts.get(gpu.line.host, 0) + 1
        ones = [np.ones(len(lane.what)) for lane in self.job.lanes]
        self.base = run(self.job, ones, [1.0] * len(self.job.meetings))
        self.windows = self.windows_of(self.base)
        self.lots = lots_of(self.job, self.rhythms, self.change_ns())

    def change_ns(self) -> float:
        """What a change of clock takes where all GPUs of a host ask at once, the most of any host."""
        switch = self.platform.switch
        return max((switch.calls_us(many) + switch.transition_us) * 1e3 for many in self.hosts.values())

    def length_ns(self, courses: list[Course]) -> float:
        """How long a replay takes, the mean over its GPUs."""
        return float(np.mean([course.edges_ns[-1] for course in courses]))

    def windows_of(self, courses: list[Course]) -> list[policies.Windows]:
        """The exposed windows of each GPU in a replay."""
        found = []
        for gpu, lane, course in zip(self.gpus, self.job.lanes, courses, strict=True):
            line = moved(lane, course)
            many = self.hosts[gpu.line.host]
            found.append(policies.windows(line, self.platform, many, (0, round(course.edges_ns[-1])), gpu.calls))
        return found

    def percall(self, models: list[PowerModel]) -> list[Doing]:
        """Under per-call."""
        if not any(any(lane.percall_mhz) for lane in self.job.lanes):
            return self.as_it_was()
        begins_at = [first_mhz(*each) for each in zip(self.job.lanes, self.rhythms, strict=True)]
        even = [self._even(index) for index in range(len(self.gpus))]
        courses = Percall(self.job, models, self.paces, self.leads_to, begins_at, even, self.platform).run()
        return [doing_of(course, idle, resets_behind=True) for course, idle in zip(courses, self.idle, strict=True)]

    def as_it_was(self) -> list[Doing]:
        """Without any policy."""
        return [doing_of(course, idle) for course, idle in zip(self.base, self.idle, strict=True)]

    def managed(self, models: list[PowerModel], way: Way, windowed: bool) -> list[Doing]:
        """With clocks low in windows that pay, and outside of them as `way` says."""
        courses = self.course(models, way, windowed)
        windows = self.windows_of(courses) if windowed else [None] * len(courses)
        found = []
        for index, (course, its) in enumerate(zip(courses, windows, strict=True)):
            course.clocks = self._clocks(index, course, models[index], way)
            doing = doing_of(course, self.idle[index])
            doing.switches = len(course.clocks) - 1 + 2 * (course.clocks[0][1] > 0)
            if its is not None:
                doing.clocks = policies.lowered(doing.clocks, its)
                doing.switches += 2 * int((its.mhz > 0).sum())
            found.append(doing)
        return found

    def course(self, models: list[PowerModel], way: Way, windowed: bool = False) -> list[Course]:
        """The replay alone."""
        clocks = [self._by_operation(index, model, way) for index, model in enumerate(models)]
        computing = []
        for index, (lane, model) in enumerate(zip(self.job.lanes, models, strict=True)):
            known: dict[tuple[int, int], float] = {}
            factors, mhz = [1.0] * len(lane.what), way.mhz
            for item in range(len(lane.what) - 1, -1, -1):
                if lane.what[item] == START:
                    mhz = clocks[index][lane.index[item]]
                key = (self.leads_to[index][item], mhz)
                if key not in known:
                    known[key] = self.paces[index].times(model, *key)
                factors[item] = known[key]
            computing.append(factors)
        waiting = max(model.slowdown(way.mhz) if way.mhz else 1.0 for model in models)
        return run(self.job, computing, self._transfers(clocks, windowed), waiting)

    def _even(self, index: int) -> list[float]:
        """Of what a lane computes before each item at a clock that is held far below those of a power limit."""
        lane, rhythm = self.job.lanes[index], self.rhythms[index]
        if rhythm is None or not self.gpus[index].drawn.limited or self.lots.tell():
            return [1.0] * len(lane.what)
        return evened(lane, rhythm)

    def _leads_to(self, lane: Lane, rhythm: slack.Rhythm | None) -> list[int]:
        found = [0] * len(lane.what)
        place = 0
        for item in range(len(lane.what) - 1, -1, -1):
            if rhythm is not None and lane.what[item] == START:
                place = int(rhythm.place[lane.index[item]])
            found[item] = place
        return found

    def _by_operation(self, index: int, model: PowerModel, way: Way) -> list[int]:
        """The clock before each of a lane's operations."""
        count = len(self.job.lanes[index].before)
        lots = way.lots[index] if way.lots is not None else None
        if lots is not None:
            lowest, highest = self.platform.clocks_mhz[0], self.platform.clock_max_mhz
            clocks = [policies.stretched(model, way.mhz, times, lowest) for times in lots.tolist()]
            return [min(clock, highest) for clock in clocks]
        stretch = way.stretches[index] if way.stretches is not None else None
        rhythm = self.rhythms[index]
        if stretch is None or rhythm is None:
            return [way.mhz] * count
        lowest = self.platform.clocks_mhz[0]
        of_places = [policies.stretched(model, way.mhz, float(times), lowest) for times in stretch]
        return [of_places[place] for place in rhythm.place.tolist()]

    def _clocks(self, index: int, course: Course, model: PowerModel, way: Way) -> list[tuple[float, int]]:
        """When which clock begins, outside of windows."""
        clocks = self._by_operation(index, model, way)
        found: list[tuple[float, int]] = [(0.0, clocks[0] if clocks else way.mhz)]
        order = np.argsort(np.array(course.starts), kind="stable").tolist()
        ended = 0.0
        for operation in order:
            if clocks[operation] != found[-1][1]:
                found.append((max(ended, found[-1][0]), clocks[operation]))
            ended = max(ended, course.stops[operation])
        return found

    def _transfers(self, clocks: list[list[int]], windowed: bool) -> list[float]:
        """By what each meeting's transfer takes longer at the lowest clock of its GPUs."""
        clocks = [slack.before_transfers(mine) for mine in clocks]
        if windowed:
            clocks = [
                policies.in_windows(lane.line, course, mine, its)
                for lane, course, mine, its in zip(self.job.lanes, self.base, clocks, self.windows, strict=True)
            ]
        found = []
        for meeting in self.job.meetings:
            low = min((clocks[lane][index] for lane, index in meeting.members if clocks[lane][index]), default=0)
            found.append(self.platform.time_ratio(meeting.pattern, meeting.size_bytes, low) if low else 1.0)
        return found

    def take_up_slack(self, models: list[PowerModel], mhz: int, budget: float) -> Way:
        """What GPUs that wait for others find out, iteration by iteration, about how slowly they may compute."""
        rhythms = self.rhythms
        way = Way(mhz)
        if any(r is None for r in rhythms) or self.lots.any():
            return way
        # How long a graph takes among other calls says nothing about waiting.
        if any(g.line.calls and o.called_ns < 0 for g in self.gpus for o in g.line.operations):
            return way
        recorded = []
        for lane in self.job.lanes:
            operations = lane.line.operations
            recorded.append(Course([float(o.start_ns) for o in operations], [float(o.stop_ns) for o in operations]))
        known = [r for r in rhythms if r is not None]
        off = [slack.usual_of(*each) for each in zip(self.job.lanes, recorded, known, strict=True)]
        if any(o is None for o in off):
            return way
        deviations: list[Values] = []
        for lane, gpu, r, o in zip(self.job.lanes, self.gpus, known, off, strict=True):
            assert o is not None
            limited = gpu.drawn.limited
            deviations.append(slack.at_one_clock(lane, r, o.deviation) if limited else o.deviation)
        wishes = [slack.Stretches.none(r.calls) for r in known]
        unstretched = 0.0
        switch = self.platform.switch
        for _ in range(slack.ROUNDS):
            courses = self.course(models, way)
            usual = [
                slack.usual_of(lane, course, r, deviation)
                for lane, course, r, deviation in zip(self.job.lanes, courses, known, deviations, strict=True)
            ]
            if any(u is None for u in usual):
                return way
            unstretched = unstretched or self.length_ns(courses)
            too_long = self.length_ns(courses) > (1 + 2 * budget) * unstretched
            transfer = slack.least_ns(self.job, usual, known)
            stretches: list[Values | None] = []
            for index, u in enumerate(usual):
                assert u is not None
                wishes[index] = slack.again(u, transfer[index], wishes[index], self.marked, too_long)
                many = self.hosts[self.gpus[index].line.host]
                change = (switch.calls_us(many) + switch.transition_us) * 1e3
                mine = slack.arranged(u, wishes[index], switch.calls_us(many) * 1e3, change, self.marked)
                wishes[index].has = mine
                stretches.append(mine if (mine > 1).any() else None)
            way = Way(mhz, stretches if any(s is not None for s in stretches) else None)
        return way
