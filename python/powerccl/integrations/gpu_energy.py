# SPDX-License-Identifier: Apache-2.0
"""The energy of one GPU as a curve over time, from samples as they come. In plain Python: it runs inside the job.

The rules are those of analysis/energy.py. An energy counter that is read with each sample gives a point where it
changed. One that is read seldom gives the sum between two readings, and the power samples between them give its course.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right

from powerccl.traces.sample_file import number_of

# Of sampling periods: a longer time between two power samples is a gap, and energy over it is not known. As GAP_PERIODS
# in traces/plausible.py, which needs numpy.
GAP_PERIODS = 10
# W of one GPU: a counter that gains more has jumped. Boards of today draw 1.4 kW at most. At half, a peak of a coming
# board could pass for a jump. At double, a jump within one second adds up to 10 kJ unseen.
MOST_WATTS = 5000.0
# A counter that stands still for longer counts nothing: a GPU always draws power. As LEAST_STALE_NS in live/gpus.py.
STILL_NS = 2_000_000_000


class GpuEnergy:
    """Energy at `times` (host ns, rising), in `joules` from anywhere. `breaks`: how often it began from elsewhere."""

    def __init__(self, about: dict[str, str]) -> None:
        """`about`: the head of the file of its samples."""
        self.times: list[int] = []
        self.joules: list[float] = []
        self.breaks = 0
        self._gap_ns = GAP_PERIODS * max(number_of(about, "interval_ns"), 1)
        self._counts: bool | None = None  # whether it has a counter that moves: the first samples say so
        self._moved_ns = 0  # the counter's last change
        self._read: tuple[int, int, float] | None = None  # the counter's last reading: ns, uJ, integral then
        self._changed = True  # at that reading
        self._power: tuple[int, int] | None = None  # the last power sample: ns, mW
        self._integral = 0.0  # J by power samples
        self._between: list[tuple[int, float]] = []  # ns and integral, since the counter's last reading

    @property
    def known_ns(self) -> int:
        """Until when energy is known; 0: not at all."""
        return self.times[-1] if self.times else 0

    def take(self, time_ns: int, energy_uj: int, power_mw: int) -> None:
        """The next sample; -1: not read."""
        sound = self._integrate(time_ns, power_mw)
        if self._counts is None:
            self._counts = energy_uj >= 0
        if not self._counts:
            if not sound:
                self._restart()
            if power_mw >= 0:
                self._add(time_ns, self._integral)
        elif energy_uj >= 0:
            self._count(time_ns, energy_uj)
        elif sound and power_mw >= 0:
            self._between.append((time_ns, self._integral))

    def at(self, time_ns: int) -> float | None:
        """Joules until then; None: not known."""
        place = bisect_left(self.times, time_ns)
        if place == len(self.times) or (place == 0 and self.times[0] != time_ns):
            return None
        if self.times[place] == time_ns:
            return self.joules[place]
        before, after = self.times[place - 1], self.times[place]
        share = (time_ns - before) / (after - before)
        return self.joules[place - 1] + share * (self.joules[place] - self.joules[place - 1])

    def trim(self, from_ns: int) -> None:
        """Let go of what is before, but for the point that tells the energy then."""
        first = max(bisect_right(self.times, from_ns) - 1, 0)
        del self.times[:first], self.joules[:first]

    def _restart(self) -> None:
        self.breaks += 1
        self.times.clear()
        self.joules.clear()
        self._between.clear()

    def _add(self, time_ns: int, joules: float) -> None:
        if time_ns > self.known_ns:
            self.times.append(time_ns)
            self.joules.append(joules)

    def _integrate(self, time_ns: int, power_mw: int) -> bool:
        """Add to the integral of power; False: there is a gap before this sample."""
        if power_mw < 0:
            return True
        before, self._power = self._power, (time_ns, power_mw)
        if before is None or time_ns - before[0] > self._gap_ns:
            return False
        self._integral += (time_ns - before[0]) / 1e9 * (power_mw + before[1]) / 2e3
        return True

    def _count(self, time_ns: int, energy_uj: int) -> None:
        read, self._read = self._read, (time_ns, energy_uj, self._integral)
        gained = energy_uj - read[1] if read else 0
        if read is None or gained < 0 or gained / 1e6 > MOST_WATTS * (time_ns - read[0]) / 1e9:
            self._restart()
            self._add(time_ns, energy_uj / 1e6)
            self._changed, self._moved_ns = True, time_ns
            return
        if gained == 0:
            self._changed = False
            if time_ns - self._moved_ns > max(STILL_NS, self._gap_ns):
                self._counts = False
                self._restart()
            return
        at_ns = time_ns if self._changed or self._between else (read[0] + time_ns) // 2
        self._changed, self._moved_ns = True, time_ns
        self._follow_power(read, energy_uj / 1e6)
        self._add(at_ns, energy_uj / 1e6)

    def _follow_power(self, read: tuple[int, int, float], end: float) -> None:
        """Points between the reading before and this one, where power was sampled between them."""
        between, self._between = self._between, []
        begin, first = read[1] / 1e6, read[2]
        if self._integral <= first:
            return
        for time_ns, integral in between:
            self._add(time_ns, begin + (integral - first) / (self._integral - first) * (end - begin))
