# SPDX-License-Identifier: Apache-2.0
"""Energy and idle time of one host's processors, as powerccl-agent writes them (`cpu-<host>.csv`)."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import polars as pl

REQUIRED = ("time_ns", "domain")
NUMBERS = ("time_ns", "energy_uj", "cpu_busy_ns", "cpu_idle_ns")
CPU_DOMAIN = "cpu"  # its rows carry the busy and idle time of all processors; the others are RAPL domains


@dataclass
class CpuLog:
    """Samples of one host.

    `samples` has time_ns (CLOCK_MONOTONIC), domain, energy_uj (since some start; -1: not read), cpu_busy_ns and
    cpu_idle_ns (summed over the host's processors; -1: not in this row), sorted by domain and time. `about` is the
    file's `# key: value` lines.
    """

    path: Path
    about: dict[str, str]
    samples: pl.DataFrame
    problems: list[str] = field(default_factory=list)

    @property
    def host(self) -> str:
        """The host's name."""
        return self.about.get("host") or self.path.stem.removeprefix("cpu-")


def read_cpu(path: Path) -> CpuLog:
    """Read a sample file up to its last whole line; lines that do not parse are counted and left out.

    Raises:
        OSError: the file cannot be read.
    """
    import polars as pl

    from powerccl.traces.power import read_lines

    about, frame, problems, bad = read_lines(path)
    missing = [name for name in REQUIRED if name not in frame.columns]
    if missing and frame.columns:
        problems.append(f"{path.name}: no column {', '.join(missing)}: nothing is known from it")
    if missing:
        frame = pl.DataFrame(schema=dict.fromkeys(REQUIRED, pl.String))
    frame = frame.with_columns(
        (pl.col(name) if name in frame.columns else pl.lit(None, pl.String))
        .str.strip_chars()
        .cast(pl.Int64, strict=False)
        .alias(name)
        for name in NUMBERS
    ).select("time_ns", "domain", *NUMBERS[1:])
    sound = frame.filter(pl.col("time_ns").is_not_null() & (pl.col("domain").str.strip_chars() != ""))
    bad += len(frame) - len(sound)
    if bad:
        problems.append(f"{path.name}: {bad} lines do not parse, skipped")
    sound = sound.with_columns(pl.col(name).fill_null(-1) for name in NUMBERS[1:]).sort("domain", "time_ns")
    return CpuLog(path, about, sound, problems)
