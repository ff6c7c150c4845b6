# SPDX-License-Identifier: Apache-2.0
"""What a job's MPI ranks do at present, from the sums that they write every now and then."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import numpy.typing as npt

from powerccl.live.run_folder import LiveTrace, Records, select
from powerccl.live.snapshot import LiveMpi, LiveMpiFunction, LiveMpiRank
from powerccl.traces import records
from powerccl.traces.identity import Life, life_of_header, number_ranks
from powerccl.traces.mpi_functions import function_name

MOST_KEPT = 1 << 15
Sums = npt.NDArray[np.int64]


class _Process:
    """Sums of one process, as far as the window needs them."""

    def __init__(self, trace: LiveTrace) -> None:
        self.trace = trace
        self.rows = np.empty(0, records.LAYOUTS[records.MPI_TOTAL])
        self.newest_ns = 0

    def take(self, rows: Records) -> None:
        totals = select(rows, records.MPI_TOTAL)
        self.rows = np.concatenate([self.rows, totals])[-MOST_KEPT:]
        for kind, name in ((records.MPI_TOTAL, "time_ns"), (records.MPI_CALL, "stop_ns"), (records.PROCESS, "time_ns")):
            chosen = select(rows, kind)
            if len(chosen):
                self.newest_ns = max(self.newest_ns, int(chosen[name].max()))

    def between(self, from_ns: int) -> tuple[float, dict[int, Sums]] | None:
        """Seconds, and what each function came to in them: calls, call_ns, wait_ns, sleep_ns.

        From the last sums at or before `from_ns` (the first there are, if none) to the last. Forgets older ones.
        """
        if not len(self.rows):
            return None
        times = self.rows["time_ns"].astype(np.int64)
        before = self._keep(times <= from_ns)
        if len(before):
            start, begin_ns = before, int(before["time_ns"].max())
            self.rows = np.concatenate([before, self.rows[times > from_ns]])
        else:  # it began within the window: from nothing
            about = self.trace.about
            start, begin_ns = before, about.start_ns if about else int(times.min())
        end_ns = int(times.max())
        if end_ns <= begin_ns:
            return None
        sums: dict[int, Sums] = {}
        for rows, sign in ((self._keep(np.ones(len(self.rows), bool)), 1), (start, -1)):
            for row in rows:
                values = np.array([int(row[n]) for n in ("calls", "call_ns", "wait_ns", "sleep_ns")], np.int64)
                function = int(row["function"])
                sums[function] = sums.get(function, np.zeros(4, np.int64)) + sign * values
        return (end_ns - begin_ns) / 1e9, sums

    def threads(self) -> int:
        """How many threads have called MPI at a time."""
        return int(self.rows["thread"].max()) + 1 if len(self.rows) else 1

    def _keep(self, chosen: npt.NDArray[np.bool_]) -> npt.NDArray[np.void]:
        """The last of the chosen rows of each thread, function, communicator and size class."""
        rows = self.rows[chosen]
        latest = {
            key: index
            for index, key in enumerate(
                zip(*(rows[name].tolist() for name in ("thread", "function", "comm", "size_class")), strict=True)
            )
        }
        return rows[sorted(latest.values())]


class MpiState:
    """The MPI processes of a job."""

    def __init__(self) -> None:
        self._processes: dict[Path, _Process] = {}

    def take(self, trace: LiveTrace, rows: Records) -> None:
        """New records of one process."""
        if trace.about is not None:
            self._processes.setdefault(trace.path, _Process(trace)).take(rows)

    def lives(self) -> list[Life]:
        """The processes, in their order."""
        return [life_of_header(p.trace.about, p.newest_ns) for p in self._processes.values() if p.trace.about]

    def newest_ns(self) -> dict[str, int]:
        """The last record of each host."""
        newest: dict[str, int] = {}
        for process in self._processes.values():
            host = process.trace.about.host if process.trace.about else ""
            newest[host] = max(newest.get(host, 0), process.newest_ns)
        return newest

    def findings(self, nows: dict[str, int], now_ns: int, window_ns: int) -> LiveMpi | None:
        """None where no process called MPI."""
        if not self._processes:
            return None
        ranks, functions, sampled = [], dict[int, list[float]](), 0
        library = ""
        known = number_ranks(self.lives(), of_processes=True)
        for process, (_, _, name) in zip(self._processes.values(), known, strict=True):
            about = process.trace.about
            assert about is not None
            library = library or about.library
            now = nows.get(about.host, now_ns)
            rank = LiveMpiRank(rank=about.rank, name=name, host=about.host, pid=about.pid)
            if process.newest_ns:
                rank.last_s = max((now - process.newest_ns) / 1e9, 0.0)
            window = process.between(now - window_ns)
            if window:
                sampled += 1
                length_s, sums = window
                total = sum(sums.values(), np.zeros(4, np.int64))
                thread_s = length_s * process.threads()
                rank.calls_per_s = float(total[0]) / length_s
                rank.share_pct, rank.wait_pct, rank.sleep_pct = (
                    min(float(part) / thread_s / 1e7, 100.0) for part in total[1:]
                )
                for function, values in sums.items():
                    shares = functions.setdefault(function, [0.0, 0.0])
                    shares[0] += float(values[0]) / length_s
                    shares[1] += min(float(values[1]) / thread_s / 1e7, 100.0)
            ranks.append(rank)
        ranks.sort(key=lambda each: (each.rank, each.host))
        mpi = LiveMpi(library=library, ranks=ranks)
        if sampled:
            mpi.share_pct = sum(each.share_pct or 0.0 for each in ranks) / sampled
            mpi.wait_pct = sum(each.wait_pct or 0.0 for each in ranks) / sampled
            mpi.sleep_pct = sum(each.sleep_pct or 0.0 for each in ranks) / sampled
            mpi.functions = [
                LiveMpiFunction(
                    function=function_name(function), calls_per_s=calls / sampled, share_pct=share / sampled
                )
                for function, (calls, share) in functions.items()
                if calls > 0 or share > 0
            ]
            mpi.functions.sort(key=lambda each: -each.share_pct)
        return mpi
