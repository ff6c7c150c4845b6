# SPDX-License-Identifier: Apache-2.0
"""Run folders of other users, read by root with those users' rights: a helper process for each user.

Any user can name any folder as a job's. Root must not open what is there. It may be a link to a file that only root may
read. Or it may be on a file system of the user's own that never answers. So a helper gives up root's rights before it
touches the folder, with bounded memory. Its findings come back through a pipe. A helper that does not answer in time is
ended.
"""

from __future__ import annotations

import contextlib
import os
import selectors
import signal
import struct
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import msgspec

from powerccl import clean
from powerccl.launch.child import signals_blocked
from powerccl.live.snapshot import LiveJob
from powerccl.live.totals import JobCounts
from powerccl.quantities import exact

ANSWER_S = 2.0  # for one look at all folders of a user; half is too short for a busy node, twice holds up a scrape
START_S = 15.0  # Python with numpy and polars takes half a second, on a busy node several
MOST_USERS = 32  # helpers in parallel; each takes some 60 MB
MOST_FOLDERS = 64  # of one user
MOST_ANSWER = 4 << 20  # bytes of one folder's findings; a rank takes some 700
MOST_IN_ALL = 32 << 20  # of one look; as Python's objects they take ten times as much
LONGEST_NAME = 4096  # bytes of a folder's name: the kernel takes no longer path
MEMORY = 256 << 20  # bytes that a helper may take beyond what it has when it starts
AGAIN_S, AGAIN_MOST_S = 60.0, 3600.0  # until a folder that did not answer is looked at again; doubled each time
KILLED_IN_A_ROW = 3  # of a user's helpers: then none of his folders is looked at for a while

User = tuple[int, int]  # uid and gid


class Asked(msgspec.Struct):
    """One look: folders by the names that processes give, with those processes."""

    window_s: float
    totals: bool
    host: str
    folders: list[tuple[bytes, list[int]]]


class Answer(msgspec.Struct):
    """What is in one folder. `number`: which of those asked; READY and DONE stand for themselves."""

    number: int
    folder: str = ""
    owner: int = -1
    pids: list[int] = []
    job: LiveJob | None = None
    counts: JobCounts | None = None
    waiting: bool = False
    error: str = ""


READY, DONE = -1, -2


@dataclass
class _Backoff:
    wait_s: float = AGAIN_S
    until_s: float = 0.0

    def failed(self, now_s: float) -> float:
        waited, self.until_s = self.wait_s, now_s + self.wait_s
        self.wait_s = min(self.wait_s * 2, AGAIN_MOST_S)
        return waited


