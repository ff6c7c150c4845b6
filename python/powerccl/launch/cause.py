# SPDX-License-Identifier: Apache-2.0
"""Why no rank of a job left a trace: one sentence, which the summary and every report show.

The evidence is how the job ended, the run folder's disk, and what powerccl-agent saw of the job's processes in /proc
(native/node/agent/job_processes.h). A rule states a cause only if its evidence is there; the first that applies wins.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import NamedTuple

from powerccl.launch.program import is_launcher, mpi_linking, program_behind
from powerccl.quantities import plural, seconds
from powerccl.traces.run_files import has_files

PREFIX = "Nothing was recorded: "
# They start processes on other hosts or in containers, which inherit neither environment nor libraries.
ELSEWHERE = ("ssh", "sbatch", "docker", "podman", "nerdctl", "kubectl", "qsub", "bsub")
# Values of CUDA_VISIBLE_DEVICES that leave a job without a GPU.
HIDDEN = ("", "-1", "NoDevFiles", "void")
# A file system with less room than this takes no trace: its header alone has 4 KiB.
LEAST_ROOM_BYTES = 64 << 10
FILTERED = ".refused-"  # begins the name of a file for a system call: native/job/base/seccomp_filter.cpp
_MARK = "process,"


class Seen(NamedTuple):
    """Processes of one program with the same traits, as the agent saw them last."""

    program: str
    processes: int
    mpi: bool
    nccl: bool
    cuda: bool
    gloo: bool
    ours: bool
    preload: bool
    dynamic: bool
    readable: bool

    @property
    def communicates(self) -> bool:
        """Whether it has loaded a library that PowerCCL records."""
        return self.mpi or self.nccl


class Evidence(NamedTuple):
    """What is known of a job that left no trace.

    `no_preload`: why PowerCCL's libraries were not preloaded; empty: they were. `seen`: None if the agent did not tell.
    """

    command: list[str]
    environment: Mapping[str, str]
    folder: Path
    code: int
    signal: int | None
    took_s: float
    mpi_off: bool
    among_ranks: bool
    no_preload: str
    has_gpu: bool
    seen: list[Seen] | None
    local: Path | None = None  # the node's own folder, where the ranks write


def read_seen(lines: Iterable[str]) -> list[Seen]:
    """The agent's lines about processes; others are skipped."""
    processes = []
    for line in lines:
        if not line.startswith(_MARK):
            continue
        words = line.removeprefix(_MARK).strip().split(",")
        if len(words) == 10 and words[1].isdecimal():
            processes.append(Seen(words[0], int(words[1]), *(trait == "1" for trait in words[2:])))
    return processes


def find_cause(evidence: Evidence) -> str:
    """The cause as a sentence. Empty: a rank left a trace."""
    if has_files(evidence.folder, "", ".trace"):
        return ""
    return f"{PREFIX}{next(text for rule in RULES if (text := rule(evidence)))}."


def _is_disabled(evidence: Evidence) -> str:
    disabled = evidence.environment.get("POWERCCL_DISABLE", "0") not in ("", "0")
    return "POWERCCL_DISABLE is set" if disabled else ""


def _cannot_write(evidence: Evidence) -> str:
    """Of a full disk, only a process that has our library and something to record would have written."""
    folder = evidence.local or evidence.folder
    try:
        room = os.statvfs(f"{folder}{os.sep}")
    except OSError as error:
        return f"the run folder {folder} is gone: {error.strerror}"
    if not any(each.ours and each.communicates for each in evidence.seen or []):
        return ""
    full = room.f_bavail * room.f_frsize < LEAST_ROOM_BYTES
    if full and evidence.local:
        return f"the disk of {folder} is full, so no rank could write a trace; make room, or use another --local-dir"
    if full:
        return "the disk of the run folder is full, so no rank could write a trace; make room, or use --runs-dir"
    if not os.access(folder, os.W_OK):
        return "the run folder cannot be written; use --runs-dir"
    return ""


def _is_linked_statically(evidence: Evidence) -> str:
    program = program_behind(evidence.command, evidence.environment)
    linking = mpi_linking(program, evidence.environment) if program else ""
    name = program.name if program else ""
    if linking == "static":
        return f"{name} is statically linked, so no library can be preloaded; link it dynamically"
    if linking == "static mpi":
        return f"{name} is linked with a static MPI library; link it with the shared one (libmpi.so)"
    if linking == "privileged" and (evidence.among_ranks or is_launcher(evidence.command)):
        return f"{name} is setuid, and the loader preloads nothing into such programs"
    return ""


