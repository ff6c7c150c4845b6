# SPDX-License-Identifier: Apache-2.0
"""Programs that a preloaded library could keep from starting end as they do alone."""

from __future__ import annotations

from pathlib import Path

import pytest
from harm import programs

from powerccl.launch.native import NativeFiles

# Each says another word on why the loader or a runtime would refuse.
CHOSEN = ("32-bit", "musl", "gcc ASan", "gcc TSan", "gcc LSan", "gcc TSan, static")


@pytest.mark.parametrize("name", CHOSEN)
def test_programs_end_as_alone(name: str, native: NativeFiles, tmp_path: Path) -> None:
    (build,) = (each for each in programs.BUILDS if each.name == name)
    if not programs.found(build):
        pytest.skip(f"no {build.compiler[0]} here")
    commands = [(f"{name}, {what}", (str(programs.compiled(build, tmp_path)), what)) for what in build.does]
    different, loader, ran = programs.compared(native, tmp_path, commands, ["alone", "below a shell"])
    assert ran == 2 * len(build.does)
    assert different == []
    assert loader == (len(build.does) if name == "32-bit" else 0)
