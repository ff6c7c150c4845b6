# SPDX-License-Identifier: Apache-2.0
"""`powerccl export`."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING

import click

from powerccl.commands import say, write_out
from powerccl.commands.top import find_folders
from powerccl.errors import PowercclError
from powerccl.files import written_whole
from powerccl.quantities import exact

if TYPE_CHECKING:
    from powerccl.launch.running import LiveNode
    from powerccl.reports.export import JobCollector

PORT = 19487  # of 9100 to 9999, which exporters share out, none is left
HERE = ("127.0.0.1", "localhost", "::1")


@click.command("export")
@click.argument("names", nargs=-1, metavar="[RUN]...")
@click.option(
    "--listen",
    default="",
    metavar="[ADDRESS:]PORT",
    help=f"Serve metrics over HTTP at this address.  [default: 127.0.0.1:{PORT}]",
)
@click.option(
    "--textfile",
    default="",
    metavar="FILE",
    help="Write metrics to FILE instead, for node_exporter's textfile collector.",
)
@click.option("--once", is_flag=True, help="Print metrics once, or write --textfile once, and exit.")
@click.option(
    "--interval",
    "interval_s",
    type=click.FloatRange(1, 3600),
    default=15.0,
    show_default=True,
    metavar="SECONDS",
    help="Time between two writes of --textfile.",
)
@click.option(
    "--keep",
    "keep_s",
    type=click.FloatRange(0, 86400),
    default=300.0,
    show_default=True,
    metavar="SECONDS",
    help="How long metrics of a job stay after it ends.",
)
@click.option(
    "--runs-dir",
    type=click.Path(path_type=Path),
    help="Also export the jobs whose run folders are in this directory.",
)
def command(
    names: tuple[str, ...],
    listen: str,
    textfile: str,
    once: bool,
    interval_s: float,
    keep_s: float,
    runs_dir: Path | None,
) -> int:
    """Export metrics of the running jobs on this node to Prometheus.

    Export finds your jobs by their processes (as root: all users' jobs). With RUN, it exports these run folders
    instead. It reads the files of a run at each scrape, and runs until you stop it. packaging/prometheus/ has a
    Grafana dashboard.

    \b
    powerccl export --once
    powerccl export --listen 19487
    powerccl export --textfile /var/lib/node_exporter/powerccl-jobs.prom
    """  # noqa: D301 - click's mark for text that is not to be wrapped
    if listen and textfile:
        raise click.UsageError("--listen and --textfile: one of them")
    if listen and once:
        raise click.UsageError("--once serves nothing: leave --listen out")
    if textfile and not textfile.endswith(".prom"):
        raise PowercclError(f"--textfile {textfile}: node_exporter reads files in .prom only", "let its name end so")
    address, port = parse_listen(listen)

    from powerccl.launch.running import LiveNode
    from powerccl.reports.export import JobCollector

    node = LiveNode(find_folders(names, runs_dir), runs_dir, keep_s=keep_s, totals=True, say=say)
    collector = JobCollector(node.look, lambda: node.counts)
    with contextlib.closing(node):
        _catch_up(node)
        if once:
            _once(collector, textfile)
        elif textfile:
            _write_on(collector, Path(textfile), interval_s)
        else:
            _serve(collector, address, port)
    return 0


def parse_listen(text: str) -> tuple[str, int]:
    """Address and port of `19487`, `0.0.0.0:19487`, `[::1]:19487`; without an address this machine alone is served.

    Raises:
        PowercclError: it is neither.
    """
    if not text:
        return HERE[0], PORT
    found = re.fullmatch(r"(?:(?P<address>\[[0-9a-fA-F:.]+\]|[^:\[\]]*):)?(?P<port>\d{1,5})", text)
    if not found or int(found["port"]) > 65535:
        raise PowercclError(f"--listen {text}: not a port, nor an address and a port", f"--listen {PORT}, for instance")
    return (found["address"] or HERE[0]).strip("[]"), int(found["port"])


def _catch_up(node: LiveNode) -> None:
    """Read what was recorded before, so that the first figures are whole: a long trace takes several looks.

    A job that records faster than it is read would take for ever.
    """
    for _ in range(64):
        node.look()
        if not node.waiting:
            break


def _once(collector: JobCollector, textfile: str) -> None:
    from powerccl.reports.export import as_text

    text = as_text(collector)
    if textfile:
        write_textfile(Path(textfile), text)
    else:
        write_out("-", text)


def write_textfile(file: Path, text: bytes) -> None:
    """Write aside and rename, so that nobody reads half of it; readable to all, as node_exporter is another user.

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


def _stopped() -> threading.Event:
    """Set at SIGINT and SIGTERM."""
    stop = threading.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: stop.set())
    return stop


def _write_on(collector: JobCollector, file: Path, interval_s: float) -> None:
    """Write every so often; a disk that is full for a while ends nothing. When stopped, no stale figures stay."""
    from powerccl.reports.export import as_text

    stop = _stopped()
    write_textfile(file, as_text(collector))  # what can never work is said at once
    say(f"writing {file} every {exact(interval_s, 's')}; stop with Ctrl-C")
    due_s = time.monotonic() + interval_s
    while not stop.wait(max(due_s - time.monotonic(), 0)):
        due_s += interval_s
        try:
            write_textfile(file, as_text(collector))
        except PowercclError as error:
            say(f"{error.message}; trying again in {exact(interval_s, 's')}")
    with contextlib.suppress(OSError):
        file.unlink()


def _serve(collector: JobCollector, address: str, port: int) -> None:
    from prometheus_client import start_http_server

    from powerccl.reports.export import registry

    stop = _stopped()
    try:
        server, thread = start_http_server(port, addr=address, registry=registry(collector))
    except OSError as error:
        raise PowercclError(
            f"cannot listen at {address}:{port}: {error.strerror or error}", "--listen names another port"
        ) from error
    shown = f"[{address}]" if ":" in address else address
    say(f"serving http://{shown}:{server.server_port}/metrics; stop with Ctrl-C")
    if address not in HERE:
        say("whoever reaches this port reads the names of runs and users; --listen PORT serves this machine alone")
    stop.wait()
    server.shutdown()
    thread.join()
