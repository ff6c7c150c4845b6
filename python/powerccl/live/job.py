# SPDX-License-Identifier: Apache-2.0
"""What a job does at present: findings over the last seconds, from what each look at its run folder brings."""

from __future__ import annotations

import time
from collections import Counter, deque
from itertools import pairwise
from pathlib import Path

from powerccl import patterns
from powerccl.analysis.summary import THROTTLE_REASONS
from powerccl.launch.launchers import boot_id
from powerccl.live.ended import Span, Used, used_by
from powerccl.live.gpus import GpuState, whole
from powerccl.live.mpi import MpiState
from powerccl.live.ranks import Kinds, RankState, count_kinds, replayed, share_of
from powerccl.live.run_folder import LiveRun, LiveSamples, LiveTrace, Look
from powerccl.live.snapshot import LiveBudget, LiveGpu, LiveJob, LivePattern, LiveRank
from powerccl.live.totals import Totals
from powerccl.quantities import plural, seconds
from powerccl.tariff import parse_time
from powerccl.traces.header import TraceHeader
from powerccl.traces.identity import Names, count_expected, find_ranks, life_of_header, missing_ranks, number_ranks
from powerccl.traces.plausible import MOST_CPU_WATTS
from powerccl.traces.run_files import hosts_of
from powerccl.traces.visible import visible_in

MOST_ROUNDS = 16  # of reading in one look
MOST_GPUS = 4096  # of one run folder, and packages of processors


