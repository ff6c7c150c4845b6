# SPDX-License-Identifier: Apache-2.0
"""Stands first in PYTHONPATH of jobs under `powerccl run --ways`: hooks PyTorch's import, then runs the user's own.

Python imports the first `sitecustomize` that it finds when it starts. This one changes nothing but what happens when
`torch` is imported, and it never fails.
"""

import importlib.machinery
import importlib.util
import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent


def _hook() -> None:
    try:
        import powerccl_windows

        powerccl_windows.install()
    except Exception as error:
        sys.stderr.write(f"powerccl: PyTorch stays as it is: {error!r}\n")


def _users_own() -> None:
    """The sitecustomize that Python would have found without this folder, as module `sitecustomize`."""
    elsewhere = [entry for entry in sys.path if not entry or Path(entry).resolve() != HERE]
    spec = importlib.machinery.PathFinder.find_spec("sitecustomize", elsewhere)
    if spec is None or spec.loader is None:
        return
    module = importlib.util.module_from_spec(spec)
    sys.modules["sitecustomize"] = module
    spec.loader.exec_module(module)


_hook()
_users_own()
