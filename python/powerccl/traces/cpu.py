# SPDX-License-Identifier: Apache-2.0
"""Energy and idle time of one host's processors, as powerccl-agent writes them (`cpu-<host>.csv`)."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from powerccl import clean
from powerccl.quantities import plural
from powerccl.traces.plausible import (
    GAP_PERIODS,
    LONGEST_PERIOD_NS,
    MOST_CPU_WATTS,
    UPDATE_NS,
    Ints,
    only_forward,
)
from powerccl.traces.sample_file import SampleFile, SampleHead, number_of

if TYPE_CHECKING:
    import polars as pl

REQUIRED = ("time_ns", "domain")
NUMBERS = ("time_ns", "energy_uj", "cpu_busy_ns", "cpu_idle_ns")
CPU_DOMAIN = "cpu"  # its rows carry the busy and idle time of all processors; the others are RAPL domains
# Rows that are kept of one file: ten domains every 100 ms for three hours, in 50 MB. Between rows counters are exact,
# so that fewer cost resolution alone.
MOST_ROWS = 1 << 20
MOST_DOMAINS = 4096  # of one file: packages with their parts, of the largest hosts several times over


@dataclass
class CpuLog(SampleHead):
    """Samples of one host.

    `samples` is sorted by domain and time. time_ns: CLOCK_MONOTONIC. energy_uj: since some start, rising; -1: not read.
    cpu_busy_ns and cpu_idle_ns: summed over the host's processors; -1: not in this row. `about` is the file's `# key:
    value` lines. `breaks`: of each domain, the times over which its counter has no meaning.
    """

    path: Path
    about: dict[str, str]
    samples: pl.DataFrame
    problems: list[str] = field(default_factory=list)
    breaks: dict[str, Ints] = field(default_factory=dict)

    @property
    def period_ns(self) -> int:
        """How often counters are read; 0: the file does not tell."""
        return _period_ns(self.about)


def _period_ns(about: dict[str, str]) -> int:
    period_ns = number_of(about, "read_every_ns_energy_uj") or number_of(about, "interval_ns")
    return min(period_ns, LONGEST_PERIOD_NS)


def read_cpu(path: Path) -> CpuLog:
    """Read a sample file up to its last whole line; lines that do not parse are counted and left out.

    Raises:
        OSError: the file cannot be read.
    """
    import polars as pl

    file = SampleFile(path, REQUIRED, "nothing")
    schema = {name: pl.String if name == "domain" else pl.Int64 for name in ("time_ns", "domain", *NUMBERS[1:])}
    domains: dict[str, _Domain] = {}
    every, others = 0, 0
    for rows in file.parts(NUMBERS, ("domain",), REQUIRED):
        every = every or max(1, -(-len(rows) * file.bytes // max(file.part_bytes, 1) // MOST_ROWS))
        rows = rows.filter(pl.col("time_ns").is_between(0, 1 << 62)).with_columns(
            pl.col(name).fill_null(-1) for name in NUMBERS[1:]
        )
        for (name,), of_domain in rows.partition_by("domain", as_dict=True, maintain_order=True).items():
            if name not in domains:
                if len(domains) >= MOST_DOMAINS:
                    others += len(of_domain)
                    continue
                range_uj = number_of(file.about, f"{name}_max_energy_range_uj")
                domains[name] = _Domain(name, range_uj, every, _period_ns(file.about))
            domains[name].take(of_domain)
    if others:
        file.problems.append(f"{path.name}: {others:,} samples of more than {MOST_DOMAINS} domains left out")
    tables, breaks = [], {}
    for name in sorted(domains):
        domain, shown = domains.pop(name), clean.field(name)
        tables.append(domain.finish(shown))
        if domain.breaks:
            breaks[shown] = np.array(domain.breaks, np.int64)
        file.problems += [f"{path.name}: {shown}: {text}" for text in domain.problems_found()]
    samples = pl.concat(tables).select(*schema) if tables else pl.DataFrame(schema=schema)
    return CpuLog(path, file.about, samples, file.problems, breaks)


class _Domain:
    """One domain's samples on their way in. Its counter comes out rising, with what wraps put right."""

    def __init__(self, name: str, range_uj: int, every: int, period_ns: int) -> None:
        self.breaks: list[tuple[int, int]] = []
        self._range_uj, self._every, self._period_ns = range_uj, every, period_ns
        self._measured = False
        self._is_energy = name != CPU_DOMAIN
        self._backward = 0
        self._last_ns = -1
        self._read: tuple[int, int, int] | None = None  # the last reading: ns, as it came, as it goes out
        self._parts: list[pl.DataFrame] = []
        self._tail: pl.DataFrame | None = None  # the last row, where it is not kept yet

    def take(self, rows: pl.DataFrame) -> None:
        """Rows that follow."""
        import polars as pl

        rows, time, left_out = only_forward(rows, self._last_ns)
        self._backward += left_out
        if not len(time):
            return
        self._last_ns = int(time[-1])
        if not self._measured and len(time) > 1:
            self._measured, self._period_ns = True, max(self._period_ns, int(np.median(np.diff(time))))
        if self._is_energy:
            energy = rows["energy_uj"].to_numpy().copy()
            counted = np.flatnonzero(energy >= 0)
            energy[counted] = self._rising(time[counted], energy[counted])
            rows = rows.with_columns(pl.Series("energy_uj", energy))
        if self._every > 1:
            if self._tail is not None:
                rows = pl.concat([self._tail, rows])
                time = rows["time_ns"].to_numpy()
            # Both sides of a hole stay, or it would look shorter or longer than it is.
            hole = np.flatnonzero(np.diff(time) > GAP_PERIODS * max(self._period_ns, 1))
            pick = np.zeros(len(time), np.bool_)
            pick[:: self._every] = pick[hole] = pick[hole + 1] = True
            self._tail = None if pick[-1] else rows[-1:]
            rows = rows.filter(pl.Series(pick))
        self._parts.append(rows.drop("domain"))

    def _rising(self, time: Ints, energy: Ints) -> Ints:
        if not len(time):
            return energy
        first = self._read or (int(time[0]), int(energy[0]), int(energy[0]))
        length = np.diff(time, prepend=first[0])
        gained = np.diff(energy, prepend=first[1]).astype(np.float64)
        gained[gained < 0] += self._range_uj
        most = MOST_CPU_WATTS / 1e3 * (length.astype(np.float64) + UPDATE_NS)
        unknown = (gained < 0) | (gained > most)
        if self._range_uj:  # in a hole of such length it may have wrapped without a trace
            unknown |= (length > GAP_PERIODS * self._period_ns) & (most > self._range_uj)
        before = np.append(first[0], time[:-1])
        self.breaks += list(zip(before[unknown].tolist(), time[unknown].tolist(), strict=True))
        gained[unknown] = 0
        rising: Ints = first[2] + np.cumsum(np.rint(gained).astype(np.int64))
        self._read = (int(time[-1]), int(energy[-1]), int(rising[-1]))
        return rising

    def finish(self, shown: str) -> pl.DataFrame:
        """All rows; nothing is taken after this."""
        import polars as pl

        parts = [*self._parts, *([self._tail.drop("domain")] if self._tail is not None else [])]
        self._parts = []
        rows = pl.concat(parts) if parts else pl.DataFrame(schema=dict.fromkeys(NUMBERS, pl.Int64))
        return rows.with_columns(pl.lit(shown).alias("domain"))

    def problems_found(self) -> list[str]:
        """What was left out, in words."""
        problems = []
        if self._backward:
            problems.append(f"{plural(self._backward, 'sample')} left out: time does not go forward")
        if self.breaks:
            problems.append(
                f"its energy counter fell, jumped or perhaps wrapped between samples {plural(len(self.breaks), 'time')}"
            )
        return problems
