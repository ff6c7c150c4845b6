# SPDX-License-Identifier: Apache-2.0
"""What tests, cases and evidence share. Importing it makes helpers of tests/e2e and tests/python importable, too."""

from __future__ import annotations

import sys
from pathlib import Path

TESTS = Path(__file__).resolve().parents[1]
sys.path += [str(TESTS / "e2e"), str(TESTS / "python")]
