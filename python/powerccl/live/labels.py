# SPDX-License-Identifier: Apache-2.0
"""Labels of a run in metrics: the exporter's and the report's are the same."""

from __future__ import annotations

import hashlib
from pathlib import Path

LONGEST_LABEL = 256


def emulated_label(modelled_by: str) -> str:
    """The emulated platform without its settings, `yes` without a name; empty: real GPUs."""
    return modelled_by.split(":")[0]


def run_label(folder: str) -> str:
    """What a run is called in metrics: its folder's absolute path, which is no other run's, now and later.

    A name would not do: two jobs of one command have the same. A longer path than a label keeps its end and a digest.
    """
    path = str(Path(folder).absolute())
    if len(path) <= LONGEST_LABEL:
        return path
    digest = hashlib.sha256(path.encode("utf-8", "surrogateescape")).hexdigest()[:16]
    return f"{digest}…{path[-(LONGEST_LABEL - len(digest) - 1) :]}"
