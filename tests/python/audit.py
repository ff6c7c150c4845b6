# SPDX-License-Identifier: Apache-2.0
"""Do the outputs of a run agree with its books (accountant.py), with each other, and with their own sums?

Text, HTML, JSON, CSV, the metrics of `export` and Perfetto are read as a user's programs would read them. Nothing of
powerccl is imported. Each fault is a line `kind: what`.
"""

from __future__ import annotations

from collections import Counter, defaultdict

from accountant import PAUSE, WAIT, Books, GpuBook, both, length_s, union
from audit_pages import pages, tables
from perfetto_tracks import Track
from read_outputs import Outputs, dict_of, shown, total

NEAR = 0.002  # totals agree within
DAMAGED_NEAR = 0.01  # of a damaged run: what is shown as whole, and lacks less, is no fault
BY_POWER = 0.05  # of the energy of a run whose power samples are damaged, and that has no counter
SECONDS = 5e-6  # clocks of host and GPU are matched to a few microseconds
PARTS = (  # of a rank's or an iteration's time
    ("span_s", ("communication_s", "stalled_s", "rest_s")),
    ("communication_s", ("waiting_s", "transfer_s")),
    ("communication_s", ("exposed_s", "overlapped_s")),
    ("rest_s", ("computation_s", "idle_s")),
)
BELOW = (("exposed_waiting_s", "exposed_s"), ("exposed_waiting_s", "waiting_s"), ("exposed_s", "communication_s"))


