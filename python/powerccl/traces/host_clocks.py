# SPDX-License-Identifier: Apache-2.0
"""Clocks of several hosts, aligned by the collectives that ranks of two hosts took part in.

No rank leaves an all-reduce before every rank has entered it. So a collective bounds the offset between two hosts'
clocks from both sides. Its ends on the two hosts are closer together than that: a message apart. The offset at a time
is a line through the differences of the ends, inside the bounds. The line's slope is the drift.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from powerccl.patterns import PATTERNS
from powerccl.traces import records
from powerccl.traces.clock_domain import MAX_DRIFT_PPM, ClockMap
from powerccl.traces.replays import replays

if TYPE_CHECKING:
    import polars as pl

    from powerccl.traces.cpu import CpuLog
    from powerccl.traces.helpers import HelperEvent
    from powerccl.traces.power import PowerLog
    from powerccl.traces.rank import RankTrace

Ints = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]
Kinds = dict[int, npt.NDArray[np.void]]

# Patterns that no rank leaves before all ranks have entered. MPI's adapter numbers such calls alone.
SYNCHRONISING = [PATTERNS.index(name) for name in ("all_reduce", "all_gather", "reduce_scatter", "all_to_all")]
FEW = 8  # collectives that say nothing of a clock
# Ranks of a host whose times are used. Bounds of eight ranks are those of all within microseconds. At double, a run of
# thousands of ranks takes seconds longer.
RANKS_OF_HOST = 8
MOST = 20_000  # collectives of a communicator that are used: a multiple of them would change the line by nanoseconds
MOST_COMMUNICATORS = 256  # of a rank that are used: jobs have tens, and each costs a look at all its records
MOST_NUMBERS = 1 << 16  # of communicators: a key has no room for more
BINS = 128  # stretches of time whose medians the slope is found from: 8,128 pairs of them
# A collective that contradicts the line by more than this, beside what the ends scatter, was taken for another one.
SLACK_NS = 20_000.0
MOST_CONTRADICTING = 0.1
# A drift has to leave less than this of the scatter. At half, drifts of runs of a second are not seen; nearer to 1,
# scatter alone looks like a drift of tens of ppm.
EXPLAINED = 0.8
STEPS = 60  # of a search between slopes: below a millionth of the range
REPLAYS = 1_000_000  # of a captured call


@dataclass(frozen=True)
class HostClock:
    """A host's clock as the reference's: host = reference + offset_ns + drift * (reference - origin_ns).

    `error_ns`: 90 % of the ends of undisturbed collectives agree with the line to this. `bound_ns`: a line that is
    further off contradicts a collective. `reason`: why the clocks could not be aligned; empty: they are.
    """

    host: str
    reference: str
    origin_ns: int = 0
    offset_ns: int = 0
    drift: float = 0.0
    error_ns: float = 0.0
    bound_ns: float = 0.0
    collectives: int = 0
    reason: str = ""

    def to_reference(self, host_ns: npt.NDArray[np.integer]) -> Ints:
        """Times of the reference's clock (ns) of this host's; 0, which is no time, stays 0."""
        times = host_ns.astype(np.int64)
        since = times - (self.origin_ns + self.offset_ns)
        moved = times - self.offset_ns - np.rint(since * (self.drift / (1.0 + self.drift))).astype(np.int64)
        return np.where(times == 0, 0, moved)

    def one(self, host_ns: int) -> int:
        """The same of one time."""
        return int(self.to_reference(np.array([host_ns], dtype=np.int64))[0])


@dataclass
class HostClocks:
    """Clocks of a run's machines. A machine has the name of one of its hosts: containers have names of their own."""

    reference: str = ""
    clocks: list[HostClock] = field(default_factory=list)
    machines: dict[str, str] = field(default_factory=dict)  # by host

    @property
    def aligned(self) -> dict[str, HostClock]:
        """By machine, those beside the reference that have its clock."""
        return {clock.host: clock for clock in self.clocks if not clock.reason}

    def of(self, host: str) -> HostClock | None:
        """The clock by which a host's records are moved; None: they are as they should be."""
        return self.aligned.get(self.machines.get(host, host))

    def domain(self, host: str) -> str:
        """Hosts of one domain have one clock."""
        machine = self.machines.get(host, host)
        return self.reference if machine in self.aligned else machine

    def error_ns(self) -> float:
        """How well times of two aligned machines agree; 0: no other is aligned."""
        errors = sorted((clock.error_ns for clock in self.aligned.values()), reverse=True)
        return sum(errors[:2])


