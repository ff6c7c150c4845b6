# SPDX-License-Identifier: Apache-2.0
"""powerccld asked from Python: who holds which device, and what administrators may say about it.

Jobs speak the protocol in the runtime, not here. Whatever the daemon says is checked before it is believed.
"""

from __future__ import annotations

import grp
import os
import socket
import stat
import struct
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, TypeVar

from powerccl.errors import PowercclError
from powerccl.leases.protocol import (
    ACQUIRE,
    BODIES,
    DRAIN,
    HEADER,
    HELLO,
    MAGIC,
    MOST_BYTES,
    VERSION,
    Flag,
    Status,
    Type,
    named,
    run_bytes,
    text_of,
)
from powerccl.users import user_name

SOCKET = "/run/powerccl/powerccld.sock"
SOCKET_VARIABLE = "POWERCCL_LEASE_SOCKET"
ROOT_SUFFIX = ".root"  # native/node/daemon/socket_place.h
SILENCE_S = 5
GUIDE = "an administrator installs it: powerccl admin install"

_TRY_AGAIN = "try again; an administrator can check it: systemctl status powerccld"
_MOST_MESSAGES = 16384  # in answer to one request; more of them is not an answer


_MEANINGS: dict[int, tuple[str, str]] = {
    Status.BAD_MESSAGE: ("did not understand the request", "install powerccld and powerccl of one release"),
    Status.NOT_ALLOWED: (
        "does not allow this user to do that",
        "run as root, or join one of `admin_groups` of /etc/powerccl/powerccld.toml",
    ),
    Status.NO_DEVICE: ("has no such device", "`powerccl clocks` lists its devices"),
    Status.RESTORING: (
        "has not restored the clock yet",
        "it tries again; its log says why: journalctl -u powerccld",
    ),
    Status.TOO_MANY: ("has too many sessions", "try again; `sessions` in /etc/powerccl/powerccld.toml is the limit"),
    Status.SYSTEM: ("failed", "its log says why: journalctl -u powerccld"),
    Status.STOPPING: ("is stopping", "try again"),
}


class NoDaemonError(PowercclError):
    """Nothing listens where powerccld should."""


class RefusedError(PowercclError):
    """The daemon understood and says no; `status` is why."""

    def __init__(self, status: int, text: str) -> None:
        other = f"reports the driver's error {status}" if status > 0 else f"answers with status {status}"
        said, hint = _MEANINGS.get(status, (other, ""))
        super().__init__(f"powerccld {said}{f': {text}' if text else ''}", hint)
        self.status = status


@dataclass(frozen=True)
class Device:
    """A GPU whose clock can be leased. Clocks of 0 MHz: the default (set), not read (now)."""

    device: str
    name: str
    flags: Flag
    holder_pid: int  # 0: none
    holder_uid: int
    min_mhz: int
    max_mhz: int
    now_mhz: int
    held_ms: int
    changes: int
    sharers: int  # leases on it, all of one user
    run: str
    details_known: bool = (
        True  # False of what others hold, unless we are an administrator: then only their pid and user are known
    )

    @property
    def held(self) -> bool:
        """Whether a process has a lease on it."""
        return self.holder_pid != 0

    @property
    def mine(self) -> bool:
        """Whether that is this session's user."""
        return self.held and Flag.MINE in self.flags

    @property
    def pending(self) -> bool:
        """Whether its default clock is still to be restored."""
        return Flag.PENDING in self.flags

    @property
    def user(self) -> str:
        """Name of the holder, or the number of one without a name; empty if it is not held."""
        return user_name(self.holder_uid) if self.held else ""


@dataclass(frozen=True)
class Totals:
    """What the daemon has counted since it started (powerccl_lease_totals of native/abi/lease.h)."""

    sessions: int
    requests: int
    foreign: int
    bad: int
    replayed: int
    turned_away: int
    delays: int
    granted: int
    refused: int
    released: int
    gone: int
    missed: int
    revoked: int
    stopping: int
    changes: int
    superseded: int
    clamped: int
    restores: int
    driver_failures: int
    restore_failures: int
    driver_us: int


