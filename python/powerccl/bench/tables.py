# SPDX-License-Identifier: Apache-2.0
"""Tables of the lines that powerccl-bench and powerccl-bench-mpi write, printed as the lines come."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import msgspec

_MOST_WAITS = 20  # rows; of more waits, only their quartiles are printed
_POINT = "{:>16}{:>14}{:>14}  {:>8}  {:>6}  {:>4}{:>9}{:>8}{:>8}{:>8}{:>8}{:>9}{:>10}"
_NCCL_TESTS = {"float32": "float", "float16": "half", "float64": "double"}  # what NCCL tests call a type
_ITERATION = "  {:>9}{:>11}{:>11}{:>11}{:>11}"


class _Column(NamedTuple):
    name: str
    width: int
    decimals: int


_OF_TEST = {
    "latency": [_Column(name, 12, 3) for name in ("avg_us", "median_us", "low_us", "high_us")],
    "bw": [_Column("mb_per_s", 12, 2), _Column("median_mb_per_s", 15, 2), _Column("messages_per_s", 14, 0)],
    "wait": [_Column("waited_us", 14, 2), *(_Column(name, 12, 2) for name in ("cpu_us", "cpu_pct", "late_us"))],
    "stencil": [_Column(name, 10, 4) for name in ("cpu_s", "compute_s", "mpi_s")],
    "": [*(_Column(name, 12, 3) for name in ("avg_us", "min_us", "max_us", "median_us")), _Column("cpu_pct", 12, 1)],
}
_WRONG = _Column("wrong", 8, 0)


class Tables:
    """The tables of one program. A line that holds no result is printed as it is, such as NCCL's log or a help text."""

    def __init__(self) -> None:
        self._header: dict[str, Any] = {}
        self._points: list[dict[str, Any]] = []
        self._way: str | None = None
        self._columns: list[_Column] = []

    def feed(self, line: bytes) -> bytes:
        """What to print for one line of the program."""
        try:
            row = msgspec.json.decode(line, type=dict[str, Any])
            if row["type"] == "header":
                self._header = row
            known: dict[str, Callable[[dict[str, Any]], list[str]]] = {
                "header": self._begin,
                "point": self._point,
                "load": _load,
                "iteration": _iteration,
                "result": self._result,
                "summary": self._end,
            }
            if not self._header:  # replies of `serve` have no header
                return line
            return "".join(f"{each}\n" for each in known[row["type"]](row)).encode()
        except (msgspec.MsgspecError, KeyError, TypeError, ValueError):
            return line

    def _begin(self, header: dict[str, Any]) -> list[str]:
        if "mpi_version" in header:
            return self._begin_mpi(header)
        nccl = f"nccl-library={header['nccl_version']} ({header['nccl_path']})"
        lines = [
            f"# powerccl-bench version {header['version']} {nccl}",
            "# Using devices",
        ]
        lines += [
            f"#  Rank {gpu['rank']:2} device {gpu['device']:2} [{gpu['pci']}] {gpu['name']}" for gpu in header["gpus"]
        ]
        if header["emulated"]:
            lines.append("# Emulated GPUs: every figure below is modelled, none is measured")
            if not header["moves_data"]:
                lines.append("# Emulated collectives take their time but move no data")
        if header["clock_control"] in ("dry", "refused"):
            lines.append(f"# Clocks are left as found: {header['clock_control_reason']}")
        if header["mode"] == "sweep":
            return [
                *lines,
                "#",
                "# time: per operation; watts: mean per GPU; joules: per operation and GPU",
                "#",
                "#" + _POINT.format(*_POINT_NAMES)[1:],
                "#" + _POINT.format(*_POINT_UNITS)[1:],
            ]
        scenario = header["scenario"]
        iterations = scenario["iterations"] or "by --seconds"
        lines.append(
            f"# Scenario {scenario['name']} ({scenario['file']}), iterations: {iterations}, seed {scenario['seed']}"
        )
        compute = header["compute"]
        if compute["kind"] != "fma":
            unit = f", in units of {compute['unit_ms']:.4f} ms" if compute["unit_ms"] else ""
            lines.append(f"# Computation           : {compute['kind']}{unit}")
        return [*lines, "#", "#" + _ITERATION.format("iteration", "step(ms)", "compute", "comm", "exposed")[1:]]

    # ---- sweeps

    def _point(self, point: dict[str, Any]) -> list[str]:
        self._points.append(point)
        lines = []
        if point["way"] and point["way"] != self._way:
            lines.append(f"# way: {point['way']}")
        self._way = point["way"]
        row = _POINT.format(
            point["pattern"],
            point["size_bytes"],
            point["count"],
            _NCCL_TESTS.get(point["dtype"], point["dtype"]),
            point["op"] or "none",
            -1 if point["root"] is None else point["root"],
            _short(point["time_us"]),
            _cell(point["algbw_gbs"], 2),
            _cell(point["busbw_gbs"], 2),
            _cell(point["wrong"], 0),
            _cell(point["sm_clock_mhz"], 0),
            _cell(point["watts_per_gpu"], 2),
            _cell(point["joules_per_gpu"], 5),
        )
        marks = "  in-place" * point["in_place"] + "  invalid" * (not point["valid"])
        return [*lines, row + marks]

    def _end(self, summary: dict[str, Any]) -> list[str]:
        if "mpi_version" in self._header:
            return self._end_mpi(summary)
        if self._header["mode"] == "scenario":
            return _end_scenario(summary)
        lines = []
        if summary["skipped"]:
            lines.append(f"# Points done before    : {summary['skipped']}, left out")
        if summary["points"]:
            wrong = summary["wrong"]
            lines.append(f"# Out of bounds values : {wrong} {'FAILED' if wrong else 'OK'}")
            lines.append(f"# Avg bus bandwidth    : {summary['avg_busbw_gbs']:g}")
        else:
            lines.append("# Out of bounds values : N/A")
            lines.append("# Avg bus bandwidth    : N/A (no point was measured in this run)")
        lines += _ways(self._points)
        if summary["nvml_error"]:
            lines.append(f"# NVML failed at times  : {summary['nvml_error']}")
        if summary["invalid"]:
            lines.append(
                f"# Invalid              : {summary['invalid']} of {summary['points']} results: this machine was too "
                "slow for the emulator, times are not the platform's"
            )
        return [*lines, "#"]

    # ---- MPI

    def _begin_mpi(self, header: dict[str, Any]) -> list[str]:
        test, ranks = header["test"], header["ranks"]
        self._columns = _OF_TEST.get("bw" if test == "bibw" else test, _OF_TEST[""])
        if header["mode"] in ("point_to_point", "collective"):
            self._columns = [*self._columns, _WRONG]
        first = {"wait": "repeat", "stencil": "rank"}.get(test, "size_bytes")
        return [
            f"# powerccl-bench-mpi {header['version']}: {test}, {ranks} rank{'s' * (ranks != 1)}",
            f"# {header['mpi_version']} ({header['mpi_abi']} ABI), {header['mpi_path']}",
            f"{first:>12}" + "".join(f" {column.name:>{column.width}}" for column in self._columns),
        ]

    def _row(self, first: object, values: dict[str, Any]) -> str:
        return f"{first:>12}" + "".join(
            f" {_cell(values.get(column.name), column.decimals):>{column.width}}" for column in self._columns
        )

    def _result(self, result: dict[str, Any]) -> list[str]:
        if self._header["mode"] == "collective":
            share = sum(result["cpu_s"]) / (result["loop_s"] * self._header["ranks"])
            return [self._row(result["size_bytes"], {**result, "cpu_pct": 100 * share})]
        if self._header["mode"] == "wait":
            if result["repeat"] >= _MOST_WAITS:
                return []
            return [self._row(result["repeat"], {**result, "cpu_pct": 100 * result["cpu_us"] / result["waited_us"]})]
        return [self._row(result["rank" if self._header["mode"] == "stencil" else "size_bytes"], result)]

    def _end_mpi(self, summary: dict[str, Any]) -> list[str]:
        if self._header["mode"] == "wait":
            parts = ("median", "low", "high")
            rows = [{name: summary[name][part] for name in ("waited_us", "cpu_us", "late_us")} for part in parts]
            rows[0]["cpu_pct"] = 100 * rows[0]["cpu_us"] / rows[0]["waited_us"]
            return [self._row(*each) for each in zip(("median", "25 %", "75 %"), rows, strict=True)]
        if self._header["mode"] == "stencil":
            return [
                f"# iterations: {summary['iterations']}, sweeps in each: {summary['sweeps']} over {summary['rows']} x "
                f"{summary['columns']} cells, the last rank {self._header['imbalance_pct']:g} % more",
                f"run {summary['run_s']:.4f} s, cpu {summary['cpu_s']:.4f} s, residual {summary['residual']:.6g}, "
                f"checksum {summary['checksum']:.12g}",
            ]
        return []


