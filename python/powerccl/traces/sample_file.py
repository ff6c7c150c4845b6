# SPDX-License-Identifier: Apache-2.0
"""Files of samples as powerccl-agent writes them: `# key: value` lines, a header, then lines of values.

A day of eight GPUs is 3 GB, so files are read some MiB at a time, and the whole text is never in memory. Each part goes
through polars' own CSV reader; a part that this refuses is parsed line by line.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from powerccl import clean
from powerccl.files import MIB, MOST_SAMPLES
from powerccl.quantities import plural
from powerccl.traces.run_files import opened

if TYPE_CHECKING:
    import polars as pl

PIECE = 16 * MIB  # read at a time: columns of numbers take about half of it
LINES = 4 * MIB  # taken apart at a time: single lines and their fields take some ten times their size
MOST_ABOUT = 1024  # lines of `# key: value` that are kept; agents write seven a GPU
MOST_COLUMNS = 64
LONGEST = MIB  # a line


def take_about(line: str, about: dict[str, str]) -> None:
    """Remember a `# key: value` line; beyond MOST_ABOUT keys no new ones."""
    key, _, value = line[1:].partition(":")
    name = clean.field(key.strip())
    if name in about or len(about) < MOST_ABOUT:
        about[name] = clean.field(value.strip())


def about(path: Path) -> dict[str, str]:
    """The `# key: value` lines at a sample file's head, without reading the rest; none if it cannot be read."""
    fields: dict[str, str] = {}
    head = bytearray(LONGEST)
    try:
        with opened(path, MOST_SAMPLES) as file:
            got = file.read_into(head, 0)
    except OSError:
        return fields
    for line in head[:got].decode("utf-8", "replace").split("\n"):
        if not line.startswith("#"):
            break
        take_about(line, fields)
    return fields


def number_of(about: dict[str, str], key: str) -> int:
    """A whole number above 0 of the head; 0 where there is none."""
    text = about.get(key, "")
    return int(text) if text.isdecimal() and len(text) < 19 else 0


class SampleHead:
    """What the head of a file of samples says: `about` is its `# key: value` lines."""

    path: Path
    about: dict[str, str]

    @property
    def host(self) -> str:
        """The host's name."""
        return self.about.get("host") or clean.field(self.path.stem.partition("-")[2])

    @property
    def boot_id(self) -> str:
        """The host's boot, in hex as in a trace's header; empty: it does not say."""
        return self.about.get("boot_id", "")

    @property
    def emulated(self) -> bool:
        """Whether what was sampled is emulated."""
        return self.about.get("emulated", "0") not in ("0", "false", "no", "")


