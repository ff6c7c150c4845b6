# SPDX-License-Identifier: Apache-2.0
"""A run as a Perfetto trace (ui.perfetto.dev opens it): a process per rank with tracks of its calls and kernels.

Counters of a GPU are in the processes of its ranks. Hosts have a process of their own, with the power of processors.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import polars as pl

from powerccl import clean
from powerccl.analysis.report import Report
from powerccl.files import written_whole
from powerccl.quantities import byte_size, seconds
from powerccl.traces import tables
from powerccl.traces.cpu import CPU_DOMAIN
from powerccl.traces.mpi_tables import mpi_calls
from powerccl.traces.run_info import model_label

if TYPE_CHECKING:
    from perfetto.trace_builder.proto_builder import StreamingTraceProtoBuilder

    from powerccl.traces.cpu import CpuLog

MOST_EVENTS = 250_000  # slices and counter values; the browser and this writer take many more badly
SEQUENCE = 7
# Kernels that follow each other may overlap by as much, since clocks of host and GPU are matched. Half puts some on two
# tracks; double cuts a tenth from a kernel of 0.4 ms.
SLIGHT_NS = 20_000


def write_perfetto(made: Report, path: Path) -> str:
    """Write the trace; returns a sentence on what was left out or is not there, empty: nothing.

    Raises:
        OSError: the file cannot be written.
    """
    from perfetto.trace_builder.proto_builder import StreamingTraceProtoBuilder

    mpi = mpi_calls(made.run)
    window, note = _window(made, mpi)
    with written_whole(path) as file:
        writer = _Writer(made, mpi, StreamingTraceProtoBuilder(file), window)
        writer.write()
    return note or ("" if writer.events else "the trace holds nothing: the run has no timed calls and no samples")


def _window(made: Report, mpi: pl.DataFrame) -> tuple[tuple[int, int], str]:
    """The middle of the run, as long as its events are not too many."""
    kernels = made.kernels
    events = len(kernels) + len(made.calls) + len(mpi) + sum(2 * len(log.samples) for log in made.run.power)
    events += sum(len(log.samples) for log in made.run.cpu)
    begin, end = 0, 1 << 62
    if made.run.window:
        begin, end = made.run.window
    if events <= MOST_EVENTS:
        return (begin, end), ""
    times = next((rows["start_ns"] for rows in (kernels, made.calls) if len(rows)), mpi["start_ns"])
    if not len(times):
        return (begin, end), ""
    first, last = int(times.to_numpy().min()), int(times.to_numpy().max())
    keep = MOST_EVENTS / events
    middle, half = (first + last) // 2, int((last - first) * keep / 2)
    note = (
        f"the trace holds the middle {seconds(2 * half / 1e9)}: {events:,} events are too many (--window takes others)"
    )
    return (middle - half, middle + half), note


class _Writer:
    """Tracks are numbered as they come up."""

    def __init__(
        self, made: Report, mpi: pl.DataFrame, builder: StreamingTraceProtoBuilder, window: tuple[int, int]
    ) -> None:
        from perfetto.protos.perfetto.trace.perfetto_trace_pb2 import TrackEvent

        self.made, self.mpi = made, mpi
        self.builder = builder
        self.window = window
        self.tracks = self.events = 0
        self.begin, self.end = TrackEvent.TYPE_SLICE_BEGIN, TrackEvent.TYPE_SLICE_END
        self.counter = TrackEvent.TYPE_COUNTER

    def write(self) -> None:
        modelled = model_label(self.made.findings.summary.emulated)
        label = f" ({modelled})" if modelled else ""
        made = self.made
        asked_of = tables.clocks(made.run).filter(pl.col("begin_ns") > 0)
        of_ranks = [(table[:0], tables.by_rank(table)) for table in (made.calls, made.kernels, made.waits, asked_of)]
        processes: dict[tuple[str, int], int] = {}
        for trace in made.run.ranks:
            calls, kernels, waits, clocks = (known.get(trace.rank, none) for none, known in of_ranks)
            process = self._process(f"rank {trace.number}{label} {trace.host}", trace.pid or trace.rank + 1)
            processes[trace.host, trace.pid] = process
            self._rows(process, "calls on the host", calls, "start_ns", "stop_ns")
            for (comm,), rows in kernels.group_by(["comm"], maintain_order=True):
                self._rows(process, f"NCCL kernels, communicator {comm}", rows, "start_ns", "stop_ns")
            for (stream,), rows in waits.group_by(["stream"], maintain_order=True):
                spans = rows.with_columns(name=pl.lit("waiting for communication"))
                self._rows(process, f"stream {int(str(stream)):#x} waits", spans, "stall_ns", "resume_ns")
            asked = clocks.with_columns(
                name=pl.when(pl.col("max_mhz") > 0).then(pl.format("set {} MHz", "max_mhz")).otherwise(pl.lit("reset"))
            )
            self._rows(process, "clock requests", asked, "begin_ns", "end_ns")
            self._counters(process, trace.gpu)
        for index, trace in enumerate(made.run.mpi):
            process = processes.get((trace.host, trace.pid), 0)
            process = process or self._process(f"rank {trace.number} {trace.host}", trace.pid or trace.rank + 1)
            own = self.mpi.filter(pl.col("trace") == index)
            for (thread,), rows in own.group_by(["thread"], maintain_order=True):
                self._rows(process, f"long MPI calls, thread {thread}", rows, "start_ns", "stop_ns")
        for log in made.run.cpu:
            self._processors(log)

    def _process(self, name: str, pid: int) -> int:
        packet, track = self._track()
        packet.track_descriptor.process.pid = pid
        packet.track_descriptor.process.process_name = clean.field(name)
        self.builder.write_packet(packet)
        return track

    def _track(self) -> tuple[Any, int]:
        self.tracks += 1
        packet = self.builder.create_packet()
        packet.track_descriptor.uuid = self.tracks
        return packet, self.tracks

    def _rows(self, process: int, name: str, rows: pl.DataFrame, begin: str, end: str) -> None:
        """Slices, on as many tracks as overlap: slices of one track nest or follow each other."""
        rows = rows.filter((pl.col(begin) <= self.window[1]) & (pl.col(end) >= self.window[0])).sort(begin)
        lanes = pl.Series("lane", _lanes(rows[begin].to_list(), rows[end].to_list()), dtype=pl.Int64)
        for (lane,), own in rows.with_columns(lanes).group_by(["lane"], maintain_order=True):
            packet, track = self._track()
            packet.track_descriptor.parent_uuid = process
            packet.track_descriptor.name = f"{name}, lane {int(str(lane)) + 1}" if lane else name
            self.builder.write_packet(packet)
            start = own[begin].to_numpy()
            # What runs slightly into the next one ends there.
            stop = np.minimum(own[end].to_numpy(), np.append(start[1:], np.iinfo(np.int64).max))
            for at, until, words in zip(start.tolist(), stop.tolist(), _words(own), strict=True):
                self._event(self.begin, track, at, name=words)
                self._event(self.end, track, max(until, at))

    def _processors(self, log: CpuLog) -> None:
        """Power of each RAPL domain, from one reading of its counter to the next."""
        counted = log.samples.filter((pl.col("domain") != CPU_DOMAIN) & (pl.col("energy_uj") >= 0))
        if not len(counted):
            return
        process = self._process(f"processors {log.host}", 1)
        for (domain,), rows in counted.group_by(["domain"], maintain_order=True):
            track = self._counter(process, f"{domain} power, W")
            time, energy = rows["time_ns"].to_numpy(), rows["energy_uj"].to_numpy()
            watts = np.diff(energy) / np.maximum(np.diff(time), 1) * 1e3
            for time_ns, value in zip(time[:-1].tolist(), watts.tolist(), strict=True):
                if self.window[0] <= time_ns <= self.window[1]:
                    self._event(self.counter, track, time_ns, double_counter_value=value)

    def _counter(self, process: int, name: str) -> int:
        packet, track = self._track()
        packet.track_descriptor.parent_uuid = process
        packet.track_descriptor.name = clean.field(name)
        packet.track_descriptor.counter.SetInParent()
        self.builder.write_packet(packet)
        return track

    def _event(self, kind: int, track: int, time_ns: int, **more: object) -> None:
        self.events += 1
        packet = self.builder.create_packet()
        packet.timestamp = time_ns
        packet.trusted_packet_sequence_id = SEQUENCE
        event = packet.track_event
        event.type, event.track_uuid = kind, track
        for field, value in more.items():
            setattr(event, field, value)
        self.builder.write_packet(packet)

    def _counters(self, process: int, gpu: str) -> None:
        for name, column, divisor in (("power, W", "power_mw", 1e3), ("SM clock, MHz", "sm_clock_mhz", 1.0)):
            track = self._counter(process, name)
            for log in self.made.run.power:
                samples = log.of_gpu(gpu)
                if samples is None:
                    continue
                chosen = pl.col("time_ns").is_between(*self.window) & (pl.col(column) >= 0)
                for time_ns, value in samples.filter(chosen).select("time_ns", column).iter_rows():
                    self._event(self.counter, track, time_ns, double_counter_value=value / divisor)


def _lanes(start: list[int], stop: list[int]) -> list[int]:
    """The track of each slice, by their start: the first one that is free."""
    free_ns: list[int] = []
    lanes: list[int] = []
    for at, until in zip(start, stop, strict=True):
        lane = next((lane for lane, end in enumerate(free_ns) if end <= at + SLIGHT_NS), len(free_ns))
        free_ns[lane : lane + 1] = [until]
        lanes.append(lane)
    return lanes


def _words(rows: pl.DataFrame) -> Iterator[str]:
    """What each slice is called: its pattern or function, and its size."""
    if "name" in rows.columns:
        yield from rows["name"].to_list()
        return
    known: dict[tuple[str, int], str] = {}
    what = "function" if "function" in rows.columns else "pattern"
    for pattern, size in rows.select(what, "bytes").iter_rows():
        key = (pattern, size)
        if key not in known:
            name = pattern if what == "function" else pattern.replace("_", "-")
            known[key] = f"{name} {byte_size(size)}" if size or what == "pattern" else name
        yield known[key]
