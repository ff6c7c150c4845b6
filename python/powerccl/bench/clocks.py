# SPDX-License-Identifier: Apache-2.0
"""Clocks for powerccl-bench through leases: this process holds the GPUs, powerccl-bench asks it for each clock."""

from __future__ import annotations

import contextlib
import select
import socket
import struct
import time
from collections.abc import Callable, Mapping
from pathlib import Path

from powerccl.errors import PowercclError
from powerccl.launch.daemon import PrivateDaemon, find_daemon
from powerccl.launch.gpus import visible_gpus_in
from powerccl.launch.native import NativeFiles
from powerccl.leases.client import open_session
from powerccl.leases.held import HeldLeases
from powerccl.platforms.measurements import clocks_to_profile
from powerccl.platforms.schema import ClockSwitch

_CHECK = -1  # docs/reference/bench.md, --clock-socket
_REQUEST = struct.Struct("=i")
_ANSWER = struct.Struct("=240s")
_SWITCHES = 4  # to a clock and back, timed
_PAUSE = 1.2e-3  # seconds to wait, of each millisecond that the daemon wants between two clocks
_WITHOUT = "POWERCCL_CLOCKS=dry measures at the present clock, without setting any"


class SweptClocks:
    """Leases on all GPUs that powerccl-bench will use, until `release`; then `close`."""

    def __init__(
        self,
        native: NativeFiles,
        folder: Path,
        environment: Mapping[str, str],
        emulated: bool,
        say: Callable[[str], None],
        most: int = 0,
    ) -> None:
        """`most`: the first so many GPUs; 0: all."""
        self._say = say
        self._refused = False
        self._bench: socket.socket | None = None
        self._held: HeldLeases | None = None
        self._daemon: PrivateDaemon | None = None
        gpus = visible_gpus_in(environment)[: most or None]
        if not gpus:
            raise PowercclError("CUDA finds no GPU to measure", "check CUDA_VISIBLE_DEVICES")
        try:
            listening, self._daemon = find_daemon(native, folder, environment, emulated)
            self._held = open_session(HeldLeases, listening, folder.name)
            self._held.hold(gpus)
        except (PowercclError, OSError) as error:
            self.close()
            hint = error.hint if isinstance(error, PowercclError) else ""
            raise PowercclError(f"cannot set clocks: {error}", hint or _WITHOUT) from error
        self._range_mhz = self._held.range_mhz
        self.dry = self._held.dry

    def choose(self, supported: list[int], wanted: list[int]) -> list[int]:
        """Clocks to sweep, of those that the daemon gives: another would be moved to the range's end."""
        low_mhz, high_mhz = self._range_mhz
        possible = [clock for clock in wanted or supported if low_mhz <= clock <= high_mhz]
        about = f"powerccld sets clocks from {low_mhz} to {high_mhz} MHz here"
        if not possible:
            raise PowercclError(
                f"{about}, and none of the clocks to profile is among them", f"try --clocks {high_mhz},{low_mhz}"
            )
        if len(possible) < len(wanted or supported):
            left_out = ", ".join(str(clock) for clock in wanted if clock not in possible) or "others"
            self._say(f"{about}; it cannot profile {left_out}")
        return possible if wanted else clocks_to_profile(possible)

    def set(self, mhz: int) -> list[float]:
        """Lock the clock of every GPU, 0: the default. Returns what the driver took for each, in microseconds.

        Raises:
            PowercclError: the driver refuses, or a lease was lost.
        """
        if self._held is None:
            raise PowercclError("the leases have been given back")
        if problem := self._held.set_all(mhz):
            raise PowercclError(f"cannot set clocks: {problem}", _WITHOUT)
        return [driver_us for driver_us, _ in self._held.calls]

    def connect_bench(self) -> socket.socket:
        """What the next powerccl-bench is to inherit; close it here once that is started."""
        kept, inherited = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._bench = kept
        return inherited

    def attend(self, seconds: float) -> None:
        """Do for so long what powerccl-bench asks for.

        Raises:
            PowercclError: a lease was lost: nothing that powerccl-bench measures now is to be believed.
        """
        held = self._held
        if held is None:
            time.sleep(seconds)
            return
        until = time.monotonic() + seconds
        left = seconds
        while left > 0:
            bench = self._bench
            wanted = [held.fileno(), bench.fileno()] if bench else [held.fileno()]
            ready = select.select(wanted, [], [], min(left, held.check_within_s))[0]
            if held.fileno() in ready:
                held.hear()
            elif bench and ready:
                self._answer(held, bench)
            held.check_when_due()
            left = until - time.monotonic()

    def _answer(self, held: HeldLeases, bench: socket.socket) -> None:
        said = ""
        try:
            request = bench.recv(_REQUEST.size)
        except ConnectionResetError:
            request = b""
        if len(request) != _REQUEST.size:  # it has ended
            bench.close()
            self._bench = None
            held.set_all(0)
            return
        (mhz,) = _REQUEST.unpack(request)
        if mhz == _CHECK:
            held.check()
        else:
            said = held.set_all(mhz)
            if said and not self._refused:
                self._refused = True
                self._say(f"clocks stay unchanged: {said}")
        with contextlib.suppress(OSError):  # it has been killed: seen above the next time
            bench.send(_ANSWER.pack(said.encode()[: _ANSWER.size - 1]))

    def switch_cost(self, mhz: int, provenance: str) -> ClockSwitch | None:
        """What a change of clock costs: so long in the driver, so long from asking to the daemon's answer.

        Asked one by one, with nothing else to do for driver and daemon, and not so fast that the daemon makes us wait.
        """
        if self._held is None:
            return None
        calls: list[tuple[float, float]] = []
        for clock in (mhz, 0) * _SWITCHES:
            self.attend(self._held.gpu_interval_ms * _PAUSE)
            if self._held.set_all(clock):
                return None
            calls += self._held.calls
        in_driver_us, in_all_us = (sum(times) / len(calls) for times in zip(*calls, strict=True))
        return ClockSwitch(
            call_us=round(in_driver_us, 1),
            latency_us=round(in_all_us, 1),
            requests=len(calls),
            provenance=provenance,
        )

    def release(self) -> None:
        """Give the GPUs back; the daemon stays for what comes next."""
        if self._bench:
            self._bench.close()
            self._bench = None
        if self._held:
            self._held.close()
            self._held = None

    def close(self) -> None:
        """Give everything back."""
        self.release()
        if self._daemon:
            self._daemon.end(self._say)
            self._daemon = None
