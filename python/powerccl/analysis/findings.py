# SPDX-License-Identifier: Apache-2.0
"""What a run came to: the content of `summary.json`. None means not known; nothing is ever guessed into a number."""

from __future__ import annotations

from pathlib import Path

import msgspec

from powerccl import clean
from powerccl.files import read_json, write_whole

SUMMARY_FILE = "summary.json"
FIRST_ITERATION, FIRST_COMMUNICATION = "the first regular iteration", "the first communication"


class Energy(msgspec.Struct, kw_only=True):
    """Energy of the job's GPUs from its start to its end.

    Where samples are missing, `joules` is None: `joules_at_least` is of what was sampled, and `missing` says in words
    of which GPU and how long. `average_watts` is of the time that was sampled, mean per GPU.
    """

    joules: float | None = None
    joules_at_least: float | None = None  # None: as `joules`, or nothing was sampled
    missing: list[str] = []
    average_watts: float | None = None
    covered_s: float | None = None  # mean per GPU
    source: str = "none"  # counter, power, power+counter (power samples scaled to the counter), none
    sample_ms: float | None = None
    update_ms: float | None = None
    reason: str = ""


class StartupPart(msgspec.Struct, kw_only=True):
    """A part of start-up. `until` names the event that ends it."""

    until: str
    time_s: float
    joules: float | None = None  # of all GPUs; None: not known


class Shares(msgspec.Struct, kw_only=True):
    """Of the working time (see analysis/shares.py), over all ranks. None: not known."""

    startup_s: float | None = None  # from the run's start to the first rank's working time
    startup_joules: float | None = None  # of all GPUs; None: not known
    startup_parts: list[StartupPart] = []  # in the order of time; their sums are startup_s and startup_joules
    startup_until: str = ""  # FIRST_ITERATION or FIRST_COMMUNICATION
    span_s: float | None = None  # working time, mean over the ranks
    working_watts: float | None = None  # mean over the working time, all GPUs together; None: not known
    communicating_pct: float | None = None
    exposed_pct: float | None = None
    at_least: bool = False  # some calls were not timed, or records of a rank are missing
    uncovered_pct: float | None = None  # of the ranks' working time: records are missing; None: of none
    reason: str = ""  # why communicating_pct is not known


class Communication(msgspec.Struct, kw_only=True):
    """Communication on the job's GPUs: times are means per GPU, energies sums over GPUs, watts means per GPU."""

    calls: int = 0
    captured_calls: int = 0
    timed_calls: int = 0
    incomplete: bool = False  # records of a rank are missing: times, calls and energies are at least
    untimed_calls: int = 0  # neither timed nor to be estimated from others of their kind
    untimed_captured_calls: int = 0
    time_s: float | None = 0.0  # None: calls were made, and none was timed
    estimated_s: float = 0.0  # of calls not timed, from the median of their kind; not part of time_s
    joules: float | None = None
    joules_at_least: float | None = None  # where samples are missing, as Energy's
    uncertainty_joules: float | None = None
    resolved: bool = False  # communication lasted long enough against the samples to know its power
    average_watts: float | None = None
    other_average_watts: float | None = None
    clock_mhz: float | None = None
    other_clock_mhz: float | None = None


class PatternRow(msgspec.Struct, kw_only=True):
    """One pattern and size class, over all ranks."""

    pattern: str
    size_class_bytes: int
    calls: int
    captured_calls: int
    timed: int
    median_bytes: int
    total_bytes: int
    time_s: float  # summed durations of timed kernels, mean per GPU
    estimated_s: float
    median_us: float | None
    busbw_gbs: float | None  # of the median kernel, waiting for late ranks included
    joules_per_operation: float | None  # per GPU; all that it drew meanwhile, computation beside it included
    joules_low: float | None = None  # 95 % interval of joules_per_operation; None where it was not from a regression
    joules_high: float | None = None


class PhaseRow(msgspec.Struct, kw_only=True):
    """The calls to which the job has given one tag of its own (ncclCollConfig_t.userProfilerTag), over all ranks."""

    tag: int | None  # None: the calls without one
    calls: int
    timed: int
    total_bytes: int
    time_s: float  # summed durations of timed kernels, mean per GPU
    estimated_s: float


