# SPDX-License-Identifier: Apache-2.0
"""Metrics of running jobs for Prometheus, in its conventions: base units, `_total` on what only rises.

Each node exports the ranks and GPUs of its own machine. A run folder that several nodes share is then counted once.
Labels are bounded: a job's run folder, its ranks and GPUs on this node, nine patterns, MPI's blocking functions.
Nothing is labelled by size, communicator, process or command. powerccl_job_info alone says which Slurm job or pod a
run is of: queries join it by `run`.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Container, Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, InfoMetricFamily, Metric
from prometheus_client.registry import Collector

from powerccl import __version__, clean
from powerccl.leases.client import Device, Totals
from powerccl.live.labels import LONGEST_LABEL, emulated_label, run_label
from powerccl.live.snapshot import LiveJob, NodeView
from powerccl.live.totals import KINDS, JobCounts
from powerccl.patterns import PATTERNS, UNKNOWN
from powerccl.traces.job_labels import LABELS

Daemon = tuple[list[Device], Totals]

LEAST_BETWEEN_S = 0.5  # looks: however many ask, files are not read more often
MOST_OF_USER = 100_000  # samples: three jobs of a thousand ranks; else one user fills the collector's memory
DEVICE = ("device",)
RUN, RANK, GPU = ("run",), ("run", "host", "rank"), ("run", "host", "gpu", "uuid")
PATTERN, FUNCTION = (*RANK, "pattern"), ("run", "host", "function")

UNITS = ("seconds", "bytes", "joules", "watts", "hertz", "celsius", "ratio")  # as Prometheus names base units

# name, kind, labels, help. Counters are named without `_total`, which is added to them.
METRICS: tuple[tuple[str, str, tuple[str, ...], str], ...] = (
    ("powerccl_jobs", "gauge", (), "Jobs that run on this node under powerccl, as far as this user can see them."),
    (
        "powerccl_job_info",
        "info",
        ("run", "name", "user", "policy", "clocks", "emulated", *LABELS),
        "1 for each job; its labels say how it was started, and which Slurm job, pod and container it is.",
    ),
    ("powerccl_job_running", "gauge", RUN, "1 while the job runs, 0 when it has ended."),
    ("powerccl_job_start_time_seconds", "gauge", RUN, "Start of the job, seconds since 1970."),
    ("powerccl_job_elapsed_seconds", "gauge", RUN, "Since the job's start."),
    ("powerccl_job_restarts", "gauge", RUN, "Times that all ranks were started again, as by torchrun --max-restarts."),
    ("powerccl_job_exit_code", "gauge", RUN, "Exit code, once the job has ended."),
    ("powerccl_job_slowdown_allowed_ratio", "gauge", RUN, "Slowdown that the job's policy may cost."),
    ("powerccl_job_ranks_found", "gauge", RUN, "Ranks of the job with a trace that reads: nothing counts the others."),
    ("powerccl_job_ranks_expected", "gauge", RUN, "Ranks that the job has, as its communicators say."),
    ("powerccl_collectives", "counter", PATTERN, "Communication calls made; those recorded into CUDA graphs apart."),
    ("powerccl_captured_collectives", "counter", PATTERN, "Communication calls recorded into CUDA graphs."),
    ("powerccl_collective_bytes", "counter", PATTERN, "Sizes of those calls, as NCCL tests count them."),
    ("powerccl_timed_collectives", "counter", PATTERN, "Communication kernels that were timed on the GPU."),
    (
        "powerccl_collective_seconds",
        "counter",
        PATTERN,
        "GPU time of timed communication kernels, waiting for other ranks included.",
    ),
    (
        "powerccl_communication_ratio",
        "gauge",
        RANK,
        "Share of the last seconds in which a communication kernel ran on the rank's GPU.",
    ),
    ("powerccl_pending_collectives", "gauge", RANK, "Timed calls whose kernel has not been seen to end."),
    (
        "powerccl_last_collective_age_seconds",
        "gauge",
        RANK,
        "Since the rank's last communication call, or replay of one in a CUDA graph.",
    ),
    ("powerccl_clock_requests", "counter", (*RANK, "result"), "Clocks asked for, by how that ended."),
    ("powerccl_trace_dropped_records", "counter", RANK, "Records that found no room in the rank's trace."),
    ("powerccl_trace_unread_records", "gauge", RANK, "Records of the rank's trace still to be read by this exporter."),
    ("powerccl_gpu_power_watts", "gauge", GPU, "Power of the GPU, mean of the last seconds."),
    ("powerccl_gpu_energy_joules", "counter", GPU, "Energy of the GPU since the job began, as far as it was sampled."),
    (
        "powerccl_gpu_unsampled_seconds",
        "gauge",
        GPU,
        "Time since the job began that the GPU's energy lacks. Readings that come late take it back.",
    ),
    ("powerccl_gpu_sample_age_seconds", "gauge", GPU, "Since the GPU's last sample: one that is lost grows old."),
    ("powerccl_gpu_sm_clock_hertz", "gauge", GPU, "SM clock."),
    ("powerccl_gpu_temperature_celsius", "gauge", GPU, "Temperature."),
    ("powerccl_gpu_utilization_ratio", "gauge", GPU, "Share of time in which a kernel ran, as NVML tells."),
    ("powerccl_gpu_clock_leased", "gauge", GPU, "1 while a process holds a lease on the GPU's clock."),
    ("powerccl_cpu_power_watts", "gauge", ("run", "host"), "Power of the host's processors; everything on it counts."),
    ("powerccl_mpi_threads", "gauge", RANK, "Threads that have called MPI at a time: times are sums over them."),
    ("powerccl_mpi_calls", "counter", RANK, "Blocking MPI calls."),
    ("powerccl_mpi_call_seconds", "counter", RANK, "Time in blocking MPI calls."),
    ("powerccl_mpi_wait_seconds", "counter", RANK, "Part of it in which nothing moved."),
    ("powerccl_mpi_sleep_seconds", "counter", RANK, "Part of that in which the thread was not on its core."),
    ("powerccl_mpi_cpu_seconds", "counter", RANK, "CPU time of the MPI process."),
    ("powerccl_mpi_function_calls", "counter", FUNCTION, "Blocking calls of the ranks of this host."),
    ("powerccl_mpi_function_seconds", "counter", FUNCTION, "Their time, summed over those ranks and their threads."),
    ("powerccl_lease_held", "gauge", DEVICE, "1 while a device is leased."),
    ("powerccl_lease_clock_max_hertz", "gauge", DEVICE, "Highest clock a lease has set; 0: default."),
    ("powerccl_lease_restore_pending", "gauge", DEVICE, "1 while a clock is still to be restored."),
    ("powerccl_lease_sessions", "gauge", (), "Connections to powerccld at this moment."),
    ("powerccl_lease_grants", "counter", (), "Leases granted."),
    ("powerccl_lease_refusals", "counter", (), "Requests of leases and clocks refused."),
    ("powerccl_lease_ends", "counter", ("how",), "Leases ended, by how."),
    ("powerccl_lease_clock_changes", "counter", (), "Clocks set for leases."),
    ("powerccl_lease_clock_restores", "counter", (), "Clocks restored."),
    ("powerccl_lease_clock_superseded", "counter", (), "Clocks not set because a newer request came first."),
    ("powerccl_lease_clock_clamped", "counter", (), "Clocks moved into the administrator's range."),
    ("powerccl_lease_driver_failures", "counter", (), "Clocks that the driver could not set."),
    ("powerccl_lease_restore_failures", "counter", (), "Times that the driver could not restore a clock."),
    ("powerccl_lease_driver_seconds", "counter", (), "Time in the driver's calls."),
    ("powerccl_lease_requests", "counter", (), "Requests understood."),
    ("powerccl_lease_foreign_messages", "counter", (), "Messages by another process than the connection's own."),
    ("powerccl_lease_bad_messages", "counter", (), "Messages that are not of the protocol."),
    ("powerccl_lease_replayed_messages", "counter", (), "Messages received again."),
    ("powerccl_lease_turned_away", "counter", (), "Connections refused because there were too many."),
    ("powerccl_lease_delays", "counter", (), "Times that a connection was too fast."),
    ("powerccl_exporter_info", "info", ("version",), "1; version of the exporter."),
    ("powerccl_exporter_look_seconds", "gauge", (), "What the last look at all jobs took."),
    ("powerccl_exporter_problems", "gauge", (), "Things that could not be read at the last look."),
    (
        "powerccl_exporter_unreadable_processes",
        "gauge",
        (),
        "Processes of other users: whether they are jobs is not known.",
    ),
)


def exported_names() -> set[str]:
    """Names as in a query: counters with their `_total`."""
    return {f"{name}_total" if kind == "counter" else name for name, kind, _, _ in METRICS}


def _family(name: str, kind: str, labels: tuple[str, ...], text: str) -> Metric:
    if kind == "info":
        return InfoMetricFamily(name.removesuffix("_info"), text, labels=labels)
    unit = name.rpartition("_")[2]
    family = CounterMetricFamily if kind == "counter" else GaugeMetricFamily
    return family(name, text, labels=labels, unit=unit if unit in UNITS else "")


class _Families:
    """All metrics, empty at first; only those with a value are handed out."""

    def __init__(self) -> None:
        self._seen: set[tuple[str, tuple[str, ...]]] = set()
        self._left = MOST_OF_USER
        self._users: dict[str, int] = {}
        self._labels = {name: labels for name, _, labels, _ in METRICS}
        self._families: dict[str, Metric] = {row[0]: _family(*row) for row in METRICS}

    def add(self, name: str, value: float | None, *labels: object) -> None:
        """One sample; None adds nothing."""
        if value is None:
            return
        assert len(labels) == len(self._labels[name]), name
        family = self._families[name]
        assert isinstance(family, (CounterMetricFamily, GaugeMetricFamily, InfoMetricFamily))
        texts = [clean.field(str(label))[:LONGEST_LABEL] for label in labels]
        # One series twice costs a collector all of them, and names of others may look alike when they are cut. Two
        # infos of one run cost each query its join.
        key = (name, tuple(texts[:1] if isinstance(family, InfoMetricFamily) else texts))
        if key in self._seen or self._left <= 0:
            return
        self._left -= 1
        self._seen.add(key)
        if isinstance(family, InfoMetricFamily):
            known = {label: text for label, text in zip(self._labels[name], texts, strict=True) if text}
            family.add_sample(name, known, 1)
        else:
            family.add_metric(texts, float(value))

    @contextmanager
    def of_user(self, user: str) -> Iterator[None]:
        """Samples of one user, as many as he may have in all."""
        others, self._left = self._left, self._users.get(user, MOST_OF_USER)
        yield
        self._users[user], self._left = self._left, others

    def all(self) -> list[Metric]:
        """Those that have samples."""
        return [family for family in self._families.values() if family.samples]


class JobCollector(Collector):
    """Looks at the jobs when it is asked, and not more often than LEAST_BETWEEN_S."""

    def __init__(
        self,
        look: Callable[[], NodeView],
        totals: Callable[[], Mapping[Path, JobCounts]],
        named: bool = False,
        daemon: Callable[[], Daemon | None] = lambda: None,
    ) -> None:
        """Export what these return; `named`: of runs that the user has named, as in `families`."""
        self._look, self._totals, self._named, self._daemon = look, totals, named, daemon
        self._lock = threading.Lock()
        self._looked_s = float("-inf")
        self._families: list[Metric] = []

    def collect(self) -> Iterable[Metric]:
        """All metrics."""
        with self._lock:
            if time.monotonic() - self._looked_s >= LEAST_BETWEEN_S:
                view = self._look()
                self._families = families(view, self._totals(), self._named, self._daemon())
                self._looked_s = time.monotonic()
            return self._families

    def describe(self) -> Iterable[Metric]:
        """Nothing: registering must not look."""
        return []


class _AllHosts:
    """Contains every host."""

    def __contains__(self, host: object) -> bool:
        return True


def families(
    view: NodeView, totals: Mapping[Path, JobCounts], named: bool = False, daemon: Daemon | None = None
) -> list[Metric]:
    """Metrics of a look; `totals` are the jobs' counts by folder, `daemon` what powerccld answered.

    Ranks and GPUs of other machines are left out: their own exporters have them. Only a run that the user has named
    and that has nothing on this machine is exported as a whole. Such a run was copied here or is watched from outside.
    """
    metrics = _Families()
    metrics.add("powerccl_jobs", sum(not job.ended for job in view.jobs))
    metrics.add("powerccl_exporter_info", 1, __version__)
    metrics.add("powerccl_exporter_look_seconds", view.look_ms / 1e3)
    metrics.add("powerccl_exporter_problems", len(view.problems) + sum(len(job.problems) for job in view.jobs))
    metrics.add("powerccl_exporter_unreadable_processes", view.unreadable_processes)
    for job in view.jobs:
        run = run_label(job.folder, job.run_id)
        outside = named and not job.hosts_here and not job.pids
        hosts: Container[str] = _AllHosts() if outside else job.hosts_here
        with metrics.of_user(job.user):
            _job(metrics, run, job, hosts)
            counted = totals.get(Path(job.folder))
            if counted is not None:
                _counts(metrics, run, counted, hosts)
    if daemon is not None:
        _leases(metrics, *daemon)
    return metrics.all()


def _leases(metrics: _Families, devices: list[Device], totals: Totals) -> None:
    """What powerccld reports of its devices; the clock of another user's lease only to administrators."""
    for device in devices:
        metrics.add("powerccl_lease_held", device.held, device.device)
        known = device.details_known
        metrics.add("powerccl_lease_clock_max_hertz", device.max_mhz * 1e6 if known else None, device.device)
        metrics.add("powerccl_lease_restore_pending", device.pending, device.device)
    for name, field in _OF_DAEMON.items():
        metrics.add(f"powerccl_lease_{name}", getattr(totals, field))
    metrics.add("powerccl_lease_driver_seconds", totals.driver_us / 1e6)
    for how, field in _ENDS.items():
        metrics.add("powerccl_lease_ends", getattr(totals, field), how)