_POINT_NAMES = (
    *("pattern", "size", "count", "type", "redop", "root"),
    *("time", "algbw", "busbw", "#wrong", "clock", "watts", "joules"),
)
_POINT_UNITS = ("", "(B)", "(elements)", "", "", "", "(us)", "(GB/s)", "(GB/s)", "", "(MHz)", "(W)", "(J)")


def _cell(value: float | None, decimals: int) -> str:
    return "N/A" if value is None else f"{value:.{decimals}f}"


def _short(value: float | None) -> str:
    """Small times need decimals, large ones room."""
    return _cell(value, 3 if value is None or value < 10 else 2 if value < 1000 else 1)


def _load(load: dict[str, Any]) -> list[str]:
    return [
        f"# beside: {load['beside']}, {_short(load['unit_us'])} us a unit alone, {_short(load['watts_per_gpu'])} W, "
        f"{_cell(load['sm_clock_mhz'], 0)} MHz"
    ]


def _iteration(iteration: dict[str, Any]) -> list[str]:
    times = (_cell(iteration[name], 2) for name in ("step_ms", "compute_ms", "communication_ms", "exposed_ms"))
    return [_ITERATION.format("warm-up" if iteration["warmup"] else iteration["iteration"], *times)]


def _end_scenario(summary: dict[str, Any]) -> list[str]:
    if "step_ms" not in summary:  # it has failed before the first iteration
        return []
    step, compute, communication, exposed = (
        _cell(summary[name], 2) for name in ("step_ms", "compute_ms", "communication_ms", "exposed_ms")
    )
    joules = summary["run_joules_per_gpu"]
    energy = "energy N/A" if joules is None else f"{joules:g} J per GPU, {summary['watts_per_gpu']:g} W"
    each = summary["joules_per_iteration"]
    per_iteration = f"not known ({summary['energy_reason']})" if each is None else f"{each:g} J of all GPUs"
    return [
        "#",
        f"# Median iteration      : {step} ms; compute {compute}, communication {communication}, exposed {exposed}",
        f"# Whole run             : {summary['run_s']:.3f} s, {energy}",
        f"# Energy per iteration  : {per_iteration}",
        "#",
    ]


