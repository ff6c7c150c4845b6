# SPDX-License-Identifier: Apache-2.0
"""Where a job's process reads the energy of its GPUs: the samples of its run folder, or NVML's energy counters."""

from __future__ import annotations

import ctypes
import os
import platform
import struct
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from powerccl.files import MOST_SAMPLES, MOST_TRACE
from powerccl.integrations.gpu_energy import GpuEnergy
from powerccl.traces.run_files import RunFile, list_files, opened
from powerccl.traces.sample_file import about
from powerccl.traces.visible import Sampled, visible, visible_in

# The first bytes of a trace, as native/abi/trace.h has them: magic, pid, committed records, host, UUID, boot.
HEADER = struct.Struct("<8s4I3iI5Q64s48s84x16x16s")
MAGIC_AND_VERSION = (b"PWRCCLTR", 1)
# A BUDGET record behind its common fields: slowdown in ppm, and whether it was judged.
RECORD_BYTES, BUDGET_KIND, BUDGET = 64, 11, struct.Struct("<H42xi12xB3x")
DRY = 1  # header flag
# Of samples that were there before the first look: half a minute of one GPU, four seconds of eight.
TAIL_BYTES = 1 << 17
MOST_BYTES = 1 << 20  # of samples in one look; more wait for the next one
NVML = "libnvidia-ml.so.1"


# Joules by GPU and by how often its counter began from elsewhere: two readings with the same keys can be compared.
Readings = dict[tuple[str, int], float]


@dataclass(frozen=True)
class Trace:
    """What a rank's trace says of it."""

    path: Path
    rank: int
    pid: int
    dry: bool
    header_bytes: int
    committed: int
    boot_id: str
    host: str
    gpu: str