def socket_path(environment: Mapping[str, str]) -> Path:
    """Where powerccld listens: POWERCCL_LEASE_SOCKET, else its usual place."""
    return Path(environment.get(SOCKET_VARIABLE) or SOCKET)


Session = TypeVar("Session", bound="Leases")
_Part = tuple[Type, tuple[Any, ...]]


class Leases:
    """A session with the daemon, to ask and to tell; it holds no lease. Not for several threads.

    Its methods raise RefusedError if the daemon says no, and another PowercclError if it does not answer as it should.
    """

    def __init__(self, path: Path, connected: socket.socket, run: str) -> None:
        self.path = path
        self._socket = connected
        self._serial = 0
        serial = self._send(Type.HELLO, HELLO.pack(run_bytes(run)))
        kind, body = self._receive(serial)
        if kind == Type.REPLY and body[0]:  # of one that is full
            raise RefusedError(body[0], text_of(body[10]))
        if kind != Type.WELCOME:
            raise self._not_understood(f"it sent a message of type {kind:d} instead of a welcome")
        status, flags, self.heartbeat_ms, self.gpu_interval_ms, _, server = body
        self.server = text_of(server)
        self.flags = Flag(flags)
        if status:
            raise RefusedError(status, "")

    @property
    def admin(self) -> bool:
        """Whether this session may revoke, restore and drain."""
        return Flag.ADMIN in self.flags

    @property
    def draining(self) -> bool:
        """Whether there are no new leases, as of the welcome."""
        return Flag.DRAINED in self.flags

    @property
    def dry(self) -> bool:
        """Whether the daemon decides and answers, and sets nothing."""
        return Flag.DRY in self.flags

    @property
    def emulated(self) -> bool:
        """Whether its GPUs are the emulator's."""
        return Flag.EMULATED in self.flags

    def status(self) -> list[Device]:
        """Every device the daemon knows, in its order."""
        return self.status_and_totals()[0]

    def status_and_totals(self) -> tuple[list[Device], Totals]:
        """The same, and what the daemon has counted."""
        parts = self._ask(Type.STATUS, parts=(Type.DEVICE, Type.TOTALS))[0]
        totals = [Totals(*fields) for kind, fields in parts if kind == Type.TOTALS]
        if len(totals) != 1:
            raise self._not_understood(f"it answered a status with {len(totals)} totals")
        devices = []
        for fields in (fields for kind, fields in parts if kind == Type.DEVICE):
            device, name, bits, pid, uid, low_mhz, high_mhz, now_mhz, sharers, _, held_ms, changes, run = fields
            flags = Flag(bits)
            details_known = not pid or self.admin or Flag.MINE in flags
            numbers = (pid, uid, low_mhz, high_mhz, now_mhz, held_ms, changes, sharers)
            devices.append(Device(text_of(device), text_of(name), flags, *numbers, text_of(run), details_known))
        return devices, totals[0]

    def may_lease(self) -> bool:
        """Whether the daemon gives leases to this user: it looks at its list before it looks for the device."""
        try:
            self._ask(Type.ACQUIRE, ACQUIRE.pack(b"", 0, 0))
        except RefusedError as error:
            return error.status != Status.NOT_ALLOWED
        return True

    def revoke(self, device: str = "") -> str:
        """End the lease on a device, or on all; its holder may not have it again. Returns what the daemon says."""
        return self._ask(Type.REVOKE, ACQUIRE.pack(named(device), 0, 0))[1]

    def restore(self, device: str = "") -> str:
        """As revoke, and a device without a holder gets its default clock too."""
        return self._ask(Type.RESTORE, ACQUIRE.pack(named(device), 0, 0))[1]

    def drain(self, on: bool) -> str:
        """Give no new leases until undone; those there are stay."""
        return self._ask(Type.DRAIN, DRAIN.pack(on, 0))[1]

    def fileno(self) -> int:
        """The connection's descriptor, which hangs up when the daemon ends."""
        return self._socket.fileno()

    def close(self) -> None:
        """End the session."""
        self._socket.close()

    def __enter__(self) -> Leases:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _ask(self, kind: Type, body: bytes = b"", parts: tuple[Type, ...] = ()) -> tuple[list[_Part], str]:
        """Send a request and wait for its reply; what came before it, and the reply's text."""
        came, fields = self._exchange(kind, body, parts)
        if fields[0]:
            raise RefusedError(fields[0], text_of(fields[10]))
        return came, text_of(fields[10])

    def _exchange(
        self, kind: Type, body: bytes = b"", parts: tuple[Type, ...] = (), file: int | None = None
    ) -> tuple[list[_Part], tuple[Any, ...]]:
        """Send a request, with an open file, and wait for its reply; what came before it, and the reply as it is."""
        serial = self._send(kind, body, file)
        came: list[_Part] = []
        while len(came) < _MOST_MESSAGES:
            kind_received, fields = self._receive(serial)
            if kind_received == Type.REPLY:
                return came, fields
            if kind_received not in parts:
                raise self._not_understood(f"it answered a message of type {kind:d} with one of type {kind_received:d}")
            came.append((kind_received, fields))
        raise self._not_understood(f"it answered one message with {_MOST_MESSAGES}")

    def _unasked(self, kind: Type, fields: tuple[Any, ...]) -> None:
        """Take the daemon's unasked messages about a lease; of no use to a session that holds none."""

    def _send(self, kind: Type, body: bytes, file: int | None = None) -> int:
        self._serial += 1
        header = HEADER.pack(MAGIC, VERSION, kind, HEADER.size + len(body), 0, self._serial)
        try:
            if file is None:
                self._socket.send(header + body)
            else:
                socket.send_fds(self._socket, [header + body], [file])
        except BlockingIOError as error:
            raise self._silent() from error
        except (BrokenPipeError, ConnectionResetError):
            pass  # what it said before it hung up tells more
        except OSError as error:
            raise PowercclError(f"cannot send to powerccld at {self.path}: {error.strerror}") from error
        return self._serial

    def _receive(self, serial: int) -> tuple[Type, tuple[Any, ...]]:
        """The next message that belongs to a request of ours."""
        for _ in range(_MOST_MESSAGES):
            message = self._next()
            if not message:
                raise PowercclError(f"powerccld at {self.path} closed the connection", _TRY_AGAIN)
            kind, answers, fields = self._take_apart(message)
            if answers == serial or (answers == 0 and kind == Type.REPLY):  # 0: it could not read what we said
                return kind, fields
            if answers:
                raise self._not_understood(f"it answered request {answers} instead of {serial}")
            self._unasked(kind, fields)
        raise self._not_understood(f"it sent {_MOST_MESSAGES} messages without a request")

    def _next(self) -> bytes:
        try:
            try:
                return self._socket.recv(MOST_BYTES + 1)
            except ConnectionResetError:  # comes first when it hung up on us, before what it said until then
                return self._socket.recv(MOST_BYTES + 1)
        except BlockingIOError as error:
            raise self._silent() from error
        except OSError as error:
            raise PowercclError(
                f"lost the connection to powerccld at {self.path}: {error.strerror}", _TRY_AGAIN
            ) from error

    def _take_apart(self, message: bytes) -> tuple[Type, int, tuple[Any, ...]]:
        if len(message) < HEADER.size:
            raise self._not_understood(f"it sent a message of {len(message)} bytes")
        magic, version, kind, size, _, serial = HEADER.unpack_from(message)
        if magic != MAGIC:
            raise self._not_understood("it sent a message of another protocol")
        if version != VERSION:
            raise PowercclError(
                f"powerccld at {self.path} uses version {version} of the lease protocol, this powerccl uses {VERSION}",
                "install powerccld and powerccl of one release",
            )
        body = BODIES.get(kind)
        if body is None:
            raise self._not_understood(f"it sent a message of unknown type {kind}")
        if not size == len(message) == HEADER.size + body.size:
            raise self._not_understood(f"it sent {len(message)} bytes for a message of {HEADER.size + body.size}")
        return Type(kind), serial, body.unpack_from(message, HEADER.size)

    def _silent(self) -> PowercclError:
        return PowercclError(
            f"powerccld at {self.path} has not answered for {SILENCE_S} s",
            "an administrator can check it: systemctl status powerccld",
        )

    def _not_understood(self, what: str) -> PowercclError:
        return PowercclError(
            f"the server at {self.path} does not follow the lease protocol: {what}",
            f"check that it is powerccld, of this release; {SOCKET_VARIABLE} or --socket names another socket",
        )