class Helper:
    """One user's process. `answers` are of the look that goes on."""

    def __init__(self, user: User) -> None:
        self.user = user
        self.answers: list[Answer] = []
        self.done = self.broken = False
        self.ready = False
        self.received = 0  # bytes of this look
        self.started_s = time.monotonic()
        with signals_blocked(signal.valid_signals()):  # it ends with this process, and not before
            self._process = self._begin(user)
        assert self._process.stdin and self._process.stdout
        self.input, self.output = self._process.stdin.fileno(), self._process.stdout.fileno()
        os.set_blocking(self.input, False)
        os.set_blocking(self.output, False)
        self._out = b""
        self._in = bytearray()

    @staticmethod
    def _begin(user: User) -> subprocess.Popen[bytes]:
        keep = ("PATH", "LANG", "LC_ALL", "PYTHONPATH", "VIRTUAL_ENV")
        return subprocess.Popen(
            [sys.executable, "-c", "from powerccl.live.foreign_helper import main; main()", *map(str, user)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            cwd="/",
            start_new_session=True,
            env={
                **{name: os.environ[name] for name in keep if name in os.environ},
                **dict.fromkeys(("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS", "POLARS_MAX_THREADS"), "1"),
            },
        )

    def ask(self, asked: Asked) -> None:
        """Begin a look."""
        data = msgspec.msgpack.encode(asked)
        self._out += struct.pack("<I", len(data)) + data
        self.answers, self.done, self.received = [], False, 0

    @property
    def sending(self) -> bool:
        """Whether part of the question has still to be sent."""
        return bool(self._out)

    def send(self) -> None:
        """Send what the pipe takes."""
        try:
            self._out = self._out[os.write(self.input, self._out) :]
        except BlockingIOError:
            pass
        except OSError:
            self.broken = True

    def receive(self) -> None:
        """Take what has come."""
        try:
            data = os.read(self.output, 1 << 20)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        if not data:
            self.broken = True
            return
        self._in += data
        self.received += len(data)
        while len(self._in) >= 4:
            (length,) = struct.unpack_from("<I", self._in)
            if length > MOST_ANSWER:
                self.broken = True
                return
            if len(self._in) < 4 + length:
                return
            frame = bytes(self._in[4 : 4 + length])
            del self._in[: 4 + length]
            try:
                answer = msgspec.msgpack.decode(frame, type=Answer)
            except (msgspec.MsgspecError, ValueError, RecursionError):
                self.broken = True
                return
            if answer.number == READY:
                self.ready = True
            elif answer.number == DONE:
                self.done = True
            elif len(self.answers) < 2 * MOST_FOLDERS:
                self.answers.append(answer)

    def close(self) -> None:
        """End the process; one that cannot be ended yet, as it waits for a file system, is left to init."""
        with contextlib.suppress(OSError):
            self._process.kill()
        for pipe in (self._process.stdin, self._process.stdout):
            with contextlib.suppress(OSError):
                assert pipe
                pipe.close()
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(0.2)


@dataclass
class _Known:
    pids: list[int]
    last_s: float


@dataclass
class Found:
    """What a look at others' folders brought."""

    answers: list[tuple[User, Answer, bool]] = field(default_factory=list)  # the last: processes are still there
    problems: list[str] = field(default_factory=list)
    waiting: bool = False


class ForeignRuns:
    """Follows the folders of other users, each with a helper of its own."""

    def __init__(
        self, window_s: float, totals: bool, host: str, keep_s: float, say: Callable[[str], None] = lambda _: None
    ) -> None:
        self._window_s, self._totals, self._host, self._keep_s, self._say = window_s, totals, host, keep_s, say
        self._helpers: dict[User, Helper] = {}
        self._known: dict[User, dict[str, _Known]] = {}
        self._bad: dict[tuple[User, str], _Backoff] = {}
        self._killed: dict[User, int] = {}
        self._benched: dict[User, _Backoff] = {}
        self._said: set[str] = set()

    def close(self) -> None:
        """End all helpers."""
        for helper in self._helpers.values():
            helper.close()
        self._helpers.clear()

    def look(self, wanted: Mapping[User, Mapping[str, list[int]]], now_s: float) -> Found:
        """What is in the folders that processes of these users name, and in those that they named a while ago."""
        look = Found()
        asked = self._ask(wanted, now_s, look)
        pending = dict(asked)
        deadline_s = time.monotonic() + ANSWER_S
        with selectors.DefaultSelector() as selector:
            for user in pending:
                helper = self._helpers[user]
                selector.register(helper.output, selectors.EVENT_READ, helper)
                selector.register(helper.input, selectors.EVENT_WRITE, helper)
            while pending:
                starting = [self._helpers[user] for user in pending if not self._helpers[user].ready]
                until_s = max([deadline_s, *(helper.started_s + START_S for helper in starting)])
                left_s = until_s - time.monotonic()
                if left_s <= 0:
                    break
                for key, event in selector.select(min(left_s, 0.5)):
                    helper = key.data
                    was_ready = helper.ready
                    if event & selectors.EVENT_WRITE:
                        helper.send()
                        if not helper.sending:
                            selector.unregister(helper.input)
                    if event & selectors.EVENT_READ:
                        helper.receive()
                    if helper.ready and not was_ready:  # its time begins when Python has started
                        deadline_s = max(deadline_s, time.monotonic() + ANSWER_S)
                    if sum(self._helpers[user].received for user in asked) > MOST_IN_ALL:
                        helper.broken = True
                    if helper.done or helper.broken:
                        pending.pop(helper.user, None)
                        for file in (helper.output, helper.input):
                            with contextlib.suppress(KeyError):
                                selector.unregister(file)
        for user, names in asked.items():
            self._take(user, names, wanted.get(user, {}), look)
        return look

    def _ask(self, wanted: Mapping[User, Mapping[str, list[int]]], now_s: float, look: Found) -> dict[User, list[str]]:
        """Send each user's helper its question; the names asked, by user."""
        for user, named in wanted.items():
            known = self._known.setdefault(user, {})
            for name, pids in named.items():
                if len(os.fsencode(name)) > LONGEST_NAME or (len(known) >= 16 * MOST_FOLDERS and name not in known):
                    continue
                known[name] = _Known(pids, now_s)
        asked: dict[User, list[str]] = {}
        for user, known in list(self._known.items()):
            for name in [each for each, was in known.items() if now_s - was.last_s > self._keep_s]:
                del known[name]
                self._bad.pop((user, name), None)
            if not known:
                del self._known[user]
                if user in self._helpers:
                    self._helpers.pop(user).close()
                continue
            bench = self._benched.get(user)
            if bench and bench.until_s > now_s:
                look.problems.append(f"user {user[0]}: run folders did not answer; they are left out for a while")
                continue
            names = [name for name in known if not self._is_bad(user, name, now_s, look)]
            if len(names) > MOST_FOLDERS:
                self._once(f"user {user[0]} has {len(names)} run folders: only {MOST_FOLDERS} are read", look)
            if user not in self._helpers and len(self._helpers) >= MOST_USERS:
                self._once(f"more than {MOST_USERS} users have run folders: those of the others are left out", look)
                continue
            if not names:
                continue
            asked[user] = names[:MOST_FOLDERS]
            helper = self._helpers.get(user)
            if helper is None:
                try:
                    helper = self._helpers[user] = Helper(user)
                except OSError as error:
                    look.problems.append(f"cannot start a helper for user {user[0]}: {error.strerror}")
                    del asked[user]
                    continue
            folders = [(os.fsencode(name), known[name].pids) for name in asked[user]]
            helper.ask(Asked(self._window_s, self._totals, self._host, folders))
        return asked

    def _is_bad(self, user: User, name: str, now_s: float, look: Found) -> bool:
        backoff = self._bad.get((user, name))
        if backoff is None or backoff.until_s <= now_s:
            return False
        look.problems.append(f"{_shown(name)}: could not be read last time; it is left out for a while")
        return True

    def _take(self, user: User, names: list[str], running: Mapping[str, list[int]], look: Found) -> None:
        helper = self._helpers[user]
        answered = {answer.number for answer in helper.answers}
        for answer in helper.answers:
            if answer.error:
                look.problems.append(answer.error)
            if answer.job is not None and 0 <= answer.number < len(names):
                look.answers.append((user, answer, names[answer.number] in running))
                look.waiting |= answer.waiting
        if helper.done:
            self._killed.pop(user, None)
            self._benched.pop(user, None)
            for name in names:
                self._bad.pop((user, name), None)
            return
        self._helpers.pop(user).close()
        now_s = time.monotonic()
        culprit = next((name for number, name in enumerate(names) if number not in answered), "")
        if helper.ready and culprit:
            waited_s = self._bad.setdefault((user, culprit), _Backoff()).failed(now_s)
            how = "ended the helper that reads it" if helper.broken else f"did not answer within {exact(ANSWER_S, 's')}"
            text = f"{_shown(culprit)} of user {user[0]} {how}"
            self._say(f"{text}; trying again in {exact(waited_s, 's')}")
        else:
            text = f"cannot start a helper for user {user[0]}: it gave no answer"
            self._once(text, look)
        look.problems.append(text)
        self._killed[user] = self._killed.get(user, 0) + 1
        if self._killed[user] >= KILLED_IN_A_ROW:
            waited_s = self._benched.setdefault(user, _Backoff()).failed(now_s)
            self._say(f"run folders of user {user[0]} did not answer; none of them is read for {exact(waited_s, 's')}")

    def _once(self, text: str, look: Found) -> None:
        look.problems.append(text)
        key = text.split(":")[0] if text.startswith("user ") else text
        if key not in self._said and len(self._said) < 1024:
            self._said.add(key)
            self._say(text)


def _shown(name: str) -> str:
    return clean.field(name)[:256]


class Folders:
    """Run folders as seen from here. All processes of a container name one folder, each below a root of its own."""

    def __init__(self, proc: Path = Path("/proc")) -> None:
        self._proc = proc
        self._paths: dict[tuple[int, int], Path] = {}  # by device and inode

    def of(self, pid: int, name: str) -> Path:
        """The folder that a process names: the path by which it was found first, while that leads there."""
        folder = Path(name)
        with contextlib.suppress(OSError, ValueError):
            if folder.is_dir():
                return folder
            inside = self._proc / str(pid) / "root" / name.lstrip("/")
            if inside.is_dir():
                place = _place(inside)
                known = self._paths.get(place)
                if known is None or not _leads_to(known, place):
                    self._paths[place] = inside
                return self._paths[place]
        return folder


def _place(folder: Path) -> tuple[int, int]:
    about = folder.stat()
    return about.st_dev, about.st_ino


def _leads_to(folder: Path, place: tuple[int, int]) -> bool:
    try:
        return _place(folder) == place
    except OSError:  # that process has ended
        return False
