# SPDX-License-Identifier: Apache-2.0
"""Programs of tools/ and evidence/scripts as modules, for tests of their functions."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from types import ModuleType

TOOLS = Path(__file__).resolve().parents[2] / "tools"


def load_tool(name: str, folder: Path = TOOLS) -> ModuleType:
    """The program `name`.py of a folder, not run."""
    module_name = name.replace("-", "_")
    spec = importlib.util.spec_from_file_location(module_name, folder / f"{name}.py")
    assert spec and spec.loader
    module = importlib.util.module_from_spec(spec)
    sys.modules[module_name] = module  # dataclasses look their module up
    spec.loader.exec_module(module)
    return module
