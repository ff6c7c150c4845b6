# SPDX-License-Identifier: Apache-2.0
"""`powerccl index`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from powerccl.commandline.output import say
from powerccl.errors import PowercclError, UsageError
from powerccl.quantities import plural

if TYPE_CHECKING:
    from powerccl.analysis.findings import RunSummary
    from powerccl.fleet.read import Analysed


@click.command("index")
@click.argument("root", metavar="ROOT")
@click.option(
    "--to", type=click.Path(path_type=Path), metavar="DIR", help="Folder of the index.  [default: ROOT/.fleet]"
)
@click.option(
    "--analyse",
    is_flag=True,
    help="Also read the traces of new runs: who waits for which GPU, iterations, next steps, and summaries that are"
    " missing. Takes seconds a run.",
)
@click.option("-q", "--quiet", is_flag=True, help="Print nothing but errors.")
def command(root: str, to: Path | None, analyse: bool, quiet: bool) -> int:
    """Keep a table of all recorded runs as Parquet.

    It looks at all run folders below ROOT and reads those that are new or have changed. ROOT is a directory, or the
    address of an object store, such as s3://bucket/runs. It writes nothing in run folders. Run it once, or every hour
    by cron. `powerccl fleet` asks the index, and so does any engine that reads Parquet.

    \b
    powerccl index /scratch --to /data/powerccl
    powerccl index runs --analyse
    powerccl index s3://bucket/runs --to /data/powerccl
    """  # noqa: D301 - click's mark for text that is not to be wrapped
    from powerccl.fleet.index import index
    from powerccl.fleet.store import FOLDER

    if to is None and "://" in root:
        raise UsageError(f"an index is a folder of a file system, and {root} is none", "name one: --to DIR")
    folder = to or Path(root) / FOLDER
    try:
        done = index(root, folder, _analyse if analyse else None, (lambda _: None) if quiet else say)
    except OSError as error:
        raise PowercclError(f"cannot write {folder}: {error.strerror}", "name another folder: --to DIR") from error
    if not quiet:
        changed = [f"{done.read:,} read"] + ([f"{done.removed:,} removed"] if done.removed else [])
        say(f"{plural(done.seen, 'run')} below {root}: {', '.join(changed)}; the index is {folder}")
        if done.unsummarised:
            hint = "" if analyse else ": --analyse makes it"
            say(f"{plural(done.unsummarised, 'run')} without a summary, so without figures{hint}")
        if done.failed:
            say(f"{plural(done.failed, 'run')} could not be read; the index says why in the column `error`")
    if done.unreadable:
        more = f" and {len(done.unreadable) - 1:,} more" if len(done.unreadable) > 1 else ""
        raise PowercclError(f"cannot read {done.unreadable[0]}{more}", "what the index has of it stays")
    return 0


def _analyse(folder: Path, summary: RunSummary | None) -> Analysed:
    """A run's summary, late ranks, iterations and next steps. A summary that the folder has is kept."""
    from powerccl.analysis.report import report
    from powerccl.commandline.references import own_reference
    from powerccl.commandline.summaries import make_summary
    from powerccl.commands.advice import advise
    from powerccl.fleet.read import Analysed
    from powerccl.reports.next_steps import Evidence, next_steps
    from powerccl.traces.folder import RunData, read_info
    from powerccl.traces.run_files import has_files

    if not has_files(folder, "rank-", ".trace"):
        summary = summary or make_summary(folder)[1]
        return Analysed(summary, steps=next_steps(Evidence(summary)))
    head = RunData(folder)
    read_info(head)
    made = report(folder, own_reference(head))
    findings = made.findings
    summary = summary or findings.summary
    return Analysed(summary, findings.peers.ranks, findings.iterations, advise(made.run, summary, findings))
