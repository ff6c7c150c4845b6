# SPDX-License-Identifier: Apache-2.0
"""The lease protocol of native/abi/lease.h.

Fixed structs in host byte order, one a message of a SOCK_SEQPACKET socket.
"""

from __future__ import annotations

import struct
from enum import IntEnum, IntFlag

from powerccl.errors import PowercclError

MAGIC = 0x534C4350  # "PCLS"
VERSION = 1
NAME_BYTES, RUN_BYTES = 48, 64  # with the zero behind the text

HEADER = struct.Struct("=IHHIIQ")
HELLO = struct.Struct("=64s")
WELCOME = struct.Struct("=iIIIQ32s")
ACQUIRE = struct.Struct("=48sII")
SET = struct.Struct("=QII")
DRAIN = struct.Struct("=II")
REPLY = struct.Struct("=iIQIIIIQII120sII")
DEVICE = struct.Struct("=48s64sIIIIIIIIQQ64s")
TOTALS = struct.Struct("=" + "Q" * 21)


class Type(IntEnum):
    """Of a message; those that are used here."""

    HELLO = 1
    ACQUIRE = 2
    SET = 3
    HEARTBEAT = 6
    STATUS = 7
    REVOKE = 9
    RESTORE = 10
    DRAIN = 11
    WELCOME = 32
    REPLY = 33
    DEVICE = 34
    TOTALS = 35
    ENDED = 48
    SETTLED = 49


class Status(IntEnum):
    """Of a reply; positive ones are the driver's."""

    OK = 0
    BAD_MESSAGE = -1
    NOT_ALLOWED = -2
    NO_DEVICE = -3
    SHOW_FILE = -4
    HELD = -5
    NONE = -6
    DRAINING = -7
    SUPERSEDED = -8
    RESTORING = -9
    TOO_MANY = -10
    SYSTEM = -11
    REVOKED = -12
    MISSED = -13
    STOPPING = -14


class Flag(IntFlag):
    """Of a welcome or a device."""

    CLAMPED = 1
    DRY = 2
    EMULATED = 4
    ADMIN = 8
    DRAINED = 16
    MINE = 32
    PENDING = 64
    SHARED = 128


BODIES = {
    Type.WELCOME: WELCOME,
    Type.REPLY: REPLY,
    Type.DEVICE: DEVICE,
    Type.TOTALS: TOTALS,
    Type.ENDED: REPLY,
    Type.SETTLED: REPLY,
}
MOST_BYTES = HEADER.size + max(body.size for body in BODIES.values())


def named(device: str) -> bytes:
    """A device's name as the protocol has it.

    Raises:
        PowercclError: it is too long to be one.
    """
    name = _bytes(device)
    if len(name) >= NAME_BYTES:
        raise PowercclError(f"no device is called '{device}'", "`powerccl clocks` lists them")
    return name


def run_bytes(run: str) -> bytes:
    """A run's name as the protocol has it: a question mark for each byte that is not printable ASCII."""
    return bytes(byte if 0x20 <= byte < 0x7F else 0x3F for byte in _bytes(run)[: RUN_BYTES - 1])


def _bytes(name: str) -> bytes:
    return name.encode("utf-8", "surrogateescape")  # as its user wrote it, whatever the locale makes of that


def text_of(field: bytes) -> str:
    """Text of a message, fit for a terminal: names come from other users too."""
    text = field.partition(b"\0")[0].decode("utf-8", "replace")
    return "".join(letter if letter.isprintable() else "\N{REPLACEMENT CHARACTER}" for letter in text)