class Audit:
    """One run's outputs against its books. `faults` has what is wrong, `checked` how many figures by output."""

    def __init__(self, books: Books, outputs: Outputs, damaged_from: Outputs | None = None) -> None:
        self.books, self.outputs = books, outputs
        self.report, self.summary = outputs.report, outputs.report["summary"]
        self.faults: list[str] = []
        self.checked: Counter[str] = Counter()
        if damaged_from is None:
            self.totals()
            self.metrics()
            self.perfetto()
        else:
            self.below(damaged_from)
        self.sums()
        pages(self)
        tables(self)

    def fault(self, kind: str, what: str) -> None:
        self.faults.append(f"{kind}: {what}")

    def same(self, kind: str, what: str, value: float | None, right: float | None, slack: float = 0.0) -> None:
        """Two figures of one thing, within NEAR; what one of them does not know is no fault here."""
        if value is None or right is None:
            return
        self.checked[kind] += 1
        if abs(value - right) > max(NEAR * abs(right), slack, 1e-9):
            self.fault(kind, f"{what} is {value:.9g}, and {right:.9g}")

    def printed(self, kind: str, what: str, text: str | None, right: float | None) -> None:
        """A printed figure of a known one, within its rounding."""
        figure = shown(text) if text else None
        if figure is None or right is None:
            return
        self.checked[kind] += 1
        if figure.below and right <= figure.value:
            return
        if abs(figure.value - right) > figure.slack + 1e-6 * abs(right):
            self.fault(kind, f"{what} is printed as {text!r}, and is {right:.9g}")

    def totals(self) -> None:
        """Findings against the books."""
        books, summary, kind = self.books, self.summary, "books"
        self.same(kind, "wall time", summary["wall_s"], books.wall_s)
        energy = summary["energy"]
        gpus = {(row["host"], row["gpu"]): row for row in summary["gpus"]}
        for (host, uuid), gpu in books.gpus.items():
            row = gpus.get((host, uuid))
            if row is None:
                self.fault("missing", f"GPU {uuid} of {host}")
                continue
            if gpu.whole and row["joules"] is None:
                self.fault("missing", f"joules of GPU {uuid}, which are {gpu.joules:.6g}")
            if not gpu.whole and row["joules"] is not None:
                self.fault("whole", f"joules of GPU {uuid}: {row['joules']:.6g}, though samples are missing")
            self.same(kind, f"joules of GPU {uuid}", row["joules"], gpu.joules, slack_of(gpu))
            if self.timed:
                self.same(kind, f"GPU {uuid} communicating", row["communication_s"], gpu.communication_s, SECONDS)
        slack = sum(slack_of(book) for book in books.gpus.values())
        self.same(kind, "joules", energy["joules"], books.joules, slack)
        talk = summary["communication"]
        self.same(kind, "calls", talk["calls"], books.total("calls"))
        self.same(kind, "captured calls", talk["captured_calls"], books.total("captured"))
        ranks = max(summary["ranks"], 1)
        rows = {(row["pattern"], row["size_class_bytes"]): row for row in summary["patterns"]}
        counts = {(row["pattern"], row["size_class_bytes"]): row for row in self.report["counts"]}
        for key, book in books.classes.items():
            row, count = rows.get(key), counts.get(key)
            if row is None or count is None:
                self.fault("missing", f"{key} among patterns or counts")
                continue
            size = book.kernel_bytes if book.captured or not book.calls else book.bytes
            for name, value, right in (
                ("calls", row["calls"], book.calls),
                ("captured calls", row["captured_calls"], book.captured),
                ("bytes", row["total_bytes"], size),
                ("kernels", row["timed"], book.kernels),
                ("time", row["time_s"] * ranks, book.time_s),
                ("median time", row["median_us"], book.median_us),
                ("bus bandwidth", row["busbw_gbs"], book.busbw_gbs),
                ("counts' kernels", count["kernels"], book.kernels),
                ("counts' time", count["time_all_ranks_s"], book.time_s),
            ):
                self.same(kind, f"{name} of {key}", value, right)
        self.shares()
        if books.mpi:
            self.mpi()

    @property
    def timed(self) -> bool:
        """Whether nearly all calls have a kernel's times: only then do kernels tell a rank's working time."""
        talk = self.summary["communication"]
        return bool(talk["calls"]) and talk["timed_calls"] >= 0.99 * talk["calls"]

    def shares(self) -> None:
        """Each rank's communication inside its working time, and the shares of all ranks."""
        spans_s = talked_s = 0.0
        for row in self.report["ranks"]:
            traces = self.books.ranks.get((row["host"], row["rank"]), [])
            kernels = [span for trace in traces for span in trace.kernel_spans()]
            if len(traces) != 1 or not kernels or not self.timed or row["by_profiler"]:
                return
            end = max(stop for _, stop in kernels)
            begin = end - round(row["span_s"] * 1e9)
            own = length_s(union(kernels), begin)
            waits = [values for trace in traces for _, _, values in trace.records[WAIT]]
            if len({(values[3], values[4]) for values in waits}) == 1 and not any(t.records[PAUSE] for t in traces):
                idle = union((values[1], values[2]) for values in waits)
                exposed = length_s(both(union(kernels), idle), begin)
                # The report shifts marks to where kernels end; no shift makes more of it than the waits are long.
                slack = NEAR * own + max(length_s(idle) - exposed, 0.0)
                self.same("books", f"rank {row['rank']} exposed", row["exposed_s"], exposed, slack)
            spans_s, talked_s = spans_s + row["span_s"], talked_s + own
        if spans_s:
            pct = self.summary["shares"]["communicating_pct"]
            self.same("books", "share communicating", pct, 100 * talked_s / spans_s)

    def mpi(self) -> None:
        """MPI's sums."""
        found, books = self.summary["mpi"], self.books
        if found is None:
            self.fault("missing", "MPI")
            return
        rows = {(row["function"], row["size_class_bytes"]): row for row in found["rows"]}
        ranks = {(row["host"], row["rank"]): row for row in found["by_rank"]}
        pairs = [("MPI", found, books.mpi)]
        pairs += [(f"{key}", rows.get(key, {}), right) for key, right in books.mpi_functions.items()]
        pairs += [(f"MPI rank {key}", ranks.get(key, {}), right) for key, right in books.mpi_ranks.items()]
        for what, row, right in pairs:
            for name, value in right.items():
                if name not in row:
                    self.fault("missing", f"{name} of {what}")
                else:
                    self.same("books", f"{name} of {what}", row[name], value)
        self.same("books", "processor time", found["cpu_s"], books.cpu_s)

    def metrics(self) -> None:
        """Metrics of `export`, against the books."""
        books = self.books
        export = self.outputs.export
        for labels, value in export.get("powerccl_gpu_energy_joules_total", []):
            book = books.gpus.get((labels["host"], labels["uuid"]))
            if book and book.whole:
                self.same("export", f"energy of GPU {labels['uuid']}", value, book.joules, slack_of(book))
        counted = books.total("calls")
        expected: tuple[tuple[str, float | None], ...] = (
            ("powerccl_collectives_total", counted or None),
            ("powerccl_captured_collectives_total", books.total("captured") if counted else None),
            ("powerccl_timed_collectives_total", books.total("kernels") if counted else None),
            ("powerccl_collective_seconds_total", books.total("time_s") if counted else None),
            ("powerccl_mpi_calls_total", books.mpi.get("calls")),
            ("powerccl_mpi_call_seconds_total", books.mpi.get("time_s")),
            ("powerccl_mpi_wait_seconds_total", books.mpi.get("wait_s")),
            ("powerccl_mpi_function_calls_total", books.mpi.get("calls")),
            ("powerccl_mpi_function_seconds_total", books.mpi.get("time_s")),
        )
        for name, known in expected:
            if known and name not in export:
                self.fault("missing", f"{name} in export")
            self.same("export", name, total(export, name), known)
        if books.mpi:
            tables = self.outputs.tables
            calls = [float(row["calls"]) for name in ("mpi-ranks", "mpi-calls") for row in tables.get(name, [])]
            self.same("csv", "MPI calls of ranks and of functions", sum(calls), 2 * books.mpi["calls"])
            if not self.outputs.tracks:
                self.fault("missing", "MPI in --perfetto")

    def perfetto(self) -> None:
        """Slices of calls and kernels, and power counters."""
        if "the trace holds the middle" in self.outputs.text:
            return
        found: dict[str, list[Track]] = defaultdict(list)
        for track in self.outputs.tracks:
            found[track.name.partition(",")[0]].append(track)
        books = self.books
        slices = [piece for track in found["NCCL kernels"] for piece in track.slices]
        self.same("perfetto", "kernels", len(slices), books.total("kernels"))
        # A slice ends where the next of its track begins.
        length = sum(stop - start for start, stop in slices) / 1e9
        self.same("perfetto", "time in kernels", length, books.total("time_s"), len(slices) * 20e-6)
        calls = sum(len(track.slices) for track in found["calls on the host"])
        self.same("perfetto", "calls", calls, books.total("calls") + books.total("captured"))
        for track in found["power"]:
            values = track.values
            fits = [
                book
                for book in books.gpus.values()
                if book.samples == len(values) and abs(sum(values) - book.sampled_watts) <= 1e-6 * book.sampled_watts
            ]
            self.checked["perfetto"] += 1
            if values and not fits and not any("left out" in text for text in self.outputs.said):
                self.fault("perfetto", f"{len(values)} values of power of {sum(values):.6g} W in all are no GPU's")

    def sums(self) -> None:
        """Parts and wholes inside the report, and figures that it has twice."""
        summary, energy, kind = self.summary, self.summary["energy"], "parts"
        gpus = summary["gpus"]
        joules = [gpu["joules"] for gpu in gpus]
        if energy["joules"] is not None and None not in joules:
            self.same(kind, "GPUs' joules in all", sum(joules), energy["joules"])
        wall_s, watts = summary["wall_s"], energy["average_watts"]
        if wall_s and watts and energy["joules"] and len({gpu["host"] for gpu in gpus}) == 1:
            self.same(kind, "mean power x time x GPUs", watts * wall_s * len(gpus), energy["joules"])
        talk, split = summary["communication"], self.report["energy"]
        shares = [gpu["communication_joules"] for gpu in gpus]
        if talk["joules"] is not None and None not in shares:
            self.same(kind, "GPUs' communication joules in all", sum(shares), talk["joules"])
        self.same("twice", "communication's joules", split["joules_communication"], talk["joules"])
        kept = self.outputs.kept
        for name, of in (("joules", "energy"), ("joules", "communication"), ("time_s", "communication")):
            if kept is not None:
                self.same("twice", f"summary.json's {of} {name}", kept[of][name], summary[of][name])
        self.same("twice", "the run's joules", split["joules_total"], energy["joules"])
        parts = [split[f"joules_{name}"] for name in ("communication", "computation", "idle", "unexplained")]
        known = [part for part in parts if part is not None]
        whole = energy["joules"] or split["joules_total"]
        if known and whole:
            self.checked[kind] += 1
            if sum(known) > whole * (1 + NEAR):
                self.fault(kind, f"energy by what it went into is {sum(known):.6g} J of {whole:.6g}")
            elif len(known) == len(parts):
                self.same(kind, "energy by what it went into", sum(known), whole)
        if talk["joules"] is not None and whole and talk["joules"] > whole * (1 + NEAR):
            self.fault(kind, f"communication's {talk['joules']:.6g} J of {whole:.6g}")
        times = [gpu["communication_s"] for gpu in gpus]
        if talk["time_s"] is not None and times and None not in times:
            self.same(kind, "GPUs' communication time, mean", sum(times) / len(times), talk["time_s"], SECONDS)
        calls = sum(row["calls"] for row in summary["patterns"])
        self.same(kind, "calls of all patterns", calls, talk["calls"])
        rows = [(f"rank {row['rank']}", row) for row in self.report["ranks"]]
        for host in self.report["iterations"]:
            rows += [(f"iteration {row['first']} on {host['host']}", row) for row in host["rows"]]
        for what, row in rows:
            for whole_name, names in PARTS:
                values = [row[name] for name in names]
                if None not in values and row[whole_name] is not None:
                    self.same(kind, f"{what}: {' + '.join(names)}", sum(values), row[whole_name], SECONDS)
            for part, above in BELOW:
                if row[part] is not None and row[above] is not None and row[part] > row[above] + SECONDS:
                    self.fault(kind, f"{what}: {part} {row[part]:.6g} of {row[above]:.6g}")
        self.iterations()
        waits = [row["exposed_waiting_s"] for row in self.report["ranks"]]
        for row in self.report["peers"]["ranks"]:
            if waits and None not in waits and row.get("cost_s") and row["cost_s"] > sum(waits) + SECONDS:
                self.fault("straggler", f"rank {row['rank']} costs {row['cost_s']:.6g} s of {sum(waits):.6g} waited")
        kinds = {(row["pattern"], row["size_class_bytes"]): row for row in split["kinds"]}
        links = {(row["pattern"], row["size_class_bytes"]): row for row in self.report["link"]}
        for row in summary["patterns"]:
            key = (row["pattern"], row["size_class_bytes"])
            one, other = row["joules_per_operation"], kinds.get(key, {}).get("joules_per_operation")
            self.same("twice", f"joules of one {key}", one, other)
            if (one is None) != (other is None) and key in kinds:
                self.fault("twice", f"joules of one {key} are {one} among patterns, and {other} as energy")
            self.same("twice", f"bus bandwidth of {key}", row["busbw_gbs"], links.get(key, {}).get("busbw_gbs"))

    def iterations(self) -> None:
        """Means of iterations, without those of the start-up that the report itself sets apart."""
        shares = self.summary["shares"]
        begin_s = shares["startup_s"] or 0.0 if "iteration" in shares["startup_until"] else 0.0
        for host in self.report["iterations"]:
            rows = [row for row in host["rows"] if row["start_s"] >= begin_s - SECONDS]
            if len(host["rows"]) != host["found"] or not rows or len(self.report["iterations"]) > 1:
                continue
            what = f"of an iteration on {host['host']}"
            mean_s = sum(row["span_s"] for row in rows) / len(rows)
            self.same("parts", f"mean time {what}", host["mean_s"], mean_s)
            joules = [row["joules"] for row in rows if row["joules"] is not None]
            if joules and host["joules_of"] == len(joules):
                self.same("parts", f"mean joules {what}", host["joules"], sum(joules) / len(joules))
            elif joules and host["joules_of"] > len(rows):
                self.fault("parts", f"joules {what} are of {host['joules_of']}, {len(rows)} in the working time")

    def below(self, clean: Outputs) -> None:
        """Of a damaged run: no figure above the undamaged run's books, and none below them that is shown as whole."""
        books, summary = self.books, self.summary
        new = self.outputs.said - clean.said

        def amount(what: str, value: float | None, truth: float | None, told: bool, slack: float = 0.0) -> None:
            if value is None or truth is None:
                return
            self.checked["damaged"] += 1
            if value > truth * (1 + DAMAGED_NEAR) + slack:
                self.fault("above", f"{what} is {value:.6g}, and was {truth:.6g}")
            elif value < truth * (1 - DAMAGED_NEAR) - slack and not told:
                self.fault("whole", f"{what} is {value:.6g} without a word, and was {truth:.6g}")

        energy, talk = summary["energy"], summary["communication"]
        of_other_times = any("run.json" in text for text in new)  # the same power for another time is no missing part
        slack = sum(damaged_slack_of(book) for book in books.gpus.values())
        amount("joules", energy["joules"], books.joules, of_other_times, slack)
        amount("joules at least", energy["joules_at_least"], books.joules, True, slack)
        amount("calls", talk["calls"], books.total("calls"), bool(new))
        amount("bytes", sum(row["total_bytes"] for row in summary["patterns"]),
               sum(row["total_bytes"] for row in clean.report["summary"]["patterns"]), bool(new))  # fmt: skip
        amount(
            "time in kernels",
            sum(row["time_all_ranks_s"] for row in self.report["counts"]),
            books.total("time_s"),
            bool(new),
        )
        for gpu in summary["gpus"]:
            book = next((book for (_, uuid), book in books.gpus.items() if uuid == gpu["gpu"]), None)
            if book:
                amount(
                    f"joules of GPU {gpu['gpu']}", gpu["joules"], book.joules, of_other_times, damaged_slack_of(book)
                )
                amount("joules of a GPU at least", gpu["joules_at_least"], book.joules, True, damaged_slack_of(book))
                amount("a GPU's communication time", gpu["communication_s"], book.communication_s, bool(new))
        for labels, value in self.outputs.export.get("powerccl_gpu_energy_joules_total", []):
            book = next((book for (_, uuid), book in books.gpus.items() if uuid == labels["uuid"]), None)
            missing = dict_of(self.outputs.export, "powerccl_gpu_unsampled_seconds").get(labels["uuid"], 0.0)
            if book:
                told = missing > 0 or of_other_times or summary["exit_code"] is None  # of a running job up to now
                amount("joules of a GPU in export", value, book.joules, told, damaged_slack_of(book))
        shares, before = summary["shares"], clean.report["summary"]["shares"]
        for name in ("communicating_pct", "exposed_pct"):
            value, was = shares[name], before[name]
            if value is None or not was or abs(value - was) <= 0.03 * was + 0.5 or shares["at_least"]:
                continue
            if summary["ranks"] == clean.report["summary"]["ranks"] or not new:
                self.fault("share", f"{name} is {value:.3g} without 'at least', and was {was:.3g}")
        if books.mpi and summary["mpi"]:
            for name in ("calls", "time_s", "wait_s", "sleep_s"):
                amount(f"MPI's {name}", summary["mpi"][name], books.mpi[name], bool(new))


def slack_of(book: GpuBook) -> float:
    """What a GPU's joules may be off: NEAR, and what the dates of its counter leave open."""
    return NEAR * book.joules + book.uncertain_joules


def damaged_slack_of(book: GpuBook) -> float:
    """A counter that jumps or is lost does so within an update, and what that one gained is not known.

    Where power alone is sampled, values that are left out take those of their neighbours.
    """
    return slack_of(book) + (book.update_joules or BY_POWER * book.joules)
