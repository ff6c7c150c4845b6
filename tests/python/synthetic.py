# SPDX-License-Identifier: Apache-2.0
"""Run folders as the native side would write them, from known numbers.

Packed with `struct` from the field lists of native/abi/trace.h, not with the reader's own types: errors in those show.
"""

from __future__ import annotations

import json
import re
import struct
from collections.abc import Callable, Iterator
from pathlib import Path

PATTERNS = [
    *("all_reduce", "broadcast", "reduce", "all_gather", "reduce_scatter", "send_receive", "scatter", "gather"),
    "all_to_all",
]
# From the definition, so that the reader's own list is compared with it wherever a trace is read.
MPI_FUNCTIONS = re.findall(
    r"^POWERCCL_MPI(?:_C)?\((\w+),",
    (Path(__file__).parents[2] / "native/abi/mpi_functions.def").read_text(),
    re.MULTILINE,
)
GPU_AHEAD_NS = 1_000_000_000_000
MS = 1_000_000
HOST = "node1"


def uuid(gpu: int) -> str:
    return f"GPU-{gpu:08d}-0000-0000-0000-000000000000"


class TraceWriter:
    def __init__(self, rank: int = 0, nranks: int = 8, **header: object) -> None:
        self.header: dict[str, object] = {
            "version": 1,
            "flags": 0,
            "rank": rank,
            "nranks": nranks,
            "local_rank": rank,
            "pid": 4000 + rank,
            "start_ns": 0,
            "start_realtime_ns": 0,
            "dropped": 0,
            "limit_records": 1 << 20,
            "host": HOST,
            "gpu_uuid": uuid(rank),
            "gpu_pci": f"00000000:0{rank}:00.0",
            "policy": "observe",
            "clock_client": "none",
            "library": "nccl 2.28.9 profiler v5",
            "run_id": "",
            "boot_id": "",
            "starts": 0,
            **header,
        }
        self.rank = rank
        self.nranks = nranks
        self.records: list[bytes] = []

    def _add(self, kind: int, flags: int, comm: int, body: bytes) -> None:
        assert len(body) <= 56
        self.records.append(struct.pack("<HHI", kind, flags, comm) + body.ljust(56, b"\0"))

    def comm(
        self,
        time_ns: int,
        nranks: int | None = None,
        name: str = "world",
        comm: int = 0,
        flags: int = 0,
        comm_id: int = 0xABCD,
    ) -> None:
        self._add(
            1,
            flags,
            comm,
            struct.pack("<QQiiii24s", time_ns, comm_id, nranks or self.nranks, self.rank, 1, self.rank, name.encode()),
        )

    def call(
        self,
        call_id: int,
        start_ns: int,
        size: int,
        pattern: str = "all_reduce",
        flags: int = 0,
        group: int = 0,
        parts: tuple[int, int] = (0, 0),
        comm: int = 0,
    ) -> None:
        """`parts`: sends and receives of an exchange."""
        times, kind = (start_ns, start_ns + 5000), PATTERNS.index(pattern)
        body = struct.pack("<QQQQQIiBBBBI", call_id, *times, size, 7, group, -1, kind, 7, *parts, 0)
        self._add(2, flags, comm, body)

    def tag(self, call_id: int, tag: int) -> None:
        """The job's own tag of a call."""
        self._add(13, 0, 0, struct.pack("<QQ", call_id, tag))

    def kernel(
        self,
        call_id: int,
        start_ns: int,
        stop_ns: int,
        size: int,
        pattern: str = "all_reduce",
        delay_ns: int = 20_000,
        ahead_ns: int = GPU_AHEAD_NS,
        flags: int = 0,
        comm: int = 0,
        peers: tuple[int, int] = (-1, -1),
    ) -> None:
        """A kernel at host times start..stop, whose GPU clock is ahead by ahead_ns, seen delay_ns late.

        `peers`: the ranks to which a send-receive sends and from which it receives; -1: none.
        """
        ends = peers[0] + 1 | peers[1] + 1 << 12
        body = struct.pack(
            "<QQQQQQBBBBB3s",
            call_id,
            start_ns + ahead_ns,
            stop_ns + ahead_ns,
            start_ns + delay_ns,
            stop_ns + delay_ns,
            size,
            PATTERNS.index(pattern) if pattern in PATTERNS else 255,
            2,
            3,
            4,
            8,
            ends.to_bytes(3, "little"),
        )
        self._add(3, flags, comm, body)

    def clock(
        self,
        call_id: int,
        asked_ns: int,
        mhz: int,
        took_ns: int = 3 * MS,
        result: int = 0,
        read_back_mhz: int = 0,
        coalesced: int = 0,
        flags: int = 0,
    ) -> None:
        body = struct.pack(
            "<QQQQIIiIII",
            call_id,
            asked_ns,
            asked_ns + 10_000,
            asked_ns + 10_000 + took_ns,
            mhz,
            mhz,
            result,
            read_back_mhz,
            coalesced,
            0,
        )
        self._add(4, flags, 0, body)

    def note(self, time_ns: int, text: str) -> None:
        self._add(6, 0, 0, struct.pack("<Q48s", time_ns, text.encode()))

    def wait(self, call_id: int, stall_ns: int, resume_ns: int, stream: int = 9, comm: int = 0, burst: int = 0) -> None:
        self._add(10, 0, comm, struct.pack("<QQQQI", call_id, stall_ns, resume_ns, stream, burst))

    def pause(self, time_ns: int, burst: int, marked: int = 0, unmarked: int = 0) -> None:
        self._add(12, 0, 0, struct.pack("<QQQI", time_ns, marked, unmarked, burst))

    def budget(
        self,
        time_ns: int,
        calls: int = 3,
        iterations: tuple[int, int] = (155, 120),
        length_us: int = 112_000,
        slowdown_ppm: tuple[int, int, int] | None = None,
        clock_mhz: int = 0,
    ) -> None:
        """What a policy came to: iterations seen and managed, and the length of one."""
        judged = slowdown_ppm is not None
        numbers = (calls, *iterations, length_us, *(slowdown_ppm or (0, 0, 0)), clock_mhz, judged)
        self._add(11, 0, 0, struct.pack("<Q3I4xI8x3iIB3x", time_ns, *numbers))

    def mpi_comm(self, time_ns: int, comm: int, comm_id: int, nranks: int, name: str = "") -> None:
        self._add(1, 0, comm, struct.pack("<QQiiii24s", time_ns, comm_id, nranks, self.rank, 1, -1, name.encode()))

    def mpi_total(
        self,
        time_ns: int,
        function: str,
        calls: int,
        call_ns: int,
        wait_ns: int = 0,
        sleep_ns: int = 0,
        size: int = 0,
        comm: int = 0,
        thread: int = 0,
    ) -> None:
        """Sums up to time_ns of calls with `size` bytes each."""
        number = MPI_FUNCTIONS.index(function)
        body = struct.pack(
            "<QQQQQQHHB3x", time_ns, calls, calls * size, call_ns, wait_ns, sleep_ns, number, thread, size.bit_length()
        )
        self._add(8, 0, comm, body)

    def mpi_call(
        self, function: str, start_ns: int, stop_ns: int, wait_ns: int = 0, sleep_ns: int = 0, size: int = 0
    ) -> None:
        number = MPI_FUNCTIONS.index(function)
        self._add(7, 0, 0, struct.pack("<QQQQQHHiQ", start_ns, stop_ns, wait_ns, sleep_ns, size, number, 0, -1, 0))

    def process(self, time_ns: int, cpu_ns: int, sleeps: int = 0, sleep_ns: int = 0, asked_ns: int = 0) -> None:
        body = struct.pack("<QQQQQQII", time_ns, cpu_ns - cpu_ns // 4, cpu_ns // 4, sleeps, sleep_ns, asked_ns, 1, 1)
        self._add(9, 0, 0, body)

    def raw(self, kind: int) -> None:
        self._add(kind, 0, 0, b"\xff" * 56)

    def bytes(self, committed: int | None = None) -> bytes:
        h = self.header
        header = struct.pack(
            "<8sIIIIiiiIQQQQQ64s48s20s16s16s32s16s16sI4x",
            b"PWRCCLTR",
            h["version"],
            4096,
            64,
            h["flags"],
            h["rank"],
            h["nranks"],
            h["local_rank"],
            h["pid"],
            h["start_ns"],
            h["start_realtime_ns"],
            len(self.records) if committed is None else committed,
            h["dropped"],
            h["limit_records"],
            *(str(h[key]).encode() for key in ("host", "gpu_uuid", "gpu_pci", "policy", "clock_client", "library")),
            *(bytes.fromhex(str(h[key])) for key in ("run_id", "boot_id")),
            h["starts"],
        )
        return header.ljust(4096, b"\0") + b"".join(self.records)

    def write(self, folder: Path, name: str = "", committed: int | None = None) -> Path:
        path = folder / (name or f"rank-{self.rank}.trace")
        path.write_bytes(self.bytes(committed))
        return path


def writers(folder: Path, ranks: int, **header: object) -> Iterator[TraceWriter]:
    """A trace of each rank of a job, with its communicator, to be filled and then written into the folder."""
    folder.mkdir(parents=True, exist_ok=True)
    for rank in range(ranks):
        trace = TraceWriter(rank, ranks, **header)
        trace.comm(1 * MS)
        yield trace
        trace.write(folder)


def write_power(
    folder: Path,
    gpus: int,
    end_ns: int,
    watts: float | Callable[[int, int], float],
    clock_mhz: int | Callable[[int, int], int] = 1590,
    interval_ns: int = 20 * MS,
    counter: bool = True,
    counter_every_ns: int = 0,
    name: str = "",
    power_known: bool = True,
    host: str = HOST,
) -> Path:
    """Samples of `gpus` GPUs; watts(gpu, t_ns) is the true power, integrated exactly in 1 ms steps into the counter."""
    lines = [
        f"# host: {host}",
        "# driver: 580.0 powerccl-emulator",
        "# emulated: 1",
        f"# interval_ns: {interval_ns}",
        f"# gpu_count: {gpus}",
    ]
    for gpu in range(gpus):
        lines += [
            f"# gpu{gpu}_name: Tesla T4",
            f"# gpu{gpu}_uuid: {uuid(gpu)}",
            f"# gpu{gpu}_pci: 00000000:0{gpu}:00.0",
        ]
    lines.append(
        "time_ns,gpu,uuid,power_mw,energy_uj,sm_clock_mhz,mem_clock_mhz,temperature_c,throttle_reasons,utilization_pct"
    )
    energy_uj = [0.0] * gpus
    shown_uj = [0.0] * gpus
    now = 0
    while now <= end_ns:
        for gpu in range(gpus):
            if not counter_every_ns or now % counter_every_ns == 0:
                shown_uj[gpu] = energy_uj[gpu]
            power = watts(gpu, now) if callable(watts) else watts
            clock = clock_mhz(gpu, now) if callable(clock_mhz) else clock_mhz
            shown = int(shown_uj[gpu]) if counter else -1
            power_mw = int(power * 1000) if power_known else ""
            lines.append(f"{now},{gpu},{uuid(gpu)},{power_mw},{shown},{clock},5000,40,0x4,100")
        for step in range(interval_ns // MS):
            for gpu in range(gpus):
                power = watts(gpu, now + step * MS) if callable(watts) else watts
                energy_uj[gpu] += power * 1000
        now += interval_ns
    path = folder / (name or f"power-{host}.csv")
    path.write_text("\n".join(lines) + "\n")
    return path


def write_info(folder: Path, end_ns: int, exit_code: int | None = 0, **more: object) -> None:
    info = {
        "command": ["python", "train.py"],
        "name": folder.name,
        "host": HOST,
        "start_ns": 0,
        "end_ns": end_ns,
        "exit_code": exit_code,
        "policy": "observe",
        **more,
    }
    # A clock that reads exactly 0 is how run.json says "not known", so start one tick in.
    info["start_ns"] = 1
    (folder / "run.json").write_text(json.dumps(info))


def exposed_run(folder: Path, iterations: int = 16, ranks: int = 2, waits: bool = True, late_ms: int = 0) -> Path:
    """150 ms of computation at 70 W (on the last rank `late_ms` more), then 450 ms of exposed all-reduces at 45 W."""
    sizes = ((65_536_000, 40), (609_222_656, 370), (65_536_000, 40))
    step_ms = 600 + late_ms
    for trace in writers(folder, ranks):
        call_id = 0
        for iteration in range(iterations):
            now = (iteration * step_ms + 150 + late_ms) * MS
            for index, (size, length) in enumerate(sizes):
                call_id += 1
                early_ns = late_ms * MS if index == 0 and trace.rank < ranks - 1 else 0
                trace.call(call_id, now - early_ns - 10 * MS, size, flags=0x40)
                trace.kernel(call_id, now - early_ns, now + length * MS, size, delay_ns=0)
                if waits:
                    trace.wait(call_id, now - early_ns, now + length * MS)
                now += length * MS
    end_ns = iterations * step_ms * MS
    write_power(folder, ranks, end_ns, lambda _, now: 70.0 if now % (step_ms * MS) < (150 + late_ms) * MS else 45.0)
    write_info(folder, end_ns, platform="hand")
    return folder


def training_run(
    folder: Path, ranks: int = 2, iterations: int = 3, comm_watts: float = 45.0, compute_watts: float = 70.0
) -> Path:
    """Iterations of 600 ms: 150 ms of computation, then all-reduces of 62.5, 581 and 62.5 MiB over 450 ms."""
    step = 600 * MS
    sizes = ((65_536_000, 40), (609_222_656, 370), (65_536_000, 40))
    for trace in writers(folder, ranks):
        call_id = 0
        for iteration in range(iterations):
            now = iteration * step + 150 * MS
            for size, length in sizes:
                call_id += 1
                trace.call(call_id, now - 10 * MS, size, flags=0x40)
                trace.kernel(call_id, now, now + length * MS, size, delay_ns=20_000 + 7_000 * (call_id % 3))
                now += length * MS

    def watts(gpu: int, now: int) -> float:
        return compute_watts if now % step < 150 * MS else comm_watts

    end_ns = iterations * step
    write_power(folder, ranks, end_ns, watts, lambda _, now: 1100 if now % step < 150 * MS else 1590)
    write_info(folder, end_ns)
    return folder


def elastic_run(folder: Path, sizes: list[int], told: bool = True, calls: int = 5) -> Path:
    """Elastic workers on one host, `sizes[i]` ranks in the i-th start: each makes all-reduces of 10 ms every 20 ms.

    In all starts but the last, rank 0 is killed after them. The others wait for it in one more all-reduce, 10 s until
    that is aborted. `told`: the launcher said which start it was.
    """
    folder.mkdir(parents=True, exist_ok=True)
    begin = 1 * MS
    for start, ranks in enumerate(sizes):
        last = start == len(sizes) - 1
        for rank in range(ranks):
            pid = 4000 + 100 * start + rank
            about = {"pid": pid, "start_ns": begin, "start_realtime_ns": 1_000_000 * MS + begin, "starts": start + 1}
            trace = TraceWriter(rank, ranks, **{**about, "starts": about["starts"] * told})
            trace.comm(begin + 1 * MS)
            for call_id in range(1, calls + 1):
                now = begin + call_id * 20 * MS
                trace.call(call_id, now - 1 * MS, 1 << 20, flags=0x40)
                trace.kernel(call_id, now + rank * MS // 10, now + 10 * MS, 1 << 20)
            if rank and not last:
                now = begin + (calls + 1) * 20 * MS
                trace.call(calls + 1, now - 1 * MS, 1 << 20, flags=0x40)
                trace.kernel(calls + 1, now, now + 10_000 * MS, 1 << 20)
            trace.write(folder, f"rank-{rank}.trace" if not start else f"rank-{rank}.{pid}.trace")
        begin += 12_000 * MS
    write_power(folder, max(sizes), begin, 50.0, interval_ns=100 * MS)
    write_info(folder, begin)
    return folder


def mpi_trace(rank: int, nranks: int, **header: object) -> TraceWriter:
    """A rank of MPI's, as the adapter opens its trace; the world is communicator 0."""
    defaults = {"gpu_uuid": "", "gpu_pci": "", "clock_client": "auto", "library": "mpich 5.0.2", "start_ns": 10 * MS}
    trace = TraceWriter(rank, nranks, **{**defaults, **header})
    trace.mpi_comm(10 * MS, 0, 1, nranks, "world")
    return trace


def mpi_run(folder: Path, ranks: int = 2, end_ns: int = 2010 * MS, cpu: str = "") -> Path:
    """A stencil of 2 s on `ranks` ranks: the last one computes longest, the others wait for it in MPI_Allreduce.

    Rank r waits 600 ms * (ranks - 1 - r) / (ranks - 1), of it 90 % asleep; every rank transfers 100 ms in
    MPI_Allreduce of 8 bytes, 40 ms in MPI_Sendrecv of 64 KiB, and waits 10 ms in MPI_Wait, which names no communicator.
    """
    folder.mkdir(parents=True, exist_ok=True)
    for rank in range(ranks):
        trace = mpi_trace(rank, ranks)
        wait_ns = 600 * MS * (ranks - 1 - rank) // max(ranks - 1, 1)
        sleep_ns = wait_ns * 9 // 10
        for part, at_ns in ((0.5, 1000 * MS), (1.0, end_ns)):
            wait, sleep = int(wait_ns * part), int(sleep_ns * part)
            trace.mpi_total(at_ns, "Allreduce", int(1000 * part), wait + int(100 * MS * part), wait, sleep, 8)
            trace.mpi_total(at_ns, "Sendrecv", int(2000 * part), int(40 * MS * part), 0, 0, 65536)
            trace.mpi_total(at_ns, "Wait", int(10 * part), int(10 * MS * part), int(10 * MS * part), comm=0xFFFFFFFF)
            trace.process(at_ns, int((2000 * MS - sleep_ns) * part), 100, sleep, max(sleep - 100 * 50_000, 0))
        trace.mpi_call("Allreduce", 500 * MS, 540 * MS, 39 * MS, 35 * MS, 8)
        trace.write(folder, f"mpi-{rank}.trace")
    if cpu:
        (folder / f"cpu-{HOST}.csv").write_text(cpu)
    write_info(folder, end_ns, command=["mpiexec", "-n", str(ranks), "./stencil"])
    return folder


def profile_of(folder: Path, path: Path) -> Path:
    """The built-in profile of the emulated T4s, as if it had been measured on the GPUs that a run has."""
    import msgspec

    from powerccl.commandline.references import gpu_names
    from powerccl.platforms.schema import encode
    from powerccl.platforms.store import load_profile
    from powerccl.traces.folder import RunData

    (names,) = gpu_names(RunData(folder)).values()
    path.write_bytes(encode(msgspec.structs.replace(load_profile("t4x8"), gpu=names[0], gpus=len(names))))
    return path
