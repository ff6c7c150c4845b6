# SPDX-License-Identifier: Apache-2.0
"""Which host, GPU, job and rank a trace is of, where a run has one name or number several times.

A rank is (host, job, rank), and a GPU is its UUID on its host. Two jobs in one run both have a rank 0, such as one
`torchrun --standalone` on each node of a step. Analysis looks up ranks by `trace.rank` and GPUs by `trace.gpu`, so
both are made unique once, where a run is read.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from itertools import groupby
from typing import TYPE_CHECKING, NamedTuple, Protocol

from powerccl.quantities import plural
from powerccl.traces import records

if TYPE_CHECKING:
    from powerccl.traces.cpu import CpuLog
    from powerccl.traces.header import TraceHeader
    from powerccl.traces.power import PowerLog
    from powerccl.traces.rank import RankTrace


class Life(NamedTuple):
    """One process of a rank. Times are CLOCK_REALTIME ns, which hosts have in common."""

    number: int  # the rank, as its job counts
    sizes: frozenset[int]  # of its job, in ranks; empty: not known
    host: str
    starts: int  # by an elastic launcher; 0: not known
    begin_ns: int
    end_ns: int
    communicators: frozenset[int] = frozenset()  # ids that no other job has


class Samples(Protocol):
    """A file of samples, as far as it names a host and its GPUs."""

    about: dict[str, str]

    @property
    def host(self) -> str:
        """The host's name."""

    @property
    def boot_id(self) -> str:
        """The host's boot; empty: it does not say."""


@dataclass
class Rank:
    """One rank of one job: `lives` are the places of its processes in the list they came in, one after the other."""

    number: int
    lives: list[int]
    sizes: set[int]
    hosts: set[str]
    communicators: set[int]
    job: int = 0


@dataclass
class _Job:
    numbers: set[int] = field(default_factory=set)
    sizes: set[int] = field(default_factory=set)
    hosts: set[str] = field(default_factory=set)
    communicators: set[int] = field(default_factory=set)

    def likeness(self, rank: Rank) -> tuple[bool, bool] | None:
        """How much the rank has in common with this job: the larger, the more. None: it is of another job."""
        connected = not self.communicators.isdisjoint(rank.communicators)
        fits = connected or not self.sizes or not rank.sizes or not self.sizes.isdisjoint(rank.sizes)
        if rank.number in self.numbers or not fits:
            return None
        return connected, not self.hosts.isdisjoint(rank.hosts)

    def add(self, rank: Rank) -> None:
        self.numbers.add(rank.number)
        self.sizes |= rank.sizes
        self.hosts |= rank.hosts
        self.communicators |= rank.communicators


def find_ranks(lives: Sequence[Life]) -> list[Rank]:
    """The ranks that these processes were, ordered by job and number.

    Processes with one number are one rank if the first ended before the next began, on the same host. On another host
    they are one rank only if an elastic launcher started it again. Ranks of one job have different numbers. Traces do
    not name their job, so ranks with a communicator in common are of one job, and else ranks of one host.
    """
    by_number: dict[int, list[Rank]] = {}
    for place, life in sorted(enumerate(lives), key=lambda item: (item[1].begin_ns, item[1].host, item[0])):
        known = by_number.setdefault(life.number, [])
        rank = next((rank for rank in known if _goes_on(lives[rank.lives[-1]], life)), None)
        if rank is None:
            rank = Rank(life.number, [], set(), set(), set())
            known.append(rank)
        rank.lives.append(place)
        rank.sizes |= life.sizes
        rank.hosts.add(life.host)
        rank.communicators |= life.communicators
    ranks = [rank for same in by_number.values() for rank in same]
    ranks.sort(key=lambda rank: (min(rank.hosts), lives[rank.lives[0]].begin_ns, rank.number))
    jobs: list[_Job] = []
    for rank in ranks:
        alike = [(each, -place) for place, job in enumerate(jobs) if (each := job.likeness(rank)) is not None]
        rank.job = -max(alike)[1] if alike else len(jobs)
        if not alike:
            jobs.append(_Job())
        jobs[rank.job].add(rank)
    return sorted(ranks, key=lambda rank: (rank.job, rank.number))


def _goes_on(earlier: Life, later: Life) -> bool:
    """Whether the later process is the earlier one's rank, started again."""
    again = later.starts > earlier.starts > 0
    if earlier.host == later.host and again:
        return True
    return later.begin_ns >= earlier.end_ns and (earlier.host == later.host or again)