def connect(path: Path, run: str = "powerccl") -> Leases:
    """Open a session with the daemon at `path`; `run` is what it calls us to who asks.

    Raises:
        NoDaemonError: nothing listens there.
        RefusedError: the daemon will have nothing to do with us.
        PowercclError: we may not write to its socket, or it does not answer as it should.
    """
    return open_session(Leases, path, run)


def open_session(kind: type[Session], path: Path, run: str) -> Session:
    """As connect, for a session that does more."""
    connected = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    try:
        # Not settimeout(): with it, connecting to a daemon that does not accept fails immediately instead of waiting.
        for option in (socket.SO_RCVTIMEO, socket.SO_SNDTIMEO):
            connected.setsockopt(socket.SOL_SOCKET, option, struct.pack("@ll", SILENCE_S, 0))
        _reach(connected, path)
        return kind(path, connected, run)
    except BaseException:
        connected.close()
        raise


def _reach(connected: socket.socket, path: Path) -> None:
    try:
        if not _reach_as_root(connected, path):
            connected.connect(str(path))
    except (FileNotFoundError, NotADirectoryError, ConnectionRefusedError) as error:
        gone = " any more" if isinstance(error, ConnectionRefusedError) else ""
        hint = f"{GUIDE}; {SOCKET_VARIABLE} or --socket names another socket"
        raise NoDaemonError(f"no powerccld listens at {path}{gone}", hint) from error
    except PermissionError as error:
        raise PowercclError(f"no permission to use powerccld's socket {path}", _who_may(path)) from error
    except BlockingIOError as error:
        raise PowercclError(
            f"powerccld at {path} has accepted no connection for {SILENCE_S} s",
            "an administrator can check it: systemctl status powerccld",
        ) from error
    except OSError as error:  # a socket of another kind, a path too long
        raise PowercclError(
            f"cannot connect to powerccld at {path}: {error.strerror or error}",
            f"{SOCKET_VARIABLE} or --socket names another socket",
        ) from error


def _reach_as_root(connected: socket.socket, path: Path) -> bool:
    """Connect root to its own socket beside the common one, where no flood of connections is in the way."""
    if os.geteuid():
        return False
    own = path.with_name(path.name + ROOT_SUFFIX)
    try:
        if own.lstat().st_uid:
            return False
        connected.connect(str(own))
    except OSError:  # a private daemon has none
        return False
    return True


def _who_may(path: Path) -> str:
    """What to do to be let in."""
    try:
        about = path.stat()
    except OSError:
        return f"ask the administrator for access to {path.parent}"
    if not about.st_mode & stat.S_IWGRP:
        return f"only user {user_name(about.st_uid)} may use it"
    try:
        group = grp.getgrgid(about.st_gid)
    except KeyError:
        return f"ask the administrator to add you to the group that owns the socket: {about.st_gid}"
    if user_name(os.getuid()) in group.gr_mem and about.st_gid not in os.getgroups():
        return f"log in again: you joined its group {group.gr_name} after you logged in"
    return f"ask the administrator to add you to the group that owns the socket: {group.gr_name}"
