# SPDX-License-Identifier: Apache-2.0
"""How metrics of running jobs leave this process: over HTTP, or in a file for node_exporter."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from powerccl.errors import PowercclError, UsageError
from powerccl.files import written_whole
from powerccl.quantities import exact

if TYPE_CHECKING:
    from prometheus_client import CollectorRegistry

    from powerccl.live.node import LiveNode

PORT = 19487  # of 9100 to 9999, which exporters share out, none is left
HERE = ("127.0.0.1", "localhost", "::1")


def parse_listen(text: str) -> tuple[str, int]:
    """Address and port of `19487`, `0.0.0.0:19487`, `[::1]:19487`; without an address this machine alone is served.

    Raises:
        PowercclError: it is neither.
    """
    if not text:
        return HERE[0], PORT
    match = re.fullmatch(r"(?:(?P<address>\[[0-9a-fA-F:.]+\]|[^:\[\]]*):)?(?P<port>\d{1,5})", text)
    if not match or int(match["port"]) > 65535:
        raise UsageError(f"--listen {text}: not a port, nor an address and a port", f"--listen {PORT}, for instance")
    return (match["address"] or HERE[0]).strip("[]"), int(match["port"])


def catch_up(node: LiveNode) -> None:
    """Read what was recorded before, so that the first figures are whole: a long trace takes several looks.

    A job that records faster than it is read would take for ever.
    """
    for _ in range(64):
        node.look()
        if not node.waiting:
            break


def write_textfile(file: Path, text: bytes) -> None:
    """Write aside and rename, so that no reader gets half of it; readable to all, as node_exporter is another user.

    Raises:
        PowercclError: it cannot be written.
    """
    try:
        with written_whole(file) as out:
            os.fchmod(out.fileno(), 0o644)
            out.write(text)
    except OSError as error:
        raise PowercclError(
            f"cannot write {file}: {error.strerror}", "name a file in a folder that you may write to"
        ) from error


def keep_written(file: Path, metrics: Callable[[], bytes], interval_s: float, say: Callable[[str], None]) -> None:
    """Write every so often. When stopped, no stale figures stay."""
    keep_up(lambda: write_textfile(file, metrics()), interval_s, f"writing {file}", say)
    with contextlib.suppress(OSError):
        file.unlink()


def keep_up(send: Callable[[], None], interval_s: float, what: str, say: Callable[[str], None]) -> None:
    """Call it every so often until SIGINT or SIGTERM; a disk that is full or a collector that is down ends nothing.

    Raises:
        PowercclError: it failed the first time: what can never work ends at once.
    """
    stop = _stopped()
    send()
    say(f"{what} every {exact(interval_s, 's')}; stop with Ctrl-C")
    due_s = time.monotonic() + interval_s
    while not stop.wait(max(due_s - time.monotonic(), 0)):
        due_s = max(due_s + interval_s, time.monotonic())
        try:
            send()
        except PowercclError as error:
            say(f"{error.message}; trying again in {exact(interval_s, 's')}")


def serve(registry: CollectorRegistry, address: str, port: int, say: Callable[[str], None]) -> None:
    """Answer scrapes over HTTP until SIGINT or SIGTERM.

    Raises:
        PowercclError: the address cannot be had.
    """
    from prometheus_client import start_http_server

    stop = _stopped()
    try:
        server, thread = start_http_server(port, addr=address, registry=registry)
    except OSError as error:
        raise PowercclError(
            f"cannot listen at {address}:{port}: {error.strerror or error}", "--listen names another port"
        ) from error
    shown = f"[{address}]" if ":" in address else address
    say(f"serving http://{shown}:{server.server_port}/metrics; stop with Ctrl-C")
    if address not in HERE:
        say("anyone who reaches this port reads the names of runs and users; --listen PORT serves this machine alone")
    stop.wait()
    server.shutdown()
    thread.join()


def _stopped() -> threading.Event:
    """Set at SIGINT and SIGTERM."""
    stop = threading.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: stop.set())
    return stop
