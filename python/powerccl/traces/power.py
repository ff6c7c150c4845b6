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


def about(path: Path) -> dict[str, str]:
    """The `# key: value` lines at a sample file's head, without reading the rest; none if it cannot be read."""
    found: dict[str, str] = {}
    try:
        with path.open(errors="replace") as file:
            for line in file:
                if not line.startswith("#"):
                    break
                key, _, value = line[1:].partition(":")
                found[key.strip()] = value.strip()
    except OSError:
        pass
    return found


def read_lines(path: Path) -> tuple[dict[str, str], pl.DataFrame, list[str], int]:
    """A sample file taken apart: its `# key: value` lines, rows as text in named columns, problems, and bad lines.

    Raises:
        OSError: the file cannot be read.
    """
    import polars as pl

    text = path.read_bytes().decode("utf-8", "replace")
    whole, _, rest = text.rpartition("\n")
    problems = [f"{path.name}: last line cut off, skipped"] if rest else []
    # Polars does the splitting: hours of eight GPUs make millions of lines.
    lines = pl.Series("lines", whole.split("\n"), dtype=pl.String)
    del text, whole
    said = lines.str.starts_with("#")
    about: dict[str, str] = {}
    for line in lines.filter(said).to_list():
        key, _, value = line[1:].partition(":")
        about[key.strip()] = value.strip()
    lines = lines.filter(~said & (lines != ""))
    if not len(lines):
        return about, pl.DataFrame(), problems, 0
    header = [name.strip() for name in lines[0].split(",")]
    if len(set(header)) < len(header):
        problems.append(f"{path.name}: columns of the same name: nothing is known from it")
        return about, pl.DataFrame(), problems, len(lines) - 1
    lines = lines[1:]
    good = lines.str.count_matches(",", literal=True) == len(header) - 1
    bad = len(lines) - int(good.sum())
    rows = lines.filter(good).to_frame().select(pl.col("lines").str.split_exact(",", len(header) - 1)).unnest("lines")
    return about, rows.rename(dict(zip(rows.columns, header, strict=True))), problems, bad


def read_power(path: Path) -> PowerLog:
    """Read a sample file up to its last whole line; lines that do not parse are counted and left out.

    Raises:
        OSError: the file cannot be read.
    """
    import polars as pl

    about, rows, problems, bad = read_lines(path)
    missing = [name for name in COLUMNS if name not in rows.columns]
    if missing and rows.columns:
        problems.append(f"{path.name}: no column {', '.join(missing)}: no power is known from it")
    frame = pl.DataFrame(schema=dict.fromkeys(COLUMNS, pl.String)) if missing else rows.select(COLUMNS)
    numbers = [name for name in COLUMNS if name not in ("uuid", "throttle_reasons")]
    frame = frame.with_columns(pl.col(name).str.strip_chars().cast(pl.Int64, strict=False) for name in numbers)
    sound = frame.filter(pl.col("time_ns").is_not_null() & pl.col("gpu").is_not_null())
    bad += len(frame) - len(sound)
    if bad:
        problems.append(f"{path.name}: {bad} lines do not parse, skipped")
    sound = sound.with_columns(pl.col("energy_uj").fill_null(-1)).sort("gpu", "time_ns")
    return PowerLog(path, about, sound, problems)
