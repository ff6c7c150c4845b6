# SPDX-License-Identifier: Apache-2.0
"""A powerccld for tests: a thread that speaks the lease protocol and says what a test wants."""

from __future__ import annotations

import os
import socket
import struct
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from click.testing import CliRunner, Result

from powerccl.commands import cli
from powerccl.leases.protocol import Flag, Type

UUIDS = tuple(f"GPU-{n:08x}-79cb-8a1e-7996-22f2e0b95d52" for n in (0x11111111, 0x11112222, 0x33333333, 0x44444444))


ME, OTHER = os.getuid(), 54321


def message(kind: int, serial: int, body: bytes, version: int = 1, magic: int = 0x534C4350) -> bytes:
    return struct.pack("=IHHIIQ", magic, version, kind, 24 + len(body), 0, serial) + body


def welcome(serial: int, flags: int = 0, version: int = 1, status: int = 0) -> bytes:
    body = struct.pack("=iIIIQ32s", status, flags, 6000, 20, 0, b"powerccld 9.8.7")
    return message(Type.WELCOME, serial, body, version)


def reply(serial: int, status: int = 0, text: str = "", kind: int = Type.REPLY) -> bytes:
    return message(kind, serial, struct.pack("=iIQIIIIQII120sII", status, *[0] * 9, text.encode(), 0, 0))


def device(
    serial: int,
    name: str,
    *,
    model: str = "NVIDIA H200",
    flags: int = 0,
    pid: int = 0,
    uid: int = 0,
    mhz: tuple[int, int, int] = (0, 0, 1980),
    held_ms: int = 0,
    changes: int = 0,
    sharers: int = 0,
    run: bytes = b"",
) -> bytes:
    body = struct.pack(
        "=48s64sIIIIIIIIQQ64s",
        *(name.encode(), model.encode(), flags, pid, uid, *mhz, sharers, 0, held_ms, changes, run),
    )
    return message(Type.DEVICE, serial, body)


def totals(serial: int) -> bytes:
    """In the order of leases.client.Totals, from 1 on."""
    return message(Type.TOTALS, serial, struct.pack("=21Q", *range(1, 22)))


def row(name: str, **fields: object) -> dict[str, Any]:
    """The fields of a device as FakeDaemon.devices takes them."""
    return {"name": name, **fields}


class FakeDaemon:
    """A thread that answers each request with what `script` makes of it; `asked` is what came."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.flags = int(Flag.ADMIN)
        self.devices: list[dict[str, Any]] = []
        self.refuse: dict[int, tuple[int, str]] = {}  # by type of request
        self.override: Callable[[int, int], list[bytes] | None] = lambda kind, serial: None
        self.asked: list[tuple[int, bytes]] = []
        self.listening = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self.listening.bind(str(path))
        self.listening.listen(4)
        self.thread = threading.Thread(target=self.serve, daemon=True)
        self.thread.start()

    def serve(self) -> None:
        while True:
            try:
                connection, _ = self.listening.accept()
            except OSError:
                return
            with connection:
                while self.attend(connection):
                    pass

    def attend(self, connection: socket.socket) -> bool:
        request = connection.recv(8192)
        if not request:
            return False
        magic, version, kind, size, reserved, serial = struct.unpack_from("=IHHIIQ", request)
        assert (magic, version, size, reserved) == (0x534C4350, 1, len(request), 0)
        self.asked.append((kind, request[24:]))
        for answer in self.answers(kind, serial):
            if answer == b"":
                return False
            connection.send(answer)
        return True

    def answers(self, kind: int, serial: int) -> Iterator[bytes]:
        instead = self.override(kind, serial)
        if instead is not None:
            yield from instead
            return
        if kind == Type.HELLO:
            yield welcome(serial, self.flags)
            return
        if kind in self.refuse:
            yield reply(serial, *self.refuse[kind])
            return
        if kind == Type.STATUS:
            for fields in self.devices:
                yield device(serial, **fields)
            yield totals(serial)
        yield reply(serial)

    def told(self, kind: int) -> list[bytes]:
        """The devices that requests of that type named."""
        return [body[:48].rstrip(b"\0") for asked, body in self.asked if asked == kind]

    def stop(self) -> None:
        self.listening.shutdown(socket.SHUT_RDWR)
        self.listening.close()
        self.thread.join(10)


def clocks(*arguments: str) -> Result:
    """What `powerccl clocks` prints and how it ends."""
    return CliRunner().invoke(cli, ["clocks", *arguments], env={"COLUMNS": "80", "NO_COLOR": "1"})
