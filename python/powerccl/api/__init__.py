# SPDX-License-Identifier: Apache-2.0
"""A recorded run for Python: what `powerccl.open_run` returns. Only the members of `Run` are stable.

docs/reference/python.md lists them, and every column. Their figures are those of `powerccl report --json`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from powerccl.errors import PowercclError

if TYPE_CHECKING:
    from powerccl.api.run import Run


def open_path(name: str) -> Run:
    """`powerccl.open_run` of a folder, of the name of a run, or of the last run.

    Raises:
        PowercclError: there is no such run, or what reads it is not installed.
    """
    from powerccl.commandline.extras import not_installed

    try:
        from powerccl.api.run import find

        return find(name)
    except ModuleNotFoundError as error:
        raise PowercclError(*not_installed(error)) from error
