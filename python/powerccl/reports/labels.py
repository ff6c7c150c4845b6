# SPDX-License-Identifier: Apache-2.0
"""What a run is called in metrics."""

from __future__ import annotations

import hashlib
from pathlib import Path

LONGEST_LABEL = 256


def run_label(folder: str) -> str:
    """What a run is called in metrics: its folder's absolute path, which is no other run's, now and later.

    A name would not do: two jobs of one command have the same. A longer path than a label keeps its end and a digest.
    """
    path = str(Path(folder).absolute())
    if len(path) <= LONGEST_LABEL:
        return path
    digest = hashlib.sha256(path.encode("utf-8", "surrogateescape")).hexdigest()[:16]
    return f"{digest}…{path[-(LONGEST_LABEL - len(digest) - 1) :]}"
