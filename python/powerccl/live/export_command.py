# SPDX-License-Identifier: Apache-2.0
"""`powerccl export`."""

from __future__ import annotations

import contextlib
from pathlib import Path

import click

from powerccl.commandline.options import more_runs_option, seconds_option
from powerccl.commandline.output import say, write_out
from powerccl.commandline.runs import complete_run, find_run
from powerccl.errors import UsageError
from powerccl.live.exporter import PORT, parse_listen


@click.command("export")
@click.argument("names", nargs=-1, metavar="[RUN]...", shell_complete=complete_run)
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
@click.option(
    "--otlp",
    default="",
    metavar="URL",
    help="Push metrics to an OpenTelemetry collector instead, by OTLP over HTTP.",
)
@click.option("--once", is_flag=True, help="Print metrics once, or write or push them once, and exit.")
@seconds_option("interval", 1, 3600, 15.0, "Time between two writes of --textfile, or two pushes.")
@seconds_option("keep", 0, 86400, 300.0, "How long metrics of a job stay after it ends.")
@more_runs_option("export")
def command(
    names: tuple[str, ...],
    listen: str,
    textfile: str,
    otlp: str,
    once: bool,
    interval_s: float,
    keep_s: float,
    runs_dir: Path | None,
) -> int:
    """Export metrics to Prometheus or OpenTelemetry.

    Export finds your running jobs by their processes (as root: all users' jobs), and asks the node's powerccld for its
    leases. With RUN, it exports these run folders instead. It reads the files of a run at each scrape, and runs until
    you stop it. `powerccl admin install` writes a Grafana dashboard.

    \b
    powerccl export --once
    powerccl export --listen 19487
    powerccl export --textfile /var/lib/node_exporter/powerccl-jobs.prom
    powerccl export --otlp http://collector:4318
    """  # noqa: D301 - click's mark for text that is not to be wrapped
    if sum(map(bool, (listen, textfile, otlp))) > 1:
        raise click.UsageError("--listen, --textfile and --otlp: one of them")
    if listen and once:
        raise click.UsageError("--once serves nothing: leave --listen out")
    if textfile and not textfile.endswith(".prom"):
        raise UsageError(f"--textfile {textfile}: node_exporter reads files in .prom only", "let its name end so")
    address, port = parse_listen(listen)

    if otlp:
        from powerccl.live.otlp import Push
    from powerccl.live.exporter import catch_up, keep_up, keep_written, serve, write_textfile
    from powerccl.live.metrics import JobCollector, as_text, registry
    from powerccl.live.node import LiveNode

    node = LiveNode(
        [find_run(name, runs_dir or Path("runs")) for name in names], runs_dir, keep_s=keep_s, totals=True, say=say
    )
    collector = JobCollector(node.look, lambda: node.counts, named=bool(names), daemon=lambda: node.daemon)
    push = Push(otlp, collector.collect, node.host) if otlp else None
    with contextlib.closing(node):
        catch_up(node)
        if push and once:
            push()
        elif push:
            keep_up(push, interval_s, f"pushing to {push.shown}", say)
        elif once and textfile:
            write_textfile(Path(textfile), as_text(collector))
        elif once:
            write_out("-", as_text(collector))
        elif textfile:
            keep_written(Path(textfile), lambda: as_text(collector), interval_s, say)
        else:
            serve(registry(collector), address, port, say)
    return 0
