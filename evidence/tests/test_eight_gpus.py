# SPDX-License-Identifier: Apache-2.0
"""What evidence/scripts/eight-gpus keeps, of steps that ended, were cut off, or did not run."""

import json
import sys
from pathlib import Path

import pytest
from evidence.analysis import eight_gpus
from support.figures import size_name

from powerccl.analysis.findings import (
    SUMMARY_FILE,
    Clocks,
    Communication,
    Energy,
    PolicyOutcome,
    RunSummary,
    write_summary,
)


def point(pattern: str, size_bytes: int, watts: float | None) -> dict[str, object]:
    found: dict[str, object] = {"type": "point", "pattern": pattern, "size_bytes": size_bytes, "iterations": 20}
    found |= {"time_us": 12.5, "time_low_us": 12.0, "time_high_us": 13.0, "busbw_gbs": 3.25}
    return found | {"watts_per_gpu": watts, "joules_per_gpu": watts and watts * 12.5e-6}


def made(out: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, object]:
    monkeypatch.setattr(sys, "argv", ["eight_gpus", str(out), "8"])
    eight_gpus.main()
    found: dict[str, object] = json.loads((out / "eight-gpus.json").read_text())
    return found


def test_sizes_are_named_as_figures_name_them() -> None:
    assert [size_name(size) for size in (4096, 1 << 20, 13946060)] == ["4KiB", "1MiB", "13.3MiB"]


def test_a_sweep_that_was_cut_off_keeps_what_it_had(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    lines = [json.dumps({"type": "header", "gpu": "NVIDIA H200"})]
    lines += [json.dumps(point("all_reduce", 4096, 150.0)), json.dumps(point("gather", 1 << 20, None))]
    (tmp_path / "patterns.jsonl").write_text("\n".join(lines) + '\n{"type": "point", "patt')
    kept = made(tmp_path, monkeypatch)
    figures = kept["figures"]
    assert isinstance(figures, dict)
    assert figures["bench.all_reduce.4KiB.time_us"] == {
        "value": 12.5,
        "unit": "us",
        "low": 12.0,
        "high": 13.0,
        "n": 20,
    }
    assert figures["bench.all_reduce.4KiB.watts_per_gpu"]["value"] == 150.0
    assert "bench.gather.1MiB.watts_per_gpu" not in figures  # not measured is not zero
    assert kept["machine"] == "8 x NVIDIA H200"
    assert kept["command"] == "evidence/scripts/eight-gpus 8 OUT; steps with results: patterns"
    monkeypatch.setenv("EMULATE", "t4x8")  # what the script was told
    assert made(tmp_path, monkeypatch)["machine"] == "8 x NVIDIA H200, emulated t4x8"


def write_outcome(folder: Path, outcome: PolicyOutcome | None) -> None:
    folder.mkdir(parents=True)
    found = RunSummary(energy=Energy(), communication=Communication(), clocks=Clocks(), policy_outcome=outcome)
    write_summary(found, folder / SUMMARY_FILE)


def test_policies_of_the_runs_that_had_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_outcome(tmp_path / "runs/a", PolicyOutcome(policy="auto", iteration_s=0.25, iterations=40))
    write_outcome(tmp_path / "runs/b", None)
    kept = made(tmp_path, monkeypatch)
    assert kept["figures"] == {
        "policy.auto.iterations": {"value": 40, "unit": "", "low": None, "high": None, "n": 1},
        "policy.auto.iteration_ms": {"value": 250.0, "unit": "ms", "low": None, "high": None, "n": 40},
    }


def test_nothing_ran(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert made(tmp_path, monkeypatch)["figures"] == {}


def test_the_page_of_collectives_is_of_the_results() -> None:
    from evidence.analysis import collectives_page

    kept = collectives_page.read_all()
    assert [each["machine"].split()[0] for each in kept] == ["4", "8"]
    hint = "renew it: python3 -m evidence.analysis.collectives_page"
    assert collectives_page.PAGE.read_text() == collectives_page.page(kept), hint


def test_what_was_not_measured_is_no_zero_on_the_page() -> None:
    from evidence.analysis import collectives_page

    assert collectives_page.cell({"a.watts_per_gpu": {"value": None}}, "a.watts_per_gpu") == "–"
    assert collectives_page.cell({}, "a.joules_per_gpu") == "–"
    assert collectives_page.cell({"a.joules_per_gpu": {"value": 0.0805}}, "a.joules_per_gpu", 1e3) == "80.5"


def test_a_policy_that_found_no_iteration_has_no_length_of_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_outcome(tmp_path / "runs/a", PolicyOutcome(policy="auto"))
    figures = made(tmp_path, monkeypatch)["figures"]
    assert figures == {"policy.auto.iterations": {"value": 0, "unit": "", "low": None, "high": None, "n": 1}}
