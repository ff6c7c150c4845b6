# SPDX-License-Identifier: Apache-2.0
"""Power, energy and clock samples of one host's GPUs, as powerccl-agent writes them (`power-<host>.csv`)."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from powerccl import clean
from powerccl.files import MIB, MOST_SAMPLES, opened, read_into
from powerccl.quantities import plural

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
PIECE = 4 * MIB  # read at a time: taken apart, text takes some ten times its size
MOST_ABOUT = 1024  # lines of `# key: value` that are kept; agents write five a GPU
MOST_COLUMNS = 64
LONGEST = MIB  # a line


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
        return self.about.get("host") or clean.field(self.path.stem.removeprefix("power-"))

    @property
    def boot_id(self) -> str:
        """The host's boot, in hex as in a trace's header; empty: it does not say."""
        return self.about.get("boot_id", "")

    @property
    def emulated(self) -> bool:
        """Whether the GPUs are emulated."""
        return self.about.get("emulated", "0") not in ("0", "false", "no", "")


def take_about(line: str, about: dict[str, str]) -> None:
    """Remember a `# key: value` line; beyond MOST_ABOUT keys no new ones."""
    key, _, value = line[1:].partition(":")
    name = clean.field(key.strip())
    if name in about or len(about) < MOST_ABOUT:
        about[name] = clean.field(value.strip())


def about(path: Path) -> dict[str, str]:
    """The `# key: value` lines at a sample file's head, without reading the rest; none if it cannot be read."""
    found: dict[str, str] = {}
    head = bytearray(LONGEST)
    try:
        with opened(path, MOST_SAMPLES) as file:
            got = read_into(file, head, 0)
    except OSError:
        return found
    for line in head[:got].decode("utf-8", "replace").split("\n"):
        if not line.startswith("#"):
            break
        take_about(line, found)
    return found


def _pieces(path: Path, problems: list[str]) -> Iterator[str]:
    """Whole lines of a file, some MiB at a time, less the last line end of each.

    Raises:
        OSError: the file cannot be read.
    """
    with opened(path, MOST_SAMPLES) as file:
        end, offset = os.fstat(file).st_size, 0
        rest = b""
        buffer = bytearray(min(PIECE, end))
        while offset < end:
            got = read_into(file, memoryview(buffer)[: min(PIECE, end - offset)], offset)
            if not got:
                break
            offset += got
            whole, mark, last = bytes(memoryview(buffer)[:got]).rpartition(b"\n")
            if not mark:
                rest += last
                if len(rest) > LONGEST:
                    problems.append(f"{path.name}: a line of more than {LONGEST:,} bytes: what follows is not read")
                    return
                continue
            yield (rest + whole).decode("utf-8", "replace")
            rest = last
    if rest:
        problems.append(f"{path.name}: last line cut off, skipped")


def whole(name: str) -> pl.Expr:
    """A column of text as whole numbers; null where it is none."""
    import polars as pl

    return pl.col(name).str.strip_chars().cast(pl.Int64, strict=False)


def read_samples(
    path: Path,
    required: Sequence[str],
    lost: str,
    names: Sequence[str],
    sound: Callable[[pl.DataFrame], pl.DataFrame],
) -> tuple[dict[str, str], pl.DataFrame, list[str]]:
    """A sample file: its `# key: value` lines, its rows as `sound` makes them of columns of text, and problems.

    `required` columns must be there, else `lost` is what is not known; `names` are columns whose text is shown.

    Raises:
        OSError: the file cannot be read.
    """
    import polars as pl

    problems: list[str] = []
    about: dict[str, str] = {}
    header: list[str] = []
    found: list[pl.DataFrame] = []
    bad = 0
    for text in _pieces(path, problems):
        # Polars does the splitting: hours of eight GPUs make millions of lines.
        lines = pl.Series("lines", text.split("\n"), dtype=pl.String)
        said = lines.str.starts_with("#")
        for line in lines.filter(said).to_list():
            take_about(line, about)
        lines = lines.filter(~said & (lines != ""))
        if not len(lines):
            continue
        if not header:
            header = [name.strip() for name in lines[0].split(",", MOST_COLUMNS)]
            lines = lines[1:]
            missing = [name for name in required if name not in header]
            wrong = ""
            if len(header) > MOST_COLUMNS:
                wrong = f"more than {MOST_COLUMNS} columns: nothing"
            elif len(set(header)) < len(header):
                wrong = "columns of the same name: nothing"
            elif missing:
                wrong = f"no column {', '.join(missing)}: {lost}"
            if wrong:
                problems.append(f"{path.name}: {wrong} is known from it")
                return about, pl.DataFrame(), problems
        good = lines.str.count_matches(",", literal=True) == len(header) - 1
        rows = lines.filter(good).to_frame().select(pl.col("lines").str.split_exact(",", len(header) - 1))
        rows = rows.unnest("lines")
        rows = sound(rows.rename(dict(zip(rows.columns, header, strict=True))))
        bad += len(lines) - len(rows)
        found.append(rows.with_columns(_shown(rows, name) for name in names))
    if bad:
        problems.append(f"{path.name}: {plural(bad, 'line')} skipped that cannot be parsed")
    return about, pl.concat(found) if found else pl.DataFrame(), problems


def _shown(rows: pl.DataFrame, name: str) -> pl.Series:
    """A column of names, fit to be shown: mostly few that come again and again."""
    column = rows[name]
    hostile = {text: clean.field(text) for text in column.unique().to_list() if text and clean.field(text) != text}
    return column.replace(hostile) if hostile else column


def read_power(path: Path) -> PowerLog:
    """Read a sample file up to its last whole line; lines that do not parse are counted and left out.

    Raises:
        OSError: the file cannot be read.
    """
    import polars as pl

    numbers = [name for name in COLUMNS if name not in ("uuid", "throttle_reasons")]

    def sound(rows: pl.DataFrame) -> pl.DataFrame:
        rows = rows.select(COLUMNS).with_columns(whole(name) for name in numbers)
        return rows.filter(pl.col("time_ns").is_not_null() & pl.col("gpu").is_not_null())

    about, samples, problems = read_samples(path, COLUMNS, "no power", ("uuid",), sound)
    if not samples.columns:
        schema = {name: pl.Int64 if name in numbers else pl.String for name in COLUMNS}
        return PowerLog(path, about, pl.DataFrame(schema=schema), problems)
    samples = samples.with_columns(pl.col("energy_uj").fill_null(-1)).sort("gpu", "time_ns")
    return PowerLog(path, about, samples, problems)
