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
import statistics
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT), str(ROOT / "tests/e2e"), str(ROOT / "tests")]

from daemon_process import Daemon, forked
from harness import EmulatedMachine
from lease_client import Client
from support.figures import Figures, figure, one, show, write

from powerccl.demo.training import MODELS
from powerccl.launch.native import NativeFiles, find_native

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
            time.sleep(1e-4)  # another thread may be at work
        return (time.monotonic_ns() - since_ns) / 1e6


def start(daemon: Daemon, sharing: str = "newest") -> None:
    """Start it anew, with few words in its log."""
    if daemon.process and daemon.process.poll() is None:
        daemon.kill(signal.SIGTERM)
    daemon.start(f'[log]\nlevel = "error"\n[gpu]\nsharing = "{sharing}"\n')


def processor_s(daemon: Daemon) -> float:
    """What the daemon's threads have used."""
    assert daemon.process
    tasks = Path(f"/proc/{daemon.process.pid}/task").glob("*/schedstat")
    return sum(int(task.read_text().split()[0]) for task in tasks) / 1e9


def used_pct(daemon: Daemon, seconds: float) -> float:
    """How much of a processor the daemon takes from now on."""
    before, begin = processor_s(daemon), time.monotonic()
    time.sleep(seconds)
    return (processor_s(daemon) - before) / (time.monotonic() - begin) * 100


def holder(daemon: Daemon, device: str) -> int:
    """The pid of a client with a low clock, once that is set."""
    reading, writing = os.pipe()

    def hold() -> None:
        client = Client(daemon.socket)
        client.set(client.lease(device), LOW_MHZ)
        os.write(writing, b"x")
        signal.pause()

    pid = forked(hold)
    os.read(reading, 1)
    os.close(reading)
    os.close(writing)
    return pid


def end(pids: list[int]) -> None:
    """Kill them."""
    for pid in pids:
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)


def killed(daemon: Daemon, nvml: Nvml, times: int) -> Figures:
    """Clients and daemons killed with -9 while a clock is low."""
    client_ms, daemon_ms = [], []
    for i in range(times):
        pid = holder(daemon, daemon.devices[i % GPUS])
        while nvml.clock_mhz(i % GPUS) != LOW_MHZ:
            time.sleep(0.001)
        begin = time.monotonic_ns()
        os.kill(pid, signal.SIGKILL)
        client_ms.append(nvml.wait_back(i % GPUS, begin))
        os.waitpid(pid, 0)
    for _ in range(times):
        pids = [holder(daemon, device) for device in daemon.devices]
        begin = time.monotonic_ns()
        daemon.kill()
        with ThreadPoolExecutor(1) as beside:  # it waits until the daemon listens, in steps of 10 ms
            restarted = beside.submit(daemon.restart)
            daemon_ms.append(max(nvml.wait_back(index, begin) for index in range(GPUS)))
            restarted.result()
        end(pids)
    found: Figures = {}
    for name, taken in (("client_killed", client_ms), ("killed", daemon_ms)):
        found[f"daemon.{name}.restore_ms"] = figure(taken, "ms")
        found[f"daemon.{name}.restore_worst_ms"] = one(round(max(taken), 3), "ms", len(taken))
    return found


def bench(daemon: Daemon, *arguments: str) -> dict[str, list[float]]:
    """What powerccl-lease-bench prints."""
    program = ROOT / "build/test/bench/micro/powerccl-lease-bench"
    command = [str(program), *arguments]
    done = subprocess.run(command, env=dict(daemon.environment), capture_output=True, text=True, check=True)
    parsed: dict[str, list[float]] = json.loads(done.stdout)
    return parsed


