# SPDX-License-Identifier: Apache-2.0
"""Power, energy and clock samples of one host's GPUs, as powerccl-agent writes them (`power-<host>.csv`).

The file is read in parts. In each part, implausible values are removed and missing samples noted first, before anything
is put together. Of runs of many hours, neighbouring samples are kept as one.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from powerccl import clean
from powerccl.quantities import plural, watts
from powerccl.traces.plausible import (
    EMPTY,
    FAR_NS,
    GAP_PERIODS,
    LONGEST_PERIOD_NS,
    Counter,
    Floats,
    Ints,
    Mask,
    Used,
    limit_watts,
    most_watts,
    only_forward,
    stands_still,
    sustained,
)
from powerccl.traces.sample_file import SampleFile, SampleHead, number_of
from powerccl.traces.visible import Visible, visible_in

if TYPE_CHECKING:
    import polars as pl

NUMBERS = ("time_ns", "gpu", "power_mw", "energy_uj", "sm_clock_mhz", "utilization_pct")
TEXTS = ("uuid", "throttle_reasons")
COLUMNS = (*NUMBERS, *TEXTS)
# Rows that are kept of all files of a run: eight GPUs at 20 ms for 87 minutes, in 150 MB. Twice as many would take
# a day's report over 1 GiB with what is computed from them.
MOST_ROWS = 1 << 21
MOST_GPUS = 1024  # of one file
HELD = 64  # rows that wait for the next part: whether a time runs ahead is seen from what follows
FEWEST = 4096  # rows that are looked at together: a call for each of a file's parts costs more than its rows
LATEST_NS = 1 << 62
MOST_ENERGY_UJ = 1 << 60
MOST_CLOCK_MHZ = 10_000
MOST_REASONS = 64


@dataclass
class GpuLog:
    """What is known of one GPU's samples beside them.

    `gaps`: times between two usable power samples more than three periods apart, [start, stop) rows. `breaks`: times
    over which the energy counter tells nothing, and power neither. `merged`: so many samples make one row.
    """

    period_ns: int = 0
    gaps: Ints = field(default_factory=lambda: EMPTY)
    breaks: Ints = field(default_factory=lambda: EMPTY)
    reasons: frozenset[str] = frozenset()  # all values of throttle_reasons
    merged: int = 1
    jumps: Ints = field(default_factory=lambda: EMPTY)  # [start, stop) rows: the energy counter went on from elsewhere


@dataclass
class PowerLog(SampleHead):
    """Samples of one host.

    `samples` has COLUMNS, sorted by gpu and time. time_ns is CLOCK_MONOTONIC. energy_uj is -1 where the counter was not
    read. Other numbers are null where they are not known. `about` is the file's `# key: value` lines; `gpus` has a
    GpuLog by gpu and uuid. `environment`: the job's on this host, as far as run.json has it.
    """

    path: Path
    about: dict[str, str]
    samples: pl.DataFrame
    problems: list[str] = field(default_factory=list)
    gpus: dict[tuple[int, str], GpuLog] = field(default_factory=dict)
    environment: dict[str, str] = field(default_factory=dict)
    _parts: tuple[pl.DataFrame, dict[str, pl.DataFrame]] | None = field(default=None, init=False, repr=False)

    def of_gpu(self, uuid: str) -> pl.DataFrame | None:
        """A GPU's samples; None: this host has none."""
        if self._parts is None or self._parts[0] is not self.samples:
            self._parts = self.samples, _by_uuid(self.samples)
        return self._parts[1].get(uuid)

    @property
    def visible(self) -> Visible:
        """The GPUs that the job could see, as far as its environment tells; also those without a head in the file."""
        seen = visible_in(self.about, self.environment)
        headless = {index for index, _ in self.gpus if f"gpu{index}_uuid" not in self.about}
        return Visible(seen.indices | headless, seen.note)

    @property
    def seen_by_job(self) -> list[str]:
        """The names of those that were sampled."""
        indices = self.visible.indices
        return [uuid for index, uuid in self.gpus if index in indices]

    @property
    def simulated(self) -> bool:
        """Whether the GPUs are simulated in virtual time."""
        return self.about.get("simulated", "0") == "1"

    def of(self, rows: pl.DataFrame) -> GpuLog:
        """What is known of the GPU that these samples are of."""
        key = (int(rows["gpu"][0]), str(rows["uuid"][0])) if len(rows) else (-1, "")
        return self.gpus.get(key, GpuLog())


