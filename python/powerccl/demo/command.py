# SPDX-License-Identifier: Apache-2.0
"""`powerccl demo`."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

import click

from powerccl.commandline.options import html_option, json_option
from powerccl.commandline.output import say, write_out
from powerccl.errors import PowercclError, choose
from powerccl.quantities import plural

if TYPE_CHECKING:
    from powerccl.console import Console
    from powerccl.demo.mpi_report import MpiDemo

MODELS = ("microllama", "opt", "gpt2", "distilgpt2")
POLICY = "per-call"


@click.command("demo")
@click.option(
    "--model",
    "models",
    multiple=True,
    default=["microllama"],
    show_default=True,
    metavar="NAME",
    help=f"Model to replay: {', '.join(MODELS)}. Repeatable.",
)
@click.option(
    "--iterations",
    type=click.IntRange(3, 1000),
    default=8,
    show_default=True,
    metavar="N",
    help="Number of measured iterations.",
)
@click.option(
    "--mpi/--no-mpi", default=True, show_default=True, help="Also run the second part, a real MPI job on two ranks."
)
@json_option("the figures")
@html_option("the pictures")
@click.option(
    "--runs-dir", type=click.Path(path_type=Path), metavar="DIR", help="Keep the run folders in this directory."
)
def command(
    models: tuple[str, ...], iterations: int, mpi: bool, json_file: str, html_file: str, runs_dir: Path | None
) -> int:
    """Show on an emulated server what power-aware collectives save.

    The first part needs no GPU: the server emulates eight T4s. It replays the training step of the PCCL publication
    under two policies: observe (nothing changes) and per-call (PCCL as published). It compares its figures, all of
    them emulated, with the published ones.

    The second part needs an MPI library. It runs a real job on two ranks, without and with PowerCCL. One rank has
    more work, so the other one waits.

    \b
    powerccl demo
    powerccl demo --html demo.html
    powerccl demo --model gpt2 --no-mpi --json -
    """  # noqa: D301 - click's mark for text that is not to be wrapped
    models = tuple(dict.fromkeys(choose("model", model, MODELS) for model in models))
    from powerccl.demo.training import PLATFORM, PROFILE, train
    from powerccl.platforms.store import load_profile

    load_profile(PROFILE)  # before minutes are spent
    console = _console(json_file)
    with tempfile.TemporaryDirectory(prefix="powerccl-demo-") as temporary:
        runs = runs_dir or Path(temporary)
        figures: dict[str, object] = {}
        shown = []
        failed: list[PowercclError] = []
        for model in models:
            try:
                with console.status(f"{model}: {plural(iterations, 'iteration')} under observe, then under {POLICY} …"):
                    observed = train(model, "observe", iterations, runs, say)
                    managed = train(model, POLICY, iterations, runs, say)
            except PowercclError as error:  # what others came to is still written
                say(f"{model}: {error.message}")
                failed.append(error)
                continue
            from powerccl.demo.report import DemoResult, print_demo
            from powerccl.demo.savings import savings

            saved = savings(observed, managed, POLICY)
            figures.update({f"demo.{model}.{name}": figure for name, figure in saved.items()})
            shown.append(DemoResult(model, PLATFORM, observed, managed, saved))
            print_demo(console, shown[-1])
        of_mpi = _mpi(console, runs) if mpi else None
        if of_mpi:
            figures.update({f"demo.mpi.{name}": figure for name, figure in of_mpi.figures.items()})
        if html_file:
            from powerccl.demo.page import demo_page

            write_out(html_file, demo_page(shown, of_mpi))
            console.print(f"\npicture  {html_file}")
        if runs_dir:
            console.print(f"records  {runs_dir}")
        if json_file:
            _write_json(figures, json_file)
        if shown or of_mpi:
            from powerccl.demo.report import print_next

            print_next(console)
    if failed:
        raise failed[0]
    return 0


def _console(json_file: str) -> Console:
    """Stdout, unless that takes the JSON."""
    from powerccl.console import Console

    return Console(stderr=json_file == "-")


def _write_json(figures: dict[str, object], target: str) -> None:
    from powerccl import clean
    from powerccl.commandline.output import write_out

    if target != "-":
        Path(target).parent.mkdir(parents=True, exist_ok=True)
    write_out(target, clean.to_json(figures, indent=2))


def _mpi(console: Console, runs: Path) -> MpiDemo | None:
    """Run the MPI job without and with the library. Without an MPI, one line on stderr is all."""
    from powerccl.demo import mpi
    from powerccl.demo.mpi_report import MpiDemo, print_mpi_demo
    from powerccl.demo.stencil import same_result, stencil_figures
    from powerccl.launch.native import find_native

    native = find_native()
    if os.environ.get("POWERCCL_MPI") == "off":
        say("no MPI job: POWERCCL_MPI=off")
        return None
    with console.status("looking for an MPI …"):
        stencil, reason = mpi.find_stencil(native)
    if stencil is None:
        say(f"no MPI job: {reason}")
        return None
    without, with_ours = mpi.measure(native, stencil, runs, console.status, say)
    if not with_ours:
        return None
    pictured = with_ours[-1].mpi
    if pictured is None:
        say("no MPI figures: the library saw nothing; see `powerccl doctor`")
        return None
    figures = stencil_figures(without, with_ours)
    shown = MpiDemo(mpi.RANKS, mpi.IMBALANCE_PCT, figures, pictured, same_result(without, with_ours))
    print_mpi_demo(console, shown)
    return shown
