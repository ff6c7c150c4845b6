# SPDX-License-Identifier: Apache-2.0
"""`--price`, `--carbon` and `--pue`, and the user's own values of them."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from powerccl.commandline.options import Command

if TYPE_CHECKING:
    from powerccl.tariff import Tariff

_OPTIONS = (
    click.option(
        "--price",
        default="",
        metavar="PRICE|FILE",
        help="Price of energy, such as 0.25EUR/kWh, or a CSV file by hour. With none, no cost is shown.  "
        "[default: that of `powerccl config`]",
    ),
    click.option(
        "--carbon",
        default="",
        metavar="G|FILE",
        help="Carbon intensity of energy, such as 380g/kWh, or a CSV file by hour, or none.  "
        "[default: that of `powerccl config`]",
    ),
    click.option(
        "--pue",
        type=float,
        metavar="PUE",
        help="Energy of the site by that of its computers, such as 1.3.  [default: that of `powerccl config`]",
    ),
)


def tariff_options(command: Command) -> Command:
    """The three options, as the arguments `price`, `carbon` and `pue`."""
    for option in reversed(_OPTIONS):
        command = option(command)
    return command


def asked_tariff(price: str = "", carbon: str = "", pue: float | None = None) -> Tariff:
    """The options, and the user's own values of those that are not given.

    Raises:
        PowercclError: an option or the user's file cannot be used.
    """
    from powerccl.commandline.config import Config, read_config
    from powerccl.tariff import Tariff, parse_carbon, parse_price, parse_pue

    config = Config() if price and carbon and pue is not None else read_config()
    # What a setting's check returns is of its own type.
    return Tariff(
        parse_price(price) if price else config.checked("price"),  # type: ignore[arg-type]
        parse_carbon(carbon) if carbon else config.checked("carbon"),  # type: ignore[arg-type]
        parse_pue(pue) if pue is not None else config.checked("pue"),  # type: ignore[arg-type]
    )
