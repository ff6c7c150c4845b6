# SPDX-License-Identifier: Apache-2.0
"""Programs that tests run."""

from __future__ import annotations

import os


def program(name: str) -> str:
    """The program of that name: what a variable such as HELM or KUBE_APISERVER says, else what PATH has."""
    return os.environ.get(name.upper().replace("-", "_"), name)