def _job(metrics: _Families, run: str, job: LiveJob, hosts: Container[str]) -> None:
    emulated = emulated_label(job.emulated)
    known = [job.labels.get(name, "") for name in LABELS]
    metrics.add("powerccl_job_info", 1, run, job.run, job.user, job.policy, job.clocks, emulated, *known)
    metrics.add("powerccl_job_running", 0 if job.ended else 1, run)
    metrics.add("powerccl_job_start_time_seconds", job.started_unix_s, run)
    metrics.add("powerccl_job_elapsed_seconds", job.elapsed_s, run)
    metrics.add("powerccl_job_restarts", job.restarts, run)
    metrics.add("powerccl_job_exit_code", job.exit_code if job.ended else None, run)
    if job.ranks_expected:
        metrics.add("powerccl_job_ranks_found", job.ranks_found, run)
        metrics.add("powerccl_job_ranks_expected", job.ranks_expected, run)
    if job.budget and job.budget.allowed_pct is not None:
        metrics.add("powerccl_job_slowdown_allowed_ratio", job.budget.allowed_pct / 100, run)
    for gpu in (each for each in job.gpus if each.host in hosts):
        labels = (run, gpu.host, gpu.index, gpu.gpu)
        metrics.add("powerccl_gpu_power_watts", gpu.power_w, *labels)
        joules = gpu.joules if gpu.joules is not None else gpu.joules_at_least
        metrics.add("powerccl_gpu_energy_joules", joules, *labels)
        metrics.add("powerccl_gpu_unsampled_seconds", gpu.missing_s, *labels)
        metrics.add("powerccl_gpu_sample_age_seconds", gpu.age_s, *labels)
        metrics.add("powerccl_gpu_sm_clock_hertz", None if gpu.clock_mhz is None else gpu.clock_mhz * 1e6, *labels)
        metrics.add("powerccl_gpu_temperature_celsius", gpu.temperature_c, *labels)
        used = gpu.utilization_pct
        metrics.add("powerccl_gpu_utilization_ratio", None if used is None else used / 100, *labels)
        metrics.add("powerccl_gpu_clock_leased", 1 if gpu.lease else 0, *labels)
    for host, cpu_w in job.host_cpu_w.items():
        if host in hosts:
            metrics.add("powerccl_cpu_power_watts", cpu_w, run, host)
    seen: set[tuple[str, int]] = set()
    for rank in (each for each in job.ranks if each.host in hosts):
        of = (rank.host, rank.rank)
        if of in seen:  # a second NCCL process of the same rank
            continue
        seen.add(of)
        share = None if rank.share_pct is None else rank.share_pct / 100
        metrics.add("powerccl_communication_ratio", share, run, *of)
        metrics.add("powerccl_pending_collectives", rank.pending, run, *of)
        metrics.add("powerccl_last_collective_age_seconds", rank.last_s, run, *of)
        metrics.add("powerccl_trace_unread_records", rank.behind, run, *of)


