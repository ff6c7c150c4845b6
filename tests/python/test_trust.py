# SPDX-License-Identifier: Apache-2.0
"""The checkers of `make figures-trust` find faults that are planted, and none on sound pages."""

from __future__ import annotations

import copy
import json
import random
from pathlib import Path
from typing import Any

import pytest
from support.big_run import write_run
from trust import checks, partial
from trust.damage import KINDS, samples, traces, without_counter
from trust.figures import link_gbs
from trust.spoken import speak

SUMMARY: dict[str, Any] = {
    "wall_s": 10.0,
    "energy": {"joules": 1000.0, "covered_s": 10.0},
    "communication": {"calls": 10, "timed_calls": 9, "untimed_calls": 1, "time_s": 4.0, "joules": 300.0},
    "gpus": [
        {"gpu": f"GPU-{at}", "ranks": [at], "joules": 500.0, "communication_joules": 150.0, "communication_s": 4.0}
        for at in range(2)
    ],
    "patterns": [
        {
            "pattern": "all_reduce",
            "size_class_bytes": 1 << 20,
            "calls": 10,
            "timed": 9,
            "time_s": 4.0,
            "busbw_gbs": 3.0,
            "median_us": 4e5,
        }
    ],
    "policy_outcome": None,
    "mpi": None,
}
PARTS = {
    "span_s": 9.0,
    "communication_s": 4.0,
    "waiting_s": 1.0,
    "transfer_s": 3.0,
    "exposed_s": 2.0,
    "overlapped_s": 2.0,
    "exposed_waiting_s": 0.5,
    "stalled_s": 0.0,
    "rest_s": 5.0,
    "computation_s": None,
    "idle_s": None,
}
REPORT: dict[str, Any] = {
    "summary": SUMMARY,
    "ranks": [{**PARTS, "rank": at, "gpu": f"GPU-{at}", "per_iteration": None} for at in range(2)],
    "iterations": [{"found": 2, "operations": 5, "mean_s": 4.5, "rows": [{**PARTS, "span_s": 4.5,
                    "communication_s": 2.0,
                    "waiting_s": 0.5, "transfer_s": 1.5, "exposed_s": 1.0, "overlapped_s": 1.0, "rest_s": 2.5,
                    "first": 0, "count": 2, "joules": 450.0}]}],
    "energy": {"joules_total": 1000.0, "joules_communication": 300.0, "joules_computation": 500.0, "joules_idle": 150.0,
               "kinds": [{"joules": 290.0}]},
}  # fmt: skip


def planted(document: dict[str, Any], path: str, value: Any) -> dict[str, Any]:
    """A copy with one value changed; `path` as `energy.joules` or `gpus.0.joules`."""
    changed = copy.deepcopy(document)
    *way, last = path.split(".")
    place: Any = changed
    for key in way:
        place = place[int(key)] if key.isdigit() else place[key]
    place[last] = value
    return changed


def test_a_sound_report_has_no_fault() -> None:
    assert checks.report_parts(REPORT) == []
    assert checks.report_times(REPORT) == []
    assert checks.number_faults(REPORT, 3.1) == []


@pytest.mark.parametrize(
    ("path", "value"),
    [
        ("summary.communication.joules", 1001.0),
        ("summary.communication.time_s", 10.1),
        ("summary.gpus.0.joules", 501.0),
        ("summary.gpus.0.communication_joules", 151.0),
        ("summary.gpus.1.communication_s", 11.0),
        ("summary.gpus.1.average_watts", 4e6),
        ("summary.patterns.0.timed", 11),
        ("summary.patterns.0.calls", 11),
        ("ranks.0.exposed_s", 4.5),
        ("ranks.0.communication_s", 4.5),
        ("ranks.1.transfer_s", 3.1),
        ("ranks.1.exposed_waiting_s", 1.5),
        ("ranks.1.span_s", 10.5),
        ("iterations.0.rows.0.joules", 501.0),
        ("iterations.0.rows.0.count", 3),
        ("energy.joules_total", 1010.0),
        ("energy.kinds.0.joules", 310.0),
    ],
)
def test_a_part_above_its_whole_is_found(path: str, value: float) -> None:
    assert checks.report_parts(planted(REPORT, path, value))


def test_iterations_shorter_than_their_communication_are_found() -> None:
    assert checks.report_times(planted(REPORT, "iterations.0.mean_s", 0.4))
    assert checks.report_times(planted(REPORT, "iterations.0.rows.0.span_s", 0.0))


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("joules", -1.0),
        ("average_watts", -0.1),
        ("time_s", -1e-3),
        ("share_pct", 100.5),
        ("exposed_share", 1.1),
        ("transfer_gbs", 0.0),
        ("transfer_gbs", 3.3),
        ("joules", float("nan")),
        ("wall_s", float("inf")),
    ],
)
def test_an_impossible_number_is_found(key: str, value: float) -> None:
    assert checks.number_faults({"rows": [{key: value}]}, 3.1)


