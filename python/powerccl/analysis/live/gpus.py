# SPDX-License-Identifier: Apache-2.0
"""One GPU's samples while its job runs: power over the last seconds, energy since the beginning."""

from __future__ import annotations

from collections import deque

from powerccl.traces.plausible import GAP_PERIODS, UPDATE_NS, most_watts
from powerccl.traces.sample_file import number_of

COUNTED_BEFORE_NS = 2_000_000_000  # a reading so long before the window still tells of its beginning
# Agents write every half second, and exporters look once a second or so: less says nothing of the GPU.
LEAST_STALE_NS = 2_000_000_000


def whole(row: dict[str, str], name: str) -> int:
    """A whole number; -1 where it is not known."""
    try:
        return int(row.get(name, "-1"))
    except ValueError:
        return -1


class GpuState:
    """A GPU's samples in the window: time_ns, energy gained since the beginning in uJ or -1, power_mw or -1."""

    def __init__(self, about: dict[str, str], index: int) -> None:
        """`about`: the head of the file that its samples stand in."""
        self.rows: deque[tuple[int, int, int]] = deque()
        self.latest: dict[str, str] = {}
        self.whole = True  # nothing is missing in `gained_uj`
        self.gained_uj: int | None = None
        self._most_w = most_watts(about, index)
        self._interval_ns = number_of(about, "interval_ns")
        self._counter_ns = number_of(about, "read_every_ns_energy_uj") or self._interval_ns
        self._before: tuple[int, int] | None = None  # last counter reading that has left the window
        self._last: tuple[int, int] | None = None  # counter: when it had last changed, and to what
        self._odd: tuple[int, int] | None = None  # a reading that does not follow the last one
        self._counted_ns = self._newest_ns = self._broken_ns = -1

    def take(self, row: dict[str, str]) -> None:
        """The next sample. Values that cannot be count as not read."""
        time_ns, energy_uj, power_mw = (whole(row, name) for name in ("time_ns", "energy_uj", "power_mw"))
        if time_ns < 0 or time_ns <= self._newest_ns:
            return
        self._newest_ns = time_ns
        self.latest = row
        gained_uj = self._count(time_ns, energy_uj) if energy_uj >= 0 else -1
        self.rows.append((time_ns, gained_uj, power_mw if 0 <= power_mw <= self._most_w * 1e3 else -1))

    def _count(self, time_ns: int, energy_uj: int) -> int:
        """What the counter has gained in all, uJ; -1: a reading that cannot be."""
        if self._last is None or self.gained_uj is None:
            self._last, self.gained_uj, self._counted_ns = (time_ns, energy_uj), 0, time_ns
            return 0
        if self._follows(self._last, time_ns, energy_uj):
            self.gained_uj += energy_uj - self._last[1]
        elif self._odd is not None and self._follows(self._odd, time_ns, energy_uj):
            # It goes on from elsewhere: what it gained until then is not known.
            self.gained_uj += energy_uj - self._odd[1]
            self.whole, self._broken_ns = False, time_ns
        else:
            self._odd = (time_ns, energy_uj)
            return -1
        self._odd = None
        if energy_uj != self._last[1]:
            self._last = (time_ns, energy_uj)
        self._counted_ns = time_ns
        return self.gained_uj

    def _follows(self, before: tuple[int, int], time_ns: int, energy_uj: int) -> bool:
        return 0 <= energy_uj - before[1] <= self._most_w * (time_ns - before[0] + UPDATE_NS) / 1e3

    def trim(self, from_ns: int) -> None:
        """Let go of what is before."""
        while self.rows and self.rows[0][0] < from_ns:
            time_ns, gained_uj, _ = self.rows.popleft()
            if gained_uj >= 0:
                self._before = (time_ns, gained_uj)

    def watts(self, now_ns: int) -> float | None:
        """Mean power over the window: from the counter where it has moved, else of the power readings.

        None where the last reading is no longer of the present.
        """
        recent_ns = now_ns - self._stale_ns(self._interval_ns)
        counted = [(time_ns, uj) for time_ns, uj, _ in self.rows if uj >= 0]
        if counted and self._before and counted[0][0] - self._before[0] < COUNTED_BEFORE_NS:
            counted.insert(0, self._before)
        moved = len(counted) > 1 and counted[-1][1] > counted[0][1] and counted[0][0] > self._broken_ns
        if moved and counted[-1][0] >= now_ns - self._stale_ns(self._counter_ns):
            return (counted[-1][1] - counted[0][1]) / (counted[-1][0] - counted[0][0]) * 1e3
        known = [(time_ns, mw) for time_ns, _, mw in self.rows if mw >= 0]
        if not known or known[-1][0] < recent_ns:
            return None
        return sum(mw for _, mw in known) / len(known) / 1e3

    def is_present(self, now_ns: int) -> bool:
        """Whether the last sample is of the present."""
        return self._newest_ns >= now_ns - self._stale_ns(self._interval_ns)

    def is_whole(self, now_ns: int) -> bool:
        """Whether `gained_uj` is all that was used until now, less a few periods."""
        return self.whole and self._counted_ns >= now_ns - self._stale_ns(self._counter_ns)

    @staticmethod
    def _stale_ns(period_ns: int) -> int:
        return max(GAP_PERIODS * period_ns, LEAST_STALE_NS)