def read_power(path: Path, run: tuple[str, int, int] | None = None, most_rows: int = MOST_ROWS) -> PowerLog:
    """Read a sample file up to its last whole line; lines that do not parse are counted and left out.

    `run`: the host whose clock a run's start and end are of, and these, ns. `most_rows`: about so many are kept.

    Raises:
        OSError: the file cannot be read.
    """
    import polars as pl

    file = SampleFile(path, COLUMNS, "no power")
    gpus: dict[object, _Gpu] = {}
    merged, others, far = 0, 0, 0
    for rows in file.parts(NUMBERS, TEXTS, ("time_ns", "gpu")):
        # By the first part: how many rows there are in all.
        merged = merged or max(1, -(-len(rows) * file.bytes // max(file.part_bytes, 1) // most_rows))
        first, last = 0, LATEST_NS
        if run and run[0] == (file.about.get("host") or path.stem.removeprefix("power-")) and run[2] > run[1] > 0:
            first, last = max(run[1] - FAR_NS, 0), run[2] + FAR_NS
        near = rows.filter(pl.col("time_ns").is_between(first, last) & pl.col("gpu").is_between(0, 1 << 20))
        far += len(rows) - len(near)
        # A GPU without a UUID is identified by its number.
        for (uuid, index), of_gpu in _by_gpu(near):
            key = uuid or index
            if key not in gpus:
                if len(gpus) >= MOST_GPUS:
                    others += len(of_gpu)
                    continue
                gpus[key] = _Gpu(index, clean.field(uuid), file.about, merged)
            gpus[key].take(of_gpu)
    if far:
        file.problems.append(f"{path.name}: {far:,} samples with times far outside the run left out")
    if others:
        file.problems.append(f"{path.name}: {others:,} samples of more than {MOST_GPUS} GPUs left out")
    if merged > 1:
        file.problems.append(f"{path.name}: more samples than are kept: each {merged} in a row are merged")
    tables, known = [], {}
    for gpu in sorted(gpus.values(), key=lambda each: (each.index, each.uuid)):
        tables.append(gpu.finish())
        known[gpu.index, gpu.uuid] = gpu.known
        file.problems += [f"GPU {gpu.index}: {text}" for text in gpu.problems_found()]
    gpus.clear()
    samples = pl.concat(tables) if tables else pl.DataFrame(schema=_SCHEMA())
    return PowerLog(path, file.about, samples, file.problems, known)


def _by_uuid(samples: pl.DataFrame) -> dict[str, pl.DataFrame]:
    """The samples of each GPU, which are rows of these: nothing is copied, and no GPU costs a pass over all."""
    import polars as pl

    of_uuid: dict[str, pl.DataFrame] = {}
    first = 0
    for run in samples["uuid"].rle().to_list():
        rows, uuid = samples.slice(first, run["len"]), str(run["value"])
        first += run["len"]
        of_uuid[uuid] = pl.concat([of_uuid[uuid], rows]) if uuid in of_uuid else rows
    return of_uuid


def _by_gpu(rows: pl.DataFrame) -> list[tuple[tuple[str, int], pl.DataFrame]]:
    parts = rows.partition_by("uuid", "gpu", as_dict=True, maintain_order=True)
    return [((str(uuid or ""), int(index)), part) for (uuid, index), part in parts.items()]


def _SCHEMA() -> dict[str, type[pl.DataType]]:  # noqa: N802 - polars is imported when it is needed
    import polars as pl

    return {
        "time_ns": pl.Int64,
        "gpu": pl.Int32,
        "uuid": pl.String,
        "power_mw": pl.Int32,
        "energy_uj": pl.Int64,
        "sm_clock_mhz": pl.Int32,
        "utilization_pct": pl.Int16,
        "throttle_reasons": pl.String,
    }


class _Gpu:
    """One GPU's samples on their way in."""

    def __init__(self, index: int, uuid: str, about: dict[str, str], merged: int) -> None:
        self.index, self.uuid = index, uuid
        self.known = GpuLog(merged=merged)
        self._most_mw = most_watts(about, index) * 1e3
        self._limit_w = limit_watts(about, index)
        self._counter = Counter(self._most_mw / 1e3)
        interval_ns = number_of(about, "read_every_ns_power_mw") or number_of(about, "interval_ns")
        self.known.period_ns = min(interval_ns, LONGEST_PERIOD_NS)
        self._measured = False
        self._waiting: pl.DataFrame | None = None
        self._usable: tuple[int, float] | None = None  # the last power sample: ns, mW
        self._last_ns = -1
        self._gaps: list[Ints] = []
        self._reasons: set[str] = set()
        self._parts: list[pl.DataFrame] = []
        self._backward, self._beyond, self._too_long, self._nothing, self._still = 0, 0, 0, 0, 0

    def take(self, rows: pl.DataFrame, last: bool = False) -> None:
        """Rows that follow; the last ones wait, unless these are the last."""
        import polars as pl

        waiting = self._waiting
        rows = rows if waiting is None or not len(waiting) else pl.concat([waiting, rows])
        rows, time, left_out = only_forward(rows, self._last_ns)
        self._backward += left_out
        if not self._measured and len(time) > 1:
            self._measured = True
            self.known.period_ns = max(self.known.period_ns, int(np.median(np.diff(time))))
        ready = len(rows) if last else max(len(rows) - HELD, 0)
        ready = ready if last or ready >= FEWEST else 0
        self._waiting = rows[ready:]
        if ready:
            self._add(rows[:ready])
            self._last_ns = int(time[ready - 1])

    def _add(self, rows: pl.DataFrame) -> None:
        import polars as pl

        time = rows["time_ns"].to_numpy()
        power, beyond = _known(rows, "power_mw", self._most_mw)
        too_long = sustained(time, power / 1e3, self._limit_w)
        power[too_long] = np.nan
        counter = rows["energy_uj"]
        energy = (counter.fill_null(-1) if counter.null_count() else counter).to_numpy().copy()
        wrong = (energy < -1) | (energy > MOST_ENERGY_UJ)
        energy[wrong] = -1
        nothing = power == 0  # no GPU that answers draws none
        still = stands_still(time, np.where(nothing, np.nan, power / 1e3), energy, self._most_mw / 1e3)
        power[nothing | still] = np.nan
        self._nothing += int(nothing.sum())
        self._still += int(still.sum())
        self._beyond += int(beyond.sum())
        self._too_long += int(too_long.sum())
        self._counter.left_out += int(wrong.sum())
        after_gap = self._find_gaps(time, power)
        counted = np.flatnonzero(energy >= 0)
        energy[counted] = self._counter.take(
            time[counted], energy[counted], Used(time, power, self._usable, self.known.period_ns)
        )
        self._usable = _last_usable(time, power) or self._usable
        if len(self._reasons) < MOST_REASONS:
            self._reasons.update(
                text for text in rows["throttle_reasons"].unique(maintain_order=True).to_list() if text
            )
        clock, _ = _known(rows, "sm_clock_mhz", MOST_CLOCK_MHZ)
        used, _ = _known(rows, "utilization_pct", 100)
        reasons = rows["throttle_reasons"]
        if self.known.merged > 1:
            alone = after_gap if self._parts else np.append(0, after_gap)
            starts = _starts(len(time), self.known.merged, alone)
            ends = np.append(starts[1:], len(time)) - 1
            # A counter's value is of the moment at which it was read.
            read = np.maximum.accumulate(np.where(energy >= 0, np.arange(len(time)), -1))[ends]
            ends = np.where(read >= starts, read, ends)
            power, clock = _means(power, starts), _means(clock, starts)
            used = np.fmax.reduceat(used, starts)
            time, energy, reasons = time[ends], energy[ends], reasons.gather(ends)
        whole = {"power_mw": power, "sm_clock_mhz": clock, "utilization_pct": used}
        columns = {
            "time_ns": pl.Series(time),
            "gpu": pl.Series([self.index]).new_from_index(0, len(time)),
            "uuid": pl.Series([self.uuid]).new_from_index(0, len(time)),
            "energy_uj": pl.Series(energy),
            "throttle_reasons": reasons,
            **{name: pl.Series(np.rint(each), nan_to_null=True) for name, each in whole.items()},
        }
        # Series by series: expressions on a table take ten times as long, which counts where GPUs are many.
        self._parts.append(pl.DataFrame({name: columns[name].cast(kind) for name, kind in _SCHEMA().items()}))

    def _find_gaps(self, time: Ints, power: Floats) -> Ints:
        """Note gaps; returns the rows that come behind one."""
        usable = np.flatnonzero(np.isfinite(power))
        if not len(usable):
            return usable
        before = self._usable[0] if self._usable else int(time[usable[0]])
        at = np.append(before, time[usable])
        long = np.flatnonzero(np.diff(at) > GAP_PERIODS * max(self.known.period_ns, 1))
        if len(long):
            self._gaps.append(np.stack([at[long], at[long + 1]], axis=1))
        return usable[long]

    def finish(self) -> pl.DataFrame:
        """All samples; nothing is taken after this."""
        import polars as pl

        if self._waiting is not None and len(self._waiting):
            self.take(self._waiting[:0], last=True)
        self.known.gaps = np.concatenate(self._gaps) if self._gaps else EMPTY
        if self._counter.unknown:
            self.known.breaks = np.array(self._counter.unknown, np.int64)
        if self._counter.jumps:
            self.known.jumps = np.array(self._counter.jumps, np.int64)
        self.known.reasons = frozenset(self._reasons)
        samples = pl.concat(self._parts) if self._parts else pl.DataFrame(schema=_SCHEMA())
        self._parts.clear()
        return samples

    def problems_found(self) -> list[str]:
        """What was left out, in words."""
        problems = []
        if self._beyond:
            problems.append(
                f"{plural(self._beyond, 'power sample')} left out: below 0 or above {watts(self._most_mw / 1e3)}"
            )
        if self._too_long:
            problems.append(
                f"{plural(self._too_long, 'power sample')} left out: "
                f"above the power limit of {watts(self._limit_w)} for a whole second"
            )
        if self._nothing:
            problems.append(f"{plural(self._nothing, 'power sample')} left out: 0 W")
        if self._still:
            problems.append(
                f"{plural(self._still, 'power sample')} left out: "
                "power stayed at one value, and the energy counter shows another"
            )
        if self._counter.left_out or self._counter.breaks:
            parts = []
            if self._counter.breaks:
                parts.append(f"its energy counter jumped or went back {plural(self._counter.breaks, 'time')}")
            if self._counter.left_out:
                parts.append(
                    f"{plural(self._counter.left_out, 'reading')} of its energy counter left out: not plausible"
                )
            problems.append("; ".join(parts))
        if self._backward:
            problems.append(f"{plural(self._backward, 'sample')} left out: time does not go forward")
        return problems


def _last_usable(time: Ints, power: Floats) -> tuple[int, float] | None:
    usable = np.flatnonzero(np.isfinite(power))
    return (int(time[usable[-1]]), float(power[usable[-1]])) if len(usable) else None


def floats(rows: pl.DataFrame, name: str) -> Floats:
    """A column of numbers, NaN where one is not known."""
    return np.array(rows[name].to_numpy(), dtype=np.float64)


def _known(rows: pl.DataFrame, name: str, most: float) -> tuple[Floats, Mask]:
    """A column with NaN where it is not known, and which values cannot be. -1 says that it was not read."""
    values = floats(rows, name)
    beyond = ((values < 0) & (values != -1)) | (values > most)
    values[beyond | (values < 0)] = np.nan
    return values, beyond


def _starts(count: int, merged: int, alone: Ints) -> Ints:
    """Where rows that become one begin. Energy begins with the very first row, and from those behind a gap."""
    firsts = np.unique(np.concatenate([[0], alone, np.minimum(alone + 1, count - 1)]).astype(np.int64))
    ends = np.append(firsts[1:], count)
    return np.concatenate([np.arange(a, b, merged) for a, b in zip(firsts.tolist(), ends.tolist(), strict=True)])


def _means(values: Floats, starts: Ints) -> Floats:
    known = np.isfinite(values)
    sums = np.add.reduceat(np.where(known, values, 0.0), starts)
    counts = np.add.reduceat(known.astype(np.float64), starts)
    return np.where(counts > 0, sums / np.maximum(counts, 1), np.nan)
