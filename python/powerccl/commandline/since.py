# SPDX-License-Identifier: Apache-2.0
"""`--since`: from when on runs are taken."""

from __future__ import annotations

import re
from datetime import datetime, timedelta

import click

from powerccl.errors import UsageError

_AGE = re.compile(r"(\d+(?:\.\d+)?)([mhdw])")
_UNITS = {"m": "minutes", "h": "hours", "d": "days", "w": "weeks"}

since_option = click.option(
    "--since",
    default="",
    metavar="7d|DATE",
    help="Only runs that started since: 30m, 12h, 7d, 2w or a date.",
)


def parse_since(text: str, now: datetime) -> float:
    """`7d`, `12h`, or a date such as `2026-11-29` or `2026-11-29T08:00` in local time; seconds since 1970.

    Raises:
        UsageError: it is neither.
    """
    try:
        if age := _AGE.fullmatch(text):
            return (now - timedelta(**{_UNITS[age[2]]: float(age[1])})).timestamp()
        return datetime.fromisoformat(text).timestamp()
    except (ValueError, OverflowError) as error:
        raise UsageError(f"--since {text}: not understood", "7d, 12h, 30m, 2w, or a date: 2026-11-29") from error