@dataclass(frozen=True)
class Moments:
    """Collectives of one host, sorted by `key`: when its last rank entered, and when its first rank left.

    `spread_ns`: how far times of its GPUs may be off on its own clock.
    """

    key: Ints
    entered: Ints
    left: Ints
    spread_ns: float = 0.0


def align_hosts(
    ranks: Sequence[RankTrace],
    mpi: Sequence[RankTrace],
    power: Sequence[PowerLog],
    cpu: Sequence[CpuLog],
    helpers: Sequence[HelperEvent],
    launched_on: str,
) -> HostClocks:
    """Find the clocks of a run's machines, and bring all times to the reference's clock where that is known.

    The reference is the machine of `powerccl run`, `launched_on`, else that of the first trace.
    """
    traces = [*ranks, *mpi]
    boots: dict[str, str] = {}
    machines: dict[str, str] = {}
    for trace in traces:
        machines.setdefault(trace.host, boots.setdefault(trace.boot_id or trace.host, trace.host))
    names = list(dict.fromkeys(machines.values()))
    if len(names) < 2:
        return HostClocks(names[0] if names else "", machines=machines)
    reference = machines.get(launched_on, names[0])
    clocks = HostClocks(reference, find_clocks(reference, names, moments_by_machine(ranks, mpi, machines)), machines)
    aligned = clocks.aligned
    for trace in traces:
        if clock := clocks.of(trace.host):
            move_trace(trace, clock)
    for of_gpus in power:
        if clock := aligned.get(boots.get(of_gpus.boot_id) or machines.get(of_gpus.host, of_gpus.host)):
            _move_power(of_gpus, clock)
    for of_processors in cpu:
        if clock := aligned.get(
            boots.get(of_processors.boot_id) or machines.get(of_processors.host, of_processors.host)
        ):
            _move_cpu(of_processors, clock)
    for event in helpers:
        if clock := clocks.of(event.host):
            event.time_ns = clock.one(event.time_ns)
    return clocks


def find_clocks(reference: str, hosts: Sequence[str], moments: dict[str, Moments]) -> list[HostClock]:
    """The clock of each machine beside the reference, through others where two have no collective in common."""
    known: dict[str, HostClock] = {reference: HostClock(reference, reference)}
    waiting = [host for host in hosts if host != reference]
    reasons: dict[str, str] = {}
    progress = True
    while waiting and progress:
        progress = False
        for host in list(waiting):
            for base in list(known):
                clock = _compare(host, base, moments.get(host), moments.get(base))
                if clock.reason:
                    reasons.setdefault(host, clock.reason)
                    continue
                known[host] = _through(clock, known[base])
                waiting.remove(host)
                progress = True
                break
    left = [HostClock(host, reference, reason=reasons[host]) for host in waiting]
    return [*(known[host] for host in hosts if host != reference and host in known), *left]


