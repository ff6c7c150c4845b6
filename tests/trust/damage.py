# SPDX-License-Identifier: Apache-2.0
"""What goes wrong with a run folder: kinds of partial measurement, each made in a copy of a good run.

`apply(folder, chance)` does it. Times, GPUs and ranks are chosen by chance, about the middle of the run.
"""

from __future__ import annotations

import csv
import json
import random
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from powerccl.traces import records

Rows = list[list[str]]
Change = Callable[[Rows, dict[str, int], random.Random], Rows]
TWO_32 = 1 << 32


@dataclass(frozen=True)
class Damage:
    """One kind. `bare`: the run has no energy counter to begin with, so power is what is integrated."""

    name: str
    apply: Callable[[Path, random.Random], None]
    bare: bool = False
    mpi: bool = False  # of the processors' samples of an MPI job


def samples(folder: Path, kind: str = "power") -> Path:
    """The first host's samples.

    Raises:
        FileNotFoundError: the run has none.
    """
    found = sorted(folder.glob(f"{kind}-*.csv"))
    if not found:
        raise FileNotFoundError(f"{folder}: no {kind}-*.csv")
    return found[0]


def change(file: Path, what: Change, chance: random.Random) -> None:
    """Change the rows of a sample file, by the columns' places."""
    lines = file.read_text().splitlines()
    about = [line for line in lines if line.startswith("#")]
    rows = list(csv.reader(line for line in lines if line and not line.startswith("#")))
    places = {name: at for at, name in enumerate(rows[0])}
    body = what(rows[1:], places, chance)
    file.write_text("\n".join([*about, ",".join(rows[0]), *(",".join(row) for row in body)]) + "\n")


def _times(rows: Rows, at: dict[str, int]) -> tuple[int, int]:
    times = [int(row[at["time_ns"]]) for row in rows]
    return min(times), max(times)


def _gone(part: tuple[float, float], gpu: str | None) -> Change:
    """Samples of a part of the run, of one GPU or of all."""

    def what(rows: Rows, at: dict[str, int], chance: random.Random) -> Rows:
        low, high = _times(rows, at)
        begin, end = (low + share * (high - low) for share in part)
        return [
            row
            for row in rows
            if not (begin <= int(row[at["time_ns"]]) <= end and (gpu is None or row[at["gpu"]] == gpu))
        ]

    return what


def _gap(periods: float, gpu: str | None) -> Change:
    """As _gone, so many sampling periods long from the middle on."""

    def what(rows: Rows, at: dict[str, int], chance: random.Random) -> Rows:
        low, high = _times(rows, at)
        own = sorted({int(row[at["time_ns"]]) for row in rows if row[at["gpu"]] == rows[0][at["gpu"]]})
        period = (own[-1] - own[0]) / max(1, len(own) - 1)
        share = periods * period / (high - low)
        return _gone((0.4, 0.4 + share), gpu)(rows, at, chance)

    return what


def _column(name: str, new: Callable[[int, float, random.Random], int | str], gpu: str | None = "1") -> Change:
    """New values of a column from `new(value, share of the run, chance)`."""

    def what(rows: Rows, at: dict[str, int], chance: random.Random) -> Rows:
        low, high = _times(rows, at)
        for row in rows:
            if gpu is None or row[at["gpu"]] == gpu:
                share = (int(row[at["time_ns"]]) - low) / max(1, high - low)
                row[at[name]] = str(new(int(row[at[name]]), share, chance))
        return rows

    return what


def _wild(value: int, wild: int, chance: random.Random) -> int:
    """One value in fifty is another."""
    return wild if chance.random() < 0.02 else value


def _stuck(name: str) -> Change:
    """A column that never changes again from the middle on."""

    def what(rows: Rows, at: dict[str, int], chance: random.Random) -> Rows:
        low, high = _times(rows, at)
        last = None
        for row in rows:
            if row[at["gpu"]] == "1" and int(row[at["time_ns"]]) > low + 0.4 * (high - low):
                last = last or row[at[name]]
                row[at[name]] = last
        return rows

    return what


