# SPDX-License-Identifier: Apache-2.0
"""`powerccl study`."""

from __future__ import annotations

import signal
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import click

from powerccl.commandline.options import html_option, json_option, markdown_option
from powerccl.commandline.output import say
from powerccl.commandline.runs import complete_file
from powerccl.errors import PowercclError, UsageError

if TYPE_CHECKING:
    from powerccl.study.worlds import ScalingFindings


@click.group("study")
def command() -> None:
    """Run a study that takes several runs, and print its table.

    \b
    powerccl study scaling --gpus 1,2,4 -- \\
        torchrun --nproc-per-node {gpus} train.py
    """  # noqa: D301 - click's mark for text that is not to be wrapped


@command.command("scaling", context_settings={"ignore_unknown_options": False, "allow_interspersed_args": False})
@click.option("--gpus", default="", metavar="LIST", help="World sizes, such as 1,2,4,8. Required without --from.")
@click.option(
    "--links",
    default="default",
    show_default=True,
    metavar="LIST",
    help="Links to run over: default (NCCL's choice), nvlink, shm (host memory), sockets (TCP).",
)
@click.option(
    "--emulate",
    default="",
    metavar="LIST",
    help="Emulated platforms. Each world size runs on the first one with enough GPUs.",
)
@click.option(
    "--tokens",
    type=click.IntRange(1),
    metavar="N",
    help="Tokens per iteration and GPU, if the job's {json} file has none.",
)
@click.option(
    "--nccl", default="", metavar="FILE", help="libnccl.so.2 to sweep.  [default: the one that the loader finds]"
)
@click.option("--no-sweep", is_flag=True, help="Do not sweep the collectives with powerccl-bench.")
@click.option(
    "--no-all-reduce", is_flag=True, help="Sweep the job's collectives only, without all-reduces of 16 to 192 MiB."
)
@click.option(
    "--out",
    type=click.Path(path_type=Path, file_okay=False),
    default=Path("study"),
    show_default=True,
    metavar="DIR",
    help="Folder of the study. An existing one is continued.",
)
@click.option("--from", "source", default="", metavar="DIR", help="Only print the study in DIR again.")
@json_option("the findings")
@markdown_option()
@html_option()
@click.argument(
    "arguments", nargs=-1, type=click.UNPROCESSED, metavar="-- COMMAND [ARGS]...", shell_complete=complete_file
)
def scaling(
    gpus: str,
    links: str,
    emulate: str,
    tokens: int | None,
    nccl: str,
    no_sweep: bool,
    no_all_reduce: bool,
    out: Path,
    source: str,
    json_file: str,
    markdown_file: str,
    html_file: str,
    arguments: tuple[str, ...],
) -> int:
    """Run a job at several world sizes, and show how it scales.

    For each world size, the study records the job as `powerccl run --policy observe` does. Then powerccl-bench sweeps
    the job's collectives on the same GPUs and links. The table shows time and bandwidth of each collective in an
    iteration, beside the sweep's. It also shows the share of communication, throughput and energy.

    In COMMAND, {gpus} becomes the world size. {json} becomes a file in which the job may report its iterations, as
    examples/train_gpt.py and powerccl-bench do. Without {json}, the study detects iterations from the sequence of
    collectives. If the job fails at one world size, the study runs the others, prints them, and exits with 1.

    \b
    powerccl study scaling --gpus 1,2,4 --links nvlink,sockets -- \\
        torchrun --nproc-per-node {gpus} examples/train_gpt.py --json {json}
    powerccl study scaling --gpus 1,2,4,8 --emulate a100x4,a100x8-two-nodes -- \\
        powerccl-bench scenario examples/gpt350m.scn -g {gpus} --json {json}
    powerccl study scaling --from study
    """  # noqa: D301 - click's mark for text that is not to be wrapped
    from powerccl.study.launch import Asked, findings, parse_gpus, parse_links, read_study, run_study

    if source:
        if arguments or gpus or emulate:
            raise UsageError("--from only prints what is there", "leave it out to run more worlds into --out")
        folder, study = Path(source), read_study(Path(source))
    else:
        if not gpus:
            raise UsageError("--gpus is missing", "world sizes, such as --gpus 1,2,4")
        asked = Asked(
            command=list(arguments),
            gpus=parse_gpus(gpus),
            links=parse_links(links),
            emulate=[each.strip() for each in emulate.split(",") if each.strip()],
            tokens=tokens,
            all_reduce=not no_all_reduce,
        )
        signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))  # so that an emulator ends with us
        folder, study = out, run_study(asked, out, say, sweep=not no_sweep, nccl=nccl)
    scaled = findings(study, folder)
    if not scaled.worlds:
        raise PowercclError(
            "\n".join([f"no world of the study in {folder} has run", *scaled.notes]),
            "run its command again: it goes on",
        )
    alone = _write(scaled, json_file, markdown_file, html_file)
    if not alone:
        from powerccl.console import Console
        from powerccl.study.report import print_scaling

        print_scaling(Console(), scaled)
    if scaled.failed and not source:
        raise PowercclError(
            f"{len(scaled.failed)} of {len(scaled.worlds) + len(scaled.failed)} worlds failed: "
            f"{', '.join(scaled.failed)}",
            "the same command tries them again; the tables are of the others",
        )
    return 0


def _write(scaled: ScalingFindings, json_file: str, markdown_file: str, html_file: str) -> bool:
    """Write what was asked for; whether one of the two went to stdout, in place of the tables."""
    from powerccl import clean
    from powerccl.commandline.output import write_out
    from powerccl.study.report import markdown

    texts: list[tuple[str, str | bytes]] = []
    if json_file:
        texts.append((json_file, clean.to_json(scaled, indent=1)))
    if markdown_file:
        texts.append((markdown_file, markdown(scaled)))
    if html_file:
        from powerccl.study.page import scaling_page

        texts.append((html_file, scaling_page(scaled).encode()))
    for name, text in texts:
        write_out(name, text)
    return any(name == "-" for name, _ in texts)
