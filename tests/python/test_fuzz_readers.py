# SPDX-License-Identifier: Apache-2.0
"""Readers of files that somebody else wrote, with inputs that Hypothesis chooses: the same ones in each run.

`make fuzz-python` feeds the same readers with a million damaged files each: see tests/harm/readers.py.
"""

from __future__ import annotations

import random
import warnings
from collections.abc import Iterator
from pathlib import Path

import pytest
from harm import readers
from harm.readers import BrokenPromiseError, Reader, damaged, damaged_json, feed
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

EXAMPLES = {readers.WHOLE: 25, "platform_profile": 100}  # the others: 200 each


@pytest.fixture(scope="module")
def known(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Reader]]:
    folder = tmp_path_factory.mktemp("readers")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield {**readers.readers(folder), readers.WHOLE: readers.whole_run(folder)}


@pytest.mark.parametrize("name", readers.NAMES)
def test_a_reader_takes_anything(name: str, known: dict[str, Reader], tmp_path: Path) -> None:
    reader = known[name]
    path = tmp_path / reader.file

    @settings(
        max_examples=EXAMPLES.get(name, 200),
        derandomize=True,
        deadline=None,
        database=None,
        suppress_health_check=list(HealthCheck),
    )
    @given(st.one_of(st.binary(max_size=512), st.randoms(use_true_random=False)))
    def fed(chosen: bytes | random.Random) -> None:
        if isinstance(chosen, bytes):
            data = chosen
        else:
            as_json = reader.file.endswith(".json") and chosen.random() < 0.6
            data = (damaged_json if as_json else damaged)(reader.seeds, chosen)
        feed(reader, path, data)

    fed()


@pytest.mark.parametrize("name", [name for name in readers.NAMES if name != readers.WHOLE])
def test_seeds_are_valid(name: str, known: dict[str, Reader], tmp_path: Path) -> None:
    """Inputs that are refused at once reach nothing."""
    for seed in known[name].seeds:
        assert feed(known[name], tmp_path / known[name].file, seed)


def test_memory_is_bounded() -> None:
    taken, peak_mib, faults = readers.fuzz("power_csv", 0, 50)
    assert taken == 50
    assert faults == []
    assert 0 < peak_mib <= 256


def test_a_broken_promise_is_found(tmp_path: Path) -> None:
    def fails(path: Path) -> None:
        raise KeyError(path.read_bytes())

    def silent(_: Path) -> None:
        raise ValueError("something")

    for read in (fails, silent):
        with pytest.raises(BrokenPromiseError):
            feed(Reader("x", "x.json", (b"",), read), tmp_path / "x.json", b"1")