def _is_not_preloaded(evidence: Evidence) -> str:
    """The user, or something between us and the ranks, kept our libraries out."""
    seen = evidence.seen or []
    mpi = evidence.among_ranks or is_launcher(evidence.command) or any(each.mpi for each in seen)
    if evidence.mpi_off and mpi and not any(each.nccl for each in seen):
        return "--mpi or POWERCCL_MPI is off"
    if evidence.no_preload:
        return evidence.no_preload if mpi else ""
    without = [each for each in seen if each.communicates and not each.ours]
    if not without:
        return ""
    programs = _names(without)
    if any(not each.preload for each in without):
        return (
            f"LD_PRELOAD did not reach {programs}: a command such as `env -i` or `sudo`, or a launcher, removed it; "
            "write `powerccl run --` behind that command"
        )
    return (
        f"the loader did not preload PowerCCL's libraries into {programs}: it is setuid, or for another processor or C "
        "library, or it runs in a container without them"
    )


def _is_of_another_user(evidence: Evidence) -> str:
    seen = evidence.seen or []
    hidden = [each for each in seen if not each.readable]
    # One alone may be a small tool with privileges, such as ping.
    if len({each.program for each in hidden}) < 2 or any(each.communicates for each in seen):
        return ""
    return (
        f"{_names(hidden)} ran as another user, without LD_PRELOAD; "
        "write `powerccl run --` behind the command that changes the user"
    )


def _is_elsewhere(evidence: Evidence) -> str:
    seen = evidence.seen or []
    names = [Path(evidence.command[0]).name, *(each.program for each in seen)]
    name = next((each for each in names if each in ELSEWHERE), "")
    if not name or any(each.communicates for each in seen):
        return ""
    if evidence.among_ranks or is_launcher(evidence.command):
        return (
            f"ranks that {name} starts do not inherit LD_PRELOAD; "
            "pass it on with Open MPI's `-x LD_PRELOAD` or Hydra's `-genvall`"
        )
    return f"{name} starts processes that do not inherit LD_PRELOAD; write `powerccl run --` in the command it starts"


def _uses_gloo(evidence: Evidence) -> str:
    if not any(each.gloo for each in evidence.seen or []):
        return ""
    return "the job communicated through gloo, and PowerCCL records NCCL and MPI; on GPUs use the backend nccl"


def _has_no_gpu(evidence: Evidence) -> str:
    hidden = evidence.environment.get("CUDA_VISIBLE_DEVICES") in HIDDEN
    if (evidence.has_gpu and not hidden) or not any(each.nccl for each in evidence.seen or []):
        return ""
    why = "CUDA_VISIBLE_DEVICES hides all GPUs" if evidence.has_gpu else "this host has no CUDA device"
    ended = f"; the job ended with exit code {evidence.code}" if evidence.code else ""
    return f"the job loaded NCCL, but {why}{ended}"


def _failed(evidence: Evidence) -> str:
    before = f"after {seconds(evidence.took_s)}, before a rank used NCCL or MPI"
    if evidence.signal is not None:
        return f"signal {evidence.signal} ({_signal_name(evidence.signal)}) ended the job {before}"
    return f"the job ended with exit code {evidence.code} {before}" if evidence.code else ""


def _is_filtered(evidence: Evidence) -> str:
    names = sorted(path.name.removeprefix(FILTERED) for path in evidence.folder.glob(f"{FILTERED}*"))
    began = [each for each in evidence.seen or [] if each.communicates]
    if not names or not began:
        return ""
    return (
        f"a seccomp filter of {_names(began)} refuses {names[0]}, which recording needs; "
        "add PowerCCL's system calls to the filter: see docs/concepts/no-harm.md"
    )


def _never_began(evidence: Evidence) -> str:
    seen = evidence.seen or []
    if nccl := [each for each in seen if each.nccl]:
        older = ", or its NCCL is older than 2.27" if evidence.no_preload else ""
        return f"{_names(nccl)} loaded NCCL, but created no communicator (a job of one rank needs none){older}"
    if mpi := [each for each in seen if each.mpi]:
        return f"{_names(mpi)} loaded MPI, but did not call MPI_Init"
    if evidence.seen is None:
        return "the cause is not known, because powerccl-agent did not look at the job's processes"
    if static := [each for each in seen if each.readable and not each.dynamic]:
        return f"{_names(static)} is statically linked, so no library can be preloaded"
    return "no process of the job loaded NCCL or MPI"


RULES: tuple[Callable[[Evidence], str], ...] = (
    _is_disabled,
    _cannot_write,
    _is_linked_statically,
    _is_not_preloaded,
    _is_of_another_user,
    _is_elsewhere,
    _uses_gloo,
    _has_no_gpu,
    _failed,
    _is_filtered,
    _never_began,
)


def _names(seen: list[Seen]) -> str:
    """The programs, those with most processes first: `python3`, or `a, b and 3 more`."""
    programs = list(dict.fromkeys(each.program for each in sorted(seen, key=lambda each: -each.processes)))
    shown = ", ".join(programs[:2])
    return f"{shown} and {plural(len(programs) - 2, 'more', 'more')}" if len(programs) > 2 else shown


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return signal.strsignal(number) or "unknown"
