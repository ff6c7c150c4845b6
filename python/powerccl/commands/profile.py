# SPDX-License-Identifier: Apache-2.0
"""`powerccl profile`."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

import click

from powerccl.errors import UsageError, choose
from powerccl.patterns import PATTERNS, parse_bytes

SIZES = "128K:64M:2"


@click.command("profile")
@click.option("--emulate", default="", metavar="NAME", help="Profile an emulated GPU server such as t4x8.")
@click.option(
    "--patterns", default="all", show_default=True, metavar="LIST", help="Communication patterns, separated by commas."
)
@click.option(
    "--sizes",
    default=SIZES,
    show_default=True,
    metavar="FROM:TO:FACTOR|LIST",
    help="Message sizes, such as 1M or 128K:64M:2.",
)
@click.option(
    "--clocks", default="", metavar="LIST", help="SM clocks in MHz.  [default: twelve of the supported clocks]"
)
@click.option("--name", default="", metavar="NAME", help="Name of the platform.  [default: from GPU model and count]")
@click.option(
    "--out",
    type=click.Path(path_type=Path, dir_okay=False),
    metavar="FILE",
    help="Profile file to write, in JSON.  [default: ~/.config/powerccl/platforms/NAME.json]",
)
@click.option("--resume", is_flag=True, help="Continue an interrupted profile.")
@click.option(
    "--set-clocks",
    is_flag=True,
    help="Set GPU clocks (as root or through powerccld). Without it, profile measures at the present clock only.",
)
@click.option(
    "--ways",
    is_flag=True,
    help="Measure how NCCL carries collectives out (plain, symmetric, copy engines, efficiency), alone and beside "
    "computation. Needs no right, takes minutes, and is what `powerccl run --ways auto` goes by.",
)
@click.option(
    "--products",
    default="",
    metavar="TOKENSxWIDTHxHIDDEN",
    help="With --ways: the shape of the matrix products that run beside collectives, as in your model's perceptrons. "
    "Tokens of a rank and micro-batch, width, hidden width.  [default: 4096x4096x4096]",
)
@click.option(
    "--table",
    type=click.Path(path_type=Path, dir_okay=False),
    metavar="FILE",
    help="Also write the policy table to FILE.",
)
def command(
    emulate: str,
    patterns: str,
    sizes: str,
    clocks: str,
    name: str,
    out: Path | None,
    resume: bool,
    set_clocks: bool,
    ways: bool,
    products: str,
    table: Path | None,
) -> int:
    """Measure bandwidth and power by pattern, size and clock.

    Profile writes a platform profile, from which the clock policy per-call takes its clocks, and an HTML
    page with the curves. It prints minimum clocks and overhead points beside PCCL's. Measure a machine once. Stop with
    Ctrl-C, and continue with --resume.

    \b
    powerccl profile --set-clocks --name a100x8
    powerccl profile --ways
    powerccl profile --emulate t4x8 --patterns all_reduce --sizes 1M:16M:4
    """  # noqa: D301 - click's mark for text that is not to be wrapped
    if ways:
        if set_clocks or clocks or table:
            raise UsageError("--ways sets no clocks", "leave --set-clocks, --clocks and --table out")
        from powerccl.ways import profile as of_ways
        from powerccl.ways.verbs import measure_ways

        wanted, span = _patterns(patterns, of_ways.PATTERNS), _sizes(of_ways.SIZES if sizes == SIZES else sizes)
        measure_ways(emulate, wanted, span, name, out, resume, products)
        return 0
    if products:
        raise UsageError("--products is for --ways", "add --ways")
    from powerccl.profile.verb import profile_machine

    terms = (emulate, _patterns(patterns, PATTERNS), _sizes(sizes), _clocks(clocks), set_clocks, name)
    profile_machine(*terms, out, resume, table)
    return 0


def _patterns(text: str, known: Iterable[str]) -> list[str]:
    return list(known) if text == "all" else [choose("pattern", each.strip(), known) for each in text.split(",")]


def _sizes(text: str) -> list[int]:
    """Sizes in bytes of `128K:64M:2` or `128K,1M,64M`, ascending."""
    try:
        if ":" in text:
            first, last, *rest = text.split(":")
            size, end, factor = parse_bytes(first), parse_bytes(last), float(rest[0]) if rest else 2.0
            if size < 1 or factor <= 1 or len(rest) > 1:
                raise ValueError(text)
            sizes = []
            while size <= end:
                sizes.append(size)
                size = int(size * factor)
        else:
            sizes = sorted({parse_bytes(part) for part in text.split(",")})
    except ValueError as error:
        raise UsageError(f"--sizes {text}: not understood", "128K:64M:2 (from:to:factor) or 128K,1M,64M") from error
    if not sizes or sizes[0] < 1:
        raise UsageError(f"--sizes {text}: no size above 0", "128K:64M:2 (from:to:factor) or 128K,1M,64M")
    return sizes


def _clocks(text: str) -> list[int]:
    """Clocks in MHz of `1590,900,450`, highest first; none for an empty text."""
    try:
        clocks = sorted({int(part) for part in text.split(",")} if text else set(), reverse=True)
    except ValueError as error:
        raise UsageError(f"--clocks {text}: not understood", "MHz, separated by commas: 1590,900,450") from error
    if clocks and clocks[-1] <= 0:
        raise UsageError(f"--clocks {text}: a clock is above 0", "MHz, separated by commas: 1590,900,450")
    return clocks