class FolderSource:
    """The samples that powerccl-agent appends to the run folder, for the GPUs of this host that the job's ranks use."""

    name = "power samples of the run folder"
    # The least time between two ends of a window. The counter moves every 20 to 100 ms, so its reading is up to 10 % of
    # a second late. At half, windows of equal work differ by 20 %. At double, a tracker sees changes a second later.
    window_ns = 1_000_000_000
    look_ns = 500_000_000  # between two looks: the agent writes every half second

    def __init__(self, folder: Path, environment: Mapping[str, str]) -> None:
        self._folder, self._environment = folder, environment
        self._path: Path | None = None
        self._about: dict[str, str] = {}
        self._columns: dict[str, int] = {}
        self._offset, self._rest = 0, b""
        self._gpus: dict[str, GpuEnergy] = {}
        self._traces: dict[str, Trace] = {}
        self._job_gpus: frozenset[str] = frozenset()
        self._judged_at = 0  # records of this process's trace that were looked at
        self._slowdown_pct: float | None = None

    def look(self, now_ns: int) -> None:
        """Take what was written since the last look.

        Raises:
            OSError: it cannot be read.
        """
        if self._path is None and not self._find():
            return
        self._read_samples()
        self._read_traces()

    @property
    def gpus(self) -> frozenset[str]:
        """UUIDs of the job's GPUs on this host: those that its ranks name, else those that it could see."""
        if self._traces:
            return frozenset(trace.gpu for trace in self._traces.values() if trace.gpu)
        return self._job_gpus

    @property
    def ranks(self) -> int:
        """The job's ranks on this host; 0: not known."""
        return len({trace.rank for trace in self._traces.values()})

    def known_ns(self) -> int:
        """Until when the energy of all of them is known; 0: not at all."""
        gpus = self.gpus
        if not gpus or not gpus <= self._gpus.keys():
            return 0
        return min(self._gpus[gpu].known_ns for gpu in gpus)

    def at(self, time_ns: int) -> Readings | None:
        """Joules of each of them until then; None: of one of them that is not known."""
        readings: Readings = {}
        for gpu in self.gpus:
            energy = self._gpus.get(gpu)
            joules = energy.at(time_ns) if energy else None
            if energy is None or joules is None:
                return None
            readings[gpu, energy.breaks] = joules
        return readings or None

    def trim(self, from_ns: int) -> None:
        """Let go of what is before."""
        for gpu in self._gpus.values():
            gpu.trim(from_ns)

    def slowdown_pct(self) -> float | None:
        """What the clock policy judges that it costs on this process's rank; None: it has not, or sets nothing."""
        own = next((trace for trace in self._traces.values() if trace.pid == os.getpid()), None)
        now = None if own is None or own.dry else read_trace(own.path)
        if now is None:
            return None
        first = max(self._judged_at, now.committed - TAIL_BYTES // RECORD_BYTES)
        with opened(now.path, MOST_TRACE) as file:
            size = (now.committed - first) * RECORD_BYTES
            rows = file.read(size, now.header_bytes + first * RECORD_BYTES)
        self._judged_at = now.committed
        place = rows[::RECORD_BYTES].rfind(bytes([BUDGET_KIND]))
        if place >= 0 and len(rows) >= (place + 1) * RECORD_BYTES:
            _, ppm, judged = BUDGET.unpack_from(rows, place * RECORD_BYTES)
            self._slowdown_pct = ppm / 1e4 if judged else None
        return self._slowdown_pct

    def _find(self) -> bool:
        """The file of this host's samples. Hosts of one name differ in their boot."""
        boot, host = _boot_id(), platform.node()
        for path in list_files(self._folder, "power-", ".csv")[0]:
            head = about(path)
            if head.get("boot_id", boot) == boot and (head.get("boot_id") or head.get("host") == host):
                self._path, self._about = path, head
                seen = visible_in(head, self._environment).indices
                self._job_gpus = frozenset(head.get(f"gpu{index}_uuid", "") for index in seen)
                return True
        return False

    def _read_samples(self) -> None:
        assert self._path is not None
        with opened(self._path, MOST_SAMPLES) as file:
            size = file.size
            if not self._columns and not self._read_columns(file):
                return
            if size < self._offset:  # an agent that goes on cuts off half a row that another left
                self._offset, self._rest = size, b""
            if not self._offset:
                self._offset = max(size - TAIL_BYTES, 0)
                self._rest = b"#"  # the rest of a line
            data = file.read(min(size - self._offset, MOST_BYTES), self._offset)
        self._offset += len(data)
        lines = (self._rest + data).split(b"\n")
        self._rest = lines.pop()
        time, uuid, power, energy = (self._columns[name] for name in ("time_ns", "uuid", "power_mw", "energy_uj"))
        for line in lines:
            fields = line.split(b",")
            if len(fields) != len(self._columns) or line.startswith(b"#"):
                continue
            try:
                values = int(fields[time]), int(fields[energy] or -1), int(fields[power] or -1)
            except ValueError:  # the line of names, or a damaged one
                continue
            gpu = fields[uuid].decode("ascii", "replace")
            if gpu not in self._gpus:
                self._gpus[gpu] = GpuEnergy(self._about)
            self._gpus[gpu].take(*values)

    def _read_columns(self, file: RunFile) -> bool:
        head = file.read(TAIL_BYTES, 0)
        names = next((line for line in head.split(b"\n")[:-1] if line and not line.startswith(b"#")), b"")
        self._columns = {name: place for place, name in enumerate(names.decode("ascii", "replace").split(","))}
        if not {"time_ns", "uuid", "power_mw", "energy_uj"} <= self._columns.keys():
            self._columns = {}
        return bool(self._columns)

    def _read_traces(self) -> None:
        """The traces of this host's ranks; a rank names its GPU when its first communicator comes up."""
        boot = self._about.get("boot_id", "")
        for path in list_files(self._folder, "rank-", ".trace")[0]:
            trace = None if path.name in self._traces else read_trace(path)
            if trace and trace.gpu and (trace.boot_id == boot if boot else trace.host == self._about.get("host")):
                self._traces[path.name] = trace


class NvmlSource:
    """The energy counters of this host's GPUs, read through the driver. For a job that `powerccl run` did not start."""

    name = "energy counters of NVML"
    # One read takes up to 4 ms on an H200, and the counter is up to 100 ms late. So eight GPUs take 0.3 % of a thread,
    # and a window of equal work is 1 % off. At half, both double. At double, a tracker has a point in 20 s.
    window_ns = look_ns = 10_000_000_000

    def __init__(self, environment: Mapping[str, str]) -> None:
        """Raises OSError: there is no driver, or no energy counter."""
        self._nvml = ctypes.CDLL(NVML)
        if self._nvml.nvmlInit_v2():
            raise OSError("the driver does not answer")
        handles = self._handles()
        seen = visible(environment, [Sampled(index, uuid, "") for index, (uuid, _) in handles.items()]).indices
        local = _whole(environment.get("LOCAL_WORLD_SIZE", ""))
        # torchrun gives rank n the GPU n of those that it can see.
        chosen = sorted(seen)[: local or None]
        self.ranks = len(chosen) if local else 0
        self._handle_of = {handles[index][0]: handles[index][1] for index in chosen}
        self.gpus = frozenset(self._handle_of)
        self._readings: tuple[int, Readings] = (0, {})
        self.look(0)
        if not self._readings[1]:
            raise OSError("no GPU has an energy counter")

    def look(self, now_ns: int) -> None:
        """Read the counters; the reading counts as of `now_ns`."""
        readings: Readings = {}
        value_mj = ctypes.c_ulonglong()
        for gpu, handle in self._handle_of.items():
            if self._nvml.nvmlDeviceGetTotalEnergyConsumption(handle, ctypes.byref(value_mj)) == 0:
                readings[gpu, 0] = value_mj.value / 1e3
        self._readings = now_ns, readings if len(readings) == len(self.gpus) else {}

    def known_ns(self) -> int:
        """When they were read last."""
        return self._readings[0]

    def at(self, time_ns: int) -> Readings | None:
        """The reading of that time; None: none is of it."""
        return self._readings[1] or None if time_ns == self._readings[0] else None

    def trim(self, from_ns: int) -> None:
        """Nothing: one reading is kept."""

    def slowdown_pct(self) -> float | None:
        """Not known: no policy sets a clock."""
        return None

    def _handles(self) -> dict[int, tuple[str, ctypes.c_void_p]]:
        """UUID and handle of each GPU, by NVML's index."""
        handles: dict[int, tuple[str, ctypes.c_void_p]] = {}
        count, uuid = ctypes.c_uint(), ctypes.create_string_buffer(96)
        self._nvml.nvmlDeviceGetCount_v2(ctypes.byref(count))
        for index in range(count.value):
            device = ctypes.c_void_p()
            if self._nvml.nvmlDeviceGetHandleByIndex_v2(ctypes.c_uint(index), ctypes.byref(device)) == 0:
                self._nvml.nvmlDeviceGetUUID(device, uuid, ctypes.c_uint(96))
                handles[index] = uuid.value.decode("ascii", "replace"), device
        return handles


def read_trace(path: Path) -> Trace | None:
    """The header of a rank's trace; None: it is not whole, or of another version."""
    try:
        with opened(path, MOST_TRACE) as file:
            data = file.read(HEADER.size, 0)
    except OSError:
        return None
    if len(data) < HEADER.size:
        return None
    fields = HEADER.unpack(data)
    magic, version, header_bytes, _, flags, rank, _, _, pid, _, _, committed, _, _, host, gpu, boot = fields
    if (magic, version) != MAGIC_AND_VERSION:
        return None
    host_name, uuid = (text.split(b"\0", 1)[0].decode("utf-8", "replace") for text in (host, gpu))
    boot_id = boot.hex() if any(boot) else ""
    return Trace(path, rank, pid, bool(flags & DRY), header_bytes, committed, boot_id, host_name, uuid)


def _boot_id() -> str:
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text().strip().replace("-", "")
    except OSError:
        return ""


def _whole(text: str) -> int:
    return int(text) if text.isdecimal() and len(text) < 9 else 0
