# SPDX-License-Identifier: Apache-2.0
"""Energy of each kind of communication from slow counters, on runs whose powers are known."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import polars as pl
import pytest
from synthetic import MS, TraceWriter, uuid, write_info
from threadpoolctl import threadpool_info

from powerccl.analysis import summary
from powerccl.analysis.attribution import EnergyFindings, KindEnergy, attribute, dating
from powerccl.analysis.attribution.clocks import Seen, clock_levels
from powerccl.analysis.attribution.features import features
from powerccl.analysis.attribution.observations import observations
from powerccl.analysis.attribution.phases import ALONE, BESIDE, COMPUTING, UNKNOWN, Phase, Timeline
from powerccl.analysis.report_findings import Reference
from powerccl.analysis.waits import aligned
from powerccl.traces.folder import read_run

MIB = 1 << 20
Part = tuple[int, float, str, int]  # ms, watts, pattern ("" computes), bytes
HEADER = "time_ns,gpu,uuid,power_mw,energy_uj,sm_clock_mhz,mem_clock_mhz,temperature_c,throttle_reasons,utilization_pct"


def write_samples(
    folder: Path,
    watts: list[np.ndarray],
    every_ms: int = 19,
    update_ms: int = 100,
    counter: bool = True,
    power: bool = True,
    late_ms: int = 0,
) -> None:
    """`watts[gpu]`: one a millisecond. Counter and power (the mean since the last update) change every `update_ms`."""
    lines = ["# host: node1", f"# gpu_count: {len(watts)}", HEADER]
    sums = [np.concatenate([[0.0], np.cumsum(each)]) for each in watts]
    for now in range(0, len(watts[0]) + 1, every_ms):
        for gpu, total in enumerate(sums):
            shown = max(0, now // update_ms * update_ms - late_ms)
            mean_w = (total[shown] - total[max(0, shown - update_ms)]) / update_ms
            energy_uj = int(total[shown] * 1000) if counter else -1
            power_mw = int(mean_w * 1000) if power else ""
            lines.append(f"{now * MS},{gpu},{uuid(gpu)},{power_mw},{energy_uj},1590,5000,40,0x0,100")
    (folder / "power-node1.csv").write_text("\n".join(lines) + "\n")


def make_run(
    folder: Path,
    iteration: list[Part],
    seconds: int = 40,
    gpus: int = 2,
    beside: bool = False,
    noise: Callable[[np.random.Generator, int], float] = lambda _rng, _ms: 0.0,
    jitter_ms: int = 0,
    host_late_ms: int = 0,
    seed: int = 1,
    **samples: object,
) -> tuple[Path, dict[tuple[str, int], float]]:
    """Iterations of these parts, and the true joules of an operation of each kind.

    Communication is exposed, unless `beside`: then half of each part of it, its beginning, has computation beside it.
    One iteration of eight begins up to `host_late_ms` late; the GPU draws 30 W meanwhile.
    """
    folder.mkdir(parents=True, exist_ok=True)
    rng = np.random.default_rng(seed)
    parts: list[tuple[int, Part]] = []
    now = 50
    while now < seconds * 1000 - 200:
        late = int(rng.integers(host_late_ms // 2, host_late_ms)) if host_late_ms and rng.random() < 0.125 else 0
        parts += [(now, (late, 30.0, "", 0))] if late else []
        now += late
        for part in iteration:
            length = part[0] + (int(rng.integers(0, jitter_ms + 1)) if not part[2] else 0)
            parts.append((now, (length, *part[1:])))
            now += length
    truth: dict[tuple[str, int], list[float]] = {}
    watts = []
    for gpu in range(gpus):
        trace = TraceWriter(gpu, gpus)
        trace.comm(1)
        own = np.full(seconds * 1000, 30.0)
        for number, (start, (length, power, pattern, size)) in enumerate(parts, 1):
            own[start : start + length] = power + noise(rng, length)
            if not pattern:
                continue
            trace.kernel(number, start * MS, (start + length) * MS, size, pattern)
            begin = start + length // 2 if beside else start
            own[start:begin] += 30
            trace.wait(number, begin * MS, (start + length) * MS)
            key = (pattern, 1 << (size.bit_length() - 1))
            truth.setdefault(key, []).append(float(own[start : start + length].sum()) / 1000)
        watts.append(own)
        trace.write(folder)
    write_samples(folder, watts, **samples)  # type: ignore[arg-type]
    write_info(folder, seconds * 1000 * MS)
    return folder, {key: float(np.mean(values)) for key, values in truth.items()}


def found(folder: Path) -> tuple[EnergyFindings, dict[tuple[str, int], KindEnergy]]:
    findings = attribute(read_run(folder))
    return findings, {(kind.pattern, kind.size_class_bytes): kind for kind in findings.kinds}


MIXED: list[Part] = [
    (23, 90.0, "", 0),
    (11, 48.0, "all_reduce", 16 * MIB),
    (31, 70.0, "", 0),
    (17, 40.0, "all_gather", 4 * MIB),
    (7, 60.0, "reduce_scatter", MIB),
]


@pytest.mark.parametrize("every_ms", [19, 20])
def test_kinds_shorter_than_the_counter(tmp_path: Path, every_ms: int) -> None:
    folder, truth = make_run(tmp_path / "run", MIXED, every_ms=every_ms)
    findings, kinds = found(folder)
    assert findings.source == "counter"
    assert findings.update_ms == pytest.approx(100, rel=0.01)
    assert findings.residual_pct is not None and findings.residual_pct < 1
    assert set(kinds) == set(truth)
    for key, kind in kinds.items():
        assert kind.resolved, kind
        assert kind.joules_per_operation == pytest.approx(truth[key], rel=0.03)
        assert kind.exposed_share == pytest.approx(1.0, abs=0.01)
    assert kinds["all_gather", 4 * MIB].watts == pytest.approx(40, rel=0.03)
    mean = (23 * 90 + 31 * 70) / 54
    assert findings.computation_watts == pytest.approx(mean, rel=0.02)
    parts = (findings.joules_communication, findings.joules_computation, findings.joules_idle or 0.0)
    assert sum(part or 0.0 for part in parts) == pytest.approx(findings.joules_total or 0.0, rel=0.02)


def test_beside_computation_and_alone_are_told_apart(tmp_path: Path) -> None:
    folder, truth = make_run(tmp_path / "run", [(37, 90.0, "", 0), (26, 50.0, "all_reduce", 16 * MIB)], beside=True)
    kind = found(folder)[1]["all_reduce", 16 * MIB]
    assert kind.exposed_share == pytest.approx(0.5, abs=0.02)
    assert kind.exposed_watts == pytest.approx(50, rel=0.05)
    assert kind.beside_watts == pytest.approx(80, rel=0.05)
    assert kind.joules_per_operation == pytest.approx(truth["all_reduce", 16 * MIB], rel=0.03)


def test_without_waits_nothing_is_said_of_exposure(tmp_path: Path) -> None:
    folder, _ = make_run(tmp_path / "run", MIXED)
    for path in folder.glob("rank-*.trace"):
        rank = int(path.stem.removeprefix("rank-"))
        trace = TraceWriter(rank, 2)
        trace.comm(1)
        for row in next(each for each in read_run(folder).ranks if each.rank == rank).kinds[3]:
            size, pattern = (
                int(row["bytes"]),
                ("all_reduce", "", "", "all_gather", "reduce_scatter")[int(row["pattern"])],
            )
            trace.kernel(int(row["call_id"]), int(row["seen_start_ns"]), int(row["seen_stop_ns"]), size, pattern)
        trace.write(folder)
    _, kinds = found(folder)
    assert kinds
    for kind in kinds.values():
        assert kind.exposed_share is None
        assert kind.exposed_watts is None


# An iteration of just one step of the counter: every step holds the same of everything.
ONE_STEP: list[Part] = [
    (60, 90.0, "", 0),
    (30, 50.0, "all_reduce", 16 * MIB),
    (10, 30.0, "all_gather", 4 * MIB),
]


def reference(all_reduce_watts: float, all_gather_watts: float = 31.0) -> Reference:
    return Reference(
        name="tested",
        gpus=2,
        provenance="measured",
        idle_watts=28.0,
        warming=0.0,
        points={
            "all_reduce": [(MIB, 1.0, all_reduce_watts), (64 * MIB, 1.0, all_reduce_watts)],
            "all_gather": [(4 * MIB, 1.0, all_gather_watts)],
        },
    )


def test_kinds_always_side_by_side_are_not_told_apart(tmp_path: Path) -> None:
    folder, _ = make_run(tmp_path / "run", ONE_STEP, noise=lambda rng, _ms: float(rng.normal(0, 2)))
    findings, kinds = found(folder)
    assert len(kinds) == 2
    for kind in kinds.values():
        assert not kind.resolved
        assert kind.joules_per_operation is None and kind.joules is None and kind.watts is None
        assert kind.reason
    # Together they are as well known as ever.
    assert findings.joules_total == pytest.approx(2 * 40 * 72, rel=0.03)


def test_a_profile_tells_apart_what_steps_do_not(tmp_path: Path) -> None:
    folder, truth = make_run(tmp_path / "run", ONE_STEP, noise=lambda rng, _ms: float(rng.normal(0, 2)))
    findings = attribute(read_run(folder), reference=reference(48.0))
    assert len(findings.kinds) == 2
    for kind in findings.kinds:
        expected = truth[kind.pattern, kind.size_class_bytes]
        assert kind.joules_per_operation == pytest.approx(expected, rel=0.1)
        assert kind.low is not None and kind.high is not None
        assert kind.low < expected < kind.high
    # The steps tell what is left for computation.
    assert findings.computation_watts == pytest.approx(90, rel=0.03)


def test_samples_are_believed_and_not_the_profile(tmp_path: Path) -> None:
    folder, truth = make_run(tmp_path / "run", MIXED)
    for kind in attribute(read_run(folder), reference=reference(70.0, 60.0)).kinds:
        assert kind.joules_per_operation == pytest.approx(truth[kind.pattern, kind.size_class_bytes], rel=0.03)


def test_a_profile_says_nothing_of_runs_whose_clocks_were_set(tmp_path: Path) -> None:
    """It knows what collectives draw at the highest clock."""
    folder, _ = make_run(tmp_path / "run", ONE_STEP, noise=lambda rng, _ms: float(rng.normal(0, 2)))
    trace = TraceWriter(2, 3)
    trace.clock(1, 100 * MS, 840)
    trace.write(folder)
    for kind in attribute(read_run(folder), reference=reference(48.0)).kinds:
        assert not kind.resolved


def test_what_is_expected_of_parts() -> None:
    kind, other = ("all_reduce", 16 * MIB), ("all_gather", 4 * MIB)
    phases = [
        COMPUTING,
        Phase((kind,), ALONE),
        Phase((kind,), BESIDE),
        Phase((other, kind), ALONE),
        Phase((kind,), UNKNOWN),
    ]
    clocks = np.array([[0.5, 0.5], [1.0, 0.0], [0.2, 0.8], [1.0, 0.0], [0.4, 0.6]])
    known = reference(48.0, 34.0)
    found = features(phases, clocks, known)
    # At rest 28 W; computation, and what may compute, the mean; kinds at once half of each.
    assert found.expected(80.0).tolist() == pytest.approx([80.0, 48.0, 100.0, 28 + 10 + 3, 80.0])
    assert len(found.doubt) == found.each.shape[1] == 1 + 1 + 2 + 2
    assert np.isfinite(found.doubt).sum() == 3
    known.warming = 0.2
    at = (48.0 + 34.0) / 2
    assert features(phases, clocks, known).expected(80.0)[1] == pytest.approx(48 + 0.2 * (80 - at))
    nothing = features(phases, np.zeros((5, 0)), None)
    assert nothing.expected(80.0).tolist() == [80.0] * 5
    assert not np.isfinite(nothing.doubt).any()


def test_power_only(tmp_path: Path) -> None:
    folder, truth = make_run(tmp_path / "run", MIXED, counter=False, seconds=60)
    findings, kinds = found(folder)
    assert findings.source == "power"
    for key, kind in kinds.items():
        assert kind.joules_per_operation == pytest.approx(truth[key], rel=0.05)


def test_a_counter_that_is_late(tmp_path: Path) -> None:
    folder, truth = make_run(tmp_path / "run", MIXED, late_ms=20, seconds=60)
    for key, kind in found(folder)[1].items():
        assert kind.joules_per_operation == pytest.approx(truth[key], rel=0.05)


def test_a_host_that_is_late_now_and_then(tmp_path: Path) -> None:
    """The GPU rests where it would compute: seldom, and long enough to outweigh whatever else makes steps differ."""
    folder, truth = make_run(tmp_path / "run", MIXED, host_late_ms=60, jitter_ms=3, seconds=60)
    for key, kind in found(folder)[1].items():
        assert kind.joules_per_operation == pytest.approx(truth[key], rel=0.02)


def swinging(seconds: int, every_ms: int) -> tuple[Seen, np.ndarray]:
    """A GPU that computes for 12 to 30 ms, from a moment drawn anew at a low clock, and waits 10 ms at a high one.

    The clock of each millisecond goes with it.
    """
    rng = np.random.default_rng(5)
    edges, label, clock = [0], [], []
    while edges[-1] < seconds * 1000:
        length = int(rng.integers(12, 31))
        high = min(length, int(rng.integers(4, 16)))
        clock += [1245.0] * high + [855.0] * (length - high) + [1590.0] * 10
        label += [0, 1]
        edges += [edges[-1] + length, edges[-1] + length + 10]
    phases = [COMPUTING, Phase((("all_reduce", MIB),), ALONE)]
    every = np.arange(5, len(clock), every_ms)
    line = Timeline(np.array(edges, np.int64) * MS, np.array(label, np.int64), phases)
    return Seen(line, every * MS, np.array(clock)[every]), np.array(clock)


def test_clocks_between_samples() -> None:
    """A hundred milliseconds hold five samples; the time at each clock is known better than these tell."""
    seen, clock = swinging(120, 19)
    found = clock_levels([seen])
    assert found is not None
    edges = np.arange(1000, 119_000, 100)
    got = found[0].shares(edges * MS)
    levels = [855.0, 1245.0, 1590.0]
    blocks = [clock[first : first + 100] for first in edges[:-1].tolist()]
    true = np.array([[np.mean(block == level) for level in levels] for block in blocks])
    at = np.searchsorted(edges * MS, seen.time_ns, side="right") - 1
    inside = (at >= 0) & (at < len(true))
    counts = np.array([np.bincount(at[inside], seen.clock_mhz[inside] == level, len(true)) for level in levels]).T
    sampled = counts / counts.sum(axis=1, keepdims=True)
    assert got.sum(axis=1) == pytest.approx(1.0)
    assert got.mean(axis=0) == pytest.approx(true.mean(axis=0), abs=0.01)
    assert np.sqrt(np.mean((got - true) ** 2)) < 0.4 * np.sqrt(np.mean((sampled - true) ** 2))
    # What is expected must not be off in proportion to itself: that would bias a regression.
    for one, by_samples, other in zip(got.T, sampled.T, true.T, strict=True):
        assert np.polyfit(one, other, 1)[0] == pytest.approx(1.0, abs=0.25)
        assert np.polyfit(by_samples, other, 1)[0] < 0.6


def test_a_clock_that_does_not_vary_says_nothing() -> None:
    seen, _ = swinging(20, 19)
    assert clock_levels([Seen(seen.line, seen.time_ns, np.full(len(seen.time_ns), 1590.0))]) is None
    assert clock_levels([Seen(seen.line, seen.time_ns, np.full(len(seen.time_ns), np.nan))]) is None
    missing = np.where(np.arange(len(seen.time_ns)) % 60 < 30, seen.clock_mhz, np.nan)
    some = clock_levels([Seen(seen.line, seen.time_ns, missing)])
    assert some is not None and np.isfinite(some[0].sums).all()


def test_nothing_sampled_and_nothing_timed(tmp_path: Path) -> None:
    folder, _ = make_run(tmp_path / "run", MIXED, seconds=5)
    few = attribute(read_run(folder), (1000 * MS, 2000 * MS))
    assert not few.kinds and "too few" in few.reason
    (folder / "power-node1.csv").unlink()
    none = attribute(read_run(folder))
    assert not none.kinds and "sampled" in none.reason
    for path in folder.glob("rank-*.trace"):
        path.unlink()
    assert attribute(read_run(folder)).reason == "no kernel of communication was timed"


def test_neither_counter_nor_power(tmp_path: Path) -> None:
    folder, _ = make_run(tmp_path / "run", MIXED, seconds=5, counter=False, power=False)
    assert attribute(read_run(folder)).reason == "the samples hold neither power nor energy"


def test_each_reason_is_the_true_one(tmp_path: Path) -> None:
    folder, _ = make_run(tmp_path / "run", MIXED, seconds=5)
    path = folder / "power-node1.csv"
    lines = path.read_text().splitlines()
    head, rows = lines[:3], [line.split(",") for line in lines[3:]]

    def reason(window: tuple[int, int] | None = None) -> str:
        return attribute(read_run(folder), window).reason

    def sampled(kept: list[list[str]]) -> str:
        path.write_text("\n".join([*head, *(",".join(row) for row in kept)]) + "\n")
        return reason()

    assert reason((50_000 * MS, 60_000 * MS)) == "no kernel of communication was timed in the window"
    later = [[str(int(row[0]) + 60_000 * MS), *row[1:]] for row in rows]
    assert sampled(later) == "nothing was sampled while the GPU communicated"
    steady = [[*row[:3], "70000", "-1", *row[5:]] for row in rows]
    count = len(rows) // 2
    assert sampled(steady) == f"{count} samples with fewer than three changes of power or energy"
    seldom = [row for row in rows if int(row[0]) // MS % 1900 == 0]  # every 1.9 s of the five
    assert "fewer than three changes" in sampled(seldom) or "too seldom" in sampled(seldom)
    # One GPU's samples are lost: the other is told, and why the first is not.
    told = sampled([row for row in rows if row[1] == "0"])
    assert told == "known for 1 of 2 GPUs; for the others: no energy or power was sampled"
    assert sampled([[*row[:3], "", "-1", *row[5:]] if row[1] == "1" else row for row in rows]) == (
        "known for 1 of 2 GPUs; for the others: the samples hold neither power nor energy"
    )
    path.write_text("\n".join(lines) + "\n")
    assert reason() == ""


def test_readings_slower_than_the_job_are_no_missing_samples(tmp_path: Path) -> None:
    """Two kernels between two updates: samples there are, and they say when their readings change."""
    folder, _ = make_run(tmp_path / "run", MIXED, seconds=5)
    for rank in range(2):
        trace = TraceWriter(rank, 2)
        trace.comm(1)
        for call in (1, 2):
            trace.call(call, (1000 + 20 * call) * MS, 16 * MIB)
            trace.kernel(call, (1000 + 20 * call) * MS, (1010 + 20 * call) * MS, 16 * MIB)
        trace.write(folder)
    assert attribute(read_run(folder)).reason == (
        "the sensor updates every 100 ms: too seldom for the 30.0 ms from first to last communication"
    )


def test_damaged_samples(tmp_path: Path) -> None:
    folder, truth = make_run(tmp_path / "run", MIXED, seconds=60)
    path = folder / "power-node1.csv"
    lines = path.read_text().split("\n")
    damaged = [line for n, line in enumerate(lines) if n < 5 or n % 97]
    damaged[500] = "nonsense,,"
    fields = damaged[901].split(",")
    fields[4] = str(int(fields[4]) + 900_000_000)  # a counter that jumps, and back at the next read
    damaged[901] = ",".join(fields)
    path.write_text("\n".join(damaged)[:-30])
    findings, kinds = found(folder)
    assert findings.misread < 0.05 * findings.steps
    for key, kind in kinds.items():
        assert kind.joules_per_operation == pytest.approx(truth[key], rel=0.05)


def test_a_counter_that_starts_anew(tmp_path: Path) -> None:
    folder, truth = make_run(tmp_path / "run", MIXED, seconds=60)
    path = folder / "power-node1.csv"
    lines = path.read_text().rstrip("\n").split("\n")
    for n in range(len(lines) // 2, len(lines)):
        fields = lines[n].split(",")
        fields[4] = str(int(fields[4]) - int(lines[len(lines) // 2 - 2].split(",")[4]) + 5_000_000)
        lines[n] = ",".join(fields)
    path.write_text("\n".join(lines) + "\n")
    for key, kind in found(folder)[1].items():
        assert kind.joules_per_operation == pytest.approx(truth[key], rel=0.05)


def test_a_window_of_the_run(tmp_path: Path) -> None:
    folder, truth = make_run(tmp_path / "run", MIXED, seconds=60)
    findings = attribute(read_run(folder), (10_000 * MS, 40_000 * MS))
    assert findings.joules_total == pytest.approx(2 * 30 * 67.6, rel=0.05)
    for kind in findings.kinds:
        expected = truth[kind.pattern, kind.size_class_bytes]
        assert kind.joules_per_operation == pytest.approx(expected, rel=0.06)


def test_a_long_run_is_told_by_its_middle(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder, truth = make_run(tmp_path / "run", MIXED, seconds=100)
    whole = summary.summarise(read_run(folder))
    monkeypatch.setattr(summary, "LONG_NS", 60_000 * MS)
    monkeypatch.setattr(summary, "PART_NS", 20_000 * MS)
    monkeypatch.setattr(dating, "ENOUGH", 200)  # readings: fewer than come before that
    found = summary.summarise(read_run(folder))
    assert "the energy of collectives is that of 20 s in the middle of the run" in found.notes
    assert not any("middle" in note for note in whole.notes)
    assert found.communication.joules == pytest.approx(whole.communication.joules, rel=0.05)
    assert found.communication.time_s == whole.communication.time_s
    for row in found.patterns:
        assert row.joules_per_operation == pytest.approx(truth[row.pattern, row.size_class_bytes], rel=0.06)


def test_intervals_cover_the_truth(tmp_path: Path) -> None:
    """Of many runs, with power that differs from burst to burst; 95 % less what chance takes from so few."""
    inside = total = 0
    for seed in range(8):
        folder, truth = make_run(
            tmp_path / str(seed), MIXED, gpus=1, noise=lambda rng, _ms: float(rng.normal(0, 4)), jitter_ms=4, seed=seed
        )
        for key, kind in found(folder)[1].items():
            if kind.low is None or kind.high is None:
                continue
            total += 1
            inside += kind.low <= truth[key] <= kind.high
    assert total >= 16
    assert inside / total >= 0.85


def test_changes_are_dated_by_their_beat() -> None:
    """Reads every 19 ms of a counter that moves every 100: known to a millisecond, and a hiccup changes nothing."""
    time = np.arange(0, 60_000, 19, dtype=np.int64) * MS
    time[1000:] += 7 * MS
    energy = (time // (100 * MS) * 7_000_000).astype(np.int64)
    seen = observations(time, np.full(len(time), np.nan), energy)
    assert seen is not None
    off = (seen.end_ns + 50 * MS) % (100 * MS) - 50 * MS
    assert np.abs(off).max() < 2 * MS
    assert max(seen.slack_ns) < 2 * MS
    assert seen.joules == pytest.approx(7.0)


def test_power_scaled_to_a_seldom_read_counter() -> None:
    time = np.arange(0, 30_000, 20, dtype=np.int64) * MS
    power = 50_000.0 + 20_000.0 * (np.arange(len(time)) // 5 % 3)
    energy = np.full(len(time), -1, dtype=np.int64)
    energy[::100] = (np.arange(len(time))[::100] * 20 * 80_000).astype(np.int64)  # 80 W
    seen = observations(time, power, energy)
    assert seen is not None
    assert seen.source == "power+counter"
    assert seen.joules.mean() == pytest.approx(80, rel=0.02)


def test_waits_that_came_late_are_put_beside_their_kernels() -> None:
    """A stale reference makes two seconds of waits late by the same."""
    start = np.arange(400, dtype=np.int64) * 10 * MS
    stop = start + MS
    late = np.where((np.arange(400) >= 150) & (np.arange(400) < 300), 800_000, 0)
    keys = {"rank": np.zeros(400, np.int64), "comm": np.zeros(400, np.int64), "call_id": np.arange(400)}
    kernels = pl.DataFrame({**keys, "start_ns": start, "stop_ns": stop})
    waits = pl.DataFrame({**keys, "stall_ns": start + late, "resume_ns": stop + late})
    moved = aligned(waits, kernels)
    assert moved.columns == waits.columns
    off = np.abs(moved["resume_ns"].to_numpy() - stop)
    assert np.count_nonzero(off) <= 8  # next to the steps the median may be the other side's
    assert np.array_equal((moved["resume_ns"] - moved["stall_ns"]).to_numpy(), stop - start)


def test_small_matrices_have_one_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two summaries at once on a busy node took five times as long, their threads waiting for each other."""
    seen = []

    def look(*_: object) -> EnergyFindings:
        seen.extend(pool["num_threads"] for pool in threadpool_info() if pool["user_api"] == "blas")
        return EnergyFindings(reason="only looked")

    monkeypatch.setattr(sys.modules[attribute.__module__], "_attribute", look)
    attribute(None)  # type: ignore[arg-type]
    assert seen
    assert set(seen) == {1}
