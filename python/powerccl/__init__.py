# SPDX-License-Identifier: Apache-2.0
"""PowerCCL: jobs that communicate through NCCL or MPI use less energy at the same speed."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import os

    from powerccl.api.run import Run

__version__ = "0.1.0"
__all__ = ["open_run"]


def open_run(path: str | os.PathLike[str] = "latest") -> Run:
    """Open a recorded run: its tables as polars DataFrames, and its summary.

    `path` is what `powerccl report` takes: a run folder, the name of one in `runs/`, or `latest`.

    Raises:
        PowercclError: there is no such run, or the packages of `powerccl[report]` are not installed.
    """
    import os

    from powerccl.api import open_path

    return open_path(os.fspath(path))
