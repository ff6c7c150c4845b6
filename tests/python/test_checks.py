# SPDX-License-Identifier: Apache-2.0
"""What `powerccl doctor` says of NCCL, MPI, other plugins, the clock daemon, and of what bounds a GPU's power."""

from __future__ import annotations

import os
import re
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from lease_daemon import FakeDaemon

from powerccl.doctor import gpu_power
from powerccl.doctor import mpi as mpi_checks
from powerccl.doctor.checks import Check, check_daemon, check_energy, check_gpus, check_power, check_ways
from powerccl.doctor.gpu_power import GpuPower, read_power
from powerccl.doctor.nccl import POOL_BYTES, check_nccl, check_plugin, check_shared_memory, check_version
from powerccl.launch.gpus import Gpus
from powerccl.launch.native import MPI_ADAPTER, NCCL_ADAPTER, NativeFiles, find_native
from powerccl.leases.protocol import Flag, Status, Type


@pytest.mark.parametrize(
    ("version", "state", "words"),
    [
        (21705, "missing", "too old"),
        (22105, "ok", "preloaded functions"),
        (22707, "ok", "profiler plugin v4"),
        (22809, "ok", "profiler plugin v5"),
        (23007, "ok", "profiler plugin v6: calls, kernels and copy engines"),
        (23203, "ok", "profiler plugin v7"),
    ],
)
def test_what_works_with_an_nccl(version: int, state: str, words: str) -> None:
    check = check_version("libnccl.so.2", version)
    assert check.state == state and words in check.found
    assert ("2355" in check.advice) == (version >= 23100)


def test_another_profiler_is_named() -> None:
    native = find_native()
    ours = str(native.root / NCCL_ADAPTER)
    checks = {check.name: check for check in check_nccl(native, 0, {"NCCL_PROFILER_PLUGIN": "/nowhere/inspector.so"})}
    assert checks["your profiler"].state == "missing" and "cannot be loaded" in checks["your profiler"].found
    assert "your profiler" not in {check.name for check in check_nccl(native, 0, {"NCCL_PROFILER_PLUGIN": ours})}
    chained = {"NCCL_PROFILER_PLUGIN": ours, "POWERCCL_CHAINED_PROFILER": ours + ".other"}
    assert "your profiler" in {check.name for check in check_nccl(native, 0, chained)}
    # Any library that has the tables will do: ours has them all.
    loaded = check_plugin("NCCL_PROFILER_PLUGIN", ours)
    assert loaded.state == "ok" and "v4, v5, v6, v7" in loaded.found
    assert check_plugin("NCCL_TUNER_PLUGIN", "libc.so.6").state == "missing"


