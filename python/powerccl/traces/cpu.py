# SPDX-License-Identifier: Apache-2.0
"""Energy and idle time of one host's processors, as powerccl-agent writes them (`cpu-<host>.csv`)."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from powerccl import clean

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
        return self.about.get("host") or clean.field(self.path.stem.removeprefix("cpu-"))

    @property
    def boot_id(self) -> str:
        """The host's boot, in hex as in a trace's header; empty: it does not say."""
        return self.about.get("boot_id", "")


def read_cpu(path: Path) -> CpuLog:
    """Read a sample file up to its last whole line; lines that do not parse are counted and left out.

    Raises:
        OSError: the file cannot be read.
    """
    import polars as pl

    from powerccl.traces.power import read_samples, whole

    def sound(rows: pl.DataFrame) -> pl.DataFrame:
        missing = [name for name in NUMBERS if name not in rows.columns]
        rows = rows.with_columns(pl.lit(None, pl.String).alias(name) for name in missing)
        rows = rows.select("time_ns", "domain", *NUMBERS[1:])
        rows = rows.with_columns(whole(name) for name in NUMBERS)
        return rows.filter(pl.col("time_ns").is_not_null() & (pl.col("domain").str.strip_chars() != ""))

    about, samples, problems = read_samples(path, REQUIRED, "nothing", ("domain",), sound)
    if not samples.columns:
        schema = {name: pl.String if name == "domain" else pl.Int64 for name in ("time_ns", "domain", *NUMBERS[1:])}
        return CpuLog(path, about, pl.DataFrame(schema=schema), problems)
    samples = samples.with_columns(pl.col(name).fill_null(-1) for name in NUMBERS[1:]).sort("domain", "time_ns")
    return CpuLog(path, about, samples, problems)
