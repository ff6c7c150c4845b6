# SPDX-License-Identifier: Apache-2.0
"""How many more processes and threads can be started here: control groups and users have limits.

The job comes first. Where few places are left, helpers and threads of ours could take those that it needs.
"""

from __future__ import annotations

import contextlib
import os
import resource
import signal
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from powerccl.launch.child import signals_blocked

# Places that a recorded job has to have. The launcher, its helpers and their threads take 15 at most, and each rank
# has one or two threads of ours. At half, they could be missing to a job of eight ranks; at double, containers with
# a limit of 100 would record nothing.
NEEDED = 64

_CGROUPS = Path("/sys/fs/cgroup")
_PROC = Path("/proc")
_EXEMPT = (1 << 21) | (1 << 24)  # CAP_SYS_ADMIN, CAP_SYS_RESOURCE
_FIRST_PID_NAMESPACE = "pid:[4026531836]"  # PROC_PID_INIT_INO, the same on every Linux
_STACK_BYTES = 64 << 10
_ALL_USERS = 0xFFFFFFFF  # mapped by the first user namespace alone


@dataclass(frozen=True)
class Scarcity:
    """A limit that leaves fewer places than NEEDED."""

    left: int
    limit: str  # its name

    def __str__(self) -> str:
        from powerccl.quantities import plural

        return f"{self.limit} leaves room for {plural(max(self.left, 0), 'more process', 'more processes')}"


def scarcity() -> Scarcity | None:
    """The tightest limit, if it leaves too few places. One that cannot be seen shows when the job starts."""
    scarce = [each for each in (*_of_cgroups(), *_of_user()) if each.left < NEEDED]
    return min(scarce, key=lambda each: each.left, default=None)


def _of_cgroups() -> Iterator[Scarcity]:
    """What the `pids` controller leaves to this process's control group and to each that contains it."""
    for line in _read(_PROC / "self/cgroup").splitlines():
        number, _, rest = line.partition(":")
        controllers, _, path = rest.partition(":")
        if "pids" in controllers.split(","):
            roots = [_CGROUPS / "pids"]
        elif number == "0":
            roots = [_CGROUPS, _CGROUPS / "unified"]
        else:
            continue
        own = PurePosixPath(path.lstrip("/"))
        for folder in [root / each for root in roots for each in (own, *own.parents)]:
            with contextlib.suppress(ValueError):  # `max`, or no such file
                left = int(_read(folder / "pids.max")) - int(_read(folder / "pids.current"))
                yield Scarcity(left, "the control group (pids.max)")


def _of_user() -> Iterator[Scarcity]:
    limit = resource.getrlimit(resource.RLIMIT_NPROC)[0]
    if limit == resource.RLIM_INFINITY or _is_exempt():
        return
    with contextlib.suppress(ValueError, IndexError):
        # Tasks of all users: fewer than the limit are not worth a count.
        if int(_read(_PROC / "loadavg").split()[3].partition("/")[2]) + NEEDED <= limit:
            return
    left = limit - _tasks_of(os.getuid()) if _sees_all() else _room_by_trial()
    yield Scarcity(left, "the user's limit (ulimit -u)")


def _is_exempt() -> bool:
    """Whether the kernel applies no such limit to this process, as to root outside of containers."""
    users = [line.split() for line in _read(_PROC / "self/uid_map").splitlines()]
    if not any(len(fields) == 3 and int(fields[2]) == _ALL_USERS for fields in users):
        return False
    return os.getuid() == 0 or bool(int(_status("self").get("CapEff", "0"), 16) & _EXEMPT)


def _sees_all() -> bool:
    """Whether all processes of the user can be seen: in a PID namespace, others count that cannot."""
    with contextlib.suppress(OSError):
        return str((_PROC / "self/ns/pid").readlink()) == _FIRST_PID_NAMESPACE
    return False


def _room_by_trial() -> int:
    """How many threads can be started, up to NEEDED. They exist for some milliseconds."""
    end = threading.Event()
    started: list[threading.Thread] = []
    before = threading.stack_size(_STACK_BYTES)
    try:
        with contextlib.suppress(RuntimeError), signals_blocked(signal.valid_signals()):
            for _ in range(NEEDED):
                thread = threading.Thread(target=end.wait, daemon=True)
                thread.start()
                started.append(thread)
    finally:
        threading.stack_size(before)
        end.set()
        for thread in started:
            thread.join()
    return len(started)


def _tasks_of(uid: int) -> int:
    """Threads of all processes of a user."""
    count = 0
    with os.scandir(_PROC) as entries:
        for entry in entries:
            with contextlib.suppress(OSError, ValueError, KeyError):  # it has ended meanwhile
                if entry.name.isdecimal() and entry.stat().st_uid == uid:
                    count += int(_status(entry.name)["Threads"])
    return count


def _status(process: str) -> dict[str, str]:
    lines = (line.partition(":") for line in _read(_PROC / process / "status").splitlines())
    return {key: value.strip() for key, _, value in lines}


def _read(path: Path) -> str:
    try:
        return path.read_text("utf-8", "replace")
    except OSError:
        return ""