class Clocks(msgspec.Struct, kw_only=True):
    """Clock requests of all ranks."""

    requests: int = 0
    sets: int = 0
    resets: int = 0
    failed: int = 0
    without_lease: int = 0  # no lease was had at the moment: nothing was set; not among `failed`
    dry: int = 0
    coalesced: int = 0
    mean_call_us: float | None = None  # the driver call
    mean_latency_us: float | None = None  # from the asking to the driver call's return
    low_s: float | None = None  # mean of GPUs: a low clock was wanted, in a dry run too
    low_communicating_s: float | None = None  # of that, while a collective ran
    off_target: int = 0  # read immediately after the call, the clock was still above the one set


class RankPolicy(msgspec.Struct, kw_only=True):
    """What a policy that learns had come to on one GPU, when that said so last."""

    rank: int
    gpu: str
    host: str
    calls: int  # of an iteration; 0: none was found
    iterations: int  # since it was found
    managed: int  # with a lowered clock, over the whole run
    iteration_s: float
    clock_mhz: int  # of managed iterations; 0: the default
    slowdown_pct: float | None = None  # of managed iterations; None: not judged yet
    slowdown_low_pct: float | None = None  # 99 % interval
    slowdown_high_pct: float | None = None


class PolicyOutcome(msgspec.Struct, kw_only=True):
    """What a policy that learns came to, over the ranks that tell; times are means of those."""

    policy: str
    budget_pct: float | None = None  # slowdown that it may cost
    dry: bool = False  # decided and recorded, nothing was set: then no slowdown is known
    calls: int = 0  # of an iteration; 0: none was found on any rank
    iterations: int = 0
    managed: int = 0
    iteration_s: float = 0.0
    clock_mhz: int = 0  # mean of the GPUs with a lowered clock; 0: there is none
    clock_least_mhz: int = 0
    clock_most_mhz: int = 0
    slowdown_pct: float | None = None  # of the ranks' judgements the worst
    slowdown_low_pct: float | None = None
    slowdown_high_pct: float | None = None
    ranks: list[RankPolicy] = []


class Gpu(msgspec.Struct, kw_only=True):
    """One GPU of the job."""

    gpu: str
    index: int | None = None  # on its host, as the driver counts; None: it was not sampled
    host: str
    ranks: list[int]
    name: str = ""
    communication_s: float | None = 0.0  # None: as Communication.time_s
    joules: float | None = None
    joules_at_least: float | None = None  # where samples are missing, as Energy's
    missing_s: float | None = None  # of the run, for which energy is not known; None: not known
    communication_joules: float | None = None
    communication_joules_at_least: float | None = None
    average_watts: float | None = None
    communication_watts: float | None = None
    other_watts: float | None = None
    communication_clock_mhz: float | None = None
    other_clock_mhz: float | None = None
    clock_map_spread_us: float | None = None
    throttle_reasons: list[str] = []


class MpiTimes(msgspec.Struct, kw_only=True):
    """Blocking MPI calls: sums over the processes. time_s = wait_s + transfer_s; sleep_s is a part of wait_s."""

    calls: int = 0
    bytes: int = 0  # as passed by the ranks
    time_s: float = 0.0
    wait_s: float = 0.0  # the library polled and nothing moved
    transfer_s: float = 0.0
    sleep_s: float = 0.0  # the thread was not on its core


class MpiRow(MpiTimes, kw_only=True):
    """One function and size class over all communicators; `*_per_rank_s` are means over the ranks of the run."""

    function: str
    size_class_bytes: int  # of one call: 0 where it has no bytes of its own, else the power of two at or below
    time_per_rank_s: float
    wait_per_rank_s: float
    transfer_per_rank_s: float
    sleep_per_rank_s: float


class MpiComm(MpiTimes, kw_only=True):
    """One communicator of a job; those of the same members count as one. id 0: calls that name none, as MPI_Wait."""

    comm_id: int
    name: str
    nranks: int  # 0: not known
    ranks: list[int]  # those that left a trace


class MpiRank(MpiTimes, kw_only=True):
    """One rank. Its times are sums over the threads that called MPI at a time."""

    rank: int
    host: str
    pid: int  # of its first process
    span_s: float | None = None  # from the trace's start to its last record
    threads: int = 1  # that called MPI at a time
    execution_s: float | None = None  # span_s of each of these threads, less their time in MPI
    cpu_s: float | None = None


class MpiImbalance(msgspec.Struct, kw_only=True):
    """How unevenly the ranks of a communicator came to one collective: who waited least came last.

    imbalance_pct = (longest - shortest wait of a rank) / the longest time a rank spent in it.
    """

    function: str
    comm_id: int
    comm_name: str
    nranks: int
    calls: int  # per rank
    imbalance_pct: float
    latest_rank: int
    wait_min_s: float
    wait_max_s: float
    time_max_s: float


