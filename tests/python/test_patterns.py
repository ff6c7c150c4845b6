# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import math
import re
from pathlib import Path

import pytest

from powerccl import patterns
from powerccl.patterns import GIB, KIB, MIB


def test_names_follow_the_wire_format() -> None:
    header = (Path(__file__).parents[2] / "native/abi/trace.h").read_text()
    enum = header.partition("enum powerccl_pattern {")[2].partition("POWERCCL_PATTERNS")[0]
    named = [(int(number), name.lower()) for name, number in re.findall(r"POWERCCL_(\w+) = (\d+),", enum)]
    assert named == list(enumerate(patterns.PATTERNS))
    assert patterns.pattern_name(255) == "unknown"
    assert set(patterns.PUBLISHED_OVERHEAD_BYTES) == set(patterns.PATTERNS)


@pytest.mark.parametrize(
    ("pattern", "factor"),
    [("all_reduce", 1.75), ("all_gather", 0.875), ("all_to_all", 0.875), ("broadcast", 1), ("send_receive", 1)],
)
def test_bus_factor_is_nccl_tests(pattern: str, factor: float) -> None:
    assert patterns.bus_factor(pattern, 8) == factor
    assert patterns.bus_factor(pattern, 1) == (factor if factor == 1 else 0)
    assert math.isnan(patterns.bus_factor(pattern, 0))


@pytest.mark.parametrize(
    ("text", "size"), [("64M", 64 * MIB), ("512 KiB", 512 * KIB), ("1048576", MIB), ("62.5m", 65_536_000), ("1g", GIB)]
)
def test_sizes_as_read(text: str, size: int) -> None:
    assert patterns.parse_bytes(text) == size


@pytest.mark.parametrize("text", ["", "x", "-1", "1T1", "nan", "1e300G"])
def test_what_is_no_size(text: str) -> None:
    with pytest.raises(ValueError, match=r"."):
        patterns.parse_bytes(text)
