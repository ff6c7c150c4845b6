# SPDX-License-Identifier: Apache-2.0
"""Leases held from Python: for what measures at one clock after another. Jobs hold theirs in the runtime."""

from __future__ import annotations

import os
import socket
import struct
import time
from collections.abc import Sequence
from typing import Any

from powerccl.errors import PowercclError
from powerccl.leases.client import Leases, RefusedError
from powerccl.leases.protocol import ACQUIRE, SET, Status, Type, text_of
from powerccl.users import user_name

_GPU_FILES = "/dev/nvidia"

# Of a lease that has ended: why.
_ENDINGS: dict[int, str] = {
    Status.REVOKED: "an administrator or `powerccl clocks --release` revoked it",
    Status.MISSED: "powerccld received no message from this process in time (was it stopped?)",
    Status.STOPPING: "powerccld is stopping or restarting",
}


class LeaseLostError(PowercclError):
    """A lease has ended before we released it: its clock is the default again. `why`: without the GPU's name."""

    def __init__(self, gpu: str, status: int) -> None:
        self.status = status
        self.why = _ENDINGS.get(status, f"status {status}")
        super().__init__(f"the lease on {gpu} has ended: {self.why}")


class HeldLeases(Leases):
    """A session that holds GPUs, each for itself alone, and sets all of them to one clock. They end with it.

    The daemon expects heartbeats: call `check` at least every `check_within_s`.
    """

    heartbeat_ms: int
    range_mhz = (0, 0)  # that every GPU held can be set to, as the administrator allows
    calls: Sequence[tuple[float, float]] = ()  # of the last clock, a GPU each: in the driver, from asking to answer; us
    _gpus: dict[int, str]  # by the number of the lease
    _spoken = 0.0

    @property
    def check_within_s(self) -> float:
        """Seconds that may pass without a word of ours."""
        return self.heartbeat_ms / 3e3

    def hold(self, gpus: list[str]) -> None:
        """Acquire these, by UUID.

        Raises:
            RefusedError: one of them is not to be had; the message says why.
        """
        self._gpus = {}
        lows_mhz, highs_mhz = [], []
        for gpu in gpus:
            lease, low_mhz, high_mhz = self._acquire(gpu)
            self._gpus[lease] = gpu
            lows_mhz.append(low_mhz)
            highs_mhz.append(high_mhz)
        self.range_mhz = max(lows_mhz), min(highs_mhz)
        self._spoken = time.monotonic()

    def set_all(self, mhz: int) -> str:
        """Lock the clock of every GPU, 0: the default. Returns "", or what the driver says.

        Raises:
            LeaseLostError: a lease has ended.
            PowercclError: the daemon has gone, or sets another clock than was asked for.
        """
        problem = ""
        calls: list[tuple[float, float]] = []
        for lease, gpu in self._gpus.items():
            asked = time.monotonic()
            fields = self._exchange(Type.SET, SET.pack(lease, mhz, mhz))[1]
            self._spoken = time.monotonic()
            status, _, _, low_mhz, high_mhz, _, driver_us = fields[:7]
            calls.append((driver_us, (self._spoken - asked) * 1e6))
            if status > 0:
                problem = f"{gpu}: {RefusedError(status, text_of(fields[10])).message}"
            elif status:
                raise LeaseLostError(gpu, status)
            elif mhz and (low_mhz, high_mhz) != (mhz, mhz):
                raise PowercclError(f"{gpu}: powerccld set {low_mhz} to {high_mhz} MHz instead of {mhz} MHz")
        self.calls = calls
        return problem

    def check(self) -> None:
        """Make sure that every lease holds: at the daemon's answer to this, each clock was as it had been set.

        Raises:
            LeaseLostError: one has ended.
            PowercclError: the daemon has gone.
        """
        # The daemon reports a lease's end immediately, so the report would have come before the answer.
        self._exchange(Type.HEARTBEAT)
        self._spoken = time.monotonic()

    def check_when_due(self) -> None:
        """As `check`, if it is time to."""
        if time.monotonic() - self._spoken >= self.check_within_s:
            self.check()

    def hear(self) -> None:
        """Take what the daemon has said, if fileno() is readable. Raises as `check` does."""
        message = self._next()
        if not message:
            raise PowercclError(f"powerccld at {self.path} closed the connection")
        kind, _, fields = self._take_apart(message)
        self._unasked(kind, fields)

    def fileno(self) -> int:
        """For select."""
        return self._socket.fileno()

    def _unasked(self, kind: Type, fields: tuple[Any, ...]) -> None:
        if kind == Type.ENDED and fields[2] in self._gpus:
            raise LeaseLostError(self._gpus[fields[2]], fields[0])

    def _acquire(self, gpu: str) -> tuple[int, int, int]:
        """Number of the lease, and the range to be had."""
        wanted = ACQUIRE.pack(gpu.encode(), 0, 0)  # no flags: no other session may have a wish for this clock
        fields = self._exchange(Type.ACQUIRE, wanted)[1]
        if fields[0] == Status.SHOW_FILE:
            file = self._open(gpu, text_of(fields[10]))
            try:
                fields = self._exchange(Type.ACQUIRE, wanted, file=file)[1]
            finally:
                os.close(file)
        status = fields[0]
        if status == Status.HELD:
            who = f"{user_name(fields[9])}'s process {fields[8]}"
            raise PowercclError(
                f"cannot lease the clock of {gpu}: {who} has the lease",
                "wait until it ends; `powerccl clocks` shows all leases",
            )
        if status == Status.DRAINING:
            raise PowercclError(
                "cannot lease clocks: powerccld grants no new leases at present", "ask the administrator when it will"
            )
        if status:
            refused = RefusedError(status, text_of(fields[10]))
            raise PowercclError(f"{gpu}: {refused.message}", refused.hint)
        return fields[2], fields[3], fields[4]

    def _open(self, gpu: str, file: str) -> int:
        """The file that the daemon wants to be shown; unless it is root's or ours, only a GPU's is opened."""
        if peer_uid(self._socket) not in (0, os.getuid()) and (not file.startswith(_GPU_FILES) or ".." in file):
            raise PowercclError(f"{gpu}: powerccld asks for {file}, which is not a GPU's device file")
        try:
            return os.open(file, os.O_RDWR | os.O_CLOEXEC | os.O_NOCTTY)
        except OSError as error:
            raise PowercclError(
                f"{gpu}: cannot open {file}: {error.strerror}", "a lease needs the right to use the GPU"
            ) from error


def peer_uid(connected: socket.socket) -> int:
    """Whose process listens at the other end."""
    uid: int = struct.unpack("=iII", connected.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12))[1]
    return uid
