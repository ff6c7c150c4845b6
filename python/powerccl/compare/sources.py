# SPDX-License-Identifier: Apache-2.0
"""What can be compared, read: run folders, and the JSON that powerccl-bench and powerccl-bench-mpi write."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import msgspec

from powerccl.compare.member import (
    BANDWIDTH,
    ENERGY,
    FORMS,
    MPI_SWEEP,
    MPI_WAIT,
    NO_TARIFF,
    POWER,
    REPLAY,
    STENCIL,
    SWEEP,
    TIME,
    Key,
    Member,
    ReferenceOf,
    nothing_known,
)
from powerccl.compare.runs import read_run_member
from powerccl.compare.significance import Value, mean_of, median_of
from powerccl.errors import PowercclError
from powerccl.files import decode_json, read_bytes
from powerccl.quantities import byte_size
from powerccl.tariff import Tariff

STRETCHES = 5  # that powerccl-bench divides its loop into
Json = dict[str, Any]


def read_member(
    path: Path, energy: bool = False, reference_of: ReferenceOf = nothing_known, tariff: Tariff = NO_TARIFF
) -> Member:
    """Read a run folder or a file of powerccl-bench; what follows `path` is as in runs.read_run_member.

    Raises:
        PowercclError: there is no such thing, or it is none of these.
    """
    if path.is_dir():
        return read_run_member(path, energy, reference_of, tariff)
    try:
        data = read_bytes(path)
    except OSError as error:
        raise PowercclError(f"{path}: {error.strerror}", FORMS) from error
    document = _document(path, data)
    member = Member(path, _kind(path, document))
    try:
        _READERS[member.kind](member, document)
    except (LookupError, TypeError, ValueError, AttributeError, ArithmeticError) as error:
        raise PowercclError(f"{path} is damaged: {type(error).__name__}: {error}", FORMS) from error
    if document.get("error"):
        member.warnings.append(f"failed: {document['error']}")
    elif document.get("finished") is False:
        member.warnings.append("is not finished")
    if not member.values:
        raise PowercclError(f"{path} holds nothing that was measured", "measure again; its `error` may say why")
    return member


def _document(path: Path, data: bytes) -> Json:
    """The file as one object; of a --json-lines file the points become its results."""
    try:
        document: Any = decode_json(data, object)
    except msgspec.DecodeError:
        document = _lines(data)
    if isinstance(document, dict) and document.get("type") == "header":
        document.setdefault("results", [])
    if not isinstance(document, dict) or not isinstance(document.get("results"), list):
        raise PowercclError(f"{path} is not a file of powerccl-bench", FORMS)
    if document.get("schema") != 1:
        raise PowercclError(
            f"{path} has schema {document.get('schema')}; this powerccl reads 1", "measure again with this version"
        )
    return document


def _lines(data: bytes) -> Json | None:
    rows: list[Any] = []
    for line in data.split(b"\n"):
        try:
            rows.append(decode_json(line, object))
        except msgspec.DecodeError:  # noqa: PERF203 - a last line that was cut off
            continue
    if not rows or not isinstance(rows[0], dict) or rows[0].get("type") != "header":
        return None
    return {**rows[0], "results": [row for row in rows[1:] if isinstance(row, dict) and row.get("type") == "point"]}


def _kind(path: Path, document: Json) -> str:
    mode = str(document.get("mode"))
    kinds = {
        "sweep": SWEEP,
        "scenario": REPLAY,
        "point_to_point": MPI_SWEEP,
        "collective": MPI_SWEEP,
        "wait": MPI_WAIT,
        "stencil": STENCIL,
    }
    if mode not in kinds:
        raise PowercclError(f"{path}: results of mode '{mode}' cannot be compared", FORMS)
    return kinds[mode]


def _facts(document: Json, names: Iterable[tuple[str, str]]) -> dict[str, str]:
    facts = {}
    for name, word in names:
        value = document.get(name)
        if value not in (None, ""):
            facts[word] = str(value)
    return facts


_COMMON = (
    ("version", "powerccl-bench"),
    ("host", "host"),
    ("gpu", "GPU"),
    ("ranks", "ranks"),
    ("nccl_version", "NCCL"),
    ("cuda_version", "CUDA"),
    ("driver", "driver"),
    ("launch", "launch"),
    ("clock_control", "clocks"),
    ("mpi_version", "MPI"),
)


def _about(member: Member, document: Json) -> None:
    member.facts = _facts(document, _COMMON)
    member.gpus = frozenset(str(gpu.get("uuid")) for gpu in document.get("gpus") or [])
    # Where results go is not what was measured.
    words = [str(word) for word in document.get("command") or []]
    kept, skip = [Path(words[0]).name] if words else [], False
    for word in words[1:]:
        if not skip and word not in ("--json", "--json-lines"):
            kept.append(word)
        skip = word in ("--json", "--json-lines")
    member.facts["command"] = " ".join(kept)
    for name, value in (document.get("environment") or {}).items():
        member.facts[str(name)] = str(value)
    if document.get("emulated"):
        member.emulated = "yes"
    if document.get("moves_data") is False:
        member.facts["data"] = "not moved"


def _sweep(member: Member, document: Json) -> None:
    _about(member, document)
    timed = [point for point in document["results"] if _real(point.get("time_us")) and point.get("size_bytes")]
    points = [point for point in timed if point.get("valid", True)]
    if len(points) < len(timed):
        member.warnings.append(
            f"has {len(timed) - len(points)} invalid results, left out: its machine was too slow for the emulator"
        )
    several = {
        name: len({str(point.get(name)) for point in points if point.get(name) is not None}) > 1
        for name in ("dtype", "op", "root", "in_place")
    }
    several["clock_requested_mhz"] = len({str(point.get("clock_requested_mhz")) for point in points}) > 1
    wrong = sum(int(point.get("wrong") or 0) for point in points)
    if wrong:
        member.warnings.append(f"has {wrong} wrong elements in its results")
    for point in points:
        words = [str(point[name]) for name in ("dtype", "op", "root") if several[name] and point.get(name) is not None]
        words += ["in place"] if several["in_place"] and point.get("in_place") else []
        if several["clock_requested_mhz"]:
            clock = point.get("clock_requested_mhz")
            words.append("clock as found" if clock is None else f"{clock} MHz")
        place = (str(point.get("pattern")), int(point["size_bytes"]), ", ".join(words))
        _point(member, point, place)
    if not any(key.what == POWER for key in member.values):
        reasons = {str(point.get("energy_reason")) for point in points} - {"None"}
        member.warnings += [f"tells no power: {reason}" for reason in sorted(reasons)[:1]]


def _real(value: object) -> bool:
    return isinstance(value, (int, float)) and value > 0


def _point(member: Member, point: Json, place: tuple[str, int, str]) -> None:
    time_us = float(point["time_us"])
    low_us, high_us = point.get("time_low_us"), point.get("time_high_us")
    stretches = min(STRETCHES, int(point.get("iterations") or 1))

    def ranged(value: float, low: float | None, high: float | None) -> Value:
        if low is None or high is None or stretches < 2:
            return Value(value=value, of="stretches")
        # The host times the loop and the GPU its stretches: the value may be just outside.
        return Value(value=value, low=min(low, value), high=max(high, value), n=stretches, kind="range", of="stretches")

    times = [None if each is None else each / 1e6 for each in (low_us, high_us)]
    member.values[Key(TIME, "s", *place)] = ranged(time_us / 1e6, *times)
    if _real(point.get("busbw_gbs")):
        fastest = point["busbw_gbs"] * 1e9 * time_us  # B/s x us
        limits = [None if not each else fastest / each for each in (high_us, low_us)]
        member.values[Key(BANDWIDTH, "B/s", *place)] = ranged(point["busbw_gbs"] * 1e9, *limits)
    spread_pct, updates = point.get("energy_uncertainty_pct"), int(point.get("energy_updates") or 1)
    for what, unit, name in ((POWER, "W", "watts_all_gpus"), (ENERGY, "J", "joules_all_gpus")):
        if not _real(point.get(name)):
            continue
        value, known = float(point[name]), spread_pct is not None and updates > 1
        half = value * float(spread_pct) / 100 if spread_pct is not None else 0.0
        member.values[Key(what, unit, *place)] = Value(
            value=value,
            low=value - half if known else None,
            high=value + half if known else None,
            n=updates,
            kind="interval" if known else "",
            of="updates of the energy counter",
        )


# What MPI calls them, as patterns; others keep their names.
_MPI_PATTERNS = {
    "allreduce": "all_reduce",
    "bcast": "broadcast",
    "allgather": "all_gather",
    "alltoall": "all_to_all",
    "latency": "send_receive",
}


def _mpi_sweep(member: Member, document: Json) -> None:
    _about(member, document)
    for row in document["results"]:
        size, n = int(row.get("size_bytes") or 0), int(row.get("iterations") or 1)
        place = (_MPI_PATTERNS.get(str(row.get("test")), str(row.get("test"))), size, "")
        if _real(row.get("median_us")):
            parts = [float(row[name]) / 1e6 for name in ("median_us", "low_us", "high_us")]
            value = median_of(parts[0], parts[1], parts[2], n, "iterations")
            member.values[Key(TIME, "s", *place)] = value
            if size:
                limits = [size / each if each and each > 0 else None for each in (value.high, value.low)]
                member.values[Key("bandwidth", "B/s", *place)] = msgspec.structs.replace(
                    value, value=size / value.value, low=limits[0], high=limits[1]
                )
        elif _real(row.get("median_mb_per_s")):
            parts = [float(row[name]) * 1e6 for name in ("median_mb_per_s", "low_mb_per_s", "high_mb_per_s")]
            member.values[Key("bandwidth", "B/s", *place)] = median_of(parts[0], parts[1], parts[2], n, "windows")
        if row.get("wrong"):
            member.warnings.append(f"has wrong results at {byte_size(size)}")


_REPLAYED = (
    ("step", "s", "step_ms", 1e-3),
    ("computation", "s", "compute_ms", 1e-3),
    ("communication", "s", "communication_ms", 1e-3),
    ("exposed communication", "s", "exposed_ms", 1e-3),
    ("energy of a step, all GPUs", "J", "joules_all_gpus", 1.0),
    ("power, mean of the GPUs", "W", "watts_per_gpu", 1.0),
    ("SM clock", "Hz", "sm_clock_mhz", 1e6),
)


def _replay(member: Member, document: Json) -> None:
    _about(member, document)
    if isinstance(document.get("scenario"), dict):
        member.facts["replays"] = str(document["scenario"].get("name"))
    steps = [row for row in document["results"] if not row.get("warmup")]
    for what, unit, name, factor in _REPLAYED:
        numbers = [row[name] * factor for row in steps if isinstance(row.get(name), (int, float))]
        value = mean_of(numbers, "iterations")
        if value:
            member.values[Key(what, unit)] = value
    # Steps may be too short for the energy counter: then the run has one figure for all of them.
    summary, fallback = document.get("summary") or {}, Key("energy of a step, all GPUs", "J")
    total, count = summary.get("run_joules_all_gpus"), summary.get("iterations")
    if fallback not in member.values and _real(total) and count:
        member.values[fallback] = Value(value=total / count, of="iterations")
    elif fallback not in member.values and _real(summary.get("joules_all_gpus")):
        member.values[fallback] = Value(value=summary["joules_all_gpus"], of="iterations")
    power = Key("power, mean of the GPUs", "W")
    if power not in member.values and _real(summary.get("watts_per_gpu")):
        member.values[power] = Value(value=summary["watts_per_gpu"], of="iterations")


def _wait(member: Member, document: Json) -> None:
    _about(member, document)
    for what, name in (
        ("wait", "waited_us"),
        ("CPU time of the waiting thread", "cpu_us"),
        ("CPU time of the process", "process_cpu_us"),
        ("late by", "late_us"),
    ):
        numbers = [row[name] / 1e6 for row in document["results"] if isinstance(row.get(name), (int, float))]
        value = mean_of(numbers, "waits")
        if value:
            member.values[Key(what, "s")] = value


def _stencil(member: Member, document: Json) -> None:
    _about(member, document)
    summary = document.get("summary") or {}
    for what, name in (("time", "run_s"), ("CPU time of the ranks", "cpu_s")):
        if _real(summary.get(name)):
            member.values[Key(what, "s")] = Value(value=summary[name], of="runs")
    step = summary.get("step_us")
    if isinstance(step, dict) and _real(step.get("median")):
        parts = [float(step[name]) / 1e6 for name in ("median", "low", "high")]
        member.values[Key("iteration, median", "s")] = median_of(
            parts[0], parts[1], parts[2], int(summary["iterations"]), "iterations"
        )
    if summary.get("checksum") is not None:
        member.facts["checksum"] = str(summary["checksum"])


_READERS: dict[str, Callable[[Member, Json], None]] = {
    SWEEP: _sweep,
    MPI_SWEEP: _mpi_sweep,
    REPLAY: _replay,
    MPI_WAIT: _wait,
    STENCIL: _stencil,
}