def _counts(metrics: _Families, run: str, counts: JobCounts, hosts: Container[str]) -> None:
    for rank in (each for each in counts.ranks if each.host in hosts):
        of = (run, rank.host, rank.rank)
        for kind in range(KINDS):
            if not any(total[kind] for total in rank.kinds):
                continue
            pattern = PATTERNS[kind] if kind < len(PATTERNS) else UNKNOWN
            for name, total in zip(_BY_PATTERN, rank.kinds, strict=True):
                metrics.add(name, total[kind], *of, pattern)
        if rank.kinds:
            metrics.add("powerccl_trace_dropped_records", rank.dropped, *of)
        for result, count in sorted(rank.clocks.items()):
            metrics.add("powerccl_clock_requests", count, *of, result)
        for name, value in zip(_OF_MPI, rank.mpi, strict=False):
            metrics.add(f"powerccl_mpi_{name}", value, *of)
        metrics.add("powerccl_mpi_threads", rank.mpi_threads or None, *of)
    for host, functions in sorted(counts.functions.items()):
        for function, (times, time_s) in sorted(functions.items()) if host in hosts else ():
            metrics.add("powerccl_mpi_function_calls", times, run, host, function)
            metrics.add("powerccl_mpi_function_seconds", time_s, run, host, function)


