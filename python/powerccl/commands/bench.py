# SPDX-License-Identifier: Apache-2.0
"""`powerccl bench`."""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import NoReturn

import click

from powerccl.commandline.output import fail, say
from powerccl.errors import USAGE, PowercclError
from powerccl.launch.child import ChildNotStartedError
from powerccl.launch.emulation import Emulation, emulated_platform
from powerccl.launch.native import BENCH, BENCH_MPI, NativeFiles, find_native

INVALID = 3  # exit code, as powerccl-bench's own
# A launcher has started this process when one of them is set: of powerccl-bench, and of powerccl-bench-mpi.
_GPU_RANK_VARIABLES = ("RANK", "OMPI_COMM_WORLD_RANK", "PMI_RANK", "SLURM_PROCID")
_RANK_VARIABLES = ("OMPI_COMM_WORLD_RANK", "PMI_RANK", "PMIX_RANK")


@click.command("bench", context_settings={"ignore_unknown_options": True, "allow_interspersed_args": False})
@click.option("--emulate", default="", metavar="NAME", help="Run on an emulated GPU server such as t4x8; needs no GPU.")
@click.option("--mpi", is_flag=True, help="Measure the MPI library on CPUs, with powerccl-bench-mpi.")
@click.option("-n", "count", type=click.IntRange(1), metavar="N", hidden=True)
@click.option(
    "--ranks", type=click.IntRange(1), metavar="N", help="With --mpi: number of ranks to start (also -n).  [default: 2]"
)
@click.option(
    "--mpiexec", default="", metavar="PATH", help="With --mpi: launcher of the ranks.  [default: mpiexec in PATH]"
)
@click.argument("arguments", nargs=-1, type=click.UNPROCESSED, metavar="[PATTERN|scenario|TEST] [OPTIONS]...")
def command(
    emulate: str, mpi: bool, count: int | None, ranks: int | None, mpiexec: str, arguments: tuple[str, ...]
) -> int:
    """Measure collectives, or replay the job of a scenario file.

    Bench starts powerccl-bench and prints tables of its results. OPTIONS are those of NCCL tests and more;
    `powerccl bench -- --help` lists them. The exit code is powerccl-bench's. `--json-lines -` prints a line of JSON
    for each result instead of tables. `--clocks` of real GPUs needs --set-clocks, and leases from powerccld.

    With --mpi, bench measures an MPI library instead: latency and bandwidth by the conventions of the OSU benchmarks,
    and the cost of waiting. `powerccl bench --mpi -- --help` lists its tests. Under mpiexec or srun, start it on each
    rank.

    \b
    powerccl bench --emulate t4x8 all_reduce -b 1M -e 64M -f 2
    powerccl bench scenario bench/scenarios/ddp.scn
    powerccl bench --mpi -n 4 allreduce -b 8 -e 1M
    powerccl run -- powerccl bench --mpi stencil --imbalance-pct 20
    """  # noqa: D301 - click's mark for text that is not to be wrapped
    native = find_native()
    rest = list(arguments[1:] if arguments[:1] == ("--",) else arguments)
    if mpi:
        if emulate:
            fail("--mpi and --emulate do not go together", "MPI is measured on this machine's own CPUs", USAGE)
        return _run_mpi(native, rest, count or ranks, mpiexec)
    if ranks is not None or mpiexec:
        hint = "powerccl bench --mpi -n 2 allreduce; GPUs are chosen by -g"
        fail("--ranks and --mpiexec are options of --mpi", hint, USAGE)
    if count is not None:
        rest = ["-n", str(count), *rest]  # powerccl-bench's own: iterations
    if not emulate:
        return _measure(native, [str(native.path(BENCH))], rest, os.environ)
    platform = emulated_platform(native, emulate)
    emulation = Emulation(native, platform, None)
    with emulation:
        code = _measure(native, [str(native.path(BENCH))], rest, emulation.environment(os.environ))
    # A scenario runs as a job does, in real time; powerccl-bench itself sees to its other modes.
    if code == 0 and rest[:1] == ["scenario"] and emulation.problem:
        fail(emulation.problem, "run it on an idle machine, or with fewer ranks (-g)", INVALID)
    return code


def become_bench() -> NoReturn:
    """The `powerccl-bench` of an installed wheel, which keeps its programs out of PATH."""
    _become(BENCH)


def become_bench_mpi() -> NoReturn:
    """The `powerccl-bench-mpi` of an installed wheel."""
    _become(BENCH_MPI)


def _become(name: str) -> NoReturn:
    try:
        native = find_native()
        sys.exit(_measure(native, [str(native.path(name))], sys.argv[1:], os.environ))
    except PowercclError as error:
        fail(error.message, error.hint)


def _measure(native: NativeFiles, program: list[str], options: list[str], environment: Mapping[str, str]) -> int:
    from powerccl.bench.shown import measure

    if program[0] == str(native.path(BENCH)) and any(name in environment for name in _GPU_RANK_VARIABLES):
        options = [*options, "--launched-by", str(os.getppid())]  # ranks of one launch recognise each other by it
    try:
        return measure(native, program, options, environment, say)
    except ChildNotStartedError as error:
        fail(str(error), f"reinstall powerccl: {program[0]} does not run here", error.code)


def _run_mpi(native: NativeFiles, options: list[str], ranks: int | None, mpiexec: str) -> int:
    """Run powerccl-bench-mpi as the rank that a launcher has made of this process, else a launcher of it."""
    program = str(native.path(BENCH_MPI))
    if any(name in os.environ for name in _RANK_VARIABLES):
        if ranks is not None or mpiexec:
            hint = "give the number of ranks to it"
            fail("-n and --mpiexec: an MPI launcher has started this already", hint, USAGE)
        return _measure(native, [program], options, os.environ)
    if any(word in ("-h", "--help", "--version") for word in options):
        return _measure(native, [program], options, os.environ)
    launcher = find_launcher(mpiexec, os.environ)
    count = ranks or 2
    # Open MPI, 5 and 4, refuses more ranks than cores unless they are allowed explicitly.
    allowed = {"PRTE_MCA_rmaps_default_mapping_policy": ":oversubscribe", "OMPI_MCA_rmaps_base_oversubscribe": "1"}
    environment = {**(allowed if count > (os.cpu_count() or 1) else {}), **os.environ}
    return _measure(native, [launcher, "-n", str(count), program], options, environment)


def find_launcher(named: str, environment: Mapping[str, str]) -> str:
    """Absolute path of the mpiexec to use: the named one, else the one in PATH.

    Raises:
        PowercclError: there is none.
    """
    program = shutil.which(named or "mpiexec", path=environment.get("PATH"))
    if program:
        return str(Path(program).absolute())
    if named:
        raise PowercclError(
            f"--mpiexec {named}: no such program", "name the mpiexec of your MPI library, with its path"
        )
    raise PowercclError(
        "mpiexec is not in PATH",
        "install an MPI library (`pip install mpich` will do), load its module, or name its launcher with --mpiexec",
    )
