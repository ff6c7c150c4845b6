# SPDX-License-Identifier: Apache-2.0
"""First in PYTHONPATH of jobs under `powerccl run --ways`: hooks PyTorch's import, then runs the user's own.

Python imports the first `sitecustomize` that it finds whenever it starts, in every process of the job. So this one
imports next to nothing, changes nothing but what happens when `torch` is imported, and never fails.
"""

import importlib.machinery
import os
import sys

HERE = os.path.dirname(os.path.abspath(__file__))


class _UntilTorch:
    """Fetches the rest when the job first imports PyTorch."""

    @staticmethod
    def find_spec(name, path=None, target=None):  # type: ignore[no-untyped-def]
        """As Python's finders."""
        if name != "torch":
            return None
        sys.meta_path.remove(_UntilTorch)
        try:
            import powerccl_windows

            return powerccl_windows.install().find_spec(name, path, target)
        except Exception as error:
            sys.stderr.write(f"powerccl: PyTorch stays as it is: {error!r}\n")
            return None


def _users_own() -> None:
    """The sitecustomize that Python would have found without this folder, as module `sitecustomize`."""
    elsewhere = [entry for entry in sys.path if os.path.abspath(entry) != HERE]
    spec = importlib.machinery.PathFinder.find_spec("sitecustomize", elsewhere)
    if spec is None or spec.loader is None:
        return
    module = type(sys)("sitecustomize")
    module.__spec__, module.__file__, module.__loader__ = spec, spec.origin, spec.loader
    sys.modules["sitecustomize"] = module
    spec.loader.exec_module(module)


if os.environ.get("POWERCCL_WINDOWS_FROM"):
    sys.meta_path.insert(0, _UntilTorch)
_users_own()