def moments_by_machine(
    ranks: Sequence[RankTrace], mpi: Sequence[RankTrace], machines: Mapping[str, str]
) -> dict[str, Moments]:
    """Collectives of each machine, by keys that are equal on all of them."""
    names: dict[tuple[bool, int, int], int] = {}  # communicators, by kind, job and id
    parts: dict[str, list[tuple[Ints, Ints, Ints]]] = {}
    used: dict[tuple[bool, str], int] = {}
    for is_mpi, traces in ((False, ranks), (True, mpi)):
        for trace in traces:
            machine = machines[trace.host]
            used[is_mpi, machine] = used.get((is_mpi, machine), 0) + 1
            if used[is_mpi, machine] > RANKS_OF_HOST:
                continue
            for comm_id, key, entered, left in _of_calls(trace) if is_mpi else _of_kernels(trace):
                number = names.setdefault((is_mpi, trace.job, comm_id), len(names))
                if number < MOST_NUMBERS:
                    parts.setdefault(machine, []).append((key + (number << 47), entered, left))
    spreads: dict[str, float] = {}
    for trace in ranks:
        machine = machines[trace.host]
        spreads[machine] = max(spreads.get(machine, 0.0), trace.clock_map.spread_ns)
    return {host: replace(_merged(of_host), spread_ns=spreads.get(host, 0.0)) for host, of_host in parts.items()}


def _merged(parts: list[tuple[Ints, Ints, Ints]]) -> Moments:
    key, entered, left = (np.concatenate(columns) for columns in zip(*parts, strict=True))
    order = np.argsort(key, kind="stable")
    key = key[order]
    first = np.flatnonzero(np.concatenate([[True], key[1:] != key[:-1]])) if len(key) else np.empty(0, np.int64)
    if not len(first):
        return Moments(key, key, key)
    return Moments(key[first], np.maximum.reduceat(entered[order], first), np.minimum.reduceat(left[order], first))