class SampleFile:
    """One file, read in parts. `about` and `problems` are filled as `parts` goes on; `bytes` is how long it is.

    `part_bytes`: of the file, that the last part was made of.
    """

    def __init__(self, path: Path, required: Sequence[str], lost: str) -> None:
        """`required` columns must be there, else `lost` is what is not known."""
        self.path = path
        self.about: dict[str, str] = {}
        self.problems: list[str] = []
        self.bytes = self.part_bytes = 0
        self._required, self._lost = required, lost
        self._header: list[str] = []
        self._bad = 0
        self._no_numbers: Counter[str] = Counter()  # values by column that are there and are no numbers

    def parts(self, numbers: Sequence[str], texts: Sequence[str], needed: Sequence[str]) -> Iterator[pl.DataFrame]:
        """Columns of `numbers` (null: not known) and `texts`, some MiB of the file at a time, in the file's order.

        Rows without a value in a `needed` column, and lines that do not parse, are counted and left out.

        Raises:
            OSError: the file cannot be read.
        """
        for piece in self._pieces():
            rows = self._quick(piece, numbers, texts) if self._header else None
            if rows is not None:
                self.part_bytes = len(piece)
                yield rows
                continue
            for part in _cut(piece):
                rows = self._by_lines(part, numbers, texts, needed)
                if rows is None:
                    return
                if len(rows):
                    self.part_bytes = len(part)
                    yield rows
        if self._bad:
            self.problems.append(f"{self.path.name}: {plural(self._bad, 'line')} skipped that cannot be parsed")
        for name, count in self._no_numbers.items():
            self.problems.append(f"{self.path.name}: {plural(count, 'value')} of {name} left out: not a whole number")

    def _pieces(self) -> Iterator[bytes]:
        """Whole lines, less the last line end of each piece; the head is a piece of its own."""
        problems, name = self.problems, self.path.name
        with opened(self.path, MOST_SAMPLES) as file:
            end, offset = file.size, 0
            self.bytes = end
            rest = b""
            buffer = bytearray(min(PIECE, end))
            while offset < end:
                size = min(PIECE if offset else LONGEST, end - offset)
                got = file.read_into(memoryview(buffer)[:size], offset)
                if not got:
                    break
                offset += got
                whole, mark, last = bytes(memoryview(buffer)[:got]).rpartition(b"\n")
                if mark:
                    yield rest + whole
                    rest = b""
                rest += last
                if len(rest) > LONGEST:
                    problems.append(f"{name}: a line of more than {LONGEST:,} bytes: the rest is not read")
                    return
        if rest:
            problems.append(f"{name}: last line cut off, skipped")

    def _quick(self, piece: bytes, numbers: Sequence[str], texts: Sequence[str]) -> pl.DataFrame | None:
        """A piece that is all whole rows of plain values; None: it is not, or may not be."""
        import polars as pl

        header = self._header
        if b"#" in piece or b"\r" in piece:
            return None
        wanted = [name for name in header if name in numbers or name in texts]
        kept = sorted({*(header.index(name) for name in wanted), len(header) - 1})  # the last is of lines cut short
        try:
            rows = pl.read_csv(
                piece,
                has_header=False,
                quote_char=None,
                schema={name: pl.Int64 if name in numbers else pl.String for name in header},
                columns=kept,
            )
        except (pl.exceptions.PolarsError, ValueError):
            return None
        if piece.count(b",") != len(rows) * (len(header) - 1) or sum(rows.null_count().row(0)):
            return None
        return _completed(rows.select(wanted), numbers, texts)

    def _by_lines(
        self, part: bytes, numbers: Sequence[str], texts: Sequence[str], needed: Sequence[str]
    ) -> pl.DataFrame | None:
        """Rows of a part, whatever is in it; None: nothing more is known of the file."""
        import polars as pl

        lines = pl.Series("lines", part.decode("utf-8", "replace").split("\n"), dtype=pl.String)
        said = lines.str.starts_with("#")
        for line in lines.filter(said).to_list():
            take_about(line, self.about)
        lines = lines.filter(~said & (lines != ""))
        if not self._header and len(lines):
            if not self._take_header(lines[0]):
                return None
            lines = lines[1:]
        header = self._header
        if not len(lines):
            return pl.DataFrame()
        good = lines.str.count_matches(",", literal=True) == len(header) - 1
        rows = lines.filter(good).to_frame().select(pl.col("lines").str.split_exact(",", len(header) - 1))
        rows = rows.unnest("lines")
        rows = rows.rename(dict(zip(rows.columns, header, strict=True)))
        columns = [name for name in numbers if name in header]
        given = rows.select((pl.col(name).str.strip_chars() != "").sum() for name in columns).row(0)
        rows = rows.with_columns(pl.col(name).str.strip_chars().cast(pl.Int64, strict=False) for name in columns)
        whole = pl.all_horizontal(
            pl.col(name).is_not_null() if name in numbers else pl.col(name).str.strip_chars() != "" for name in needed
        )
        for name, count in zip(columns, given, strict=True):
            if name not in needed and (lost := count - rows[name].count()):
                self._no_numbers[name] += lost
        rows = rows.filter(whole)
        self._bad += len(lines) - len(rows)
        return _completed(rows, numbers, texts)

    def _take_header(self, line: str) -> bool:
        header = [name.strip() for name in line.split(",", MOST_COLUMNS)]
        missing = [name for name in self._required if name not in header]
        wrong = ""
        if len(header) > MOST_COLUMNS:
            wrong = f"more than {MOST_COLUMNS} columns: nothing"
        elif len(set(header)) < len(header):
            wrong = "columns of the same name: nothing"
        elif missing:
            wrong = f"no column {', '.join(missing)}: {self._lost}"
        if wrong:
            self.problems.append(f"{self.path.name}: {wrong} is known from it")
            return False
        self._header = header
        return True


def _cut(piece: bytes) -> Iterator[bytes]:
    """A piece in parts of whole lines."""
    begin = 0
    while len(piece) - begin > LINES:
        end = piece.rfind(b"\n", begin, begin + LINES)  # no line is longer than LONGEST
        if end < 0:
            break
        yield piece[begin:end]
        begin = end + 1
    yield piece[begin:]


def _completed(rows: pl.DataFrame, numbers: Sequence[str], texts: Sequence[str]) -> pl.DataFrame:
    """All columns asked for, in their order: those that a file does not have are not known."""
    import polars as pl

    missing = [name for name in (*numbers, *texts) if name not in rows.columns]
    kinds = {name: pl.Int64 if name in numbers else pl.String for name in missing}
    rows = rows.with_columns(pl.lit(None, kind).alias(name) for name, kind in kinds.items())
    return rows.select(*numbers, *texts)