class Watcher:
    """Follows one run folder."""

    def __init__(self, folder: Path, window_s: float = 5.0, totals: bool = False, again: bool = True) -> None:
        """Follow `folder`. With `totals` all that was recorded before is read too, and counted; else its end only.

        `again`: whether samples of a run that has ended are read once more, as a report reads them. It takes up to
        half a GiB, and gives the report's energy; without it, energy is what was counted while the run was followed.
        """
        self.run = LiveRun(folder, tail=not totals)
        self.totals = Totals() if totals else None
        self.window_s = window_s
        self._ranks: dict[Path, RankState] = {}
        self._about: dict[Path, LiveTrace] = {}
        self._gpus: dict[tuple[str, str], GpuState] = {}
        self._logs: dict[str, LiveSamples] = {}
        self._domains: dict[tuple[str, str], deque[tuple[int, int]]] = {}
        self._mpi = MpiState()
        self._names = Names()
        self._started_unix_s: float | None = None
        self._boot_id = boot_id().replace("-", "")
        self._used: dict[tuple[str, str], Used] = {}  # of a run that has ended
        self._used_of: tuple[object, ...] = ()
        self._again = again

    def close(self) -> None:
        """Let go of all files."""
        self.run.close()

    def look(self, now_ns: int, host: str, until_s: float = float("inf")) -> LiveJob:
        """Findings at `now_ns`, CLOCK_MONOTONIC of `host`.

        What was recorded on other hosts, and by jobs that have ended, is taken to be as recent as its last record.
        Reading stops at `until_s` of the monotonic clock, and goes on with the next look.
        """
        for _ in range(MOST_ROUNDS):  # small parts, so that memory stays small
            self._take(self.run.look())
            if not self.run.waiting or time.monotonic() > until_s:
                break
        return self._findings(now_ns, host, self._names.of_machine(host, self._boot_id))

    def _take(self, look: Look) -> None:
        for log, _ in [*look.power, *look.cpu]:
            log.about["host"] = self._names.host(log.host, log.boot_id)
        for trace, _ in [*look.traces, *look.mpi]:
            if (about := trace.about) is not None:
                about.host = self._names.host(about.host, about.boot_id)
        for trace, rows in look.traces:
            if trace.about is not None:
                self._about[trace.path] = trace
                self._ranks.setdefault(trace.path, RankState()).take(rows)
            if self.totals:
                self.totals.take(trace, rows)
        for trace, rows in look.mpi:
            self._mpi.take(trace, rows)
            if self.totals:
                self.totals.take_mpi(trace, rows)
        for log, samples in look.power:
            self._logs[log.host] = log
            rows_of: dict[tuple[str, str], list[dict[str, str]]] = {}
            for row in samples:
                gpu_name = self._names.sampled(log, whole(row, "gpu"), row.get("uuid", ""))
                rows_of.setdefault((log.host, gpu_name), []).append(row)
            for key, new in rows_of.items():
                if key in self._gpus or len(self._gpus) < MOST_GPUS:
                    gpu = self._gpus.get(key) or GpuState(log.about, whole(new[0], "gpu"))
                    self._gpus.setdefault(key, gpu).take(new)
        for trace, _ in look.traces:
            if trace.about is not None:
                trace.about.gpu_name = self._names.used(trace.about)
        for log, samples in look.cpu:
            for row in samples:
                self._take_cpu(log, row)

    def _take_cpu(self, log: LiveSamples, row: dict[str, str]) -> None:
        domain, energy_uj, time_ns = row.get("domain", ""), whole(row, "energy_uj"), whole(row, "time_ns")
        package = domain.startswith("package") and domain.count("/") == 0 and energy_uj >= 0 and time_ns >= 0
        if package and ((log.host, domain) in self._domains or len(self._domains) < MOST_GPUS):
            self._domains.setdefault((log.host, domain), deque(maxlen=4096)).append((time_ns, energy_uj))

    def _findings(self, now_ns: int, host: str, here: set[str]) -> LiveJob:
        info = self.run.info
        ended = bool(info and info.end_ns)
        nows: dict[str, int] = {}
        for path, rank in self._ranks.items():
            about = self._about[path].about
            if about and (ended or about.host not in here):
                nows[about.host] = max(nows.get(about.host, 0), rank.newest_ns)
        for (of_host, _), gpu in self._gpus.items():
            if gpu.rows and (ended or of_host not in here):
                nows[of_host] = max(nows.get(of_host, 0), gpu.rows[-1][0])
        for of_host, newest_ns in self._mpi.newest_ns().items():
            if ended or of_host not in here:
                nows[of_host] = max(nows.get(of_host, 0), newest_ns)
        job = LiveJob(
            run=(info.name if info else "") or self.run.folder.name,
            folder=str(self.run.folder),
            run_id=info.run_id if info else "",
            command=info.command if info else [],
            host=info.host if info else "",
            policy=info.policy if info else "",
            clocks=info.clocks if info else "",
            emulated=info.modelled_by if info else "",
            labels=dict(info.labels) if info else {},
            started_at=info.started_at if info else "",
            ended=ended,
            exit_code=info.exit_code if info else None,
            window_s=self.window_s,
            hosts_here=sorted(here),
            problems=self.run.problems,
        )
        if info and info.start_ns and (ended or info.host == host):
            job.elapsed_s = ((info.end_ns or now_ns) - info.start_ns) / 1e9
        if self._started_unix_s is None:  # counters begin then: it stays, whatever is read later
            self._started_unix_s = self._started()
        job.started_unix_s = self._started_unix_s
        kinds: Kinds = {}
        restarted = self._restarted()
        lives = [life_of_header(self._header(path), rank.newest_ns) for path, rank in self._ranks.items()]
        names = number_ranks(lives, of_processes=True)
        for (path, rank), (_, _, name) in zip(self._ranks.items(), names, strict=True):
            if path in restarted:
                continue
            live_rank = self._rank(self._about[path], rank, nows.get(self._header(path).host, now_ns), kinds)
            live_rank.name = name
            job.ranks.append(live_rank)
        job.ranks.sort(key=lambda each: (each.rank, each.host))
        abouts = {path: trace.about for path, trace in self._about.items() if trace.about}
        again = Counter(about.rank for path, about in abouts.items() if path in restarted)
        job.restarts = max([0, *(about.starts - 1 for about in abouts.values()), *again.values()])
        known = find_ranks(lives or self._mpi.lives())
        job.ranks_found, job.ranks_expected = len(known), count_expected(known)
        if lost := missing_ranks(job.ranks_found, job.ranks_expected):
            job.problems = [*job.problems, lost]
        self._sum_up(job, kinds)
        self._sampled(job, nows, now_ns)
        job.mpi = self._mpi.findings(nows, now_ns, round(self.window_s * 1e9))
        return job

    def _started(self) -> float | None:
        """When the run began, Unix time: by run.json, else by the first trace that was begun; None: not known."""
        started_s = parse_time(self.run.info.started_at) if self.run.info else None
        if started_s is not None:
            return started_s
        begun = [about.start_realtime_ns for about in self.run.abouts() if about.start_realtime_ns]
        return min(begun) / 1e9 if begun else None

    def _header(self, path: Path) -> TraceHeader:
        about = self._about[path].about
        assert about is not None  # else it is not followed
        return about

    def _restarted(self) -> set[Path]:
        """Traces of ranks that were started again on the same GPU after the trace's last record."""
        lives: dict[tuple[int, str, str], list[tuple[int, int, Path]]] = {}
        for path, trace in self._about.items():
            if trace.about:
                key = (trace.about.rank, trace.about.host, trace.about.gpu)
                lives.setdefault(key, []).append((trace.about.starts, trace.about.start_ns, path))
        restarted = set()
        for life in lives.values():
            life.sort()
            for (starts, start_ns, path), (next_starts, next_ns, _) in pairwise(life):
                starts_known = starts and next_starts
                if next_starts > starts if starts_known else next_ns > max(self._ranks[path].newest_ns, start_ns):
                    restarted.add(path)
        return restarted

    def _rank(self, trace: LiveTrace, rank: RankState, now_ns: int, kinds: Kinds) -> LiveRank:
        about = trace.about
        assert about is not None
        from_ns = max(now_ns - round(self.window_s * 1e9), about.start_ns)
        rank.trim(from_ns)
        length_s = max((now_ns - from_ns) / 1e9, 1e-3)
        share, estimated = share_of(rank, from_ns, now_ns)
        count_kinds(rank, length_s, kinds)
        failed = rank.clocks["result"]
        live_rank = LiveRank(
            rank=about.rank,
            host=about.host,
            pid=about.pid,
            gpu=about.gpu,
            calls=0 if rank.last is None else int(rank.last["call_id"]),
            per_s=(len(rank.calls) + int(replayed(rank.kernels).sum())) / length_s,
            share_pct=share,
            estimated=estimated,
            pending=len(rank.pending),
            clock_requests=len(rank.clocks),
            clock_failed=int(((failed != 0) & (failed != -100)).sum()),
            behind=trace.behind,
            dropped=trace.dropped,
        )
        # What is in a CUDA graph is called once and runs at each replay.
        latest, latest_ns = rank.last, 0 if rank.last is None else int(rank.last["start_ns"])
        if rank.last_kernel is not None and replayed(rank.last_kernel) and rank.last_kernel["seen_stop_ns"] > latest_ns:
            latest, latest_ns = rank.last_kernel, int(rank.last_kernel["seen_stop_ns"])
        if latest is not None:
            live_rank.last = patterns.pattern_name(int(latest["pattern"]))
            live_rank.last_bytes = int(latest["bytes"])
            live_rank.last_s = max((now_ns - latest_ns) / 1e9, 0.0)
        if rank.clock is not None:
            live_rank.clock_mhz = int(rank.clock["max_mhz"])
        return live_rank

    def _sum_up(self, job: LiveJob, kinds: Kinds) -> None:
        shares = [rank.share_pct for rank in job.ranks if rank.share_pct is not None]
        job.share_pct = sum(shares) / len(shares) if shares else None
        job.estimated = any(rank.estimated for rank in job.ranks)
        for (pattern, size), (calls, timed, total_us, per_s, moved, moved_ns) in kinds.items():
            job.patterns.append(
                LivePattern(
                    pattern=pattern,
                    size_class_bytes=size,
                    calls=round(calls),
                    timed=round(timed),
                    per_s=per_s / max(len(job.ranks), 1),
                    mean_us=total_us / timed if timed else None,
                    busbw_gbs=moved / moved_ns if moved_ns else None,
                )
            )
        job.patterns.sort(key=lambda row: -(row.mean_us or 0.0) * row.calls)
        job.notes = list(dict.fromkeys(text for rank in self._ranks.values() for text in rank.notes))
        if self.run.elsewhere:
            job.notes.append(f"not known here until the job ends: ranks and GPUs of {hosts_of(self.run.elsewhere)}")
        job.emulated = job.emulated or (
            "yes" if any(each.about and each.about.emulated for each in self._about.values()) else ""
        )
        info = self.run.info
        budgets = [rank.budget for rank in self._ranks.values() if rank.budget is not None]
        if budgets or (info and info.slowdown_pct is not None):
            job.budget = LiveBudget(allowed_pct=info.slowdown_pct if info else None)
        if budgets and job.budget:
            worst = max(budgets, key=lambda row: (int(row["judged"]), int(row["slowdown_ppm"])))
            job.budget.iterations, job.budget.managed = int(worst["iterations"]), int(worst["managed"])
            if int(worst["judged"]):
                job.budget.slowdown_pct = int(worst["slowdown_ppm"]) / 1e4
                job.budget.low_pct, job.budget.high_pct = int(worst["low_ppm"]) / 1e4, int(worst["high_ppm"]) / 1e4

    def _sampled(self, job: LiveJob, nows: dict[str, int], now_ns: int) -> None:
        used: dict[str, list[int]] = {}
        for rank in job.ranks:
            used.setdefault(rank.gpu, []).append(rank.rank)
        visible = {host: self._visible(log) for host, log in self._logs.items()} if not used else {}
        at_end = self._energy_at_end() if job.ended and self._again and not self.run.waiting else {}
        for (host, uuid), gpu in self._gpus.items():
            if uuid not in used if used else whole(gpu.latest, "gpu") not in visible[host]:
                continue
            now = nows.get(host, now_ns)
            gpu.trim(now - round(self.window_s * 1e9))
            row, about = gpu.latest, self._logs[host].about
            index = whole(row, "gpu")
            known = row if gpu.is_present(now) else {}
            if gpu.no_numbers:
                text = f"{host} GPU {index}: {plural(gpu.no_numbers, 'value')} left out: not a whole number"
                job.problems = [*job.problems, text]
            joules, missing_s = at_end.get((host, uuid)) or gpu.used_until(self._start_ns(host), now)
            at_least = missing_s > 0
            job.gpus.append(
                LiveGpu(
                    gpu=uuid,
                    index=index,
                    host=host,
                    name=about.get(f"gpu{index}_name", ""),
                    power_w=gpu.watts(now),
                    clock_mhz=_known(known, "sm_clock_mhz"),
                    temperature_c=_known(known, "temperature_c"),
                    utilization_pct=_known(known, "utilization_pct"),
                    joules=None if at_least else joules,
                    joules_at_least=joules if at_least else None,
                    missing_s=missing_s,
                    throttle_reasons=_throttles(known.get("throttle_reasons", "")),
                    age_s=max((now - whole(row, "time_ns")) / 1e9, 0.0),
                    ranks=used.get(uuid, []),
                )
            )
        job.gpus.sort(key=lambda each: (each.host, each.index))
        add_up(job)
        packages: dict[str, list[float | None]] = {}
        for (of_host, _), readings in self._domains.items():
            packages.setdefault(of_host, []).append(self._cpu_watts(readings, nows.get(of_host, now_ns)))
        job.host_cpu_w = {
            host: sum(each or 0.0 for each in watts) for host, watts in packages.items() if None not in watts
        }
        job.cpu_w = sum(job.host_cpu_w.values()) if packages.keys() == job.host_cpu_w.keys() != set() else None

    def _visible(self, log: LiveSamples) -> frozenset[int]:
        """The GPUs that a job without ranks could see on a host."""
        info = self.run.info
        known = info.environment if info and not info.launcher and info.host == log.host else {}
        return visible_in(log.about, known).indices

    def _start_ns(self, host: str) -> int | None:
        """From when on energy should be known on a host."""
        info = self.run.info
        if info and info.host == host and info.start_ns:
            return info.start_ns
        return min((begin for begin, _ in self._recorded().get(host, [])), default=None)

    def _recorded(self) -> dict[str, list[Span]]:
        """From when until when each rank recorded, by host."""
        spans: dict[str, list[Span]] = {}
        for path, rank in self._ranks.items():
            about = self._header(path)
            if about.start_ns:
                spans.setdefault(about.host, []).append((about.start_ns, max(about.start_ns, rank.newest_ns)))
        return spans

    def _energy_at_end(self) -> dict[tuple[str, str], Used]:
        """Energy of a run that has ended, by host and UUID; read again where more samples have come."""
        newest = tuple(gpu.rows[-1][0] if gpu.rows else 0 for gpu in self._gpus.values())
        info = self.run.info
        if info and self._used_of != (newest, info.end_ns):
            spans = {host: (min(each)[0], max(end for _, end in each)) for host, each in self._recorded().items()}
            self._used, self._used_of = used_by(self.run.folder, info, spans), (newest, info.end_ns)
        return self._used

    def _cpu_watts(self, readings: deque[tuple[int, int]], now_ns: int) -> float | None:
        """Mean power of a package over the window; None while its counter has wrapped in it, and where it is old."""
        if len(readings) < 2 or readings[-1][0] < now_ns - self.window_s * 1e9:
            return None
        last_ns, last_uj = readings[-1]
        first_ns, first_uj = next(each for each in readings if each[0] >= last_ns - self.window_s * 1e9)
        if last_ns <= first_ns or last_uj <= first_uj:
            return None
        watts = (last_uj - first_uj) / (last_ns - first_ns) * 1e3
        return watts if watts <= MOST_CPU_WATTS else None


