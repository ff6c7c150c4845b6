# SPDX-License-Identifier: Apache-2.0
"""Verbs that measure: in a locale that cannot show every name, and on a disk that is full."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from harness import Powerccl

NAME = "größe-Δ-日本-\U0001f680"  # stands in titles, tables and hints
SWEEP = ("all_reduce", "-b", "1M", "-e", "1M", "-n", "1", "-w", "0", "-c", "0", "-g", "2", "--min-time", "0")
BENCH = ("bench", "--emulate", "t4x8", *SWEEP)
PROFILE = ("profile", "--emulate", "t4x8", "--patterns", "all_reduce", "--sizes", "1M", "--clocks", "1005")
TUNE = ("tune", "all_reduce", "--sizes", "1M", "--emulate", "t4x8", "--gpus", "2", "--time", "6s", "--trials", "2")
WORDS = {
    "bench": BENCH,
    "profile": (*PROFILE, "--out", f"{NAME}.json"),  # also what powerccld calls it
    "tune": (*TUNE, "--no-rules", "--out", NAME),
    "run": ("run", "--emulate", "t4x8", "--name", NAME, "--", "powerccl-bench", *SWEEP),
}


@pytest.mark.parametrize("verb", WORDS)
def test_a_locale_without_these_letters(verb: str, powerccl: Powerccl) -> None:
    done = powerccl(*WORDS[verb], LC_ALL="C", PYTHONUTF8="0", PYTHONCOERCECLOCALE="0", COLUMNS="40")
    assert done.code == 0, done.err
    assert "Traceback" not in done.err and "unexpected" not in done.err


@pytest.mark.parametrize(("verb", "option"), [("bench", "--json"), ("profile", "--out")])
def test_a_full_disk_leaves_no_part_of_a_file(verb: str, option: str, powerccl: Powerccl, tmp_path: Path) -> None:
    """The limit's signal is ignored, so that writing fails as on a full disk."""
    (place := tmp_path / "place").mkdir()
    target = place / "result.json"
    words = [*(BENCH if verb == "bench" else PROFILE), option, str(target)]
    limited = ["env", "--ignore-signal=XFSZ", "prlimit", "--fsize=64", str(Path(sys.executable).parent / "powerccl")]
    done = subprocess.run(
        [*limited, *words],
        env=powerccl.environment,
        cwd=powerccl.folder,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode not in (0, 2) and "Traceback" not in done.stderr, done.stderr
    kept = target.with_suffix(".profiling")  # what was measured, for --resume
    assert [each for each in place.iterdir() if each != kept] == []