def _of_kernels(trace: RankTrace) -> Iterator[tuple[int, Ints, Ints, Ints]]:
    """NCCL's collectives of a rank, by communicator: place in the communicator's calls, begin and end on the host."""
    calls, kernels = trace.kinds[records.CALL], trace.kinds[records.KERNEL]
    if trace.dropped:  # calls that are missing shift the places of all that follow, and a wrong place fits as well
        return
    if trace.load is not None:  # nor is it known how often a graph ran before the part that is kept
        captured = calls["call_id"][(calls["flags"] & records.FLAG_CAPTURED) != 0]
        kernels = kernels[~np.isin(kernels["call_id"], captured)]
    for comm in _communicators(trace):
        call_ids = np.sort(calls["call_id"][calls["comm"] == comm[0]].astype(np.int64))
        own = kernels[(kernels["comm"] == comm[0]) & np.isin(kernels["pattern"], SYNCHRONISING)]
        if not len(call_ids) or not len(own):
            continue
        wanted = own["call_id"].astype(np.int64)
        at = np.minimum(np.searchsorted(call_ids, wanted), len(call_ids) - 1)
        place = at + trace.calls_before.get(comm[0], 0)
        usable = (call_ids[at] == wanted) & (place % max(1, -(-len(call_ids) // MOST)) == 0)
        if not usable.any():
            continue
        own, place = own[usable], place[usable]
        start = trace.clock_map.to_host(own["gpu_start_ns"])
        key = place * REPLAYS + replays(place, start)
        yield comm[1], key, start, trace.clock_map.to_host(own["gpu_stop_ns"])


def _of_calls(trace: RankTrace) -> Iterator[tuple[int, Ints, Ints, Ints]]:
    """MPI's collectives of a process that have a number in their communicator."""
    calls = trace.kinds[records.MPI_CALL]
    calls = calls[calls["sequence"] > 0]
    for index, comm_id in _communicators(trace):
        own = calls[calls["comm"] == index]
        if len(own):
            columns = (own[name].astype(np.int64) for name in ("sequence", "start_ns", "stop_ns"))
            yield (comm_id, *columns)


def _communicators(trace: RankTrace) -> list[tuple[int, int]]:
    """Number in the trace, and id, of communicators of several ranks."""
    made = trace.kinds[records.COMM]
    return [
        (int(row["comm"]), int(row["comm_id"]))
        for row in made
        if not int(row["flags"]) & records.FLAG_ENDED and int(row["nranks"]) != 1
    ][:MOST_COMMUNICATORS]


def _compare(host: str, reference: str, own: Moments | None, base: Moments | None) -> HostClock:
    """The host's clock by the reference's, from their collectives."""
    if own is None or base is None:
        return HostClock(host, reference, reason="it has no timed collective")
    _, here, there = np.intersect1d(own.key, base.key, assume_unique=True, return_indices=True)
    if len(here) < FEW:
        return HostClock(host, reference, reason=f"it has {len(here)} timed collectives in common with {reference}")
    at = base.left[there]
    origin, base_ns = int(at.min()), int(np.median(own.left[here] - at))
    time = (at - origin).astype(np.float64)
    ends = (own.left[here] - at - base_ns).astype(np.float64)
    lower = (own.entered[here] - at - base_ns).astype(np.float64)
    upper = (own.left[here] - base.entered[there] - base_ns).astype(np.float64)
    quick = _narrow(time, upper - lower)
    drift = _drift(time[quick], ends[quick])
    level = float(np.median((ends - drift * time)[quick]))
    slack = SLACK_NS + 3.0 * float(np.median(np.abs(ends - drift * time - level)))
    sound = (lower - slack <= level + drift * time) & (level + drift * time <= upper + slack)
    if (~sound).mean() > MOST_CONTRADICTING:
        return HostClock(host, reference, reason="its collectives contradict those of " + reference)
    time, ends, lower, upper, quick = time[sound], ends[sound], lower[sound], upper[sound], quick[sound]
    drift = _possible(drift, time, lower, upper)
    lowest, highest = float((lower - drift * time).max()), float((upper - drift * time).min())
    off = (ends - drift * time)[quick]
    level = float(np.median(off))
    level = float(np.clip(level, lowest, highest)) if lowest <= highest else (lowest + highest) / 2
    bound = max(abs(highest - level), abs(level - lowest))
    error = min(float(np.quantile(np.abs(off - level), 0.9)), bound) + max(own.spread_ns, base.spread_ns)
    return HostClock(host, reference, origin, base_ns + round(level), drift, error, max(bound, error), len(time))


def _narrow(time: Floats, width: Floats) -> npt.NDArray[np.bool_]:
    """Of each stretch of time, the quarter with the tightest bounds: the ranks were held up least in these."""
    chosen = np.zeros(len(time), np.bool_)
    order = np.argsort(time, kind="stable")
    for part in np.array_split(order, min(BINS, max(len(order) // FEW, 1))):
        chosen[part[np.argsort(width[part], kind="stable")[: -(-len(part) // 4)]]] = True
    return chosen


def _possible(drift: float, time: Floats, lower: Floats, upper: Floats) -> float:
    """The drift nearest to this one with which a line is inside all bounds; with which it is least outside, if none is.

    How far the bounds leave room for a line is a concave function of the slope.
    """

    def room(slope: float) -> float:
        return float((upper - slope * time).min() - (lower - slope * time).max())

    if room(drift) >= 0:
        return drift
    left, right = -MAX_DRIFT_PPM * 1e-6, MAX_DRIFT_PPM * 1e-6
    for _ in range(STEPS):
        one, other = left + (right - left) / 3, right - (right - left) / 3
        left, right = (one, right) if room(one) < room(other) else (left, other)
    best = (left + right) / 2
    if room(best) < 0:
        return best
    for _ in range(STEPS):  # between one with room and one without
        middle = (best + drift) / 2
        best, drift = (middle, drift) if room(middle) >= 0 else (best, middle)
    return best


def _drift(time: Floats, ends: Floats) -> float:
    """The slope of the ends, if it explains them better than no slope: on a busy machine they scatter by more."""
    slope = _slope(time, ends)
    with_it, without = (ends - each * time for each in (slope, 0.0))
    scatter, all_scatter = (float(np.median(np.abs(each - np.median(each)))) for each in (with_it, without))
    return slope if scatter < EXPLAINED * all_scatter else 0.0


def _slope(time: Floats, values: Floats) -> float:
    """The median of the slopes between all pairs of medians, by stretch of time: a third of them may be wrong."""
    order = np.argsort(time, kind="stable")
    parts = np.array_split(order, min(BINS, len(order)))
    x = np.array([np.median(time[part]) for part in parts])
    y = np.array([np.median(values[part]) for part in parts])
    one, other = np.triu_indices(len(x), 1)
    apart = x[other] - x[one]
    if not (apart > 0).any():
        return 0.0
    slope = float(np.median((y[other] - y[one])[apart > 0] / apart[apart > 0]))
    return slope if abs(slope) * 1e6 <= MAX_DRIFT_PPM else 0.0


def _through(clock: HostClock, base: HostClock) -> HostClock:
    """The clock by the reference of its own reference, `base`."""
    if base.host == base.reference:
        return replace(clock, reference=base.reference)
    drift = (1.0 + clock.drift) * (1.0 + base.drift) - 1.0
    origin = base.one(clock.origin_ns)
    return replace(
        clock,
        reference=base.reference,
        origin_ns=origin,
        offset_ns=clock.origin_ns + clock.offset_ns - origin,
        drift=drift,
        error_ns=clock.error_ns + base.error_ns,
        bound_ns=clock.bound_ns + base.bound_ns,
    )


def move_trace(trace: RankTrace, clock: HostClock) -> None:
    """Bring all times of a trace to the reference's clock, in place; also those that are read again later."""
    _move_records(trace.kinds, clock)
    if load := trace.load:
        trace.load = lambda: _move_records(load(), clock)
    gpu = trace.clock_map
    # Joined incarnations, and kernels that were timed on the host, have a map that begins at 0, which `one` leaves.
    origin = gpu.origin_ns or trace.start_ns
    start = clock.one(int(gpu.to_host(np.array([origin], dtype=np.uint64))[0]))
    drift = (1.0 + gpu.drift) / (1.0 + clock.drift) - 1.0
    trace.clock_map = ClockMap(origin, start - origin, drift, gpu.spread_ns, gpu.pairs)
    trace.start_ns, trace.latest_ns = clock.one(trace.start_ns), clock.one(trace.latest_ns)
    trace.gaps = [(clock.one(begin), clock.one(end)) for begin, end in trace.gaps]


def _move_records(kinds: Kinds, clock: HostClock) -> Kinds:
    for kind, names in records.HOST_TIMES.items():
        rows = kinds[kind]
        if names and len(rows):
            kinds[kind] = rows = rows.copy()
            for name in names:
                rows[name] = np.maximum(clock.to_reference(rows[name]), 0).astype(np.uint64)
    return kinds


def _move_power(log: PowerLog, clock: HostClock) -> None:
    log.samples = _moved(log, clock)
    for gpu in log.gpus.values():
        gpu.gaps, gpu.breaks, gpu.jumps = (clock.to_reference(times) for times in (gpu.gaps, gpu.breaks, gpu.jumps))


def _move_cpu(log: CpuLog, clock: HostClock) -> None:
    log.samples = _moved(log, clock)
    log.breaks = {domain: clock.to_reference(times) for domain, times in log.breaks.items()}


def _moved(log: PowerLog | CpuLog, clock: HostClock) -> pl.DataFrame:
    """The samples; the moment at which the agent read two clocks is moved with them."""
    import polars as pl

    if (start := log.about.get("start_ns", "")).isdecimal():
        log.about["start_ns"] = str(clock.one(int(start)))
    return log.samples.with_columns(time_ns=pl.Series(clock.to_reference(log.samples["time_ns"].to_numpy())))