def count_expected(ranks: Sequence[Rank]) -> int:
    """How many ranks their jobs have in all, as their communicators and launchers say; 0: not known."""
    most: dict[int, int] = {}
    for rank in ranks:
        most[rank.job] = max(most.get(rank.job, 0), *rank.sizes, 0)
    return sum(most.values())


def missing_ranks(present: int, expected: int) -> str:
    """What to say where ranks left no trace; empty: all did, or none."""
    if not 0 < present < expected:
        return ""
    return (
        f"only {present} of {plural(expected, 'rank')} left a readable trace: this report does not count the others,"
        " and takes waiting for them as transfer"
    )


def life_of(trace: RankTrace) -> Life:
    """A trace's process, or the processes that were joined into it."""
    begin_ns = trace.start_realtime_ns or trace.start_ns
    # MPI has no ids of its own: two jobs of one size have the same.
    communicators = () if trace.path.name.startswith("mpi-") else trace.kinds[records.COMM]["comm_id"].tolist()
    return Life(
        number=trace.number,
        sizes=frozenset(size for size in (*trace.sizes, trace.nranks) if size > 0),
        host=trace.host,
        starts=trace.starts,
        begin_ns=begin_ns,
        end_ns=begin_ns + max(trace.last_ns() - trace.start_ns, 0),
        communicators=frozenset(communicators),
    )


def life_of_header(about: TraceHeader, newest_ns: int) -> Life:
    """A process that may still run, by its trace's header and its latest record."""
    begin_ns = about.start_realtime_ns or about.start_ns
    end_ns = begin_ns + max(newest_ns - about.start_ns, 0)
    sizes = frozenset([about.nranks] if about.nranks > 0 else [])
    return Life(about.rank, sizes, about.host, about.starts, begin_ns, end_ns)


def ranks_of(traces: Iterable[RankTrace]) -> tuple[int, int]:
    """How many ranks left a trace that reads, and how many there should be."""
    ranks = find_ranks([life_of(trace) for trace in traces])
    return len(ranks), count_expected(ranks)


def number_ranks(lives: Sequence[Life], of_processes: bool) -> list[tuple[int, int, str]]:
    """Of each process: its rank's number in the run, its job, and the rank's name, where the number does not tell.

    Where several hosts took part, names say which host a rank ran on.

    Jobs whose numbers no job before them has keep them, and the others' are counted on. `of_processes`: a rank that was
    started again has one number, whatever processes it had; else each of them has a number of its own.
    """
    numbered: list[tuple[int, int, str]] = [(life.number, 0, "") for life in lives]
    taken: set[int] = set()
    following = 0
    restarted: list[tuple[int, int]] = []
    for job, of_job in groupby(find_ranks(lives), key=lambda rank: rank.job):
        ranks = list(of_job)
        # A rank that is not known is -1.
        repeated = not taken.isdisjoint(rank.number for rank in ranks)
        first = following - min(ranks[0].number, 0) if repeated else 0
        for rank in ranks:
            number = first + rank.number
            for place in rank.lives if of_processes else rank.lives[:1]:
                numbered[place] = (number, job, "")
            restarted += [(place, job) for place in rank.lives[1:] if not of_processes]
            taken.add(number)
            following = max(following, number + 1, *(first + size for size in rank.sizes))
    for number, (place, job) in enumerate(restarted, following):
        numbered[place] = (number, job, "")
    numbers = {number: lives[place] for place, (number, _, _) in enumerate(numbered)}
    same = Counter(life.number for life in numbers.values())
    on_host = Counter((life.number, life.host) for life in numbers.values())
    several_hosts = len({life.host for life in numbers.values()}) > 1
    turns: Counter[tuple[int, str]] = Counter()
    names: dict[int, str] = {}
    for number, life in sorted(numbers.items()):
        if not several_hosts and same[life.number] < 2 and number == life.number:
            continue
        names[number] = f"{life.number} on {life.host}"
        if on_host[life.number, life.host] > 1:
            turns[life.number, life.host] += 1
            names[number] += f" ({turns[life.number, life.host]})"
    return [(number, job, names.get(number, "")) for number, job, _ in numbered]


def tell_ranks_apart(traces: list[RankTrace], of_processes: bool) -> None:
    """Give each rank a number of its own in the run, and a name where hosts are several or jobs repeat numbers."""
    known = number_ranks([life_of(trace) for trace in traces], of_processes)
    for trace, (rank, job, name) in zip(traces, known, strict=True):
        trace.rank, trace.job, trace.rank_name = rank, job, name


