# SPDX-License-Identifier: Apache-2.0
"""What `powerccl report` finds beside a run's summary. None means not known; the reason is beside each number."""

from __future__ import annotations

import msgspec

from powerccl.estimate import Estimate


class Parts(msgspec.Struct, kw_only=True):
    """A stretch of time of one rank, in parts.

    communication_s = waiting_s + transfer_s = exposed_s + overlapped_s. span_s = communication_s + stalled_s + rest_s;
    rest_s = computation_s + idle_s where a profiler's trace tells the two apart.
    """

    span_s: float = 0.0
    communication_s: float = 0.0
    waiting_s: float | None = None  # in kernels of communication, until the last peer had come
    transfer_s: float | None = None
    exposed_s: float | None = None  # nothing computed beside it
    overlapped_s: float | None = None
    exposed_waiting_s: float | None = None
    stalled_s: float = 0.0  # computation waited for communication of which no kernel was timed then
    rest_s: float = 0.0  # neither: computation, or idle
    computation_s: float | None = None  # outside of communication
    idle_s: float | None = None


class RankParts(Parts, kw_only=True):
    """One rank, from its first communication to its last, or over its profiler's trace."""

    rank: int
    gpu: str
    host: str
    by_profiler: bool = False
    per_iteration: Parts | None = None  # mean over the iterations


class IterationParts(Parts, kw_only=True):
    """One iteration, or `count` in a row in mean; parts are means over the ranks."""

    first: int
    count: int
    start_s: float  # from the run's start
    joules: float | None = None  # an iteration, all GPUs of the host


class Iterations(msgspec.Struct, kw_only=True):
    """Iterations of a job's ranks on one host, found where the sequence of communication repeats itself."""

    host: str
    ranks: list[int] = []
    found: int = 0
    operations: int = 0  # of an iteration
    by: str = ""  # kernels: iterations end where their last operation does; calls: as the host made them
    reason: str = ""  # why none were found
    median_s: float | None = None
    p5_s: float | None = None
    p95_s: float | None = None
    mean_s: float | None = None
    mean_error_s: float | None = None  # standard error
    joules: float | None = None  # an iteration, mean, all GPUs of the host
    joules_error: float | None = None  # standard error
    joules_of: int = 0  # iterations of which it is the mean: those without a gap in the samples
    rows: list[IterationParts] = []


class HostAlignment(msgspec.Struct, kw_only=True):
    """A host's clock beside the clock of `reference`. offset_ns: how far it is ahead, at the first collective."""

    host: str
    reference: str
    offset_ns: int | None = None
    drift_ppm: float | None = None  # above 0: it is faster
    error_us: float | None = None  # 90 % of the collectives' ends agree to this
    bound_us: float | None = None  # further off contradicts a collective
    collectives: int = 0  # that the two have in common
    reason: str = ""  # why its times were not brought to the reference's clock


class Straggler(msgspec.Struct, kw_only=True):
    """How one rank came to the collectives that it shares with others of hosts with one clock."""

    rank: int
    gpu: str
    host: str
    collectives: int
    last: int  # it came last, by more than clocks of two GPUs may differ
    last_pct: float
    behind_us: float | None = None  # where it was last: behind the next to last, median
    behind_p25_us: float | None = None
    behind_p75_us: float | None = None
    # What a peer would gain without it: exposed waiting that ends when this rank comes, beyond the next to last. Of
    # peers, the one that would gain most. None: not known what is exposed; then `cost_at_most_s` is of all waiting.
    cost_s: float | None = None
    cost_at_most_s: float | None = None
    waited_s: float | None = None  # the same over all peers; at most so much where cost_s is None
    steady: bool = False


class Peers(msgspec.Struct, kw_only=True):
    """What comparing the ranks' starts came to."""

    matched_pct: float | None = None  # of the kernels of collectives
    uncertainty_us: float | None = None  # how well times of two GPUs agree
    reason: str = ""
    hosts: list[HostAlignment] = []  # beside the reference; empty: the run has one host
    ranks: list[Straggler] = []


class LinkRow(msgspec.Struct, kw_only=True):
    """Bus bandwidth of a pattern and size class against what the platform's profile reached; GB/s, medians."""

    pattern: str
    size_class_bytes: int
    operations: int
    busbw_gbs: float  # over the whole kernel, waiting included
    time_all_ranks_s: float = 0.0  # of its kernels
    transfer_gbs: float | None = None  # over what is left when all peers have come; None: too little is
    profile_gbs: float | None = None
    change_pct: float | None = None  # from profile_gbs to transfer_gbs (else busbw_gbs): above 0 it did better
    reason: str = ""


class ClockEffect(msgspec.Struct, kw_only=True):
    """What lowered clocks did on one GPU; watts are means inside communication."""

    gpu: str
    rank: int
    windows: int
    lowered_s: float
    lowered_pct: float  # of the time from first to last communication
    communication_pct: float | None = None  # of the lowered time, communication ran
    lowered_mhz: float | None = None  # sampled
    elsewhere_mhz: float | None = None
    lowered_watts: float | None = None
    communication_watts: float | None = None  # in communication at clocks that were not lowered


class CountRow(msgspec.Struct, kw_only=True):
    """One cell of the histogram: a pattern and size class, over all ranks and the whole run."""

    pattern: str
    size_class_bytes: int
    calls: int
    kernels: int
    bytes: int
    time_all_ranks_s: float  # of timed kernels


class Reference(msgspec.Struct, kw_only=True):
    """What a profile says at the highest clock: [bytes, GB/s, W of a GPU or None], by pattern, sizes rising.

    idle_watts: of a GPU that is awake and has nothing to do. warming: how much more a GPU draws by its warmth, for each
    W that it draws in the long run. None: not known.
    """

    name: str
    gpus: int
    provenance: str
    idle_watts: float | None = None
    warming: float | None = None
    points: dict[str, list[tuple[int, float, float | None]]] = {}


class NextStep(msgspec.Struct, kw_only=True):
    """One action. `gain_pct` is a share of the run's `of`, in percent; None: not known before it is measured."""

    rule: str  # record, startup, straggler, ways, measure-ways, clocks, tune, mpi
    text: str
    gain_pct: Estimate | None = None
    of: str = "energy"  # or time, CPU time
    basis: str = ""  # what the gain is known by
    cost: str = ""
    command: str = ""
