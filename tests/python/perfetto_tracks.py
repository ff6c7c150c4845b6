# SPDX-License-Identifier: Apache-2.0
"""Tracks of a Perfetto trace, read from its bytes with the standard library (protos/perfetto/trace/trace.proto)."""

from __future__ import annotations

import struct
from collections.abc import Iterator
from dataclasses import dataclass, field

# Fields of the messages: Trace, TracePacket, TrackDescriptor, TrackEvent.
PACKET, TIMESTAMP, EVENT, DESCRIPTOR = 1, 8, 11, 60
UUID, NAME, PARENT = 1, 2, 5
TYPE, TRACK, VALUE = 9, 11, 44
BEGIN, END, COUNTER = 1, 2, 4


@dataclass
class Track:
    """One track: its slices (ns), or its counter's values."""

    name: str
    parent: int
    slices: list[tuple[int, int]] = field(default_factory=list)
    values: list[float] = field(default_factory=list)
    _open: list[int] = field(default_factory=list)


def tracks(data: bytes) -> list[Track]:
    """All tracks of a trace that are no process."""
    found: dict[int, Track] = {}
    for number, raw in fields(data):
        if number != PACKET or not isinstance(raw, bytes):
            continue
        packet = dict(fields(raw))
        if isinstance(about := packet.get(DESCRIPTOR), bytes):
            row = dict(fields(about))
            if isinstance(name := row.get(NAME), bytes):
                found[int(row[UUID])] = Track(name.decode(), int(row.get(PARENT, 0)))
        if isinstance(event := packet.get(EVENT), bytes):
            row = dict(fields(event))
            track, time = found[int(row[TRACK])], int(packet[TIMESTAMP])
            if row[TYPE] == BEGIN:
                track._open.append(time)
            elif row[TYPE] == END:
                track.slices.append((track._open.pop(), time))
            elif row[TYPE] == COUNTER:
                track.values.append(float(row[VALUE]))
    return list(found.values())


def fields(data: bytes) -> Iterator[tuple[int, int | float | bytes]]:
    """Number and value of each field of a message."""
    at = 0

    def varint() -> int:
        nonlocal at
        value = shift = 0
        while True:
            byte = data[at]
            at += 1
            value |= (byte & 127) << shift
            shift += 7
            if byte < 128:
                return value

    while at < len(data):
        key = varint()
        kind = key & 7
        if kind == 0:
            yield key >> 3, varint()
        elif kind == 1:
            yield key >> 3, struct.unpack_from("<d", data, at)[0]
            at += 8
        elif kind == 5:
            yield key >> 3, struct.unpack_from("<f", data, at)[0]
            at += 4
        else:
            length = varint()
            yield key >> 3, data[at : at + length]
            at += length
