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
    lacking = programs.missing(build, tmp_path)
    if lacking:
        pytest.skip(lacking)
    commands = [(f"{name}, {what}", (str(programs.compiled(build, tmp_path)), what)) for what in build.does]
    different, loader, ran = programs.compared(native, tmp_path, commands, ["alone", "below a shell"])
    assert ran == 2 * len(build.does)
    assert different == []
    assert loader == (len(build.does) if name == "32-bit" else 0)


def test_what_a_build_lacks_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    compiler = tmp_path / "gcc"
    compiler.write_text("#!/bin/sh\necho '/usr/bin/ld: cannot find Scrt1.o' >&2\nexit 1\n")
    compiler.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    by_name = {each.name: each for each in programs.BUILDS}
    lacking = programs.missing(by_name["32-bit"], tmp_path)
    assert lacking == "no libraries for gcc -m32 here: /usr/bin/ld: cannot find Scrt1.o"
    assert programs.missing(by_name["musl"], tmp_path) == "no musl-gcc here"