def cost(daemon: Daemon, changes: int, seconds: float) -> Figures:
    """A clock through a lease against the driver's own call, and the daemon's processor time."""
    figures: Figures = {}
    for name in ("lease", "lease_asleep"):
        with contextlib.ExitStack() as stack:
            if name == "lease":  # the cores never fall asleep, as on a machine that trains
                for _ in range(os.cpu_count() or 1):
                    busy = subprocess.Popen([sys.executable, "-c", "while True: pass"], preexec_fn=lambda: os.nice(19))
                    stack.callback(busy.wait)
                    stack.callback(busy.kill)
            taken = bench(daemon, "latency", str(daemon.socket), str(changes), "26")
            echo = bench(daemon, "echo", str(changes), "26")
        direct = statistics.median(taken["direct_us"])
        figures[f"daemon.{name}.added_us"] = figure([us - direct for us in taken["leased_us"]], "us", 1)
        figures[f"daemon.{name}.driver_us"] = figure(taken["direct_us"], "us", 1)
        figures[f"daemon.{name}.bare_echo_us"] = figure(echo["echo_us"], "us", 1)
    figures["daemon.idle.cpu_pct"] = one(round(used_pct(daemon, seconds), 4), "%")
    pids = [holder(daemon, device) for device in daemon.devices]
    held_pct = used_pct(daemon, min(seconds, 5.0))  # no heartbeat comes from these
    figures["daemon.idle_held.cpu_pct"] = one(round(held_pct, 4), "%")
    end(pids)
    time.sleep(0.5)
    for how, name in (("load", "load_64"), ("share", "load_64_shared")):
        before, begin = processor_s(daemon), time.monotonic()
        done = bench(daemon, how, str(daemon.socket), "64", str(seconds))
        took, used = time.monotonic() - begin, processor_s(daemon) - before
        changes_made = float(done["changes"])  # type: ignore[arg-type]
        figures[f"daemon.{name}.cpu_pct"] = one(round(used / took * 100, 3), "%")
        figures[f"daemon.{name}.changes_per_s"] = one(round(changes_made / took, 1), "1/s")
        figures[f"daemon.{name}.cpu_us_per_change"] = one(round(used / max(changes_made, 1) * 1e6, 1), "us")
    return figures


def job_j(daemon: Daemon, nvml: Nvml, how: str, jobs: tuple[tuple[str, str, str], ...]) -> tuple[float, float]:
    """Joules of all GPUs and seconds until the last of these jobs has ended."""
    policy = "observe" if how == "observe" else "per-call"
    clocks = {"POWERCCL_LEASE_SOCKET": str(daemon.socket)} if how.startswith("leased") else {}
    program = str(daemon.native.path("bin/powerccl-bench"))
    command = ["powerccl", "run", "--policy", policy, "--platform", "t4x8", "--quiet", "--", program, "scenario"]
    begin, before = time.monotonic(), nvml.energy_j()
    running = [
        subprocess.Popen(
            [*command, str(MODELS / f"{model}.scn"), "--iterations", iterations],
            cwd=daemon.folder,
            env={**daemon.environment, **clocks, "CUDA_VISIBLE_DEVICES": gpus},
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        for gpus, model, iterations in jobs
    ]
    for process in running:
        if process.wait() != 0:
            raise RuntimeError(f"a job failed ({how})")
    return nvml.energy_j() - before, time.monotonic() - begin


def saved(daemon: Daemon, nvml: Nvml, rounds: int) -> Figures:
    """What a job over all GPUs, and two jobs that share one, save under per-call.

    leased_highest: with gpu.sharing = "highest" instead of the default "newest".
    """
    figures = {}
    for jobs, name in ((ONE_JOB, "one_job"), (TWO_JOBS, "two_jobs_one_gpu")):
        ways = ("leased", "leased_highest") if len(jobs) > 1 else ("leased",)
        energy: dict[str, list[float]] = {how: [] for how in ways}
        slower: dict[str, list[float]] = {how: [] for how in ways}
        for _ in range(rounds):
            joules, seconds = job_j(daemon, nvml, "observe", jobs)
            for how in ways:
                start(daemon, "highest" if how == "leased_highest" else "newest")
                with_j, with_s = job_j(daemon, nvml, how, jobs)
                energy[how].append((1 - with_j / joules) * 100)
                slower[how].append((with_s / seconds - 1) * 100)
        for how in ways:
            figures[f"daemon.{name}.{how}.energy_saved_pct"] = figure(energy[how], "%", 2)
            figures[f"daemon.{name}.{how}.slowdown_pct"] = figure(slower[how], "%", 2)
    return figures


def schedules(count: int) -> Figures:
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
    few = arguments.quick
    figures: Figures = {}
    with tempfile.TemporaryDirectory(dir="/dev/shm") as name:
        machine = EmulatedMachine(native, Path(name))
        os.environ.update(machine.environment)  # for NVML in this process, too
        daemon = Daemon(native, machine)
        nvml = Nvml(native)
        try:
            start(daemon)
            figures |= killed(daemon, nvml, 5 if few else 50)
            figures |= cost(daemon, 40 if few else 600, 5 if few else 20)
            figures |= saved(daemon, nvml, 1 if few else 6)
        finally:
            daemon.end()
            machine.stop()
    if arguments.schedules:
        figures |= schedules(arguments.schedules)
    show(figures)
    write(arguments.out, figures)
    return 0


if __name__ == "__main__":
    sys.exit(main())
