# SPDX-License-Identifier: Apache-2.0
"""One long iteration does not flatten the others, and what is clipped has its value beside it."""

from __future__ import annotations

import pytest

from powerccl.analysis.report_findings import IterationParts
from powerccl.reports.iterations_chart import Axis, clipped_text, energies, times


def rows(*lengths_ms: float) -> list[IterationParts]:
    return [
        IterationParts(first=at, count=1, start_s=at, span_s=ms / 1e3, rest_s=ms / 1e3, joules=ms * 2)
        for at, ms in enumerate(lengths_ms)
    ]


def test_a_long_first_iteration_is_clipped_and_marked() -> None:
    found = rows(697, *[100.0] * 58)
    layout = times(found)["layout"]
    assert layout["yaxis"]["range"] == pytest.approx([0, 120])  # ms
    (mark,) = layout["annotations"]
    assert (mark["text"], mark["x"], mark["xanchor"]) == ("↑ 697 ms", 0, "left")
    assert clipped_text(found) == "1 iteration reaches beyond the axis: the bar is clipped and marked with its time"
    energy = energies(found)
    assert energy is not None
    assert [each["text"] for each in energy["layout"]["annotations"]] == ["↑ 1.39 kJ"]


def test_a_mark_on_the_right_grows_to_the_left() -> None:
    (mark,) = times(rows(*[100.0] * 58, 697))["layout"]["annotations"]
    assert mark["xanchor"] == "right"


@pytest.mark.parametrize("lengths", [[100.0] * 9, [100.0, 290.0, *[100.0] * 9], [100.0, 900.0] * 9, [900.0, 100.0], []])
def test_ordinary_variation_is_shown_whole(lengths: list[float]) -> None:
    assert Axis(lengths).top is None
    assert Axis(lengths).clipped == []
    if lengths:
        layout = times(rows(*lengths))["layout"]
        assert "range" not in layout["yaxis"] and layout["annotations"] == []
        assert clipped_text(rows(*lengths)) == ""


def test_energy_that_is_not_known_has_no_chart() -> None:
    found = rows(100, 100)
    for row in found:
        row.joules = None
    assert energies(found) is None
