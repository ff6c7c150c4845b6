# SPDX-License-Identifier: Apache-2.0
"""`powerccl study`."""

from __future__ import annotations

import signal
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import click

from powerccl.commands import say
from powerccl.errors import PowercclError

if TYPE_CHECKING:
    from powerccl.analysis.scaling import ScalingFindings


@click.group("study")
def command() -> None:
    """Measure a question of several runs, and print it as a table.

    \b
    powerccl study scaling --gpus 1,2,4 -- torchrun --nproc-per-node {gpus} examples/train_gpt.py --json {json}
    """  # noqa: D301 - click's mark for text that is not to be wrapped


@command.command("scaling", context_settings={"ignore_unknown_options": False, "allow_interspersed_args": False})
@click.option("--gpus", default="", metavar="LIST", help="World sizes, such as 1,2,4,8.")
@click.option(
    "--links",
    default="default",
    show_default=True,
    metavar="LIST",
    help="Kinds of link to run over: default (what NCCL takes), nvlink, shm (host memory), sockets (TCP).",
)
@click.option(
    "--emulate",
    default="",
    metavar="LIST",
    help="Emulated platforms; each world size runs on the first that has enough GPUs.",
)
@click.option("--tokens", type=click.IntRange(1), help="Tokens of an iteration and GPU, if the job's file has none.")
@click.option("--nccl", default="", metavar="FILE", help="The libnccl.so.2 to sweep.  [default: the one programs find]")
@click.option("--no-sweep", is_flag=True, help="No sweep by powerccl-bench beside.")
@click.option("--no-all-reduce", is_flag=True, help="Sweep the job's collectives only, not study E's all-reduces.")
@click.option(
    "--runs-dir",
    type=click.Path(path_type=Path, file_okay=False),
    default=Path("study"),
    show_default=True,
    help="Folder of the study: goes on if it is there.",
)
@click.option("--from", "source", default="", metavar="DIR", help="Only print the study in that folder again.")
@click.option(
    "--json", "json_file", default="", metavar="FILE", help="Also write the findings there (-: stdout, alone)."
)
@click.option("--markdown", "markdown_file", default="", metavar="FILE", help="Also write the tables there (-: alone).")
@click.option("--html", "html_file", default="", metavar="FILE", help="Write a page with charts and tables.")
@click.argument("arguments", nargs=-1, type=click.UNPROCESSED, metavar="-- COMMAND [ARGS]...")
def scaling(
    gpus: str,
    links: str,
    emulate: str,
    tokens: int | None,
    nccl: str,
    no_sweep: bool,
    no_all_reduce: bool,
    runs_dir: Path,
    source: str,
    json_file: str,
    markdown_file: str,
    html_file: str,
    arguments: tuple[str, ...],
) -> int:
    """Run a job on more and more GPUs, and show what its collectives come to.

    Each world size is recorded as `powerccl run --policy observe` does, then powerccl-bench sweeps the job's own
    collectives on the same GPUs over the same links. Printed are, for each: time and bandwidth of each collective in an
    iteration, beside the sweep's; communication's share; throughput; energy. In COMMAND, {gpus} becomes the world
    size and {json} a file in which the job may tell its iterations, as examples/train_gpt.py and powerccl-bench do.
    Without it they are found from the sequence of collectives. Where the job fails at one world size, the others run
    and are printed; the exit code is then 1.

    \b
    powerccl study scaling --gpus 1,2,4 --links nvlink,sockets -- \\
        torchrun --nproc-per-node {gpus} examples/train_gpt.py --json {json}
    powerccl study scaling --gpus 1,2,4,8 --emulate a100x4,a100x8-two-nodes -- \\
        powerccl-bench scenario examples/gpt350m.scn -g {gpus} --json {json}
    powerccl study scaling --from study
    """  # noqa: D301 - click's mark for text that is not to be wrapped
    from powerccl.launch.scaling import Asked, findings, parse_gpus, parse_links, read_study, run_study

    if source:
        if arguments or gpus or emulate:
            raise PowercclError("--from only prints what is there", "leave it out to run more worlds into --runs-dir")
        folder, study = Path(source), read_study(Path(source))
    else:
        if not gpus:
            raise PowercclError("--gpus is missing", "world sizes, such as --gpus 1,2,4")
        asked = Asked(
            command=list(arguments),
            gpus=parse_gpus(gpus),
            links=parse_links(links),
            emulate=[each.strip() for each in emulate.split(",") if each.strip()],
            tokens=tokens,
            all_reduce=not no_all_reduce,
        )
        signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))  # so that an emulator ends with us
        folder, study = runs_dir, run_study(asked, runs_dir, say, sweep=not no_sweep, nccl=nccl)
    found = findings(study, folder)
    if not found.worlds:
        raise PowercclError(
            "\n".join([f"no world of the study in {folder} has run", *found.notes]), "run its command again: it goes on"
        )
    alone = _write(found, json_file, markdown_file, html_file)
    if not alone:
        from powerccl.console import Console
        from powerccl.reports.scaling import print_scaling

        print_scaling(Console(), found)
    if found.failed and not source:
        raise PowercclError(
            f"{len(found.failed)} of {len(found.worlds) + len(found.failed)} worlds failed: {', '.join(found.failed)}",
            "the same command tries them again; the tables are of the others",
        )
    return 0


def _write(found: ScalingFindings, json_file: str, markdown_file: str, html_file: str) -> bool:
    """Write what was asked for; whether one of the two went to stdout, in place of the tables."""
    from powerccl import clean
    from powerccl.commands import write_out
    from powerccl.reports.scaling import markdown

    texts: list[tuple[str, str | bytes]] = []
    if json_file:
        texts.append((json_file, clean.to_json(found, indent=1)))
    if markdown_file:
        texts.append((markdown_file, markdown(found)))
    if html_file:
        from powerccl.reports.scaling_page import scaling_page

        texts.append((html_file, scaling_page(found).encode()))
    for name, text in texts:
        write_out(name, text)
    return any(name == "-" for name, _ in texts)
