#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Hold the emulator's boards against published points of real GPUs: power by load and clock, and time by clock.

The points are not part of this repository: most of their owners gave no licence. `--data` names a folder that has them
as curves.csv and groundtruth.csv; docs/concepts/emulator-calibration.md says where they were published. A load is what
it keeps busy (Activity in native/testbed/physics/platform.h), fitted on its lowest and highest clock and one between.
Its other points are held out, and so are series that no parameter was fitted to.

    evidence/scripts/figures-physics.py --data FOLDER --out FILE --picture docs/images/boards.svg
"""

from __future__ import annotations

import argparse
import csv
import re
import sys
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from scipy.optimize import nnls

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT), str(ROOT / "tests")]
from evidence.analysis.boards_picture import MOST, Load, draw
from evidence.analysis.power_law import PowerLaw
from support.figures import Figures, about, one, show, write

BOARDS = ROOT / "native/testbed/emulator/platforms/boards"
LOWEST_MHZ = {"v100-sxm": 870.0}  # below it, logs of that set ramp with the clock, whatever the program
WORST_NETWORK_PCT = 40  # beyond it, a point is printed
AT_LIMIT = 0.97  # of the power limit: there the clock is not what was set


@dataclass(frozen=True)
class Point:
    """A reading: the clock that the GPU held, its power, and the time against that at the highest clock."""

    clock_mhz: float
    watts: float
    time: float | None


@dataclass(frozen=True)
class Series:
    """Points of one load on one GPU. `fitted`: parameters of the board were fitted to it."""

    board: str
    load: str
    points: list[Point]
    fitted: bool


class Board(PowerLaw):
    """A board's file, and loads on it."""

    def __init__(self, name: str) -> None:
        """Read boards/NAME.conf."""
        super().__init__((BOARDS / f"{name}.conf").read_text())
        self.limit_w = self.number("power_limit_w")

    def activity(self, points: list[Point]) -> tuple[float, float]:
        """What a load keeps busy, by least squares of relative errors; nothing is negative."""
        rows, wanted = [], []
        for point in points:
            idle, product, copy = self.terms(point.clock_mhz)
            rows.append([product / point.watts, copy / point.watts])
            wanted.append((point.watts - idle) / point.watts)
        compute, memory = nnls(np.array(rows), np.array(wanted))[0]
        return float(compute), float(memory)

    def watts(self, clock_mhz: float, activity: tuple[float, float]) -> float:
        """What such a load draws; a governor holds the limit."""
        idle, product, copy = self.terms(clock_mhz)
        return min(idle + activity[0] * product + activity[1] * copy, self.limit_w)


def memory_share(points: list[Point]) -> tuple[float, float]:
    """What share of a load's time no clock changes, and its time at the highest clock of the points, as fitted."""
    top = points[-1].clock_mhz
    rows = np.array([[top / each.clock_mhz, 1.0] for each in points]) / np.array([[each.time] for each in points])
    follows, stays = nnls(rows, np.ones(len(points)))[0]
    return float(stays / (follows + stays)), float(follows + stays)


def time_errors(points: list[Point], fitted: list[Point]) -> list[float]:
    """Percent by which times of points are off, as streams.cpp's rate has them."""
    known = [each for each in fitted if each.time]
    if len(known) < 2:
        return []
    share, whole = memory_share(known)
    top = known[-1].clock_mhz
    return [
        abs(whole * (share + (1 - share) * top / each.clock_mhz) / each.time - 1) * 100 for each in points if each.time
    ]


def number(text: str | None) -> float | None:
    """A cell's number; None where it is empty."""
    return float(text) if text else None


def read_series(data: Path) -> list[Series]:
    """Every series of at least four readings at different clocks."""
    boards = {"A100-SXM": "a100-sxm", "A100-PCIe": "a100-pcie", "A800": "a800-sxm", "H100": "h100-sxm",
              "H200": "h200-sxm", "A40": "a40", "RTX 8000": "rtx8000", "RTX PRO 6000": "rtx-pro-6000"}  # fmt: skip
    fitted = {"FIRESTARTER GEMM FP64", "FIRESTARTER GEMM FP32", "pi solver", "pi solver fp32", "BabelStream",
              "idle with context, clock locked", "binomialOptions input000", "vectorAdd input000",
              "Qwen3-32B prefill FFN, tp1 bs128 in128 out1"}  # fmt: skip
    found: dict[tuple[str, str, bool], list[Point]] = {}
    for row in csv.DictReader((data / "curves.csv").open()):
        board, load = boards.get(row["gpu"]), row["workload"]
        if row["gpu"] == "H200" and "second GPU" in row["board"]:
            board = "h200-sxm-flat"
        capped = row["setting"] == "cap" or "other run" in row["board"]
        watts = number(row["power_w"]) or (float(row["cap_w"]) - 1 if row["setting"] == "cap" else None)
        # Where only the lock is known, it is the clock. At a power limit it is not.
        clock = number(row["clock_mhz_seen"]) or number(row["clock_mhz_set"])
        at_limit = "site cap" in row["note"] and not row["clock_mhz_seen"]
        limited = row["gpu"] in {"A100-PCIe", "RTX PRO 6000"} and row["cap_w"] not in {"300", "600"}
        if board is None or "A+F" in load or watts is None or clock is None or at_limit or limited:
            continue
        found.setdefault((board, load, capped), []).append(Point(clock, watts, number(row["time_rel"])))
    for row in csv.DictReader((data / "groundtruth.csv").open()):
        clock, watts = float(row["clock_mhz"] or 0), number(row["power_w"])
        if row["gpu"] == "V100 (GV100)" and clock >= LOWEST_MHZ["v100-sxm"] and watts:
            found.setdefault(("v100-sxm", row["workload"], False), []).append(
                Point(clock, watts, number(row["time_s"]))
            )
    fitted |= {"dgemm", "stream", "lbm"}
    made = []
    for (board, load, apart), points in found.items():
        if len({each.clock_mhz for each in points}) >= (3 if apart else 4):
            name = load + (", other runs and GPUs" if apart else "")
            ordered = sorted(points, key=lambda each: each.clock_mhz)
            made.append(Series(board, name, ordered, load in fitted and not apart))
    return made


