# SPDX-License-Identifier: Apache-2.0
"""Marks come in bursts: what was exposed in the pauses between them is told from the iterations around."""

import struct
from pathlib import Path

import numpy as np
import pytest
from synthetic import MS, TraceWriter

from powerccl.analysis import intervals as iv
from powerccl.analysis.exposure import WAITS, from_marks, from_waits, marked
from powerccl.traces import tables
from powerccl.traces.folder import read_run

STEP_MS = 100
HEADER_BYTES, RECORD_BYTES, WAIT, PAUSE = 4096, 64, 10, 12


def bucketed(
    folder: Path, marks: dict[int, int], pauses: tuple[int, ...], iterations: int = 40, later_ms: int = 58
) -> dict[int, int]:
    """Four equal buckets an iteration, the last one exposed for 12 of its 20 ms; `marks[iteration]`: its burst.

    `later_ms`: when computation is done from the 20th iteration on.

    Returns the exposed time of each iteration, ns.
    """
    folder.mkdir(parents=True)
    trace = TraceWriter(0, 1)
    trace.comm(1 * MS)
    found = {}
    for iteration in range(iterations):
        base_ns = (1000 + iteration * STEP_MS) * MS
        for bucket, (at, lasts) in enumerate(((10, 10), (22, 10), (36, 10), (50, 20))):
            call = iteration * 4 + bucket + 1
            begin, end = base_ns + at * MS, base_ns + (at + lasts) * MS
            trace.call(call, begin - 1 * MS, 1 << 28, flags=0x40)
            trace.kernel(call, begin, end, 1 << 28, delay_ns=0)
            # Computation is done at 58 ms; the others were over by then.
            done = base_ns + (58 if iteration < 20 else later_ms) * MS
            stall, resume = done, max(done, end)
            if bucket == 3:
                found[iteration] = resume - stall
            if iteration in marks:
                trace.wait(call, stall, resume, burst=marks[iteration])
    for burst in pauses:
        trace.pause(1 * MS, burst)
    trace.write(folder)
    return found


def pause_behind(path: Path, call: int) -> None:
    """Turn the waits of a trace into one burst up to this call, and a pause."""
    content = bytearray(path.read_bytes())
    for at in range(HEADER_BYTES, len(content), RECORD_BYTES):
        if struct.unpack_from("<H", content, at)[0] != WAIT:
            continue
        if struct.unpack_from("<Q", content, at + 8)[0] <= call:
            struct.pack_into("<I", content, at + 40, 1)
        else:
            struct.pack_into("<H6xQQQI", content, at, PAUSE, 1 * MS, call, 0, 1)
    path.write_bytes(content)


def length_s(intervals: iv.Intervals) -> float:
    return iv.length_ns(intervals) / 1e9


@pytest.mark.parametrize(
    ("bursts", "pauses"),
    [
        (dict.fromkeys(range(10), 1) | dict.fromkeys(range(25, 40), 2), (1,)),  # the last one was still under way
        (dict.fromkeys(range(10), 1), (1,)),  # nothing but the job's own end behind it
        (dict.fromkeys(range(10), 1) | dict.fromkeys(range(20, 30), 2), (1, 2)),
    ],
)
def test_pauses_are_filled_from_the_same_operations(
    tmp_path: Path, bursts: dict[int, int], pauses: tuple[int, ...]
) -> None:
    truth = bucketed(tmp_path / "run", bursts, pauses)
    run = read_run(tmp_path / "run")
    waits, kernels = tables.waits(run), tables.kernels(run)
    (gpu,) = from_waits(waits)
    assert length_s(from_waits(waits)[gpu]) == pytest.approx(len(bursts) * 0.012)
    found = from_marks(waits, kernels)
    assert found.source == WAITS
    assert length_s(found.exposed[gpu]) == pytest.approx(sum(truth.values()) / 1e9, rel=0.02)
    # In each iteration, not just on the whole; of the last bucket, not of all of them.
    for iteration, exposed_ns in truth.items():
        begin = (1000 + iteration * STEP_MS) * MS
        its = iv.clip(found.exposed[gpu], begin, begin + STEP_MS * MS)
        assert iv.length_ns(its) == pytest.approx(exposed_ns, abs=0.1 * MS)
        assert its[0, 0] >= begin + 50 * MS
    assert found.recorded_pct == pytest.approx(100 * len(bursts) / 40, abs=3)
    assert f"{found.recorded_pct:.0f} % of the communication time" in found.why


def test_a_pause_is_like_the_bursts_beside_it(tmp_path: Path) -> None:
    marks = dict.fromkeys(range(5), 1) | dict.fromkeys(range(25, 30), 2)
    truth = bucketed(tmp_path / "run", marks, (1, 2), later_ms=64)
    run = read_run(tmp_path / "run")
    (exposed,) = from_marks(tables.waits(run), tables.kernels(run)).exposed.values()
    # Behind the last burst as in it; between two as in both.
    for iteration, expected_ns in ((10, 9 * MS), (22, 9 * MS), (35, truth[35])):
        begin = (1000 + iteration * STEP_MS) * MS
        assert iv.length_ns(iv.clip(exposed, begin, begin + STEP_MS * MS)) == pytest.approx(expected_ns, abs=0.1 * MS)
    assert truth[35] == 6 * MS


def test_without_pauses_nothing_is_filled(tmp_path: Path) -> None:
    bucketed(tmp_path / "run", dict.fromkeys(range(40), 1), ())
    run = read_run(tmp_path / "run")
    waits = tables.waits(run)
    assert marked(waits) == {}
    found = from_marks(waits, tables.kernels(run))
    assert found.recorded_pct == 100
    assert "%" not in found.why
    (gpu,) = found.exposed
    assert found.exposed[gpu].tolist() == from_waits(waits)[gpu].tolist()


def test_traces_of_before_bursts_count_as_marked_throughout(tmp_path: Path) -> None:
    bucketed(tmp_path / "run", dict.fromkeys(range(10), 0), ())
    run = read_run(tmp_path / "run")
    assert marked(tables.waits(run)) == {}
    assert from_marks(tables.waits(run), tables.kernels(run)).recorded_pct == 100


def test_marked_is_all_but_the_pauses(tmp_path: Path) -> None:
    bucketed(tmp_path / "run", dict.fromkeys(range(10), 1) | dict.fromkeys(range(20, 30), 2), (1, 2))
    waits = tables.waits(read_run(tmp_path / "run"))
    ((_, spans),) = marked(waits).items()
    # From the start to the tenth iteration's last wait, and from the twentieth's first to the thirtieth's last.
    ends = [0, (1000 + 9 * 100 + 70) * MS, (1000 + 20 * 100 + 58) * MS, (1000 + 29 * 100 + 70) * MS]
    assert spans.ravel().tolist() == ends
    assert not len(iv.intersection(spans, np.array([[ends[1], ends[2]]])))