class Names:
    """Names of a run's hosts and GPUs, so that two hosts never have one in common.

    Hosts of one name may be two machines, and their clocks have nothing in common. UUIDs of real GPUs are unique, those
    of emulated GPUs were not always, and PCI addresses are not. Hosts that are namespaces of one machine have its boot.
    """

    def __init__(self) -> None:
        self._boots: dict[str, list[str]] = {}
        self._hosts: dict[str, list[tuple[str, str]]] = {}
        # Sampled GPUs by UUID, or address, on their host; and by the boot alone.
        self._on_host: dict[tuple[tuple[str, str], str], str] = {}
        self._on_boot: dict[tuple[str, str], set[str]] = {}

    def host(self, host: str, boot_id: str) -> str:
        """A host's name; `boot_id`: of its running kernel, empty: not known."""
        known = self._boots.setdefault(host, [])
        if boot_id and boot_id not in known:
            known.append(boot_id)
        return _apart(host, known.index(boot_id) if boot_id else 0)

    def of_machine(self, host: str, boot_id: str) -> set[str]:
        """Names of the hosts that are one machine: containers of a machine have names of their own, and its boot."""
        named = {
            _apart(name, place)
            for name, boots in self._boots.items()
            for place, boot in enumerate(boots)
            if boot_id and boot == boot_id
        }
        return named | ({host} if self._boots.get(host) == [] else set())

    def sampled(self, log: Samples, index: int, uuid: str) -> str:
        """The name of a GPU that was sampled on a host, which `host` has named; its UUID may be empty."""
        address, host = log.about.get(f"gpu{index}_pci", "").lower(), self._host(log.host, log.boot_id)
        name = self._gpu(uuid or address or f"GPU {index}", host)
        for known_as in filter(None, (uuid, address)):
            self._on_host.setdefault((host, known_as), name)
            self._on_boot.setdefault((host[1], known_as), set()).add(name)
        return name

    def used(self, rank: TraceHeader) -> str:
        """The name of a rank's GPU: that of the samples of its UUID on its host, or at its address without a UUID.

        A rank in a container has a host name of its own. Its GPU is sampled by the machine's agent, of the same boot.
        """
        host = self._host(rank.host, rank.boot_id)
        known_as = rank.gpu_uuid or rank.gpu_pci.lower()
        if (host, known_as) in self._on_host:
            return self._on_host[host, known_as]
        of_machine = self._on_boot.get((host[1], known_as), set()) if host[1] else set()
        if len(of_machine) == 1:
            return next(iter(of_machine))
        return self._gpu(rank.gpu_uuid or rank.gpu_pci or f"rank {rank.rank}", host)

    def _host(self, host: str, boot_id: str) -> tuple[str, str]:
        boots = self._boots.get(host)
        return host, boot_id or (boots[0] if boots else "")

    def _gpu(self, gpu: str, host: tuple[str, str]) -> str:
        known = self._hosts.setdefault(gpu, [])
        if host not in known:
            known.append(host)
        return _apart(gpu, known.index(host))


def _apart(name: str, place: int) -> str:
    return f"{name}~{place + 1}" if place else name


def tell_hosts_apart(traces: Sequence[RankTrace], logs: Sequence[CpuLog | PowerLog], names: Names) -> None:
    """Give hosts of one name that are two machines two names."""
    for trace in traces:
        trace.host = names.host(trace.host, trace.boot_id)
    for log in logs:
        log.about["host"] = names.host(log.host, log.boot_id)


def tell_gpus_apart(traces: Sequence[RankTrace], logs: Sequence[PowerLog], names: Names) -> None:
    """Name GPUs alike in traces and samples, and GPUs of two machines that have one UUID by two names."""
    for log in logs:
        _rename(log, {(index, uuid): names.sampled(log, index, uuid) for index, uuid in log.gpus})
    for trace in traces:
        trace.gpu_name = names.used(trace)


def _rename(log: PowerLog, names: dict[tuple[int, str], str]) -> None:
    """Give a host's GPUs these names, by index and UUID."""
    import polars as pl

    new = {key: named for key, named in names.items() if named != key[1]}
    if not new:
        return
    column = pl.col("uuid")
    for (index, uuid), named in new.items():
        same_gpu = (pl.col("gpu") == index) & (pl.col("uuid") == uuid)
        column = pl.when(same_gpu).then(pl.lit(named)).otherwise(column)
    log.samples = log.samples.with_columns(uuid=column)
    log.gpus = {(index, names[index, uuid]): known for (index, uuid), known in log.gpus.items()}