def _distinct(points: Sequence[dict[str, Any]], *names: str) -> list[tuple[Any, ...]]:
    return list(dict.fromkeys(tuple(point[name] for name in names) for point in points))


def _ways(points: Sequence[dict[str, Any]]) -> list[str]:
    """A row for each pattern, size and way: what it takes alone, and what it costs beside each computation."""
    besides = [kind for (kind,) in _distinct(points, "beside") if kind]
    if not besides and len(_distinct(points, "way")) < 2:
        return []
    lines = [
        "#",
        f"# {'pattern':>14}  {'size(B)':>12}  {'way':>11}  {'alone':>19}"
        + "".join(f"  {'beside ' + kind:>39}" for kind in besides),
        f"# {'':>14}  {'':>12}  {'':>11}  {'us':>9} {'mJ/GPU':>9}"
        + f"  {'us':>9} {'added us':>9} {'added mJ':>9} {'slows it':>9}" * len(besides),
    ]
    same = ("pattern", "size_bytes", "dtype", "op", "root", "in_place", "clock_requested_mhz")
    by_key = {tuple(point[name] for name in (*same, "way", "beside")): point for point in points if point["valid"]}
    for key in _distinct(points, *same):
        for (way,) in _distinct(points, "way"):
            measured = [by_key.get((*key, way, kind), {}) for kind in (None, *besides)]
            if not any(measured):
                continue
            cells = (
                f"  {_short(measured[0].get('time_us')):>9} {_cell(_milli(measured[0].get('joules_per_gpu')), 3):>9}"
            )
            for point in measured[1:]:
                added = _cell(_milli(point.get("added_joules_per_gpu")), 3)
                cells += f"  {_short(point.get('time_us')):>9} {_short(point.get('added_us')):>9} {added:>9}"
                cells += f" {_cell(point.get('slowed_pct'), 1):>8}%"
            lines.append(f"# {key[0]:>14}  {key[1]:>12}  {way or 'as given':>11}{cells}")
    if besides:
        lines.append("# added: more than the computation done meanwhile takes alone, per operation (mJ of each GPU)")
    return lines


def _milli(value: float | None) -> float | None:
    return None if value is None else value * 1e3
