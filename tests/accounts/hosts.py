# SPDX-License-Identifier: Apache-2.0
"""accounts.hosts.swapped: GPUs of runs on two hosts that get another GPU's joules, or share them.

The hosts' GPUs have the same PCI addresses and numbers, as nodes of one model have. In some layouts they even have the
same UUIDs, in others traces or samples name no UUID or no boot. Every GPU's energy differs from all others', and every
output must give each rank that of its own.
"""

from __future__ import annotations

import importlib
import itertools
import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from support.figures import Figures, count
from trust import fault

from powerccl.launch.native import NativeFiles

synthetic: Any = importlib.import_module("synthetic")

HOSTS = ("node1", "node2", "node3")
GPUS = 2
MS = 1_000_000
END_NS = 3000 * MS
# By host and GPU: sums of any two differ, so that a GPU which has another's joules as well shows.
WATTS = {
    (host, gpu): 40.0 + 7 * 3 ** (GPUS * place + gpu) / 10 for place, host in enumerate(HOSTS) for gpu in range(GPUS)
}


@dataclass(frozen=True)
class Layout:
    """How much the files tell, and what hosts have in common."""

    hosts: int = 2
    uuids: str = "own"  # of samples: own, same (on all hosts), none
    ranks_name: str = "uuid"  # uuid, pci, both
    boots: str = "own"  # own, none, some (the first host has none), same
    one_name: bool = False  # all hosts are called the same
    order: int = 1  # of files: -1 writes the last host's first
    ranks: bool = True

    @property
    def tells(self) -> bool:
        """Whether the files say which GPU is whose."""
        if self.one_name and self.boots in ("none", "same", "some"):
            return False
        samples_named, by_address = self.uuids != "none", self.ranks_name != "uuid"
        return samples_named or by_address


def layouts() -> Iterator[Layout]:
    """All that tell which GPU is whose."""
    for each in itertools.product(
        (2, 3),
        ("own", "same", "none"),
        ("uuid", "pci", "both"),
        ("own", "none", "some", "same"),
        (False, True),
        (1, -1),
    ):
        if (layout := Layout(*each)).tells and not (layout.uuids == "none" and layout.ranks_name != "pci"):
            yield layout


def measure(native: NativeFiles, folder: Path) -> Figures:
    """All layouts, in the report, its curves and what top shows."""
    found = list(layouts())
    swapped = sum(is_swapped(layout, folder / str(number)) for number, layout in enumerate(found))
    return {"accounts.hosts.swapped": count(swapped, len(found))}


def is_swapped(layout: Layout, run: Path) -> bool:
    """Whether a rank has not its own GPU's joules in one of the outputs, or a sum is not that of all."""
    from powerccl.analysis.energy import energy_curves
    from powerccl.analysis.summary import summarise
    from powerccl.live.job import Watcher
    from powerccl.traces.folder import read_run

    _write(layout, run)
    data = read_run(run)
    summary = summarise(data)
    curves = energy_curves(data)
    live = Watcher(run).look(END_NS, _name(layout, HOSTS[0]))
    wanted = {
        GPUS * place + gpu: WATTS[host, gpu] * END_NS / 1e9
        for place, host in enumerate(HOSTS[: layout.hosts])
        for gpu in range(GPUS)
    }
    outputs = {
        "report": {rank: gpu.joules for gpu in summary.gpus for rank in gpu.ranks},
        "curves": {
            trace.rank: float(curves[trace.gpu].joules[-1]) if trace.gpu in curves else None for trace in data.ranks
        },
        "top": {rank: gpu.joules for gpu in live.gpus for rank in gpu.ranks},
    }
    faults = [
        f"{what}: rank {rank} has {got.get(rank)} J of {joules:.1f} J"
        for what, got in outputs.items()
        for rank, joules in wanted.items()
        if (have := got.get(rank)) is None or abs(have / joules - 1) > 0.002
    ]
    total = sum(wanted.values())
    for what, joules in (("report", summary.energy.joules), ("top", live.joules)):
        if joules is None or abs(joules / total - 1) > 0.002:
            faults.append(f"{what}: {joules} J of {total:.1f} J in all")
    for text in faults[:3]:
        fault(f"{layout}: {text}")
    return bool(faults)


def _name(layout: Layout, host: str) -> str:
    return "node" if layout.one_name else host


def _write(layout: Layout, run: Path) -> None:
    run.mkdir()
    for place, host in list(enumerate(HOSTS[: layout.hosts]))[:: layout.order]:
        boot = {"own": f"{place + 1:032x}", "none": "", "same": f"{9:032x}"}.get(
            layout.boots, f"{place:032x}" if place else ""
        )
        name = _name(layout, host)
        head = [f"# host: {name}", f"# interval_ns: {20 * MS}", f"# gpu_count: {GPUS}"]
        head += [f"# boot_id: {boot}"] * bool(boot)
        uuids = {}
        for gpu in range(GPUS):
            of_host = 0 if layout.uuids == "same" else place
            uuids[gpu] = f"GPU-{of_host:08d}-0000-0000-0000-00000000000{gpu}"
            sampled = "" if layout.uuids == "none" else uuids[gpu]
            head += [f"# gpu{gpu}_uuid: {sampled}", f"# gpu{gpu}_pci: 00000000:0{gpu}:00.0"]
            trace = synthetic.TraceWriter(
                GPUS * place + gpu,
                GPUS * layout.hosts,
                local_rank=gpu,
                host=name,
                boot_id=boot,
                gpu_uuid="" if layout.ranks_name == "pci" else uuids[gpu],
                gpu_pci="" if layout.ranks_name == "uuid" else f"00000000:0{gpu}:00.0",
                start_ns=1 * MS,
                start_realtime_ns=1_000_000 * MS,
            )
            trace.comm(1 * MS)
            for call in range(1, 6):
                trace.call(call, call * 500 * MS, 1 << 20, flags=0x40)
                trace.kernel(call, call * 500 * MS, call * 500 * MS + 40 * MS, 1 << 20)
            trace.write(run, f"rank-{GPUS * place + gpu}.trace")
        columns = "time_ns,gpu,uuid,power_mw,energy_uj,sm_clock_mhz,mem_clock_mhz,temperature_c,throttle_reasons"
        rows = [
            f"{at},{gpu},{'' if layout.uuids == 'none' else uuids[gpu]},{int(WATTS[host, gpu] * 1e3)},"
            f"{int(WATTS[host, gpu] * at / 1e3)},1590,5000,40,0x4,100"
            for at in range(0, END_NS + 1, 20 * MS)
            for gpu in range(GPUS)
        ]
        path = run / f"power-{name}{f'-{boot[-8:]}' * bool(place and layout.one_name)}.csv"
        path.write_text("\n".join([*head, f"{columns},utilization_pct", *rows, ""]))
    synthetic.write_info(run, END_NS, host=_name(layout, HOSTS[0]))
    assert json.loads((run / "run.json").read_text())["host"]
