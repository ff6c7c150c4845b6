# SPDX-License-Identifier: Apache-2.0
"""Power, energy and clock samples of one host's GPUs, as powerccl-agent writes them (`power-<host>.csv`)."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import polars as pl

COLUMNS = (
    "time_ns",
    "gpu",
    "uuid",
    "power_mw",
    "energy_uj",
    "sm_clock_mhz",
    "mem_clock_mhz",
    "temperature_c",
    "throttle_reasons",
    "utilization_pct",
)


@dataclass
class PowerLog:
    """Samples of one host.

    `samples` has COLUMNS, sorted by gpu and time; time_ns is CLOCK_MONOTONIC, energy_uj is -1 where the counter is not
    supported. `about` is the file's `# key: value` lines.
    """

    path: Path
    about: dict[str, str]
    samples: pl.DataFrame
    problems: list[str] = field(default_factory=list)

    @property
    def host(self) -> str:
        """The host's name."""
        return self.about.get("host") or self.path.stem.removeprefix("power-")

    @property
    def emulated(self) -> bool:
        """Whether the GPUs are emulated."""
        return self.about.get("emulated", "0") not in ("0", "false", "no", "")


def read_lines(path: Path) -> tuple[dict[str, str], list[str], list[list[str]], list[str], int]:
    """A sample file taken apart: its `# key: value` lines, column names, rows as text, problems, and bad lines.

    Raises:
        OSError: the file cannot be read.
    """
    text = path.read_bytes().decode("utf-8", "replace")
    whole, _, rest = text.rpartition("\n")
    problems = [f"{path.name}: last line cut off, skipped"] if rest else []
    about: dict[str, str] = {}
    header: list[str] = []
    rows: list[list[str]] = []
    bad = 0
    for line in whole.split("\n"):
        if line.startswith("#"):
            key, _, value = line[1:].partition(":")
            about[key.strip()] = value.strip()
        elif line and not header:
            header = [name.strip() for name in line.split(",")]
        elif line:
            fields = line.split(",")
            if len(fields) == len(header):
                rows.append(fields)
            else:
                bad += 1
    return about, header, rows, problems, bad


def read_power(path: Path) -> PowerLog:
    """Read a sample file up to its last whole line; lines that do not parse are counted and left out.

    Raises:
        OSError: the file cannot be read.
    """
    import polars as pl

    about, header, rows, problems, bad = read_lines(path)
    missing = [name for name in COLUMNS if name not in header]
    if missing and (header or rows):
        problems.append(f"{path.name}: no column {', '.join(missing)}: no power is known from it")
    if missing:
        rows = []
        header = list(COLUMNS)
    frame = pl.DataFrame(rows, schema=dict.fromkeys(header, pl.String), orient="row").select(COLUMNS)
    numbers = [name for name in COLUMNS if name not in ("uuid", "throttle_reasons")]
    frame = frame.with_columns(pl.col(name).str.strip_chars().cast(pl.Int64, strict=False) for name in numbers)
    sound = frame.filter(pl.col("time_ns").is_not_null() & pl.col("gpu").is_not_null())
    bad += len(frame) - len(sound)
    if bad:
        problems.append(f"{path.name}: {bad} lines do not parse, skipped")
    sound = sound.with_columns(pl.col("energy_uj").fill_null(-1)).sort("gpu", "time_ns")
    return PowerLog(path, about, sound, problems)