def test_changes_may_be_below_zero() -> None:
    document = {"saved_pct": {"value": -3.0, "low": -5.0, "high": 1.0}, "slowdown_pct": -0.4, "saved_watts": -2.0}
    assert checks.number_faults(document) == []
    assert checks.number_faults({"saved_pct": {"value": 101.0}})
    assert checks.number_faults({"joules": {"low": 2.0, "high": 1.0}})


@pytest.mark.parametrize(
    "line",
    [
        "energy × 5.25e+03",
        "iteration 8 mJ ±2.4e-11 %",
        "power -373.7 W",
        "time −2 s",
        "bus 0.00 GB/s",
        "exposed communication 740 %",
        "clock nan MHz",
        "energy inf J",
    ],
)
def test_an_impossible_figure_in_text_is_found(line: str) -> None:
    assert checks.text_faults(f"title\n{line}\n")


def test_names_and_ranges_in_text_are_no_figures() -> None:
    text = "GPU-a82359f3-1e10-f63a  /tmp/run-1e5/x-3 s\n3-5 ms  0.10 GB/s  100 %  ±150 %  +120 %  info 0x1e3\n"
    assert checks.text_faults(text) == []
    assert checks.text_faults("power -14.6 W", differences=True) == []


def test_a_page_is_read_as_it_is_seen() -> None:
    page = "<style>a{left:-3 s}</style><svg><path d='M-1.5e+3 2'/></svg><td class='x'>&lt; 5 &amp; -3 W</td>"
    assert [each.split(":")[0] for each in checks.text_faults(checks.html_text(page))] == ["negative amount"]


def test_json_is_strict() -> None:
    assert checks.strict_json('{"a": [1, null]}') == {"a": [1, None]}
    for text in ('{"a": NaN}', '{"a": -Infinity}', '{"a": 1, "a": 2}', "{"):
        with pytest.raises(ValueError):
            checks.strict_json(text)


def test_a_prediction_beyond_what_is_possible_is_found() -> None:
    percent = {"value": 3.0, "low": 1.0, "high": 4.0}
    page: dict[str, Any] = {
        "simulated_watts": 50.0,
        "exposed_pct": 5.0,
        "policies": [{"policy": "auto", "saved_pct": percent, "slowdown_pct": percent, "saved_watts": 2.0}],
    }
    assert checks.whatif_faults(page) == []
    assert checks.whatif_faults(planted(page, "exposed_pct", 107.4))
    assert checks.whatif_faults(planted(page, "policies.0.saved_watts", 373.7))
    assert checks.whatif_faults(planted(page, "policies.0.saved_pct", percent | {"low": 3.5}))
    assert checks.whatif_faults(planted(page, "policies.0.saved_pct", {"value": 104.0, "low": 1.0, "high": 105.0}))
    slower = {"value": 50100.7, "low": 0.0, "high": 50100.7}
    assert checks.whatif_faults(planted(page, "policies.0.slowdown_pct", slower))


def test_metrics_and_tables_are_judged() -> None:
    assert checks.metric_faults('a_ratio{run="x y"} 0.5\nb_joules 3\n') == []
    assert checks.metric_faults("a_ratio 1.2\n")
    assert checks.metric_faults("b_joules -1\n")
    assert checks.metric_faults("b_joules NaN\n")
    assert checks.table_faults("rank,time_s\n0,1.5\n") == []
    assert checks.table_faults("rank,time_s\n0,-1.5\n")


def page(joules: float | None, *sentences: str) -> partial.Surface:
    return partial.Surface({"joules": joules}, set(sentences))


def test_a_partial_total_needs_a_word() -> None:
    true = page(100.0, "energy 100 J", "1 call skipped")
    assert partial.judge("x", true, page(50.0, "energy 50 J", "1 call skipped"), "report")[0]
    assert partial.judge("x", true, page(50.0, "energy at least 50 J"), "report") == ([], [])
    assert partial.judge("x", true, page(None, "energy –"), "report") == ([], [])
    assert partial.judge("x", true, page(99.5), "report") == ([], [])
    assert partial.judge("x", true, page(120.0, "at least 120 J"), "report")[1]


def test_a_link_has_a_bound() -> None:
    assert link_gbs("t4x8:link_scale=4") == pytest.approx(12.8)
    assert link_gbs("t4x8") == pytest.approx(3.2)
    assert link_gbs("synthetic") is None


@pytest.mark.parametrize("kind", [kind for kind in KINDS if not kind.mpi], ids=lambda kind: kind.name)
def test_each_damage_changes_a_run(kind: Any, tmp_path: Path) -> None:
    run = write_run(tmp_path / "run", 2000, 2)
    for file in (samples(run), run / "run.json"):
        text = file.read_text()
        file.write_text(text if file.suffix == ".csv" else json.dumps({**json.loads(text), "schema": 1}))
    if kind.bare:
        without_counter(run)
    before = {file.name: file.read_bytes() for file in run.iterdir()}
    assert len(traces(run)) == 2
    kind.apply(run, random.Random(1))
    assert {file.name: file.read_bytes() for file in run.iterdir()} != before


def test_verbs_are_spoken_here() -> None:
    assert "Usage" in speak(["report", "--help"]).out
    said = speak(["report", "nothing-here"])
    assert said.code == 1 and "error:" in said.err and not said.died
