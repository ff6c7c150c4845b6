# SPDX-License-Identifier: Apache-2.0
"""What runs on a node at one moment: what `powerccl top --json` prints. None means not known."""

from __future__ import annotations

import msgspec


class LiveMpiFunction(msgspec.Struct, kw_only=True):
    """One function in the window, over the ranks of this node."""

    function: str
    calls_per_s: float  # mean of the ranks
    share_pct: float  # of a rank's time


class LiveMpiRank(msgspec.Struct, kw_only=True):
    """One rank between the first and the last sums of the window; None where there is only one."""

    rank: int
    name: str = ""  # as LiveRank.name
    host: str
    pid: int
    share_pct: float | None = None  # of the time in blocking MPI calls
    wait_pct: float | None = None  # of the time waiting in them
    sleep_pct: float | None = None  # of the time asleep in them
    calls_per_s: float | None = None
    last_s: float | None = None  # since it has written anything


class LiveMpi(msgspec.Struct, kw_only=True):
    """MPI on this node in the window: means over the ranks that tell."""

    library: str
    share_pct: float | None = None
    wait_pct: float | None = None
    sleep_pct: float | None = None
    ranks: list[LiveMpiRank] = []
    functions: list[LiveMpiFunction] = []


class LivePattern(msgspec.Struct, kw_only=True):
    """One pattern and size class in the window, over the job's ranks on this node."""

    pattern: str
    size_class_bytes: int
    calls: int
    timed: int
    per_s: float  # calls and replays a second and rank
    mean_us: float | None = None  # of timed kernels, waiting for late ranks included
    busbw_gbs: float | None = None  # of mean_us


class LiveRank(msgspec.Struct, kw_only=True):
    """One rank in the window."""

    rank: int
    name: str = ""  # where several hosts or jobs take part, how it is printed: "0 on node2"
    host: str
    pid: int
    gpu: str
    calls: int  # since the rank began
    per_s: float
    share_pct: float | None = None  # of the window in which a communication kernel ran; None: nothing was timed
    estimated: bool = False  # part of it from the mean of its kind: not every call is timed
    last: str = ""  # pattern of the last call, or of the last kernel of a CUDA graph's replay
    last_bytes: int = 0
    last_s: float | None = None  # ago
    pending: int = 0  # calls whose kernel has not been seen to end, of those that are timed
    clock_mhz: int | None = None  # last asked for; 0: default
    clock_requests: int = 0  # in the window
    clock_failed: int = 0
    behind: int = 0  # records not read yet
    dropped: int = 0


class LiveBudget(msgspec.Struct, kw_only=True):
    """What a policy that learns allows itself, and its reports so far: it reports when a communicator ends."""

    allowed_pct: float | None = None
    slowdown_pct: float | None = None
    low_pct: float | None = None  # 99 %
    high_pct: float | None = None
    managed: int | None = None
    iterations: int | None = None


class LiveGpu(msgspec.Struct, kw_only=True):
    """One GPU as sampled last; None where it is not to be had, or not any more."""

    gpu: str
    index: int
    host: str
    name: str = ""
    power_w: float | None = None  # mean over the window
    clock_mhz: int | None = None
    temperature_c: int | None = None
    utilization_pct: int | None = None
    joules: float | None = None  # since sampling began
    joules_at_least: float | None = None  # where samples are missing: then `joules` is None
    missing_s: float | None = None  # since the job began, for which energy is not known; None: no counter tells
    throttle_reasons: list[str] = []
    age_s: float | None = None  # of the sample
    source: str = "agent"  # agent, nvml
    ranks: list[int] = []
    lease: str = ""  # who holds its clock, and which


class LiveJob(msgspec.Struct, kw_only=True):
    """A job at one moment."""

    run: str
    folder: str
    run_id: str = ""  # empty: recorded by a powerccl that gave none
    command: list[str] = []
    host: str = ""
    policy: str = ""
    clocks: str = ""
    emulated: str = ""
    user: str = ""
    labels: dict[str, str] = {}  # traces.job_labels.LABELS, of this host's processes where hosts differ
    pids: list[int] = []
    started_at: str = ""
    started_unix_s: float | None = None  # the same; without run.json, when the first of its ranks began to record
    elapsed_s: float | None = None
    ended: bool = False
    exit_code: int | None = None
    window_s: float = 0.0
    share_pct: float | None = None  # communication, mean over the ranks of this node
    estimated: bool = False
    power_w: float | None = None  # all GPUs of the job
    power_at_least_w: float | None = None  # of those that are sampled, where some are not: then `power_w` is None
    joules: float | None = None
    joules_at_least: float | None = None  # as power_at_least_w
    cpu_w: float | None = None  # processors of all its hosts, everything on them
    host_cpu_w: dict[str, float] = {}  # the same, host by host, of those that are known
    hosts_here: list[str] = []  # its hosts that are this machine; others' figures are as of their last record
    missing: list[str] = []  # in words, what `joules` lacks
    ranks_expected: int = 0  # as the ranks' communicators say; 0: not known
    ranks_found: int = 0  # with a trace that reads
    restarts: int = 0  # times that all ranks were started again
    ranks: list[LiveRank] = []
    gpus: list[LiveGpu] = []
    patterns: list[LivePattern] = []
    mpi: LiveMpi | None = None
    budget: LiveBudget | None = None
    notes: list[str] = []
    problems: list[str] = []


class HeldDevice(msgspec.Struct, kw_only=True):
    """A device whose clock is leased, or waits to be restored."""

    device: str
    user: str
    pid: int
    run: str
    min_mhz: int  # 0: the default
    max_mhz: int
    held_s: float
    pending: bool


class NodeView(msgspec.Struct, kw_only=True):
    """What runs on a node at one moment."""

    schema: int = 1
    host: str
    unix_s: float
    jobs: list[LiveJob] = []
    leases: list[HeldDevice] = []
    unreadable_processes: int = 0  # of other users: whether they are jobs is not known
    look_ms: float = 0.0
    problems: list[str] = []
