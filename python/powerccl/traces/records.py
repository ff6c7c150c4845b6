# SPDX-License-Identifier: Apache-2.0
"""The trace format of native/abi/trace.h as numpy structured types. Little endian; no padding beyond what is named."""

from __future__ import annotations

from typing import Any

import numpy as np

MAGIC = b"PWRCCLTR"
VERSION = 1
HEADER_BYTES = 4096
RECORD_BYTES = 64

COMM, CALL, KERNEL, CLOCK, CALLBACK, NOTE = 1, 2, 3, 4, 5, 6
MPI_CALL, MPI_TOTAL, PROCESS = 7, 8, 9
WAIT, BUDGET, PAUSE, TAG = 10, 11, 12, 13
KINDS = {
    COMM: "comm",
    CALL: "call",
    KERNEL: "kernel",
    CLOCK: "clock",
    CALLBACK: "callback",
    NOTE: "note",
    MPI_CALL: "mpi_call",
    MPI_TOTAL: "mpi_total",
    PROCESS: "process",
    WAIT: "wait",
    BUDGET: "budget",
    PAUSE: "pause",
    TAG: "tag",
}

FLAG_CAPTURED = 0x01
FLAG_GROUPED = 0x02
FLAG_MANAGED = 0x04
FLAG_DRY = 0x08
FLAG_ENDED = 0x10
FLAG_COLL_EVENT = 0x20
FLAG_KERNEL_ASKED = 0x40
FLAG_COPY_ENGINE = 0x80
FLAG_SYMMETRIC = 0x100
FLAG_HOST_TIMES = 0x200

HEADER_FLAG_DRY = 0x1
HEADER_FLAG_EMULATED = 0x2
HEADER_FLAG_SIMULATED = 0x4  # beside the one before

ALGORITHMS = (
    *("", "tree", "ring", "collnet direct", "collnet chain", "nvls", "nvls tree", "pat"),
    *("copy engine", "symmetric"),
)
PROTOCOLS = ("", "ll", "ll128", "simple")

HEADER = np.dtype(
    [
        ("magic", "S8"),
        ("version", "<u4"),
        ("header_bytes", "<u4"),
        ("record_bytes", "<u4"),
        ("flags", "<u4"),
        ("rank", "<i4"),
        ("nranks", "<i4"),
        ("local_rank", "<i4"),
        ("pid", "<u4"),
        ("start_ns", "<u8"),
        ("start_realtime_ns", "<u8"),
        ("committed", "<u8"),
        ("dropped", "<u8"),
        ("limit_records", "<u8"),
        ("host", "S64"),
        ("gpu_uuid", "S48"),
        ("gpu_pci", "S20"),
        ("policy", "S16"),
        ("clock_client", "S16"),
        ("library", "S32"),
        ("run_id", "V16"),
        ("boot_id", "V16"),
        ("starts", "<u4"),
        ("reserved", "<u4", 2),
        ("own_ns", "<u8", 3),
    ]
)


def id_text(value: Any) -> str:
    """An id of a header in hex; empty where the header names none."""
    return bytes(value).hex() if any(bytes(value)) else ""


_COMMON = [("kind", "<u2"), ("flags", "<u2"), ("comm", "<u4")]
RECORD = np.dtype([*_COMMON, ("body", "V56")])

