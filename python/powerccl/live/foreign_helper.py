# SPDX-License-Identifier: Apache-2.0
"""The process that reads one user's run folders for root: see foreign.py. Everything is imported before the first look.

It is started as root, since the user may not be allowed to read this package, and becomes the user before it is asked
anything.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import resource
import struct
import sys
import tarfile  # noqa: F401 - traces.run_files imports it late, when this process may not read it any more
import time
from pathlib import Path

import msgspec

from powerccl import clean
from powerccl.host_clock import monotonic_ns
from powerccl.live.foreign import DONE, MEMORY, MOST_ANSWER, READY, Answer, Asked, Folders
from powerccl.live.job import Watcher
from powerccl.live.run_folder import MOST_TRACES

PR_SET_NO_NEW_PRIVS = 38
LOOK_S = 1.0  # a look goes on with the next record until then: what is left waits for the next one
MOST_ASKED = 4 << 20


def main() -> None:
    """Become the user, then answer until the pipe is closed."""
    become(int(sys.argv[1]), int(sys.argv[2]))
    answer(Answer(READY))
    watchers: dict[Path, Watcher] = {}
    places = Folders()
    while asked := _question():
        _look(asked, watchers, places)
        answer(Answer(DONE))


def become(uid: int, gid: int) -> None:
    """Give up all rights but the user's, for good, and bound what this process can take.

    Raises:
        OSError: it is not allowed to.
    """
    if uid == 0 or gid < 0:
        raise PermissionError("root needs no helper")
    taken = _data_bytes() + MEMORY
    _limit(resource.RLIMIT_DATA, taken)
    _limit(resource.RLIMIT_NOFILE, MOST_TRACES + 64)
    _limit(resource.RLIMIT_CORE, 0)
    _limit(resource.RLIMIT_FSIZE, 0)
    os.setgroups([])
    os.setresgid(gid, gid, gid)
    os.setresuid(uid, uid, uid)
    libc = ctypes.CDLL(None, use_errno=True)
    # No PR_SET_PDEATHSIG: it goes by the thread that started this process, and those of a server end with each request.
    if libc.prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0):
        raise OSError(ctypes.get_errno(), "prctl")
    if os.getresuid() != (uid, uid, uid) or os.getresgid() != (gid, gid, gid) or os.getgroups():
        raise PermissionError("the helper still has root's rights")


def _limit(what: int, value: int) -> None:
    _, hard = resource.getrlimit(what)
    value = value if hard == resource.RLIM_INFINITY else min(value, hard)
    resource.setrlimit(what, (value, value))


def _data_bytes() -> int:
    lines = Path("/proc/self/status").read_text(encoding="utf-8").splitlines()
    return next((int(line.split()[1]) << 10 for line in lines if line.startswith("VmData:")), 256 << 20)


def _question() -> Asked | None:
    head = _read(4)
    if len(head) < 4:
        return None
    (length,) = struct.unpack("<I", head)
    return msgspec.msgpack.decode(_read(length), type=Asked) if length <= MOST_ASKED else None


def _read(length: int) -> bytes:
    received = b""
    while len(received) < length and (part := os.read(0, length - len(received))):
        received += part
    return received


def answer(what: Answer) -> None:
    """Send one answer; of findings that are too large only that."""
    try:
        data = msgspec.msgpack.encode(what)
    except UnicodeEncodeError:  # names of files that are not UTF-8
        data = msgspec.msgpack.encode(clean.encodable(msgspec.to_builtins(what)))
    if len(data) > MOST_ANSWER:
        reply = Answer(what.number, what.folder, error=f"{what.folder}: {len(data):,} bytes of findings are too large")
        data = msgspec.msgpack.encode(reply)
    data = struct.pack("<I", len(data)) + data
    while data:
        data = data[os.write(1, data) :]


def _look(asked: Asked, watchers: dict[Path, Watcher], places: Folders) -> None:
    until_s = time.monotonic() + LOOK_S
    seen: set[Path] = set()
    for number, (name, pids) in enumerate(asked.folders):
        folders: dict[Path, list[int]] = {}
        for pid in pids or [0]:
            folders.setdefault(places.of(pid, os.fsdecode(name)), []).append(pid)
        for folder, own in folders.items():
            seen.add(folder)
            reply = Answer(number, clean.field(str(folder)), pids=own if pids else [])
            try:
                reply.owner = folder.stat().st_uid
            except (OSError, ValueError) as error:
                reply.error = f"{reply.folder}: {getattr(error, 'strerror', None) or error}"
            try:
                # A second reading has no room in what this process may take.
                watcher = watchers.setdefault(folder, Watcher(folder, asked.window_s, asked.totals, again=False))
                reply.job = watcher.look(monotonic_ns(), asked.host, until_s)
                reply.counts = watcher.totals.counts() if watcher.totals else None
                reply.waiting = watcher.run.waiting
            except Exception as error:  # whatever is in the folder: it is the user's, and costs him his findings
                reply.job = reply.counts = None
                reply.error = f"{reply.folder}: {type(error).__name__}: {error}"[:1024]
                with contextlib.suppress(KeyError):
                    watchers.pop(folder).close()
            answer(reply)
    for folder in [each for each in watchers if each not in seen]:
        watchers.pop(folder).close()
