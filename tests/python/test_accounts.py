# SPDX-License-Identifier: Apache-2.0
"""A sample of the accountant's test: `make figures-accounts` has all of its hundreds of runs."""

from __future__ import annotations

import copy
from pathlib import Path

import pytest
from accountant import keep_books
from accounts.books import audit_damaged, kinds_of_damage, outputs_of
from audit import Audit
from read_outputs import Outputs, shown
from synthetic import exposed_run, mpi_run
from synthetic_at_random import synthetic_run

# One to eight ranks, one and two hosts, GPUs by UUID and by bus id, counters that update at each or every fifth read.
SEEDS = (3, 17, 21, 39)
OUTPUTS = {"books", "parts", "twice", "text", "html", "csv", "export", "perfetto"}


@pytest.mark.parametrize("seed", SEEDS)
def test_outputs_agree_with_the_books(tmp_path: Path, seed: int) -> None:
    run = synthetic_run(tmp_path / "run", seed)
    outputs = outputs_of(run, tmp_path / "pages")
    assert isinstance(outputs, Outputs), outputs
    done = Audit(keep_books(run), outputs)
    assert done.faults == []
    assert set(done.checked) >= OUTPUTS - {"twice"}


def test_outputs_of_mpi_agree_with_the_books(tmp_path: Path) -> None:
    run = mpi_run(tmp_path / "run", ranks=3)
    outputs = outputs_of(run, tmp_path / "pages")
    assert isinstance(outputs, Outputs), outputs
    assert Audit(keep_books(run), outputs).faults == []


@pytest.mark.parametrize("name", ["GPU found late", "counter goes back", "trace cut in the middle"])
def test_no_figure_of_a_damaged_run_is_above_the_truth(tmp_path: Path, name: str) -> None:
    run = exposed_run(tmp_path / "exposed", iterations=6, ranks=3)
    seed = next(at for at, kind in enumerate(kinds_of_damage(run)) if kind.name == name)
    assert audit_damaged((run, seed, tmp_path / "damaged")).faults == []


def _more_joules(outputs: Outputs) -> None:
    outputs.report["summary"]["energy"]["joules"] *= 1.01


def _lost_kernel(outputs: Outputs) -> None:
    next(track for track in outputs.tracks if track.name.startswith("NCCL kernels")).slices.pop()


def _another_cell(outputs: Outputs) -> None:
    outputs.tables["ranks"][0]["communication_s"] = "0.5"


def _another_metric(outputs: Outputs) -> None:
    name = "powerccl_collectives_total"
    outputs.export[name] = [(labels, value + 1) for labels, value in outputs.export[name]]


def _another_page(outputs: Outputs) -> None:
    outputs.html.texts[outputs.html.texts.index("time") + 1] = "9 s"


def test_the_audit_finds_what_was_changed(tmp_path: Path) -> None:
    run = exposed_run(tmp_path / "run", iterations=6)
    outputs = outputs_of(run, tmp_path / "pages")
    assert isinstance(outputs, Outputs), outputs
    books = keep_books(run)
    before = Audit(books, outputs).faults
    for change in (_more_joules, _lost_kernel, _another_cell, _another_metric, _another_page):
        changed = copy.deepcopy(outputs)
        change(changed)
        assert len(Audit(books, changed).faults) > len(before), change.__name__


@pytest.mark.parametrize(
    ("text", "value", "slack"),
    [
        ("33.2 s", 33.2, 0.05),
        ("2.5 ±0.5 kJ", 2500, 250),
        ("at least 5.85 kJ", 5850, 5),
        ("2 min 05 s", 125, 0.5),
        ("15,872", 15872, 0.5),
        ("96.05 MiB", 96.05 * 2**20, 0.005 * 2**20),
        ("8.3 %", 8.3, 0.05),
        ("41.7 mJ", 0.0417, 0.00005),
    ],
)
def test_printed_figures_are_read(text: str, value: float, slack: float) -> None:
    figure = shown(text)
    assert figure is not None
    assert figure.value == pytest.approx(value)
    assert figure.slack == pytest.approx(slack, rel=0.02)
    assert figure.at_least == text.startswith("at least")


def test_what_is_not_known_is_no_figure() -> None:
    assert shown("–") is None
    assert shown("not known") is None