def _repeated(rows: Rows, at: dict[str, int], chance: random.Random) -> Rows:
    """Each tenth row twice, the second with a power of its own."""
    found = []
    for number, row in enumerate(rows):
        found.append(row)
        if number % 10 == 0:
            again = list(row)
            again[at["power_mw"]] = str(int(row[at["power_mw"]]) * 3)
            found.append(again)
    return found


def _power(name: str, what: Change, bare: bool = False) -> Damage:
    return Damage(name, lambda folder, chance: change(samples(folder), what, chance), bare)


def with_limits(folder: Path) -> None:
    """Name the power limits of two H100s, as agents do since after these runs were recorded."""
    file = samples(folder)
    limits = [f"# gpu{gpu}_power_limit{which}_mw: 700000" for gpu in (0, 1) for which in ("", "_max")]
    file.write_text("\n".join([*limits, file.read_text()]))


def without_counter(folder: Path) -> None:
    """A run of GPUs that have no energy counter."""
    change(samples(folder), _column("energy_uj", lambda *_: -1, None), random.Random(0))


def _cut(pattern: str, share: float) -> Callable[[Path, random.Random], None]:
    def apply(folder: Path, chance: random.Random) -> None:
        for file in sorted(folder.glob(pattern))[-1:]:
            data = file.read_bytes()
            file.write_bytes(data[: int(len(data) * share)])

    return apply


def _removed(pattern: str) -> Callable[[Path, random.Random], None]:
    def apply(folder: Path, chance: random.Random) -> None:
        for file in sorted(folder.glob(pattern))[-1:]:
            file.unlink()

    return apply


