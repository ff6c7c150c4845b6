# SPDX-License-Identifier: Apache-2.0
"""A trace's header: which rank wrote it, where and for which run."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from powerccl import clean
from powerccl.traces import records

MOST_HEADER_BYTES = 1 << 20


@dataclass(kw_only=True)
class TraceHeader:
    """What does not change while the rank runs; times in ns of the host's clocks."""

    rank: int
    nranks: int
    local_rank: int
    pid: int
    start_ns: int
    start_realtime_ns: int
    host: str
    gpu_uuid: str
    gpu_pci: str
    policy: str
    clock_client: str
    library: str
    dry: bool
    emulated: bool
    run_id: str = ""  # of the run it belongs to; empty: it does not say
    boot_id: str = ""  # of its host: whose clocks are the same; empty: it does not say
    simulated: bool = False  # in virtual time, by powerccl-sim
    starts: int = 0  # how many times an elastic launcher had started this rank; 0: it does not say
    gpu_name: str = ""  # of the GPU in the run, where its UUID is not that (identity.py)

    @property
    def gpu(self) -> str:
        """What to tell this rank's GPU by in a run: its UUID, else its PCI address, else the rank."""
        return self.gpu_name or self.gpu_uuid or self.gpu_pci or f"rank {self.rank}"


def header_fault(header: Any) -> str:
    """Why a trace with this header (a record of records.HEADER) cannot be read; empty: it can."""
    if bytes(header["magic"]) != records.MAGIC:
        return "not a PowerCCL trace"
    if int(header["version"]) != records.VERSION:
        return f"trace version {header['version']}; this powerccl reads {records.VERSION}"
    if int(header["record_bytes"]) != records.RECORD_BYTES:
        return f"header names records of {header['record_bytes']} bytes: damaged"
    if not records.HEADER.itemsize <= int(header["header_bytes"]) <= MOST_HEADER_BYTES:
        return f"header names {header['header_bytes']} bytes as its size: damaged"
    return ""


def parse_header(header: Any) -> TraceHeader:
    """A record of records.HEADER; its text comes from a job, and is cleaned."""

    def text(name: str) -> str:
        return clean.field(bytes(header[name]).split(b"\0", 1)[0].decode("utf-8", "replace"))

    return TraceHeader(
        rank=int(header["rank"]),
        nranks=int(header["nranks"]),
        local_rank=int(header["local_rank"]),
        pid=int(header["pid"]),
        start_ns=int(header["start_ns"]),
        start_realtime_ns=int(header["start_realtime_ns"]),
        host=text("host"),
        gpu_uuid=text("gpu_uuid"),
        gpu_pci=text("gpu_pci"),
        policy=text("policy"),
        clock_client=text("clock_client"),
        library=text("library"),
        dry=bool(int(header["flags"]) & records.HEADER_FLAG_DRY),
        emulated=bool(int(header["flags"]) & records.HEADER_FLAG_EMULATED),
        run_id=records.id_text(header["run_id"]),
        boot_id=records.id_text(header["boot_id"]),
        simulated=bool(int(header["flags"]) & records.HEADER_FLAG_SIMULATED),
        starts=int(header["starts"]),
    )