def add_up(job: LiveJob) -> None:
    """Power and energy of the job by its GPUs; "at least", where one of them does not tell."""
    seen = {each.gpu for each in job.gpus}
    all_seen = all(rank.gpu in seen for rank in job.ranks) and job.ranks_found >= job.ranks_expected
    powers = [each.power_w for each in job.gpus if each.power_w is not None]
    total = sum(powers) if powers else None
    whole_power = all_seen and len(powers) == len(job.gpus)
    job.power_w, job.power_at_least_w = (total, None) if whole_power else (None, total)
    energies = [each.joules for each in job.gpus if each.joules is not None]
    whole_energy = all_seen and len(energies) == len(job.gpus)
    energies += [each.joules_at_least for each in job.gpus if each.joules_at_least is not None]
    total = sum(energies) if energies else None
    job.joules, job.joules_at_least = (total, None) if whole_energy else (None, total)
    unseen = [each for each in job.ranks if each.gpu not in seen]
    job.missing = [f"rank {each.name or each.rank}: no samples of its GPU" for each in unseen]
    for gpu in job.gpus:
        if gpu.missing_s:
            job.missing.append(f"{gpu.host} GPU {gpu.index}: no valid energy samples for {seconds(gpu.missing_s)}")
    if lost := missing_ranks(job.ranks_found, job.ranks_expected):
        job.missing.append(lost)


def _known(row: dict[str, str], name: str) -> int | None:
    value = whole(row, name)
    return value if value >= 0 else None


def _throttles(text: str) -> list[str]:
    digits = text.strip().lower().removeprefix("0x")
    seen = int(digits, 16) if digits and set(digits) <= set("0123456789abcdef") else 0
    return [words for bit, words in THROTTLE_REASONS.items() if seen & bit]
