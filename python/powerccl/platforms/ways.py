# SPDX-License-Identifier: Apache-2.0
"""What each way of carrying a collective out takes on one machine: a JSON file, `schema_version` 1.

The ways are those of `powerccl bench --way`: plain (rings and trees), symmetric (kernels on symmetric windows),
copy-engine (zero-CTA policy) and efficiency (fewest thread blocks). `powerccl profile --ways` measures them; it needs
no right to set clocks.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from statistics import median

import msgspec

from powerccl.patterns import PATTERNS
from powerccl.platforms.catalog import BUILTIN, Catalog

SCHEMA_VERSION = 1
PLAIN, COPY_ENGINE = "plain", "copy-engine"
PRODUCTS = "matmul"
SURROUNDINGS = (PRODUCTS, "memory")  # what `powerccl profile --ways` measures beside
WAYS = (PLAIN, "symmetric", COPY_ENGINE, "efficiency")
# A call may be so much larger or smaller than what was measured, as a factor. Measured sizes grow by 2 or 4, so between
# them one is always as near; beyond them nothing is said.
REACH = 2.0
TOLERANCE = 0.01  # of a time: what differs by less is as quick; two measurements on one GPU differ by as much


class WayPoint(msgspec.Struct, kw_only=True, omit_defaults=True):
    """One pattern, size and way, alone or beside computation. Medians of `rounds` measurements, per operation.

    Beside computation, `added_*` is the excess over what the computation done meanwhile takes alone. `slowed_pct` is
    how much longer the computation takes; energy is one GPU's. None: not known.
    """

    pattern: str
    size_bytes: int  # as NCCL tests count it: of an all-gather, the output
    way: str
    beside: str = ""  # matmul, memory, both; empty: alone
    time_us: float
    joules_per_gpu: float | None = None
    added_us: float | None = None
    added_joules_per_gpu: float | None = None
    slowed_pct: float | None = None
    rounds: int = 1

    @property
    def cost_us(self) -> float:
        """The time that it costs a job."""
        return self.time_us if self.added_us is None else self.added_us

    @property
    def cost_joules(self) -> float | None:
        """The energy that it costs a job, of each GPU."""
        return self.added_joules_per_gpu if self.beside else self.joules_per_gpu


class WaysTable(msgspec.Struct, kw_only=True):
    """What was measured on one machine."""

    schema_version: int = SCHEMA_VERSION
    name: str
    gpu: str  # as NVML prints it
    gpus: int
    emulated: bool
    provenance: str  # what measured it, and when
    versions: dict[str, str] = {}
    products: str = ""  # tokens x width x hidden width of what `matmul` multiplied; empty: not known
    points: list[WayPoint] = []

    def point(self, pattern: str, size_bytes: int, way: str, beside: str) -> WayPoint | None:
        """The point at exactly that."""
        wanted = (pattern, size_bytes, way, beside)
        return next((p for p in self.points if (p.pattern, p.size_bytes, p.way, p.beside) == wanted), None)

    def nearest_size(self, pattern: str, size_bytes: float) -> int | None:
        """The measured size in bytes that is nearest, if one is within reach."""
        sizes = {point.size_bytes for point in self.points if point.pattern == pattern}
        if size_bytes <= 0 or not sizes:
            return None
        nearest = min(sizes, key=lambda each: abs(math.log(each / size_bytes)))
        return nearest if abs(math.log(nearest / size_bytes)) <= math.log(REACH) + 1e-9 else None


class Comparison(msgspec.Struct, kw_only=True):
    """A way against plain at one pattern and size: what it saves."""

    pattern: str
    size_bytes: int
    way: str
    never_slower: bool  # in no measured surrounding
    time_saved_pct: float  # alone
    energy_saved_pct: float | None
    alone_saved_us: float
    alone_saved_joules: float | None  # of each GPU
    beside_saved_us: dict[str, float]  # of what it adds, by what is computed beside it
    beside_saved_joules: dict[str, float]  # of each GPU


def compare(table: WaysTable, way: str) -> list[Comparison]:
    """The way against plain wherever both were measured by themselves; by pattern, then by size."""
    comparisons = []
    for plain in table.points:
        other = table.point(plain.pattern, plain.size_bytes, way, "")
        if plain.way != PLAIN or plain.beside or other is None:
            continue
        pairs = list(_beside(table, plain, way))
        slower = other.time_us > (1 + TOLERANCE) * plain.time_us or any(
            carried.cost_us > default.cost_us + TOLERANCE * plain.time_us for default, carried in pairs
        )
        energy = saved_joules = None
        if plain.joules_per_gpu and other.joules_per_gpu is not None:
            saved_joules = plain.joules_per_gpu - other.joules_per_gpu
            energy = 100 * saved_joules / plain.joules_per_gpu
        comparisons.append(
            Comparison(
                pattern=plain.pattern,
                size_bytes=plain.size_bytes,
                way=way,
                never_slower=not slower,
                time_saved_pct=100 * (1 - other.time_us / plain.time_us),
                energy_saved_pct=energy,
                alone_saved_us=plain.time_us - other.time_us,
                alone_saved_joules=saved_joules,
                beside_saved_us={default.beside: default.cost_us - carried.cost_us for default, carried in pairs},
                beside_saved_joules={
                    default.beside: default.cost_joules - carried.cost_joules
                    for default, carried in pairs
                    if default.cost_joules is not None and carried.cost_joules is not None
                },
            )
        )
    return sorted(comparisons, key=lambda each: (each.pattern, each.size_bytes))


def _beside(table: WaysTable, plain: WayPoint, way: str) -> Iterator[tuple[WayPoint, WayPoint]]:
    """Both ways beside each computation that both were measured beside."""
    for default in table.points:
        if (default.pattern, default.size_bytes, default.way) != (
            plain.pattern,
            plain.size_bytes,
            PLAIN,
        ) or not default.beside:
            continue
        carried = table.point(default.pattern, default.size_bytes, way, default.beside)
        if carried is not None:
            yield default, carried


def never_slower_from(table: WaysTable, pattern: str, way: str) -> int | None:
    """The size in bytes from which the way is at no measured size slower than plain, in no surrounding; else None."""
    least = None
    for each in reversed([c for c in compare(table, way) if c.pattern == pattern]):
        if not each.never_slower:
            break
        least = each.size_bytes
    return least


def copy_engines_from(tables: Iterable[WaysTable]) -> dict[int, int]:
    """By the number of ranks from which size in bytes on all-gathers by copy engines are never slower, where one is."""
    sizes = {table.gpus: never_slower_from(table, "all_gather", COPY_ENGINE) for table in tables}
    return {ranks: size for ranks, size in sizes.items() if size is not None}


def why_never(table: WaysTable, pattern: str, way: str) -> str:
    """Why there is no such size, in words."""
    if any(each.pattern == pattern for each in compare(table, way)):
        return f"{way} is slower somewhere at every measured size of {pattern}"
    return f"{way} was not measured for {pattern}, with NCCL {table.versions.get('nccl', 'not known')}"


def medians(points: Iterable[WayPoint]) -> list[WayPoint]:
    """One point of all with the same pattern, size, way and surrounding; by these."""
    groups: dict[tuple[str, int, str, str], list[WayPoint]] = {}
    for point in points:
        groups.setdefault((point.pattern, point.size_bytes, point.way, point.beside), []).append(point)

    def of(group: list[WayPoint], field: str, digits: int) -> float | None:
        values = [value for each in group if (value := getattr(each, field)) is not None]
        return round(median(values), digits) if values else None

    def order(key: tuple[str, int, str, str]) -> tuple[str, int, str, int]:
        return key[0], key[1], key[3], WAYS.index(key[2])

    return [
        WayPoint(
            pattern=key[0],
            size_bytes=key[1],
            way=key[2],
            beside=key[3],
            time_us=of(groups[key], "time_us", 2) or 0.0,
            joules_per_gpu=of(groups[key], "joules_per_gpu", 6),
            added_us=of(groups[key], "added_us", 2),
            added_joules_per_gpu=of(groups[key], "added_joules_per_gpu", 6),
            slowed_pct=of(groups[key], "slowed_pct", 2),
            rounds=len(groups[key]),
        )
        for key in sorted(groups, key=order)
    ]


def _faults(table: WaysTable) -> Iterator[str]:
    for point in table.points:
        if point.pattern not in PATTERNS or point.way not in WAYS or not point.time_us > 0 or point.size_bytes <= 0:
            yield f"impossible point: {point.pattern}, {point.size_bytes} bytes, {point.way}, {point.time_us} us"


TABLES = Catalog(
    WaysTable,
    "table of ways",
    "table of ways",
    SCHEMA_VERSION,
    "powerccl profile --ways",
    "ways",
    _faults,
    BUILTIN / "ways",
)
load_table = TABLES.load


def tables_for(names: list[str]) -> dict[int, WaysTable]:
    """The user's newest or the built-in table of so many GPUs like these (`names` as NVML prints them), by number.

    Of all of them first, then of fewer: a job, or a group of its ranks, need not have all.
    """
    tables: dict[int, WaysTable] = {}
    for table in TABLES.preferred():
        if not table.emulated and table.gpus <= len(names) and set(names) == {table.gpu}:
            tables.setdefault(table.gpus, table)
    return dict(sorted(tables.items(), reverse=True))


def table_for(names: list[str]) -> WaysTable | None:
    """The table of exactly these GPUs, or None."""
    return tables_for(names).get(len(names))


# Names of GPUs whose copy engines and NVLink are of one generation: Hopper boards with NVSwitch or NVLink bridges of
# 900 GB/s. A PCIe board of the same chip is none of them.
ALIKE_GPUS = ({"NVIDIA H100 80GB HBM3", "NVIDIA H200", "NVIDIA H800", "NVIDIA H20"},)


def near_table_for(names: list[str]) -> WaysTable | None:
    """The table of the same GPUs in another number, else of GPUs alike, the nearest number first; None: there is none.

    What it says of times and energies is another machine's.
    """
    if len(names) < 2 or len(set(names)) > 1:
        return None
    alike = next((family for family in ALIKE_GPUS if names[0] in family), {names[0]})
    tables = [table for table in TABLES.preferred() if not table.emulated and table.gpu in alike]
    return min(tables, key=lambda table: (table.gpu != names[0], abs(table.gpus - len(names))), default=None)


# By pattern and way, what a user writes. Names as of PyTorch 2.12, Megatron-LM 0.17, vLLM 0.25 and SGLang 0.5.20.
_SYMMETRIC = (
    "PyTorch FSDP2 2.13 and later: FSDPModule.set_symm_mem_for_comm(). Megatron-FSDP: --use-nccl-ub. "
    "NCCL itself: buffers of ncclMemAlloc, registered with ncclCommWindowRegister(..., NCCL_WIN_COLL_SYMMETRIC)."
)
_SERVING = "vLLM: VLLM_USE_NCCL_SYMM_MEM=1. SGLang: --enable-symm-mem."
_WHAT_TO_WRITE = {
    ("all_gather", COPY_ENGINE): "PyTorch FSDP2: powerccl run --ways auto. Or as `symmetric`, with NCCL_CTA_POLICY=2.",
    ("all_to_all", COPY_ENGINE): "buffers as for `symmetric`, with NCCL_CTA_POLICY=2 (NCCL 2.29 and newer).",
    ("all_gather", "symmetric"): _SYMMETRIC,
    ("reduce_scatter", "symmetric"): _SYMMETRIC,
    ("all_reduce", "symmetric"): f"{_SERVING} {_SYMMETRIC.partition('. ')[2]}",
}
_EFFICIENT = "as `symmetric`, with NCCL_CTA_POLICY=1."


def what_to_write_for(wanted: Iterable[tuple[str, str]]) -> list[tuple[tuple[str, str], str]]:
    """For each pattern and way the lines or options that bring it about; plain takes none."""
    return [
        (each, _WHAT_TO_WRITE.get(each, _EFFICIENT if each[1] == "efficiency" else ""))
        for each in wanted
        if each[1] != PLAIN
    ]
