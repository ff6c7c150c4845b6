# SPDX-License-Identifier: Apache-2.0
"""Run folders of any size, from known numbers: what reports are timed on.

python -m support.big_run FOLDER --collectives 1000000 --ranks 8
python -m support.big_run FOLDER --records 100000000        # 6.4 GB of trace, sparse on the disk
python -m support.big_run FOLDER --collectives 20000 --seconds 86400   # a day: 3.4 GB of samples, in a minute
python -m support.big_run FOLDER --collectives 100 --ranks 1000 --hosts 125 --seconds 10

Iterations of ten collectives of one millisecond each with half a millisecond of computation between; one rank in turn
comes late. Samples of power every 20 ms. A run may pause between iterations, to be as long as a real one.
"""

from __future__ import annotations

import argparse
import itertools
import json
from pathlib import Path

import numpy as np
import numpy.typing as npt
import polars as pl

from powerccl.traces import records

SLOT_NS = 1_000_000  # from one collective's call to the next
AHEAD_NS = 1_000_000_000_000  # of the GPUs' clock
BYTES = np.array([1, 1, 64, 64, 64, 16, 16, 4, 4, 1], dtype=np.uint64) << np.uint64(20)
PATTERNS = np.array([0, 0, 0, 3, 3, 4, 4, 0, 0, 1], dtype=np.uint8)  # powerccl_pattern
LENGTHS_NS = np.array([100, 100, 600, 500, 500, 300, 300, 200, 200, 80], dtype=np.int64) * 1000
COMMUNICATING_W, COMPUTING_W = 45.0, 70.0
PIECE = 1 << 17  # collectives written at a time
TICKS = 1 << 15  # of samples written at a time

Ints = npt.NDArray[np.int64]


def uuid(rank: int) -> str:
    """What rank's GPU is called."""
    return f"GPU-{rank:08d}-0000-0000-0000-000000000000"


def host(rank: int, ranks: int, hosts: int) -> str:
    """The name of rank's host: ranks in a row share one."""
    return f"node{rank // _ranks_per_host(ranks, hosts) + 1}"


