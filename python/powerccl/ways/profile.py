# SPDX-License-Identifier: Apache-2.0
"""What `powerccl profile --ways` does: every way of each pattern and size, alone and beside computation."""

from __future__ import annotations

import shutil
import subprocess
import time
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from pathlib import Path

from powerccl.bench.process import environment_of, gpus_to_profile, make_work_folder, with_libraries
from powerccl.errors import PowercclError
from powerccl.files import write_whole
from powerccl.launch.emulation import platform_name
from powerccl.launch.gpus import Gpus
from powerccl.launch.native import BENCH, find_native
from powerccl.launch.services import last_line
from powerccl.platforms.measurements import BenchHeader, read_bench_lines
from powerccl.platforms.schema import encode
from powerccl.platforms.ways import TABLES, WayPoint, WaysTable, medians

ROUNDS = 3  # all ways in turn, so that a GPU that warms up or changes its state does so for each of them
# Seconds of a point. Energy counters move every 100 ms: three rounds of half a second know a power to some 2 %.
MIN_TIME_S = "0.5"
EMULATED_S = "0.02"  # emulated times and energies are exact however long it takes, and no data need be moved
BESIDE = "matmul,memory"
PATTERNS = ("all_reduce", "all_gather", "reduce_scatter", "all_to_all")  # that have a way other than plain
# First, last, factor. Below, a call's own cost is most of its time; FSDP reduces a layer's gradients of up to a GiB.
SIZES = "16M:1G:4"


def read_round(path: Path) -> tuple[BenchHeader | None, list[WayPoint]]:
    """One round's file, less what an interruption cut off; (None, []) where there is none yet.

    Raises:
        PowercclError: elements were wrong, so that nothing there is to be trusted.
    """
    header, measured = read_bench_lines(path)
    points: list[WayPoint] = []
    for point in measured:
        if not point.way:
            continue
        if point.wrong:
            raise PowercclError(
                f"{point.way} {point.pattern} of {point.size_bytes} bytes gave {point.wrong} wrong elements",
                "update NCCL, and tell its maintainers; this machine has no table of ways",
            )
        points.append(
            WayPoint(
                pattern=point.pattern,
                size_bytes=point.size_bytes,
                way=point.way,
                beside=point.beside or "",
                time_us=point.time_us,
                joules_per_gpu=point.joules_per_gpu,
                added_us=point.added_us,
                added_joules_per_gpu=point.added_joules_per_gpu,
                slowed_pct=point.slowed_pct,
            )
        )
    return header, points


def table_of(files: list[Path], name: str, made: str) -> WaysTable:
    """The table of some rounds' files. `made`: who made it, and when.

    Raises:
        PowercclError: there is nothing in them, or they are of different machines.
    """
    rounds = [read_round(path) for path in files]
    machines = [machine for machine, _ in rounds if machine is not None]
    if not machines or not any(points for _, points in rounds):
        raise PowercclError("powerccl-bench measured nothing", f"read the logs beside {files[0]}")
    machine = machines[0]
    if any(
        (each.gpu, each.ranks, each.nccl_version, each.products)
        != (machine.gpu, machine.ranks, machine.nccl_version, machine.products)
        for each in machines
    ):
        raise PowercclError("these rounds are of different machines or products", "omit --resume to start again")
    return WaysTable(
        name=name,
        gpu=machine.gpu,
        gpus=machine.ranks,
        emulated=machine.emulated,
        provenance=made,
        versions=machine.versions,
        products=machine.products or "",
        points=medians(point for _, points in rounds for point in points),
    )


def measure(
    emulate: str,
    patterns: list[str],
    sizes: tuple[int, int, int],
    name: str,
    out: Path | None,
    resume: bool,
    products: str,
    say: Callable[[str], None],
) -> tuple[WaysTable, Path]:
    """Measure all of it, or with `resume` what is left; the table, and the file that has it now.

    `products`: the shape of matrix products, as `powerccl-bench --products` takes it; empty: its own.

    Raises:
        PowercclError: no GPU, or powerccl-bench failed; what it had measured is kept for --resume.
    """
    native = find_native()
    with ExitStack() as stack:
        environment = environment_of(native, emulate, stack)
        gpus = gpus_to_profile(emulate, environment, "--ways --emulate h200x4")
        if not emulate:
            environment = with_libraries(environment)
        name = name or (platform_name(emulate) if emulate else _name(gpus))
        out = out or TABLES.place(name, Path())
        work = out.with_suffix(".measuring")
        make_work_folder(work, resume)
        files = [work / f"round-{number}.jsonl" for number in range(1, ROUNDS + 1)]
        first, last, factor = sizes
        for number, file in enumerate(files, 1):
            say(f"round {number} of {ROUNDS}")
            command = [str(native.path(BENCH)), *patterns, "-b", str(first), "-e", str(last), "-f", str(factor)]
            command += ["--way", "all", "--beside", BESIDE, "-n", "5", "--json-lines", str(file), "--resume"]
            command += ["--products", products] if products else []
            command += ["-c", "0", "--min-time", EMULATED_S] if emulate else ["--min-time", MIN_TIME_S]
            _run(command, environment, work / f"round-{number}.log")
        made = f"powerccl profile --ways, {time.strftime('%Y-%m-%d')}"
        table = table_of(files, name, made)
    write_whole(out, encode(table))
    shutil.rmtree(work, ignore_errors=True)
    return table, out


def _run(command: list[str], environment: Mapping[str, str], log: Path) -> None:
    with log.open("ab") as output:
        done = subprocess.run(
            command, env=environment, stdin=subprocess.DEVNULL, stdout=output, stderr=output, check=False
        )
    if done.returncode:
        raise PowercclError(
            f"powerccl-bench ended with exit code {done.returncode}: {last_line(log) or 'no message'}",
            f"read {log}; the same command with --resume continues from here",
        )


def _name(gpus: Gpus) -> str:
    model = gpus.name.removeprefix("NVIDIA ").replace(" ", "-").lower()
    return f"{model}x{len(gpus.names)}"