class CpuEnergy(msgspec.Struct, kw_only=True):
    """Energy of the hosts' processors (RAPL) over the job, and how idle they were. Everything on the host counts.

    Where samples are missing, as in Energy.
    """

    joules: float | None = None
    joules_at_least: float | None = None
    missing: list[str] = []
    average_watts: float | None = None
    domains: dict[str, float] = {}  # joules of each RAPL domain as far as sampled, host by host: "node1 package-0"
    covered_s: float | None = None
    idle_pct: float | None = None  # of all processors' time
    hosts: int = 0
    reason: str = ""


class MpiSummary(MpiTimes, kw_only=True):
    """What MPI came to, over all processes that left a trace."""

    library: str
    ranks: int
    processes: int  # more than ranks where a command ran several MPI jobs
    wait_mode: str  # auto, published, observe
    wait_method: str = ""  # what a waiting rank did, as rank 0's adapter chose
    wall_s: float | None
    time_per_rank_s: float
    wait_per_rank_s: float
    transfer_per_rank_s: float
    sleep_per_rank_s: float
    threads_per_rank: float = 1.0  # that called MPI at a time; times per rank are their sums
    share_pct: float | None  # time_per_rank_s of wall_s of all these threads
    cpu_s: float | None  # used by the processes
    sleeps: int
    oversleep_us: float | None  # mean of how much longer than asked a sleep lasted
    rows: list[MpiRow]
    comms: list[MpiComm]
    by_rank: list[MpiRank]
    imbalance: list[MpiImbalance]
    energy: CpuEnergy
    rank_names: dict[int, str] = {}  # as RunSummary.rank_names, of MPI's ranks

    def rank_name(self, rank: int) -> str:
        """The rank, to be printed."""
        return self.rank_names.get(rank, str(rank))


class RunSummary(msgspec.Struct, kw_only=True):
    """Findings of one run."""

    schema: int = 1
    emulated: str = ""  # the emulated platform's name, empty for real GPUs
    folder: str = ""
    name: str = ""
    command: list[str] = []
    exit_code: int | None = None
    policy: str = ""
    clocks_mode: str = ""
    clock_mhz: int = 0  # that --clock fixed for the whole job; 0: none
    platform: str = ""
    library: str = ""
    ranks: int = 0
    user: str = ""
    labels: dict[str, str] = {}  # traces.job_labels.LABELS: the Slurm job, pod and container; those that are known
    hosts: list[str] = []  # of its ranks; without ranks, those that were sampled
    rank_names: dict[int, str] = {}  # of ranks whose number does not tell: of several hosts or jobs, "0 on node2"
    restarts: int = 0  # times that all ranks were started again, as by torchrun --max-restarts
    wall_s: float | None = None
    finished: bool = False
    recording_pct: float | None = None  # of the ranks' time, what PowerCCL's own code took of their threads
    iteration_s: float | None = (
        None  # median; None: no iteration was found, or jobs beside each other have none in common
    )
    joules_per_iteration: float | None = None  # mean, all GPUs of the job
    energy: Energy
    communication: Communication
    shares: Shares = msgspec.field(default_factory=Shares)
    clocks: Clocks
    policy_outcome: PolicyOutcome | None = None  # None: no rank reported a policy that learns
    patterns: list[PatternRow] = []
    phases: list[PhaseRow] = []  # by the job's own tags; empty without
    gpus: list[Gpu] = []
    mpi: MpiSummary | None = None
    unrecorded: str = ""  # why no rank left a trace, as a sentence; empty: one did
    notes: list[str] = []
    problems: list[str] = []

    def rank_name(self, rank: int) -> str:
        """The rank, to be printed."""
        return self.rank_names.get(rank, str(rank))

    @property
    def energy_missing(self) -> list[str]:
        """Where samples of energy are missing, in words: total energies are not known then, and not compared."""
        return [*self.energy.missing, *(self.mpi.energy.missing if self.mpi else [])]


def write_summary(summary: RunSummary, path: Path) -> None:
    """Write summary.json.

    Raises:
        OSError: the file cannot be written.
    """
    write_whole(path, clean.to_json(summary, indent=2))


def read_summary(path: Path) -> RunSummary:
    """Read a summary.json.

    Raises:
        OSError: the file cannot be read.
        msgspec.MsgspecError: it is no summary of this version.
    """
    return read_json(path, RunSummary)
