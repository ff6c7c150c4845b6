# SPDX-License-Identifier: Apache-2.0
"""Shares of a job's time: one definition in every output, parts never above their whole, start-up in none of them."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import synthetic
from click.testing import CliRunner
from synthetic import MS, TraceWriter, writers

from powerccl.analysis.report import report
from powerccl.analysis.report_findings import Parts
from powerccl.analysis.shares import Sets, of_parts, whole, working
from powerccl.analysis.summary import summarise
from powerccl.analysis.whole_run import whole_run
from powerccl.commands.report import command
from powerccl.compare.member import Key
from powerccl.compare.runs import read_run_member
from powerccl.reports.headline import headline
from powerccl.traces.folder import read_run

MIB = 1 << 20
START_UP_MS, STEP_MS, BUSY_MS, STALL_MS, STEPS = 24_000, 100, 30, 7, 60


def training(folder: Path, first_ms: int = STEP_MS, untimed: bool = False) -> Path:
    """Two H100s' traits: 24 s of start-up, a first iteration of `first_ms`, 30 ms in 100 communicating, 7 exposed."""
    for trace in writers(folder, 2):
        call_id = 0
        for step in range(STEPS):
            now = (START_UP_MS + (step * STEP_MS + first_ms - STEP_MS if step else 0)) * MS
            for part in range(3):
                call_id += 1
                begin = now + part * 20 * MS
                trace.call(call_id, begin, 64 * MIB, flags=0x40)
                if not untimed or step == 0:
                    trace.kernel(call_id, begin, begin + BUSY_MS // 3 * MS, 64 * MIB, delay_ns=0)
                    if part == 2:
                        end = begin + BUSY_MS // 3 * MS
                        trace.wait(call_id, end - STALL_MS * MS, end + 20_000)  # a stream goes on behind the kernel
    end_ns = (START_UP_MS + first_ms + STEPS * STEP_MS) * MS
    synthetic.write_power(folder, 2, end_ns, lambda *_: 200.0)
    synthetic.write_info(folder, end_ns)
    return folder


@pytest.mark.parametrize(("first_ms", "until"), [(STEP_MS, "the first communication"), (9000, "the first regular")])
def test_start_up_is_named_and_in_no_share(tmp_path: Path, first_ms: int, until: str) -> None:
    folder = training(tmp_path / "run", first_ms)
    found = report(folder).findings.summary.shares
    assert found.startup_until.startswith(until)
    # A first iteration that is as the others is work; one of nine seconds compiles.
    assert found.startup_s == pytest.approx(24 if first_ms == STEP_MS else 33, abs=0.1)
    assert found.communicating_pct == pytest.approx(30, abs=0.5)
    assert found.exposed_pct == pytest.approx(7, abs=0.2)


def test_start_up_has_its_energy_and_its_parts(tmp_path: Path) -> None:
    folder = training(tmp_path / "run", 9000)
    found = report(folder).findings
    shares = found.summary.shares
    assert shares.startup_joules == pytest.approx(33 * 400, rel=0.01)
    parts = [(part.until, round(part.time_s)) for part in shares.startup_parts]
    assert parts == [("the first communicator", 0), ("the first communication", 24), ("the first regular iteration", 9)]
    assert sum(part.time_s for part in shares.startup_parts) == pytest.approx(shares.startup_s)
    assert sum(part.joules or 0.0 for part in shares.startup_parts) == pytest.approx(shares.startup_joules)
    assert summarise(read_run(folder)).shares.startup_parts == shares.startup_parts
    assert headline(found).startswith("Start-up takes 33.0 s of 39.0 s")


def test_the_first_slow_iteration_is_in_no_mean(tmp_path: Path) -> None:
    folder = training(tmp_path / "run", 9000)
    (found,) = report(folder).findings.iterations
    assert found.mean_s == pytest.approx(STEP_MS / 1e3, rel=0.01)
    assert found.joules == pytest.approx(400 * STEP_MS / 1e3, rel=0.05)
    compared = read_run_member(folder).values[Key("iteration, median", "s")]
    assert compared.value == pytest.approx(found.median_s)
    assert compared.n == found.found


def test_a_trace_cut_in_the_middle_says_what_it_does_not_cover(tmp_path: Path) -> None:
    folder = training(tmp_path / "run")
    trace = folder / "rank-1.trace"
    trace.write_bytes(trace.read_bytes()[: trace.stat().st_size // 2])
    found = report(folder).findings.summary
    assert found.shares.at_least
    assert found.shares.uncovered_pct == pytest.approx(28.9, abs=0.5)  # of one rank's 6 s, 58 %
    assert found.communication.joules is None
    shown = CliRunner().invoke(command, [str(folder)], env={"COLUMNS": "120"}).output
    assert "communicating at least 30 %, exposed at least" in shown
    assert "of the ranks' working time is not covered" in shown
    elsewhere = next(line for line in shown.splitlines() if line.startswith("elsewhere"))
    assert not any(sign.isdigit() for sign in elsewhere)


def test_every_output_has_the_same_shares(tmp_path: Path) -> None:
    folder = training(tmp_path / "run", 9000)
    at_the_end = summarise(read_run(folder)).shares
    found = report(folder).findings
    reported = found.summary.shares
    assert at_the_end.communicating_pct == pytest.approx(reported.communicating_pct)
    assert at_the_end.exposed_pct == pytest.approx(reported.exposed_pct)
    assert of_parts(found.ranks).exposed_pct == reported.exposed_pct
    files = [str(tmp_path / name) for name in ("found.json", "found.html")]
    options = [part for pair in zip(("--json", "--html"), files, strict=True) for part in pair]
    shown = CliRunner().invoke(command, [str(folder), *options], env={"COLUMNS": "120"}).output
    assert "communicating 30 %, exposed 7.0 % of the working time" in shown
    assert "start-up 33.0 s and 13.2 kJ, before the first regular iteration and in no share" in shown
    assert json.loads(Path(files[0]).read_text())["summary"]["shares"]["exposed_pct"] == reported.exposed_pct
    page = Path(files[1]).read_text()
    assert "start-up" in page
    assert "7.0 %" in page


def test_what_was_not_timed_has_no_share(tmp_path: Path) -> None:
    folder = training(tmp_path / "run", untimed=True)
    # Three calls of 180 are timed: others of their kind are estimated by them.
    assert report(folder).findings.summary.shares.at_least
    for path in folder.glob("rank-*.trace"):
        path.unlink()
    for trace in writers(folder, 2):
        for call in range(1, 101):
            trace.call(call, (START_UP_MS + call) * MS, 64 * MIB if call > 1 else 4, flags=0x40)
        trace.kernel(1, (START_UP_MS + 1) * MS, (START_UP_MS + 2) * MS, 4, delay_ns=0)
    shares = report(folder).findings.summary.shares
    assert shares.communicating_pct is None
    assert shares.reason == "198 of 200 calls were not timed"
    assert "not known, because 198 of 200 calls" in CliRunner().invoke(command, [str(folder)]).output


def test_parts_never_exceed_their_whole() -> None:
    """Of random sets, also where waits and waiting reach beyond the kernels, as recorded ones do."""
    random = np.random.default_rng(7)

    def some(count: int) -> np.ndarray:
        return np.sort(random.choice(1_000_000, 2 * count, replace=False)).reshape(-1, 2).astype(np.int64)

    def optional(count: int) -> np.ndarray | None:
        return some(count) if random.random() < 0.7 else None

    for _ in range(200):
        begin = int(random.integers(0, 500_000))
        span = (begin, begin + int(random.integers(1, 500_000)))
        parts = whole(Sets(some(20), optional(20), optional(30), optional(15), span))
        assert 0 <= (parts.exposed_waiting_s or 0) <= (parts.exposed_s or 0) + 1e-12 or parts.exposed_s is None
        for part in (parts.exposed_s, parts.overlapped_s, parts.waiting_s, parts.transfer_s):
            assert part is None or 0 <= part <= parts.communication_s
        assert parts.communication_s + parts.stalled_s + parts.rest_s == pytest.approx(parts.span_s)
        shares = of_parts([parts, Parts(span_s=1.0)])
        assert 0 <= (shares.exposed_pct or 0) <= (shares.communicating_pct or 0) <= 100


def test_a_rank_without_communication_has_no_working_time(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    folder.mkdir()
    trace = TraceWriter(0, 1)
    trace.comm(1 * MS)
    trace.write(folder)
    synthetic.write_info(folder, 1000 * MS)
    run = read_run(folder)
    built = whole_run(run)
    assert working(run, built.kernels, built.ends, built.cuts).spans == {}
    shares = report(folder).findings.summary.shares
    assert shares.communicating_pct is shares.exposed_pct is shares.startup_s is None


def test_energy_by_cause_adds_up_to_the_runs(tmp_path: Path) -> None:
    """The regression dates the samples anew; its total was another than the run's.

    Start-up has more steps than the search for dates takes: it must not look for them there.
    """
    found = report(training(tmp_path / "run")).findings
    energy = found.energy
    assert energy.joules_total == found.summary.energy.joules
    assert energy.joules_communication == found.summary.communication.joules
    assert min(part or 0.0 for part in (energy.joules_computation, energy.joules_unexplained)) >= 0
    parts = (energy.joules_communication, energy.joules_computation, energy.joules_idle, energy.joules_unexplained)
    assert sum(part or 0.0 for part in parts) == pytest.approx(energy.joules_total)


def test_columns_without_room_are_announced(tmp_path: Path) -> None:
    folder = training(tmp_path / "run")
    narrow, wide = (
        CliRunner().invoke(command, [str(folder)], env={"COLUMNS": width}).output for width in ("80", "120")
    )
    assert "not shown in this width: energy / op, timed" in narrow
    assert "not shown" not in wide


def test_bandwidth_is_the_size_over_the_time_beside_it(tmp_path: Path) -> None:
    """Sizes and times of a class vary: a median of quotients is another figure than the quotient of medians."""
    folder = tmp_path / "run"
    for trace in writers(folder, 2):
        for call, (size, length_ms) in enumerate([(33, 1), (40, 9), (60, 2), (61, 8), (62, 4)], 1):
            trace.call(call, call * 20 * MS, size * MIB)
            trace.kernel(call, call * 20 * MS, (call * 20 + length_ms) * MS, size * MIB)
    found = report(folder).findings
    (row,), (link,) = found.summary.patterns, found.link
    assert row.median_bytes == 60 * MIB
    assert row.median_us == pytest.approx(4000)
    assert row.busbw_gbs == pytest.approx(60 * MIB / 4e6) == link.busbw_gbs
