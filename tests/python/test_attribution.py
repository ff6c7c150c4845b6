# SPDX-License-Identifier: Apache-2.0
"""Energy of each kind of communication from slow counters, on runs whose powers are known."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from synthetic import MS, TraceWriter, uuid, write_info

from powerccl.analysis import summary
from powerccl.analysis.attribution import EnergyFindings, KindEnergy, attribute, dating
from powerccl.analysis.report_findings import Reference
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