def network_errors(data: Path) -> dict[tuple[int, int], float]:
    """Percent by which an all-reduce on Alps is off, as Platform::network_ns has it, by number of hosts and bytes.

    Sizes are 1 MiB and more, on 2 to 512 hosts. A host has four GPUs, each with an adapter of 25 GB/s. Within a host
    the time is the published one of four GPUs.
    """
    latency_us, hop_us, adapter_gbs, power = 6.0, 28.0, 25.0, 0.4
    rows = list(csv.DictReader((data / "alps.csv").open()))
    within = {int(row["bytes"]): float(row["best_us"]) for row in rows if row["gpus"] == "4"}
    errors = {}
    for row in rows:
        size, hosts, published = int(row["bytes"]), int(row["hosts"]), float(row["best_us"])
        if hosts < 2 or size < 1 << 20:
            continue
        between = size * 2 * (hosts - 1) / hosts / (4 * adapter_gbs * 1e3)
        hops = 2 * np.ceil(np.log2(hosts)) * (latency_us + hop_us * (size / 2**20) ** power)
        errors[hosts, size] = ((max(within[size], between) + hops) / published - 1) * 100
    return errors


def short(load: str) -> str:
    """A load's name, as short as a panel's legend."""
    return re.sub(r" in[0-9]+ out[0-9]+|Qwen3-32B | input000", "", load).replace("runs and GPUs", "runs")


def panels_of(series: list[Series]) -> dict[str, list[Load]]:
    """What the picture shows: of each board the loads that it was fitted to, and then those with the most points."""
    panels: dict[str, list[Load]] = {}
    for board_name in sorted({each.board for each in series}):
        board = Board(board_name)
        known = [each for each in series if each.board == board_name]
        known.sort(key=lambda each: (not each.fitted, "other runs" in each.load, -len(each.points)))
        loads = []
        for each in known[:MOST]:
            activity = board.activity(each.points)
            clocks = np.linspace(each.points[0].clock_mhz, each.points[-1].clock_mhz, 40)
            line = [(float(clock), board.watts(float(clock), activity)) for clock in clocks]
            loads.append(Load(short(each.load), [(point.clock_mhz, point.watts) for point in each.points], line))
        panels[board_name] = loads
    return panels


def main() -> None:
    """Print and write the errors of each board."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", type=Path, required=True, help="folder with curves.csv and groundtruth.csv")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--picture", type=Path, help="SVG of points and lines to write")
    asked = parser.parse_args()
    every = read_series(asked.data)
    figures: Figures = {}
    held_out: list[float] = []
    errors: dict[str, list[float]] = {}
    times: dict[str, list[float]] = {}
    for series in every:
        board = Board(series.board)
        free = [each for each in series.points if each.watts < AT_LIMIT * board.limit_w]
        few = [free[0], free[len(free) // 2], free[-1]]
        same = [each for each in every if each.board == series.board and each.fitted and
                each.load == series.load.removesuffix(", other runs and GPUs")]  # fmt: skip
        activity = board.activity(same[0].points if same else few)
        off = [abs(board.watts(each.clock_mhz, activity) / each.watts - 1) * 100 for each in series.points]
        late = time_errors(free, few)
        times.setdefault(series.board, []).extend(late)
        mean = float(np.mean(off))
        time = f"{np.mean(late):5.2f}" if late else "not known"
        loads = f"{activity[0]:.2f} {activity[1]:.2f}"
        print(f"{series.board:13} {series.load:60} n={len(off):3} {loads} {mean:5.2f} % time {time} %")
        errors.setdefault(series.board, []).extend(off)
        if not series.fitted:
            held_out += [each for each, point in zip(off, series.points, strict=True) if same or point not in few]
    for board_name, off in errors.items():
        figures[f"physics.{board_name}.power_error_pct"] = one(round(float(np.mean(off)), 2), "%", len(off))
        if times[board_name]:
            late = times[board_name]
            figures[f"physics.{board_name}.time_error_pct"] = one(round(float(np.mean(late)), 2), "%", len(late))
    figures["physics.boards"] = one(len(errors), "1")
    figures["physics.held_out.power_error_pct"] = one(round(float(np.mean(held_out)), 2), "%", len(held_out))
    network = network_errors(asked.data)
    for (hosts, size), error in network.items():
        if abs(error) > WORST_NETWORK_PCT:
            print(f"network: {hosts} hosts, {size >> 20} MiB: {error:+.0f} %")
    apart = sorted(abs(error) for error in network.values())
    figures["network.alps.error_pct"] = {
        **one(round(float(np.median(apart)), 1), "%", len(apart)),
        "low": round(apart[0], 1),
        "high": round(apart[-1], 1),
    }
    figures["network.alps.second_worst_error_pct"] = one(round(apart[-2], 1), "%", len(apart))
    if asked.picture:
        asked.picture.write_text(draw(panels_of(every)))
    show(figures)
    conditions = (
        "published points of power, time and SM clock of others' GPUs, and of NCCL's all-reduce on Alps; activity is "
        "fitted on three clocks of a load. The fields low and high are the least and the largest error"
    )
    command = "evidence/scripts/figures-physics.py --data FOLDER"
    write(asked.out, figures, **about(command, conditions, machine="none: arithmetic on published points"))


if __name__ == "__main__":
    main()
