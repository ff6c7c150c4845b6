# SPDX-License-Identifier: Apache-2.0
"""One GPU's samples while its job runs: power over the last seconds, energy since the beginning."""

from __future__ import annotations

from collections import deque

import numpy as np

from powerccl.traces.plausible import (
    GAP_PERIODS,
    Counter,
    Floats,
    Ints,
    Used,
    most_watts,
)
from powerccl.traces.power import LATEST_NS, MOST_ENERGY_UJ
from powerccl.traces.sample_file import number_of

COUNTED_BEFORE_NS = 2_000_000_000  # a reading so long before the window still covers its beginning
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
        """`about`: the head of the file of its samples."""
        self.rows: deque[tuple[int, int, int]] = deque()
        self.latest: dict[str, str] = {}
        self.gained_uj: int | None = None
        self.no_numbers = 0  # values of power and energy that are there and are no whole numbers
        self._most_w = most_watts(about, index)
        self._counter = Counter(self._most_w)
        self._interval_ns = number_of(about, "interval_ns")
        self._counter_ns = number_of(about, "read_every_ns_energy_uj") or self._interval_ns
        self._before: tuple[int, int] | None = None  # last counter reading that has left the window
        self._used: tuple[int, float] | None = None  # last power sample, ns and mW
        # Of the counter: its first reading, its last change, its last reading, and how many changes there were. One
        # that stands still tells nothing: a GPU always draws power.
        self._first_ns = self._moved_ns = self._counted_ns = -1
        self._moves = self._origin_uj = 0
        self._newest_ns = -1
        # By power samples: uJ in all, ns of gaps between them, both at the counter's last move, and gaps that count.
        self._power_uj, self._gaps_ns, self._at_move, self._lost_ns = 0.0, 0, (0.0, 0), 0
        self._power_first_ns = -1
        self._by_power = False  # the counter was wrong once, stands still or is none: power samples count from then on

    def take(self, rows: list[dict[str, str]]) -> None:
        """The next samples. Values that cannot be count as not read."""
        read: list[tuple[int, int, int]] = []
        for row in rows:
            time_ns, energy_uj, power_mw = (whole(row, name) for name in ("time_ns", "energy_uj", "power_mw"))
            self.no_numbers += energy_uj == -1 and row.get("energy_uj", "").strip() not in ("", "-1")
            self.no_numbers += power_mw == -1 and row.get("power_mw", "").strip() not in ("", "-1")
            if 0 <= time_ns < LATEST_NS and time_ns > self._newest_ns:
                self._newest_ns, self.latest = time_ns, row
                energy_uj = energy_uj if energy_uj <= MOST_ENERGY_UJ else -1
                read.append((time_ns, energy_uj, power_mw if 0 < power_mw <= self._most_w * 1e3 else -1))
        if not read:
            return
        time, energy, power = np.array(read, np.int64).T
        mw = np.where(power >= 0, power, np.nan).astype(np.float64)
        counted = np.flatnonzero(energy >= 0)
        gained = np.full(len(time), -1, np.int64)
        if len(counted):
            gained[counted] = self._count(time[counted], energy[counted], Used(time, mw, self._used, self._interval_ns))
        usable = power >= 0
        self._integrate(time[usable], mw[usable])
        if self._by_power:
            gained[:] = -1
        self.rows.extend(zip(time.tolist(), gained.tolist(), power.tolist(), strict=True))

    def _count(self, time: Ints, energy: Ints, used: Used) -> Ints:
        """What the counter had gained at each reading, uJ; -1: one that is left out."""
        counted = self._counter.take(time, energy, used)
        self._by_power |= bool(self._counter.breaks)
        if self._by_power:
            return counted
        self._counted_ns = int(time[-1])
        for at in np.flatnonzero(counted >= 0).tolist():
            if self.gained_uj is None:
                self._origin_uj, self.gained_uj = int(counted[at]), 0
                self._first_ns = self._moved_ns = int(time[at])
            gained_uj = int(counted[at]) - self._origin_uj
            if gained_uj > self.gained_uj:  # a correction by a little is no fall: a total only rises
                self.gained_uj, self._moved_ns = gained_uj, int(time[at])
                self._moves += 1
            counted[at] = self.gained_uj
        return counted

    def _integrate(self, time: Ints, mw: Floats) -> None:
        """Energy by power samples since the counter last moved: what counts without a sound counter.

        A counter that jumped once may be wrong again within what is plausible.
        """
        if not len(time):
            return
        if self._used:
            time, mw = np.append(self._used[0], time), np.append(self._used[1], mw)
        else:
            self._power_first_ns = int(time[0])
        self._used = int(time[-1]), float(mw[-1])
        steps = np.diff(time)
        sound = steps <= GAP_PERIODS * max(self._interval_ns, 1)
        uj = np.append(0.0, np.cumsum(np.where(sound, (mw[:-1] + mw[1:]) / 2 * steps / 1e6, 0.0))) + self._power_uj
        gaps = np.append(0, np.cumsum(np.where(sound, 0, steps))) + self._gaps_ns
        self._power_uj, self._gaps_ns = float(uj[-1]), int(gaps[-1])
        if not self._by_power and self._moved_ns >= time[0]:
            self._at_move = float(np.interp(self._moved_ns, time, uj)), int(np.interp(self._moved_ns, time, gaps))
        never = self.gained_uj is None
        still_ns = int(time[-1]) - self._power_first_ns if never else self._counted_ns - self._moved_ns
        self._by_power |= still_ns > self._counter_slack_ns()
        if not self._by_power:
            return
        if self.gained_uj is None:
            self.gained_uj = 0
            self._first_ns = self._power_first_ns
        self.gained_uj += round(self._power_uj - self._at_move[0])
        self._lost_ns += self._gaps_ns - self._at_move[1]
        self._at_move = self._power_uj, self._gaps_ns
        self._moved_ns = int(time[-1])

    def _counter_slack_ns(self) -> int:
        """How long a sound counter may stand still."""
        update_ns = (self._moved_ns - self._first_ns) // max(self._moves, 1)
        return max(GAP_PERIODS * max(self._counter_ns, update_ns), LEAST_STALE_NS)

    def used_until(self, start_ns: int | None, now_ns: int) -> tuple[float | None, float]:
        """Joules since `start_ns` (None: not known), and of how many seconds until `now_ns` they have nothing."""
        if self.gained_uj is None or not (self._moves or self._by_power):
            return None, max(now_ns - (now_ns if start_ns is None else start_ns), 0) / 1e9
        update_ns = 0 if self._by_power else (self._moved_ns - self._first_ns) // max(self._moves, 1)
        slack_ns = GAP_PERIODS * max(self._interval_ns if self._by_power else self._counter_ns, update_ns)
        begin_ns = self._first_ns - (self._first_ns if start_ns is None else start_ns)
        end_ns = now_ns - self._moved_ns
        # Newest samples may still be on their way.
        ends_ns = (begin_ns if begin_ns > slack_ns else 0) + (end_ns if end_ns > max(slack_ns, LEAST_STALE_NS) else 0)
        return self.gained_uj / 1e6, (ends_ns + self._lost_ns) / 1e9

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
        moved = len(counted) > 1 and counted[-1][1] > counted[0][1]
        if moved and counted[-1][0] >= now_ns - self._stale_ns(self._counter_ns):
            return (counted[-1][1] - counted[0][1]) / (counted[-1][0] - counted[0][0]) * 1e3
        known = [(time_ns, mw) for time_ns, _, mw in self.rows if mw >= 0]
        if not known or known[-1][0] < recent_ns:
            return None
        return sum(mw for _, mw in known) / len(known) / 1e3

    def is_present(self, now_ns: int) -> bool:
        """Whether the last sample is of the present."""
        return self._newest_ns >= now_ns - self._stale_ns(self._interval_ns)

    @staticmethod
    def _stale_ns(period_ns: int) -> int:
        return max(GAP_PERIODS * period_ns, LEAST_STALE_NS)