def test_shared_memory_is_compared_with_what_kernel_events_need(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def of(megabytes: int) -> Any:
        monkeypatch.setattr(os, "statvfs", lambda _: SimpleNamespace(f_blocks=megabytes << 8, f_frsize=4096))
        return check_shared_memory(tmp_path, 8)

    small = of(64)
    assert small.state == "missing" and "64 MiB" in small.found and "--shm-size=2g" in small.advice
    assert of((POOL_BYTES >> 20) * 8 * 4).state == "ok"
    assert of(0).state == "ok" and "no limit" in of(0).found


class Nvml:
    """An NVML of two GPUs."""

    power_mw, energy_mj, gain_mj = 60_000, 5_000, 0

    def __init__(self, limits_w: tuple[float, float], profiles: int = 0, smoothing: int | None = None) -> None:
        self.limits_w, self.profiles, self.smoothing = limits_w, profiles, smoothing

    def nvmlInit_v2(self) -> int:  # noqa: N802 - NVML's names
        return 0

    nvmlShutdown = nvmlInit_v2  # noqa: N815

    def nvmlDeviceGetCount_v2(self, count: Any) -> int:  # noqa: N802
        count._obj.value = 2
        return 0

    def nvmlDeviceGetHandleByIndex_v2(self, index: Any, device: Any) -> int:  # noqa: N802
        device._obj.value = index.value + 1
        return 0

    def nvmlDeviceGetEnforcedPowerLimit(self, device: Any, limit: Any) -> int:  # noqa: N802
        limit._obj.value = int(1000 * self.limits_w[device.value - 1])
        return 0

    def nvmlDeviceGetPowerManagementDefaultLimit(self, device: Any, limit: Any) -> int:  # noqa: N802
        limit._obj.value = 700_000
        return 0

    def nvmlDeviceGetPowerUsage(self, device: Any, power: Any) -> int:  # noqa: N802
        power._obj.value = self.power_mw
        return 0

    def nvmlDeviceGetTotalEnergyConsumption(self, device: Any, energy: Any) -> int:  # noqa: N802
        energy._obj.value = self.energy_mj = self.energy_mj + self.gain_mj
        return 0

    def nvmlDeviceWorkloadPowerProfileGetCurrentProfiles(self, device: Any, current: Any) -> int:  # noqa: N802
        assert current._obj.version == 0x01000064
        current._obj.enforced[0] = self.profiles
        return 0

    def nvmlDeviceGetFieldValues(self, device: Any, count: Any, field: Any) -> int:  # noqa: N802
        assert field._obj.field_id == 256
        field._obj.status = 3 if self.smoothing is None else 0
        field._obj.value = self.smoothing or 0
        return 0


def test_what_bounds_the_power_is_read() -> None:
    assert read_power(Nvml((700, 400))) == [GpuPower(700, 700, reads=True), GpuPower(400, 700, reads=True, index=1)]
    assert read_power(Nvml((700, 700), 0b10000010, 1))[0] == GpuPower(
        700, 700, ("Max-Q", "LLM training"), True, reads=True
    )
    assert read_power(Nvml((700, 700), smoothing=0))[0].smoothing is False
    old = SimpleNamespace(
        **{name: getattr(Nvml((1, 1)), name) for name in ("nvmlInit_v2", "nvmlShutdown", "nvmlDeviceGetCount_v2")},
        nvmlDeviceGetHandleByIndex_v2=Nvml((1, 1)).nvmlDeviceGetHandleByIndex_v2,
    )
    assert read_power(old) == [GpuPower(), GpuPower(index=1)]


def test_an_energy_counter_is_one_that_moves(monkeypatch: pytest.MonkeyPatch) -> None:
    def energy_check(**changed: int) -> Check:
        nvml = Nvml((0, (2**32 - 1) / 1000))
        for name, value in changed.items():
            setattr(nvml, name, value)
        power = read_power(nvml)
        assert {gpu.limit_w for gpu in power} == {None}, "0 and ones in all bits are no limits"
        (check,) = check_energy(power)
        return check

    monkeypatch.setattr(gpu_power, "_COUNTER_S", 0.02)
    assert energy_check(gain_mj=7).found.startswith("total-energy counter")
    still = energy_check()
    assert still.state == "ok" and still.found.startswith("power readings only")
    nothing = energy_check(power_mw=2**32 - 1)
    assert nothing.state == "missing" and nothing.found == "neither energy counter nor power reading"
    eight = [GpuPower(counts=index != 3, reads=True, index=index) for index in range(8)]
    (one,) = check_energy(eight)
    assert (one.state, one.found) == ("ok", "energy counter on 7 of 8 GPUs; power readings on GPU 3")
    (some,) = check_energy([*eight[2:5], GpuPower(index=5), GpuPower(index=7)])
    assert some.state == "missing"
    assert some.found == (
        "energy counter on 2 of 5 GPUs; power readings on GPU 3; neither energy counter nor power reading on GPUs 5, 7"
    )
    assert list(check_energy([])) == []


def test_what_bounds_the_power_is_said() -> None:
    assert list(check_power([])) == []
    assert [(check.state, check.found) for check in check_power([GpuPower(700, 700)] * 2)] == [("ok", "700 W")]
    found = list(check_power([GpuPower(700, 700, ("Max-Q",), True), GpuPower(400, 700)]))
    assert [check.name for check in found] == ["power limit", "power profile", "power smoothing"]
    assert found[0].found == "400 W to 700 W; 1 of 2 GPUs below the default"
    assert found[2].state == "missing"


def test_ways_are_named_for_several_gpus(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    (known,) = check_ways(["NVIDIA H200"] * 2)
    assert known.state == "ok" and "copy engines for FSDP2 from 64 MiB" in known.found and "h200x2" in known.found
    (fewer,) = check_ways(["NVIDIA H200"] * 8)
    assert "from 256 MiB on with 4 ranks, from 64 MiB on with 2 ranks (tables h200x4, h200x2)" in fewer.found
    (unknown,) = check_ways(["NVIDIA A100"] * 8)
    assert unknown.state == "missing" and "powerccl profile --ways" in unknown.advice
    assert list(check_ways(["NVIDIA H200"])) == list(check_ways([])) == []


def test_the_pool_is_as_large_as_the_runtime_thinks() -> None:
    header = (Path(__file__).parents[2] / "native/job/adapters/nccl/profiler.cpp").read_text()
    ((number, shift),) = re.findall(r"kPoolBytes = uint64_t\{(\d+)\} << (\d+);", header)
    assert int(number) << int(shift) == POOL_BYTES


def test_the_doctor_finds_a_daemon(busy: FakeDaemon) -> None:
    busy.refuse[Type.ACQUIRE] = (Status.NO_DEVICE, "")
    check = check_daemon(busy.path)
    assert (check.state, check.advice) == ("ok", "")
    assert check.found == "powerccld 9.8.7, 4 GPUs; you may have leases and revoke those of others"
    busy.flags = 0
    assert check_daemon(busy.path).found.endswith("; you may have leases")
    assert busy.told(Type.ACQUIRE)[0] == b""  # asks for nothing that it could get
    busy.flags = int(Flag.DRAINED)
    assert (check_daemon(busy.path).state, "draining" in check_daemon(busy.path).found) == ("missing", True)


def test_the_doctor_finds_no_way_in(busy: FakeDaemon, tmp_path: Path) -> None:
    busy.refuse[Type.ACQUIRE] = (Status.NOT_ALLOWED, "")
    check = check_daemon(busy.path)
    assert check.state == "missing"
    assert "you may have no leases" in check.found
    assert "ask the administrator" in check.advice
    check = check_daemon(tmp_path / "none")
    assert check.state == "missing"
    assert "powerccl admin install" in check.advice
    assert "only observe need none" in check.advice
    busy.override = lambda kind, serial: [b"garbage"]
    assert check_daemon(busy.path).state == "missing"


def test_the_doctor_knows_who_may_set_clocks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("powerccl.doctor.checks.may_set_clocks", lambda: False)
    gpus = Gpus(["Tesla T4"], clocks_mhz=[300, 1590])

    def clocks_check(leases: bool) -> Check:
        return next(check for check in check_gpus(gpus, leases) if check.name == "clocks")

    check = clocks_check(leases=True)
    assert check.state == "ok"
    assert check.found == "300 to 1590 MHz in 2 steps; can be set through powerccld (with --set-clocks)"
    check = clocks_check(leases=False)
    assert check.state == "missing"
    assert "powerccld" in check.advice
    assert "CAP_SYS_ADMIN" in check.advice


@pytest.fixture
def native(loadable_native: NativeFiles) -> NativeFiles:
    return loadable_native


@pytest.mark.parametrize(
    ("text", "name", "sleeps"),
    [
        ("Open MPI v5.0.11, package: Open MPI x", "Open MPI 5.0.11", True),
        ("MPICH Version:      5.0.2\nMPICH Release date: x", "MPICH 5.0.2", True),
        ("MPICH Version:\t4.3.0", "MPICH 4.3.0", True),
        ("MPICH Version:\t4.0.2", "MPICH 4.0.2", False),
        ("Intel(R) MPI Library 2021.19 for Linux* OS", "Intel MPI 2021.19", True),
        ("MVAPICH2 Version : 2.3.7", "MVAPICH 2.3.7", True),
        ("Somebody's MPI", "an unknown MPI", False),
    ],
)
def test_mpi_libraries_by_their_own_words(text: str, name: str, sleeps: bool) -> None:
    library = mpi_checks.parse_library("/x/libmpi.so.12", text, ucx=False)
    assert (library.name, library.waits[0]) == (name, sleeps)
    assert mpi_checks.parse_library("/x/libmpi.so.12", text, ucx=True).waits[0]
    assert "(MPI-5 ABI)" in mpi_checks.parse_library("/x/libmpi_abi.so.1", text, False).name


def test_doctor_on_processors(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, native: NativeFiles) -> None:
    cpuinfo = tmp_path / "cpuinfo"
    cpuinfo.write_text("processor: 0\nflags\t: fpu waitpkg monitorx\n")
    counter = tmp_path / "powercap/intel-rapl:0/energy_uj"
    counter.parent.mkdir(parents=True)
    counter.write_text("1")
    monkeypatch.setattr(mpi_checks, "CPU_INFO", cpuinfo)
    monkeypatch.setattr(mpi_checks, "POWERCAP", tmp_path / "powercap")
    monkeypatch.setattr(mpi_checks, "find_libraries", lambda: [])
    monkeypatch.setattr(mpi_checks, "find_launchers", lambda: [])
    found = {check.name: check for check in mpi_checks.check_mpi(native)}
    assert "UMWAIT and MWAITX" in found["waiting"].found
    cpuinfo.write_text("processor: 0\nFeatures\t: fp asimd evtstrm\n")
    found = {check.name: check for check in mpi_checks.check_mpi(native)}
    assert found["waiting"].found.startswith("WFE, if it passes")
    cpuinfo.write_text("processor: 0\nFeatures\t: fp asimd\n")
    found = {check.name: check for check in mpi_checks.check_mpi(native)}
    assert found["waiting"].found.startswith("no UMWAIT, MWAITX, WFE on this host")
    assert found["CPU energy"].found == "1 RAPL counters (powercap)"
    assert (found["MPI"].state, found["mpiexec"].state) == ("missing", "missing")
    monkeypatch.setattr(mpi_checks, "POWERCAP", tmp_path / "none")
    monkeypatch.setattr(mpi_checks, "PERF_POWER", tmp_path / "none")
    (native.root / MPI_ADAPTER).unlink()
    found = {check.name: check for check in mpi_checks.check_mpi(native)}
    assert {found[name].state for name in ("MPI library", "CPU energy")} == {"missing"}
