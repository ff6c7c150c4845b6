#!/usr/bin/env python3
"""Measure powerccld on emulated GPUs: a flat map name -> {value, unit, low, high, n}.

How soon clocks are back when a client or the daemon is killed, what a clock costs through a lease, what the daemon
costs idle and under load, random schedules, and what jobs save through it beside ranks that set clocks themselves.
Times and processor time are this machine's, energy is emulated. value is the median, low and high are the quartiles,
unless the name says otherwise. Takes twenty minutes on two free cores; --schedules 0 leaves four of them out.
"""

import argparse
import contextlib
import ctypes
import json
import os
import re
import signal
import socket
import statistics
import struct
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from bench.figures import Figure, figure, one  # noqa: E402

from powerccl.launch.native import NativeFiles, find_native  # noqa: E402

LOW_MHZ = 600
GPUS = 8
# Of each job its GPUs, model and iterations. Two that share a GPU are of different models: with iterations of one
# length they fall into step, each time in another way, and what is measured is that.
ONE_JOB = (("0,1,2,3,4,5,6,7", "microllama", "12"),)
TWO_JOBS = (("0,1,2,3,4", "microllama", "16"), ("4,5,6,7", "gpt2", "20"))


class Nvml:
    """The emulated NVML in this process: reading a clock takes microseconds."""

    def __init__(self, native: NativeFiles) -> None:
        self.library = ctypes.CDLL(str(native.path("emulator/libnvidia-ml.so.1")))
        assert self.library.nvmlInit_v2() == 0
        self.gpus = [ctypes.c_void_p() for _ in range(GPUS)]
        for index, gpu in enumerate(self.gpus):
            assert self.library.nvmlDeviceGetHandleByIndex_v2(index, ctypes.byref(gpu)) == 0

    def clock_mhz(self, index: int) -> int:
        """SM clock now."""
        mhz = ctypes.c_uint()
        assert self.library.nvmlDeviceGetClockInfo(self.gpus[index], 1, ctypes.byref(mhz)) == 0
        return mhz.value

    def energy_j(self) -> float:
        """Of all GPUs, since the server started."""
        total, read = 0, ctypes.c_ulonglong()
        for gpu in self.gpus:
            assert self.library.nvmlDeviceGetTotalEnergyConsumption(gpu, ctypes.byref(read)) == 0
            total += read.value
        return total / 1e3

    def wait_back(self, index: int, since_ns: int) -> float:
        """Milliseconds from then until the GPU has left LOW_MHZ."""
        while self.clock_mhz(index) == LOW_MHZ:
            if time.monotonic_ns() - since_ns > 20e9:
                raise TimeoutError("the clock does not come back")
        return (time.monotonic_ns() - since_ns) / 1e6


@dataclass
class Machine:
    """An emulated server and a powerccld on it, and the environment to find both."""

    native: NativeFiles
    folder: Path
    environment: dict[str, str] = field(default_factory=dict)
    daemon: subprocess.Popen[bytes] | None = None

    @property
    def socket(self) -> Path:
        """Where powerccld listens."""
        return self.folder / "d.sock"

    @contextlib.contextmanager
    def running(self) -> Iterator["Machine"]:
        """The emulated server, for as long as the `with` lasts."""
        platform = self.native.root / "share/platforms/t4x8.conf"
        command = [str(self.native.path("bin/powerccl-emulator")), "--platform", str(platform)]
        command += ["--socket", str(self.folder / "gpus.sock")]
        with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as server:
            assert server.stdout
            assert server.stdin
            assert b"ready" in server.stdout.readline()
            os.environ["POWERCCL_EMULATOR_SOCKET"] = str(self.folder / "gpus.sock")
            self.environment = {**os.environ, "LD_LIBRARY_PATH": str(self.native.root / "emulator")}
            try:
                yield self
            finally:
                self.stop_daemon()
                server.stdin.close()

    def start_daemon(self, sharing: str = "newest") -> None:
        """As a service manager does, and wait until it listens."""
        config = self.folder / "config"
        config.write_text(f'[gpu]\nsharing = "{sharing}"\n')
        command = [str(self.native.path("bin/powerccld")), "--socket", str(self.socket)]
        command += ["--state", str(self.folder / "leases"), "--log", "error", "--config", str(config)]
        self.daemon = subprocess.Popen(command, env=self.environment)
        while True:
            with contextlib.suppress(OSError), socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as probe:
                probe.connect(str(self.socket))
                return
            time.sleep(0.001)

    def stop_daemon(self) -> None:
        """As a service manager does."""
        if self.daemon:
            self.daemon.terminate()
            self.daemon.wait()
            self.daemon = None

    def processor_s(self) -> float:
        """What the daemon's threads have used."""
        assert self.daemon
        tasks = Path(f"/proc/{self.daemon.pid}/task").glob("*/schedstat")
        return sum(int(task.read_text().split()[0]) for task in tasks) / 1e9


