# SPDX-License-Identifier: Apache-2.0
"""A client of powerccld that says what a test wants said, right or wrong (native/abi/lease.h)."""

from __future__ import annotations

import array
import os
import socket
import struct
from dataclasses import dataclass
from pathlib import Path

MAGIC, VERSION = 0x534C4350, 1
HELLO, ACQUIRE, SET, READ, RELEASE, HEARTBEAT, STATUS = 1, 2, 3, 4, 5, 6, 7
REVOKE, RESTORE, DRAIN = 9, 10, 11
DEVICE, ENDED, SETTLED = 34, 48, 49
OK, BAD_MESSAGE, NOT_ALLOWED, NO_DEVICE, SHOW_FILE, HELD, NONE = 0, -1, -2, -3, -4, -5, -6
DRAINING, REVOKED, MISSED, STOPPING = -7, -12, -13, -14
CLAMPED, SHARED = 1, 128

_HEADER = struct.Struct("=IHHIIQ")
_REPLY = struct.Struct("=iIQIIIIQII120sII")


@dataclass
class Reply:
    """What the daemon said."""

    type: int
    serial: int
    status: int
    flags: int
    lease: int
    min_mhz: int
    max_mhz: int
    now_mhz: int
    holder_pid: int
    holder_uid: int
    text: str


class Client:
    """One connection. Serial numbers count by themselves unless given."""

    def __init__(self, path: Path, run: str = "test") -> None:
        self.socket = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self.socket.settimeout(20)
        self.socket.connect(str(path))
        self.serial = 0
        self.send(HELLO, run.encode().ljust(64, b"\0"))
        self.socket.recv(4096)

    def send(self, kind: int, body: bytes = b"", serial: int = 0, file: int | None = None) -> int:
        """Send a message; its serial number."""
        self.serial = serial or self.serial + 1
        message = _HEADER.pack(MAGIC, VERSION, kind, _HEADER.size + len(body), 0, self.serial) + body
        passed = [] if file is None else [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", [file]))]
        self.socket.sendmsg([message], passed)
        return self.serial

    def hear(self) -> Reply:
        """The next message; EOFError when the daemon has closed."""
        message = self.socket.recv(8192)
        if not message:
            raise EOFError
        header = _HEADER.unpack_from(message)
        # A status brings messages of other kinds, which are shorter and have other fields.
        fields = _REPLY.unpack_from(message.ljust(_HEADER.size + _REPLY.size, b"\0"), _HEADER.size)
        text = fields[10].split(b"\0")[0].decode(errors="replace")
        status, flags, lease, low, high, now, _, _, pid, uid = fields[:10]
        return Reply(header[2], header[5], status, flags, lease, low, high, now, pid, uid, text)

    def hear_end(self) -> Reply:
        """The next message that does not say what came of a clock: a busy machine takes long enough for that."""
        while (reply := self.hear()).type == SETTLED:
            pass
        return reply

    def ask(self, kind: int, body: bytes = b"", file: int | None = None) -> Reply:
        """Send, and wait for the answer to it."""
        serial = self.send(kind, body, file=file)
        while True:
            reply = self.hear()
            if reply.serial == serial:
                return reply

    def acquire(self, device: str, file: int | None = None, kind: int = ACQUIRE, flags: int = 0) -> Reply:
        """Ask for a device (or, by `kind`, that it be revoked or restored)."""
        return self.ask(kind, device.encode().ljust(48, b"\0") + struct.pack("=II", 0, flags), file)

    def lease(self, device: str, flags: int = 0) -> int:
        """A lease that must be granted; the file that the daemon wants to see is opened."""
        reply = self.acquire(device, flags=flags)
        if reply.status == SHOW_FILE:
            file = os.open(reply.text, os.O_RDWR)
            reply = self.acquire(device, file, flags=flags)
            os.close(file)
        assert reply.status == OK, reply
        return reply.lease

    def set(self, lease: int, mhz: int) -> Reply:
        """Ask for a clock."""
        return self.ask(SET, struct.pack("=QII", lease, mhz, mhz))
