# SPDX-License-Identifier: Apache-2.0
"""Is nothing partial shown as whole, and nothing impossible shown at all? One module a topic.

Figures are called `trust.<topic>.<figure>`. `make figures-trust` runs all topics. Each fault is printed to stderr
with what shows it. What a test of its own proves is no topic here.
"""

from __future__ import annotations

import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


def fault(text: str) -> None:
    """Tell of one fault, for whoever mends it."""
    print(f"fault: {text}", file=sys.stderr, flush=True)