def hold(path: Path, device: str, ready: int) -> None:
    """A client with a low clock, until it is killed."""
    connection = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    connection.connect(str(path))

    def ask(kind: int, serial: int, body: bytes) -> bytes:
        connection.send(struct.pack("=IHHIIQ", 0x534C4350, 1, kind, 24 + len(body), 0, serial) + body)
        return connection.recv(8192)

    ask(1, 1, b"figures".ljust(64, b"\0"))
    lease = struct.unpack_from("=Q", ask(2, 2, device.encode().ljust(48, b"\0") + bytes(8)), 32)[0]
    ask(3, 3, struct.pack("=QII", lease, LOW_MHZ, LOW_MHZ))
    os.write(ready, b"x")
    signal.pause()


def holder(machine: Machine, device: str) -> int:
    """The pid of such a client, once its clock is set."""
    reading, writing = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            hold(machine.socket, device, writing)
        finally:
            os._exit(1)
    os.read(reading, 1)
    os.close(reading)
    os.close(writing)
    return pid


def devices(machine: Machine) -> list[str]:
    """UUIDs in NVML's order."""
    command = ["powerccl", "clocks", "--json", "--socket", str(machine.socket)]
    done = subprocess.run(command, env=machine.environment, capture_output=True, text=True, check=True)
    return re.findall(r"GPU-[0-9a-f-]{36}", done.stdout)


def killed(machine: Machine, nvml: Nvml, times: int) -> dict[str, Figure]:
    """Clients and daemons killed with -9 while a clock is low."""
    names = devices(machine)
    client_ms, daemon_ms = [], []
    for i in range(times):
        pid = holder(machine, names[i % GPUS])
        while nvml.clock_mhz(i % GPUS) != LOW_MHZ:
            time.sleep(0.001)
        begin = time.monotonic_ns()
        os.kill(pid, signal.SIGKILL)
        client_ms.append(nvml.wait_back(i % GPUS, begin))
        os.waitpid(pid, 0)
    for _ in range(times):
        pids = [holder(machine, names[index]) for index in range(GPUS)]
        assert machine.daemon
        begin = time.monotonic_ns()
        machine.daemon.kill()
        machine.daemon.wait()
        machine.start_daemon()
        daemon_ms.append(max(nvml.wait_back(index, begin) for index in range(GPUS)))
        for pid in pids:
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)
    return {
        "daemon.client_killed.restore_ms": figure(client_ms, "ms"),
        "daemon.client_killed.restore_worst_ms": one(round(max(client_ms), 3), "ms", len(client_ms)),
        "daemon.killed.restore_ms": figure(daemon_ms, "ms"),
        "daemon.killed.restore_worst_ms": one(round(max(daemon_ms), 3), "ms", len(daemon_ms)),
    }


def bench(machine: Machine, *arguments: str) -> dict[str, list[float]]:
    """What powerccl-lease-bench prints."""
    program = ROOT / "build/test/bench/micro/powerccl-lease-bench"
    command = [str(program), *arguments]
    done = subprocess.run(command, env=machine.environment, capture_output=True, text=True, check=True)
    parsed: dict[str, list[float]] = json.loads(done.stdout)
    return parsed


def cost(machine: Machine, changes: int, seconds: float) -> dict[str, Figure]:
    """A clock through a lease against the driver's own call, and the daemon's processor time."""
    figures = {}
    for name in ("lease", "lease_asleep"):
        with contextlib.ExitStack() as stack:
            if name == "lease":  # the cores never fall asleep, as on a machine that trains
                for _ in range(os.cpu_count() or 1):
                    busy = subprocess.Popen([sys.executable, "-c", "while True: pass"], preexec_fn=lambda: os.nice(19))
                    stack.callback(busy.wait)
                    stack.callback(busy.kill)
            taken = bench(machine, "latency", str(machine.socket), str(changes), "26")
            echo = bench(machine, "echo", str(changes), "26")
        direct = statistics.median(taken["direct_us"])
        figures[f"daemon.{name}.added_us"] = figure([us - direct for us in taken["leased_us"]], "us", 1)
        figures[f"daemon.{name}.driver_us"] = figure(taken["direct_us"], "us", 1)
        figures[f"daemon.{name}.bare_echo_us"] = figure(echo["echo_us"], "us", 1)
    before, begin = machine.processor_s(), time.monotonic()
    time.sleep(seconds)
    idle = (machine.processor_s() - before) / (time.monotonic() - begin) * 100
    figures["daemon.idle.cpu_pct"] = one(round(idle, 4), "%")
    pids = [holder(machine, name) for name in devices(machine)]
    before, begin = machine.processor_s(), time.monotonic()
    time.sleep(min(seconds, 5.0))  # no heartbeat comes from these
    held = (machine.processor_s() - before) / (time.monotonic() - begin) * 100
    figures["daemon.idle_held.cpu_pct"] = one(round(held, 4), "%")
    for pid in pids:
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
    time.sleep(0.5)
    for how, name in (("load", "load_64"), ("share", "load_64_shared")):
        before, begin = machine.processor_s(), time.monotonic()
        done = bench(machine, how, str(machine.socket), "64", str(seconds))
        took, used = time.monotonic() - begin, machine.processor_s() - before
        changes_made = float(done["changes"])  # type: ignore[arg-type]
        figures[f"daemon.{name}.cpu_pct"] = one(round(used / took * 100, 3), "%")
        figures[f"daemon.{name}.changes_per_s"] = one(round(changes_made / took, 1), "1/s")
        figures[f"daemon.{name}.cpu_us_per_change"] = one(round(used / max(changes_made, 1) * 1e6, 1), "us")
    return figures


