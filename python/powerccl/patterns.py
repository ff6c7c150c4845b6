# SPDX-License-Identifier: Apache-2.0
"""Communication patterns: names, order, and what NCCL tests call bus bandwidth."""

from __future__ import annotations

import math

# The order is that of powerccl_pattern in native/abi/trace.h.
PATTERNS = (
    "all_reduce",
    "broadcast",
    "reduce",
    "all_gather",
    "reduce_scatter",
    "send_receive",
    "scatter",
    "gather",
    "all_to_all",
)
UNKNOWN = "unknown"
KIB, MIB, GIB = 1 << 10, 1 << 20, 1 << 30

# Overhead points printed in the PCCL publication (facts: table A), in bytes.
PUBLISHED_OVERHEAD_BYTES = {
    "all_reduce": MIB,
    "broadcast": 512 * KIB,
    "reduce": 512 * KIB,
    "all_gather": 32 * MIB,
    "reduce_scatter": 2 * MIB,
    "scatter": 64 * MIB,
    "gather": 64 * MIB,
    "all_to_all": MIB,
    "send_receive": 512 * KIB,
}


def pattern_name(number: int) -> str:
    """Name of a powerccl_pattern number; `unknown` for numbers this version does not know."""
    return PATTERNS[number] if 0 <= number < len(PATTERNS) else UNKNOWN


def bus_factor(pattern: str, ranks: int) -> float:
    """Bus bandwidth over algorithm bandwidth (bytes / time), as NCCL's tests define it in NCCL's PERFORMANCE.md.

    0 where one rank sends nothing; NaN where the number of ranks is not known.
    """
    if ranks < 1:
        return math.nan
    if pattern == "all_reduce":
        return 2.0 * (ranks - 1) / ranks
    if pattern in ("all_gather", "reduce_scatter", "all_to_all", "scatter", "gather"):
        return (ranks - 1) / ranks
    return 1.0


def size_class(size_bytes: int) -> int:
    """Lower bound, in bytes, of the power-of-two class a size falls in; 0 for 0."""
    return 1 << (size_bytes.bit_length() - 1) if size_bytes > 0 else 0


def parse_bytes(text: str) -> int:
    """Bytes of `64M`, `512 KiB`, `1048576`. Units are binary, as NCCL tests read them.

    Raises:
        ValueError: the text is not a size.
    """
    cleaned = text.strip().lower().replace(" ", "").removesuffix("b").removesuffix("i")
    factors = {"k": KIB, "m": MIB, "g": GIB}
    factor = factors.get(cleaned[-1:], 1)
    number = float(cleaned[:-1] if factor > 1 else cleaned)
    if not 0 <= number * factor < 2**63:
        raise ValueError(f"'{text}' is not a size")
    return int(number * factor)