LAYOUTS: dict[int, np.dtype[np.void]] = {
    COMM: np.dtype(
        [
            *_COMMON,
            ("time_ns", "<u8"),
            ("comm_id", "<u8"),
            ("nranks", "<i4"),
            ("rank", "<i4"),
            ("nnodes", "<i4"),
            ("device", "<i4"),
            ("name", "S24"),
        ]
    ),
    CALL: np.dtype(
        [
            *_COMMON,
            ("call_id", "<u8"),
            ("start_ns", "<u8"),
            ("stop_ns", "<u8"),
            ("bytes", "<u8"),
            ("stream", "<u8"),
            ("group", "<u4"),
            ("root_or_peer", "<i4"),
            ("pattern", "u1"),
            ("datatype", "u1"),
            ("sends", "u1"),
            ("receives", "u1"),
            ("received_kib", "<u4"),
        ]
    ),
    KERNEL: np.dtype(
        [
            *_COMMON,
            ("call_id", "<u8"),
            ("gpu_start_ns", "<u8"),
            ("gpu_stop_ns", "<u8"),
            ("seen_start_ns", "<u8"),
            ("seen_stop_ns", "<u8"),
            ("bytes", "<u8"),
            ("pattern", "u1"),
            ("algorithm", "u1"),
            ("protocol", "u1"),
            ("channels", "u1"),
            ("warps", "u1"),
            ("peers", "u1", 3),
        ]
    ),
    CLOCK: np.dtype(
        [
            *_COMMON,
            ("call_id", "<u8"),
            ("asked_ns", "<u8"),
            ("begin_ns", "<u8"),
            ("end_ns", "<u8"),
            ("min_mhz", "<u4"),
            ("max_mhz", "<u4"),
            ("result", "<i4"),
            ("read_back_mhz", "<u4"),
            ("coalesced", "<u4"),
            ("reserved", "<u4"),
        ]
    ),
    CALLBACK: np.dtype([*_COMMON, ("call_id", "<u8"), ("time_ns", "<u8"), ("reserved", "V40")]),
    NOTE: np.dtype([*_COMMON, ("time_ns", "<u8"), ("text", "S48")]),
    MPI_CALL: np.dtype(
        [
            *_COMMON,
            ("start_ns", "<u8"),
            ("stop_ns", "<u8"),
            ("wait_ns", "<u8"),
            ("sleep_ns", "<u8"),
            ("bytes", "<u8"),
            ("function", "<u2"),
            ("thread", "<u2"),
            ("peer", "<i4"),
            ("sequence", "<u8"),
        ]
    ),
    MPI_TOTAL: np.dtype(
        [
            *_COMMON,
            ("time_ns", "<u8"),
            ("calls", "<u8"),
            ("bytes", "<u8"),
            ("call_ns", "<u8"),
            ("wait_ns", "<u8"),
            ("sleep_ns", "<u8"),
            ("function", "<u2"),
            ("thread", "<u2"),
            ("size_class", "u1"),
            ("reserved", "V3"),
        ]
    ),
    PROCESS: np.dtype(
        [
            *_COMMON,
            ("time_ns", "<u8"),
            ("user_ns", "<u8"),
            ("system_ns", "<u8"),
            ("sleeps", "<u8"),
            ("sleep_ns", "<u8"),
            ("asked_ns", "<u8"),
            ("threads", "<u4"),
            ("thread_level", "<u4"),
        ]
    ),
    WAIT: np.dtype(
        [
            *_COMMON,
            ("call_id", "<u8"),
            ("stall_ns", "<u8"),
            ("resume_ns", "<u8"),
            ("stream", "<u8"),
            ("burst", "<u4"),
            ("reserved", "V20"),
        ]
    ),
    PAUSE: np.dtype(
        [
            *_COMMON,
            ("time_ns", "<u8"),
            ("marked", "<u8"),
            ("unmarked", "<u8"),
            ("burst", "<u4"),
            ("reserved", "V28"),
        ]
    ),
    TAG: np.dtype(
        [
            *_COMMON,
            ("call_id", "<u8"),
            ("tag", "<u8"),
            ("reserved", "V40"),
        ]
    ),
    BUDGET: np.dtype(
        [
            *_COMMON,
            ("time_ns", "<u8"),
            ("calls", "<u4"),
            ("iterations", "<u4"),
            ("managed", "<u4"),
            ("reserved1", "V4"),
            ("length_us", "<u4"),
            ("reserved2", "V8"),
            ("slowdown_ppm", "<i4"),
            ("low_ppm", "<i4"),
            ("high_ppm", "<i4"),
            ("clock_mhz", "<u4"),
            ("judged", "u1"),
            ("reserved4", "V3"),
        ]
    ),
}

# Host times of each kind. A kernel's time on the GPU is of another clock.
HOST_TIMES = {
    COMM: ("time_ns",),
    CALL: ("start_ns", "stop_ns"),
    KERNEL: ("seen_start_ns", "seen_stop_ns"),
    CLOCK: ("asked_ns", "begin_ns", "end_ns"),
    CALLBACK: ("time_ns",),
    NOTE: ("time_ns",),
    MPI_CALL: ("start_ns", "stop_ns"),
    MPI_TOTAL: ("time_ns",),
    PROCESS: ("time_ns",),
    WAIT: ("stall_ns", "resume_ns"),
    BUDGET: ("time_ns",),
    PAUSE: ("time_ns",),
    TAG: (),
}

for _kind, _layout in LAYOUTS.items():
    assert _layout.itemsize == RECORD_BYTES, KINDS[_kind]