def job_j(machine: Machine, nvml: Nvml, how: str, jobs: tuple[tuple[str, str, str], ...]) -> tuple[float, float]:
    """Joules of all GPUs and seconds until the last of these jobs has ended."""
    policy = "observe" if how == "observe" else "per-call"
    clocks = {"POWERCCL_LEASE_SOCKET": str(machine.socket)} if how.startswith("leased") else {}
    if how == "direct":
        clocks = {"POWERCCL_CLOCKS": "nvml"}
    program = str(machine.native.path("bin/powerccl-bench"))
    command = ["powerccl", "run", "--policy", policy, "--platform", "t4x8", "--quiet", "--", program, "train"]
    begin, before = time.monotonic(), nvml.energy_j()
    running = [
        subprocess.Popen(
            [*command, "--model", model, "--iterations", iterations],
            cwd=machine.folder,
            env={**machine.environment, **clocks, "CUDA_VISIBLE_DEVICES": gpus},
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        for gpus, model, iterations in jobs
    ]
    for process in running:
        if process.wait() != 0:
            raise RuntimeError(f"a job failed ({how})")
    return nvml.energy_j() - before, time.monotonic() - begin


def saved(machine: Machine, nvml: Nvml, rounds: int) -> dict[str, Figure]:
    """What a job over all GPUs, and two jobs that share one, save under per-call: directly and through the daemon.

    leased_highest: with gpu.sharing = "highest" instead of the default "newest".
    """
    figures = {}
    for jobs, name in ((ONE_JOB, "one_job"), (TWO_JOBS, "two_jobs_one_gpu")):
        ways = ("direct", "leased", "leased_highest") if len(jobs) > 1 else ("direct", "leased")
        energy: dict[str, list[float]] = {how: [] for how in ways}
        slower: dict[str, list[float]] = {how: [] for how in ways}
        for _ in range(rounds):
            joules, seconds = job_j(machine, nvml, "observe", jobs)
            for how in ways:
                machine.stop_daemon()
                machine.start_daemon("highest" if how == "leased_highest" else "newest")
                with_j, with_s = job_j(machine, nvml, how, jobs)
                energy[how].append((1 - with_j / joules) * 100)
                slower[how].append((with_s / seconds - 1) * 100)
        for how in ways:
            figures[f"daemon.{name}.{how}.energy_saved_pct"] = figure(energy[how], "%", 2)
            figures[f"daemon.{name}.{how}.slowdown_pct"] = figure(slower[how], "%", 2)
    return figures


def schedules(count: int) -> dict[str, Figure]:
    """Random schedules; each violation is named on stderr with its seed."""
    program = ROOT / "build/test/tests/native/daemon_schedules/powerccl-lease-schedules"
    begin = time.monotonic()
    command = [str(program), "--schedules", str(count), "--seed", "1", "--workers", str(2 * (os.cpu_count() or 1))]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=False)
    found = re.search(r"run (\d+) violations (\d+)", done.stdout)
    if found is None:
        raise RuntimeError(f"no result: {done.stdout[-500:]}")
    return {
        "daemon.schedules.run": one(int(found[1]), "schedules"),
        "daemon.schedules.violations": one(int(found[2]), "schedules"),
        "daemon.schedules.seconds": one(round(time.monotonic() - begin, 1), "s"),
    }


def main() -> int:
    """Measure, print and write."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=ROOT / "build/figures/daemon.json")
    parser.add_argument("--schedules", type=int, default=10_000)
    parser.add_argument("--quick", action="store_true", help="few repetitions: to see that it works")
    arguments = parser.parse_args()
    native = find_native()
    figures: dict[str, Figure] = {}
    with tempfile.TemporaryDirectory(dir="/dev/shm") as name, Machine(native, Path(name)).running() as machine:
        nvml = Nvml(native)
        machine.start_daemon()
        figures |= killed(machine, nvml, 5 if arguments.quick else 50)
        figures |= cost(machine, 40 if arguments.quick else 600, 5 if arguments.quick else 20)
        figures |= saved(machine, nvml, 1 if arguments.quick else 6)
    if arguments.schedules:
        figures |= schedules(arguments.schedules)
    for name, about in figures.items():
        print(f"{name:45} {about['value']:>10} {about['unit']}   [{about['low']} .. {about['high']}]  n {about['n']}")
    arguments.out.parent.mkdir(parents=True, exist_ok=True)
    arguments.out.write_text(json.dumps(figures, indent=1) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
