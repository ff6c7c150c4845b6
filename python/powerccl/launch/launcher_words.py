# SPDX-License-Identifier: Apache-2.0
"""A launcher's command in parts: its options, and the program that the ranks run.

Values of options may be names of programs: `mpiexec --map-by node ./app` where Node.js is installed.
"""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

MPI, SRUN, TORCHRUN = "mpi", "srun", "torchrun"
_MPI_NAMES = ("mpiexec", "mpirun", "orterun", "prterun")
# Options that take a value, without dashes, by kind of launcher. They are those of MPICH 4 and 5 with Hydra,
# Intel MPI 2021, Open MPI 4 and 5, Slurm 22 and PyTorch 2. Those that take one in one MPI alone, such as Intel's
# `-s`, are left out.
_LISTED = {
    MPI: (
        # Hydra, and what Intel MPI adds to it
        "n np ppn perhost grr f hosts host hostlist hostfile machinefile machine machines machinelist rankmap genvlist"
        " envlist wdir configfile launcher launcher-exec bootstrap bootstrap-exec rmk topolib bind-to binding map-by"
        " membind demux output-from prepend-pattern outfile-pattern errfile-pattern outfile errfile nameserver iface"
        " localhost usize order-nodes g gpus-per-proc gpu-subdevs-per-proc gtool gtoolfile hosts-group cpu-bind path"
        # Open MPI
        " N c H wd x am app rf rankfile cf cartofile cpu-list cpu-set cpus-per-proc cpus-per-rank debugger"
        " default-hostfile hnp launch-agent max-restarts max-vm-size npernode npersocket ompi-server output-filename"
        " personality ppr prefix preload-files rank-by report-events report-pid report-uri stdin timeout xml-file xterm"
        " display output spawn-timeout runtime-options add-host add-hostfile pset set-env unset-env gpu-support"
        " forward-signals keepalive app-pmix-prefix pmix-prefix singleton tmpdir stream-buffering"
    ),
    SRUN: (
        "A B b C c D d e G i J L M m N n o p q r S T t W w x account acctg-freq bb bbf bcast bcast-exclude begin chdir"
        " cluster-constraint clusters comment constraint container core-spec cores-per-socket cpu-bind cpu-freq"
        " cpus-per-gpu cpus-per-task deadline delay-boot dependency distribution epilog error exclude export"
        " extra-node-info gpu-bind gpu-freq gpus gpus-per-node gpus-per-socket gpus-per-task gres gres-flags het-group"
        " hint input job-name jobid licenses mail-type mail-user mcs-label mem mem-bind mem-per-cpu mem-per-gpu"
        " mincpus mpi network nodefile nodelist nodes ntasks ntasks-per-core ntasks-per-gpu ntasks-per-node"
        " ntasks-per-socket output partition power priority profile prolog qos relative reservation signal"
        " slurmd-debug sockets-per-node switches task-epilog task-prolog thread-spec threads threads-per-core time"
        " time-min tmp tres-bind tres-per-task wait wckey"
    ),
    TORCHRUN: (
        "r t nnodes nproc-per-node rdzv-backend rdzv-endpoint rdzv-id rdzv-conf max-restarts monitor-interval"
        " start-method event-log-handler role log-dir redirects tee local-ranks-filter node-rank master-addr"
        " master-port local-addr logs-specs numa-binding signals-to-handle"
    ),
}
_ONE = {kind: frozenset(names.split()) for kind, names in _LISTED.items()}
_TWO = ("genv", "env", "mca", "gmca", "omca", "gomca", "prtemca", "pmixmca", "gpmixmca", "append-env", "prepend-env")


@dataclass(frozen=True)
class LauncherWords:
    """A launcher's own words, each option with its values, and the program with its arguments."""

    options: list[list[str]] = field(default_factory=list)
    program: list[str] = field(default_factory=list)  # empty: none is named


def launcher_kind(command: list[str]) -> str:
    """MPI, SRUN or TORCHRUN; empty: the command is no launcher. Debian and modules add endings to names of MPI's."""
    name = Path(command[0]).name
    if name in _MPI_NAMES or name.startswith(tuple(f"{known}." for known in _MPI_NAMES)):
        return MPI
    return name if name in (SRUN, TORCHRUN) else ""


def split_launcher(command: list[str], environment: Mapping[str, str] | None) -> LauncherWords:
    """The parts of a launcher's command.

    The program is the first word that is neither an option nor its value. Behind an option that is not listed above,
    words that are no program in PATH of `environment` count as its values. None: nothing is looked up. Only flags of
    torchrun are not listed, and its scripts need no right to be executed.
    """
    kind, parts, at, listed = launcher_kind(command), LauncherWords(), 1, True
    while at < len(command):
        word = command[at]
        if word.startswith("-"):
            count = _values(kind, word, command[at + 1 : at + 2])
            listed = count > 0 or word == "--" or "=" in word or _has_value(kind, word)
            parts.options.append(command[at : at + 1 + count])
            at += count
        elif listed or (not word.isdigit() and (kind == TORCHRUN or _is_program(word, environment))):
            parts.program.extend(command[at:])
            break
        at += 1
    return parts


def _values(kind: str, word: str, following: list[str]) -> int:
    """How many of the next words are values of this option."""
    name = word.lstrip("-")
    if kind == TORCHRUN:
        name = name.replace("_", "-")
    if kind == MPI and name in _TWO:
        return 1 if "env" in name and "=" in "".join(following) else 2  # Hydra's `-genv NAME=VALUE`
    return int(name in _ONE[kind])


def _has_value(kind: str, word: str) -> bool:
    """Whether a short option has its value in the same word: `srun -n2`."""
    return kind != MPI and word[1:2] in _ONE[kind] and not word.startswith("--")


def _is_program(word: str, environment: Mapping[str, str] | None) -> bool:
    return environment is None or shutil.which(word, path=environment.get("PATH")) is not None