def last_line_cut(folder: Path, chance: random.Random) -> None:
    """The agent was killed while it wrote a line, at three quarters of the run."""
    file = samples(folder)
    data = file.read_bytes()
    end = data.index(b"\n", len(data) * 3 // 4)
    file.write_bytes(data[: end - 7])


def head_only(folder: Path, chance: random.Random) -> None:
    """The agent was killed before its first sample."""
    file = samples(folder)
    lines = file.read_text().splitlines()
    file.write_text("\n".join([line for line in lines if line.startswith("#")] + lines[-1:][:0]) + "\n")


def with_header(file: Path, **fields: int | bytes) -> None:
    """Change fields of a trace's header."""
    data = bytearray(file.read_bytes())
    header = np.frombuffer(data, records.HEADER, 1)
    for name, value in fields.items():
        header[name] = value
    file.write_bytes(data)


def committed(file: Path) -> int:
    """How many records a trace says that it has."""
    return int(np.frombuffer(file.read_bytes(), records.HEADER, 1)["committed"][0])


def traces(folder: Path) -> list[Path]:
    """All ranks' traces."""
    return sorted([*folder.glob("rank-*.trace"), *folder.glob("mpi-*.trace")])


def second_host(folder: Path, chance: random.Random) -> None:
    """Half of the ranks ran on a host that left no samples."""
    found = traces(folder)
    for file in found[len(found) // 2 :]:
        with_header(file, host=b"second", boot_id=b"\2" * 16)
    file = samples(folder)
    text = file.read_text()
    last = str(len(found) // 2)
    file.write_text("\n".join(line for line in text.splitlines() if line.split(",")[1:2] < [last]) + "\n")


def trace_cut(folder: Path, chance: random.Random) -> None:
    """A trace's end was lost: its header says more than there is."""
    file = traces(folder)[-1]
    keep = committed(file) // 2
    file.write_bytes(file.read_bytes()[: records.HEADER_BYTES + keep * records.RECORD_BYTES])


def rank_killed(folder: Path, chance: random.Random) -> None:
    """A rank was killed half way, and the job with it."""
    file = traces(folder)[-1]
    with_header(file, committed=committed(file) // 2)
    info = json.loads((folder / "run.json").read_text())
    info.update(exit_code=137, signal="SIGKILL")
    (folder / "run.json").write_text(json.dumps(info))


def records_dropped(folder: Path, chance: random.Random) -> None:
    """A trace was full at half of its records."""
    file = traces(folder)[-1]
    half = committed(file) // 2
    with_header(file, committed=half, dropped=half)


def trace_zeroed(folder: Path, chance: random.Random) -> None:
    """The second half of a trace was never written to the disk."""
    file = traces(folder)[-1]
    keep = records.HEADER_BYTES + committed(file) // 2 * records.RECORD_BYTES
    data = file.read_bytes()
    file.write_bytes(data[:keep] + bytes(len(data) - keep))


def header_lost(folder: Path, chance: random.Random) -> None:
    """A trace's first block is zeros."""
    file = traces(folder)[-1]
    file.write_bytes(bytes(64) + file.read_bytes()[64:])


def newer_schema(folder: Path, chance: random.Random) -> None:
    """run.json is of a version that this one does not know, and means something else by its times."""
    info = json.loads((folder / "run.json").read_text())
    info.update(schema=2, end_ns=info["start_ns"] + (info["end_ns"] - info["start_ns"]) // 3)
    (folder / "run.json").write_text(json.dumps(info))


def launcher_killed(folder: Path, chance: random.Random) -> None:
    """`powerccl run` was killed half way: no end in run.json, samples until then."""
    info = json.loads((folder / "run.json").read_text())
    for name in ("end_ns", "exit_code", "signal"):
        info.pop(name, None)
    (folder / "run.json").write_text(json.dumps(info))
    change(samples(folder), _gone((0.5, 1.0), None), chance)


def with_cpu_energy(folder: Path) -> None:
    """Give the processors 50 W, as RAPL would tell: virtual machines tell nothing."""

    def what(rows: Rows, at: dict[str, int], chance: random.Random) -> Rows:
        first = int(rows[0][at["time_ns"]])
        found = []
        for row in rows:
            if row[at["domain"]] == "cpu":
                energy = list(row)
                energy[at["domain"]] = "package-0"
                energy[at["energy_uj"]] = str((int(row[at["time_ns"]]) - first) // 20)
                energy[at["cpu_busy_ns"]] = energy[at["cpu_idle_ns"]] = "-1"
                found += [energy, row]
        return found

    change(samples(folder, "cpu"), what, random.Random(0))


def _cpu(name: str, new: Callable[[int, float], int | None]) -> Damage:
    """The processors' counter as `new(value, share of the run)`; None: no sample."""

    def what(rows: Rows, at: dict[str, int], chance: random.Random) -> Rows:
        low, high = _times(rows, at)
        found = []
        for row in rows:
            value: int | None = int(row[at["energy_uj"]])
            if row[at["domain"]] != "cpu" and value is not None:
                value = new(value, (int(row[at["time_ns"]]) - low) / max(1, high - low))
            if value is not None:
                row[at["energy_uj"]] = str(value)
                found.append(row)
        return found

    return Damage(name, lambda folder, chance: change(samples(folder, "cpu"), what, chance), mpi=True)


KINDS = (
    _power("GPU lost in the middle", _gone((0.5, 1.0), "1")),
    _power("GPU lost at a fifth", _gone((0.2, 1.0), "1")),
    _power("GPU found late", _gone((0.0, 0.4), "1")),
    _power("GPU without a sample", _gone((0.0, 1.0), "1")),
    _power("GPU with two samples", lambda r, a, c: [*_gone((0.0, 0.9), "1")(r, a, c)]),
    _power("gap of 4 periods, one GPU", _gap(4, "1"), bare=True),
    _power("gap of 10 periods, one GPU", _gap(10, "1"), bare=True),
    _power("gap of half the run, one GPU", _gone((0.3, 0.8), "1"), bare=True),
    _power("gap of 4 periods, all GPUs", _gap(4, None), bare=True),
    _power("gap of half the run, all GPUs", _gone((0.3, 0.8), None), bare=True),
    _power("gap of half the run, counter, all GPUs", _gone((0.3, 0.8), None)),
    _power("first samples missing", _gone((0.0, 0.2), None)),
    _power("last samples missing", _gone((0.8, 1.0), None)),
    _power("GPU lost, power only", _gone((0.5, 1.0), "1"), bare=True),
    _power("GPU without a sample, power only", _gone((0.0, 1.0), "1"), bare=True),
    _power("counter jumps by 2^32 uJ", _column("energy_uj", lambda v, s, c: v + (TWO_32 if s > 0.5 else 0))),
    _power("counter jumps by 2^32 mJ", _column("energy_uj", lambda v, s, c: v + (TWO_32 * 1000 if s > 0.5 else 0))),
    _power("counter one sample wild", _column("energy_uj", lambda v, s, c: v + (TWO_32 if c.random() < 0.01 else 0))),
    _power("counter goes back", _column("energy_uj", lambda v, s, c: v // 3 if s > 0.5 else v)),
    _power("counter starts again at 0", _column("energy_uj", lambda v, s, c: 0 if 0.5 < s < 0.52 else v)),
    _power("counter zero from the middle", _column("energy_uj", lambda v, s, c: 0 if s > 0.5 else v)),
    _power("counter stuck", _stuck("energy_uj")),
    _power("counter lost in the middle", _column("energy_uj", lambda v, s, c: -1 if s > 0.5 else v)),
    _power("counter negative", _column("energy_uj", lambda v, s, c: -v if s > 0.5 else v)),
    _power("power of 2^32-1 mW at times", _column("power_mw", lambda v, s, c: _wild(v, TWO_32 - 1, c)), bare=True),
    _power("power of 2^31-1 mW at times", _column("power_mw", lambda v, s, c: _wild(v, 2**31 - 1, c)), bare=True),
    _power("power negative", _column("power_mw", lambda v, s, c: -v if 0.3 < s < 0.6 else v), bare=True),
    _power("power ten times too high", _column("power_mw", lambda v, s, c: v * 10 if 0.3 < s < 0.6 else v), bare=True),
    _power("power not told", _column("power_mw", lambda v, s, c: -1 if 0.3 < s < 0.8 else v), bare=True),
    _power("power empty", _column("power_mw", lambda v, s, c: "" if 0.3 < s < 0.8 else v), bare=True),
    _power("time steps back", _column("time_ns", lambda v, s, c: v - 10**9 if s > 0.5 else v, None), bare=True),
    _power("time steps an hour on", _column("time_ns", lambda v, s, c: v + 3600 * 10**9 if s > 0.5 else v, None), True),
    _power("times repeated", _repeated, bare=True),
    Damage("last line cut off", last_line_cut),
    Damage("samples cut in the middle", _cut("power-*.csv", 0.5)),
    Damage("samples missing", _removed("power-*.csv")),
    Damage("samples' head only", head_only),
    Damage("one of two hosts without samples", second_host),
    Damage("trace cut in the middle", trace_cut),
    Damage("trace never written from the middle", trace_zeroed),
    Damage("trace full in the middle", records_dropped),
    Damage("trace without its header", header_lost),
    Damage("trace missing", _removed("rank-*.trace")),
    Damage("trace empty", _cut("rank-*.trace", 0.0)),
    Damage("rank killed", rank_killed),
    Damage("powerccl run killed", launcher_killed),
    Damage("run.json of a newer schema", newer_schema),
    Damage("run.json cut", _cut("run.json", 0.5)),
    _cpu("processor samples missing", lambda v, s: None if 0.3 < s < 0.8 else v),
    _cpu("processor counter wraps to 0", lambda v, s: v if s < 0.5 else v // 50),
    _cpu("processor counter jumps", lambda v, s: v if s < 0.5 else v + TWO_32 * 1000),
    _cpu("processor counter stuck", lambda v, s: min(v, 60_000)),
    Damage("processor samples cut", _cut("cpu-*.csv", 0.5), mpi=True),
    Damage("MPI rank's trace missing", _removed("mpi-*.trace"), mpi=True),
)