_BY_PATTERN = (
    "powerccl_collectives",
    "powerccl_captured_collectives",
    "powerccl_collective_bytes",
    "powerccl_timed_collectives",
    "powerccl_collective_seconds",
)
# Metrics of powerccld after the fields of its answer; ends by the words that its log uses.
_OF_DAEMON = {
    "sessions": "sessions",
    "grants": "granted",
    "refusals": "refused",
    "clock_changes": "changes",
    "clock_restores": "restores",
    "clock_superseded": "superseded",
    "clock_clamped": "clamped",
    "driver_failures": "driver_failures",
    "restore_failures": "restore_failures",
    "requests": "requests",
    "foreign_messages": "foreign",
    "bad_messages": "bad",
    "replayed_messages": "replayed",
    "turned_away": "turned_away",
    "delays": "delays",
}
_ENDS = {"released": "released", "gone": "gone", "silent": "missed", "revoked": "revoked", "stopping": "stopping"}
_OF_MPI = ("calls", "call_seconds", "wait_seconds", "sleep_seconds", "cpu_seconds")


def as_text(collector: JobCollector) -> bytes:
    """All metrics in Prometheus' text format."""
    return generate_latest(registry(collector))


def registry(collector: JobCollector) -> CollectorRegistry:
    """A registry of our metrics alone: nothing of this Python process."""
    collectors = CollectorRegistry(auto_describe=False)
    collectors.register(collector)
    return collectors