def _ranks_per_host(ranks: int, hosts: int) -> int:
    return -(-ranks // hosts)


def _header(rank: int, ranks: int, hosts: int, committed: int, begin_ns: int, start: int) -> npt.NDArray[np.void]:
    header = np.zeros(1, records.HEADER)
    for name, value in {
        "magic": records.MAGIC,
        "version": records.VERSION,
        "header_bytes": records.HEADER_BYTES,
        "record_bytes": records.RECORD_BYTES,
        "flags": records.HEADER_FLAG_EMULATED,
        "rank": rank,
        "nranks": ranks,
        "local_rank": rank % _ranks_per_host(ranks, hosts),
        "pid": 4000 + start * ranks + rank,
        "starts": start,
        "start_ns": begin_ns,
        "start_realtime_ns": 1_750_000_000_000_000_000 + begin_ns,
        "committed": committed,
        "host": host(rank, ranks, hosts).encode(),
        "gpu_uuid": uuid(rank).encode(),
        "policy": b"observe",
        "clock_client": b"none",
        "library": b"nccl 2.28.9 synthetic",
    }.items():
        header[name] = value
    return header


def times(number: Ints, rank: int, ranks: int, pause_ns: int = 0) -> tuple[Ints, Ints]:
    """When collectives of these numbers start and stop on a rank, ns: all stop together, one in turn starts late."""
    slot = (number + 2) * SLOT_NS + number // 10 * pause_ns
    late = np.where(number // 10 % ranks == rank, 60_000, (rank * 977 + number * 131) % 9_000)
    return slot + late, slot + 70_000 + LENGTHS_NS[number % 10]


def _piece(first: int, count: int, rank: int, ranks: int, pause_ns: int, begin: int) -> npt.NDArray[np.void]:
    """CALL and KERNEL records of collectives first to first + count, in turn; calls count from collective `begin`."""
    number = np.arange(first, first + count)
    start, stop = times(number, rank, ranks, pause_ns)
    rows = np.zeros(2 * count, records.RECORD)
    calls, kernels = np.zeros(count, records.LAYOUTS[records.CALL]), np.zeros(count, records.LAYOUTS[records.KERNEL])
    for part, kind in ((calls, records.CALL), (kernels, records.KERNEL)):
        part["kind"], part["call_id"] = kind, number + 1 - begin
        part["bytes"], part["pattern"] = BYTES[number % 10], PATTERNS[number % 10]
    calls["flags"] = records.FLAG_KERNEL_ASKED
    calls["start_ns"] = (number + 2) * SLOT_NS + number // 10 * pause_ns - 200_000
    calls["stop_ns"] = calls["start_ns"] + np.uint64(5000)
    kernels["gpu_start_ns"], kernels["gpu_stop_ns"] = start + AHEAD_NS, stop + AHEAD_NS
    delay = 5_000 + number * 7919 % 40_000
    kernels["seen_start_ns"], kernels["seen_stop_ns"] = start + delay, stop + delay
    kernels["algorithm"], kernels["protocol"], kernels["channels"] = 2, 3, 8
    rows[0::2], rows[1::2] = calls.view(records.RECORD), kernels.view(records.RECORD)
    return rows


def _comm(rank: int, ranks: int, hosts: int, begin_ns: int) -> npt.NDArray[np.void]:
    row = np.zeros(1, records.LAYOUTS[records.COMM])
    row["kind"], row["time_ns"], row["comm_id"] = records.COMM, begin_ns, 0xABCD + begin_ns
    row["nranks"], row["rank"], row["nnodes"], row["name"] = ranks, rank, hosts, b"world"
    row["device"] = rank % _ranks_per_host(ranks, hosts)
    return row


def write_traces(
    folder: Path,
    collectives: int,
    ranks: int,
    hole_records: int = 0,
    pause_ns: int = 0,
    hosts: int = 1,
    starts: int = 1,
) -> None:
    """Traces of all ranks; `hole_records` of nothing (kind 0) lie in the middle of each, sparse on the disk.

    An elastic launcher that starts all ranks several times leaves a trace of each rank and start.
    """
    each = collectives // starts // 10 * 10
    for rank, start in itertools.product(range(ranks), range(starts)):
        begin, count = start * each, each if start + 1 < starts else collectives - start * each
        begin_ns = begin // 10 * (10 * SLOT_NS + pause_ns) + SLOT_NS
        name = f"rank-{rank}.trace" if starts == 1 else f"rank-{rank}-{start + 1}.trace"
        with (folder / name).open("wb") as file:
            number = start + 1 if starts > 1 else 0
            header = _header(rank, ranks, hosts, 1 + 2 * count + hole_records, begin_ns, number)
            file.write(header.tobytes().ljust(records.HEADER_BYTES, b"\0"))
            file.write(_comm(rank, ranks, hosts, begin_ns).tobytes())
            middle = (count // PIECE + 1) // 2 * PIECE
            for first in range(0, count, PIECE):
                if first == middle:
                    file.seek(hole_records * records.RECORD_BYTES, 1)
                rows = _piece(begin + first, min(PIECE, count - first), rank, ranks, pause_ns, begin)
                file.write(rows.tobytes())


def write_samples(
    folder: Path, end_ns: int, ranks: int, interval_ns: int = 20_000_000, pause_ns: int = 0, hosts: int = 1
) -> None:
    """A file a host, whose counters are the integral of the two powers over iterations of ten slots and a pause."""
    by_host = _ranks_per_host(ranks, hosts)
    for first in range(0, ranks, by_host):
        here = range(first, min(first + by_host, ranks))
        _write_host(folder / f"power-{host(first, ranks, hosts)}.csv", here, end_ns, interval_ns, pause_ns)


def _write_host(path: Path, ranks: range, end_ns: int, interval_ns: int, pause_ns: int) -> None:
    busy = float(LENGTHS_NS.sum() + 10 * 65_000) / (10 * SLOT_NS + pause_ns)
    watts = busy * COMMUNICATING_W + (1 - busy) * COMPUTING_W
    gpus, name = len(ranks), path.stem.removeprefix("power-")
    lines = [f"# host: {name}", "# emulated: 1", f"# interval_ns: {interval_ns}", f"# gpu_count: {gpus}"]
    lines += [f"# gpu{gpu}_name: none, synthetic" for gpu in range(gpus)]
    lines.append(
        "time_ns,gpu,uuid,power_mw,energy_uj,sm_clock_mhz,mem_clock_mhz,temperature_c,throttle_reasons,utilization_pct"
    )
    names = pl.Series([uuid(rank) for rank in ranks])
    with path.open("wb") as file:
        file.write(("\n".join(lines) + "\n").encode())
        for first in range(0, end_ns, TICKS * interval_ns):
            at = np.arange(first, min(first + TICKS * interval_ns, end_ns), interval_ns)
            gpu = np.tile(np.arange(gpus), len(at))
            at = np.repeat(at, gpus)
            pl.DataFrame(
                {
                    "time_ns": at,
                    "gpu": gpu,
                    "uuid": names.gather(gpu),
                    "power_mw": int(watts * 1000) + at // interval_ns % 7 * 300,
                    "energy_uj": (watts * at / 1000).astype(np.int64),
                }
            ).with_columns(pl.lit("1590,5000,40,0x0,100").alias("rest")).write_csv(
                file, include_header=False, quote_style="never"
            )


def write_run(
    folder: Path,
    collectives: int,
    ranks: int = 8,
    records_in_all: int = 0,
    seconds: float = 0.0,
    hosts: int = 1,
    starts: int = 1,
) -> Path:
    """A whole run folder; with `records_in_all` its traces are that long, mostly of nothing.

    With `seconds` the run is that long: it pauses after each iteration. All ranks are started `starts` times.
    """
    folder.mkdir(parents=True, exist_ok=True)
    hole = max(0, records_in_all // ranks - 2 * collectives - 1)
    end_ns = (collectives + 4) * SLOT_NS
    pause_ns = max(0, int(seconds * 1e9) - end_ns) // max(collectives // 10, 1)
    end_ns += collectives // 10 * pause_ns
    write_traces(folder, collectives, ranks, hole, pause_ns, hosts, starts)
    write_samples(folder, end_ns, ranks, pause_ns=pause_ns, hosts=hosts)
    info = {
        "command": ["python", "train.py"],
        "name": folder.name,
        "host": host(0, ranks, hosts),
        "start_ns": 1,
        "end_ns": end_ns,
        "exit_code": 0,
        "policy": "observe",
        "emulated": "synthetic",
    }
    (folder / "run.json").write_text(json.dumps(info))
    return folder


def main() -> None:
    """Write one run folder."""
    parser = argparse.ArgumentParser(description="Write a large synthetic run folder.")
    parser.add_argument("folder", type=Path)
    parser.add_argument("--collectives", type=int, default=1_000_000, help="in which all ranks take part")
    parser.add_argument("--ranks", type=int, default=8)
    parser.add_argument("--hosts", type=int, default=1, help="that the ranks are on")
    parser.add_argument("--records", type=int, default=0, help="make the traces this long in all, sparse")
    parser.add_argument("--seconds", type=float, default=0, help="make the run this long: it pauses between iterations")
    parser.add_argument("--starts", type=int, default=1, help="of all ranks, as by an elastic launcher")
    made = parser.parse_args()
    write_run(made.folder, made.collectives, made.ranks, made.records, made.seconds, made.hosts, made.starts)


if __name__ == "__main__":
    main()
