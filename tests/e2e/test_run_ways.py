# SPDX-License-Identifier: Apache-2.0
"""`powerccl profile --ways` and `run --ways` on the emulated server that tells ways apart."""

from __future__ import annotations

import json
import os
import signal
from pathlib import Path

from harness import Powerccl, eventually

NEWER = {"POWERCCL_EMULATOR_NCCL_VERSION": "2.30.7"}
PROFILE = (
    *("profile", "--ways", "--emulate", "h200x4", "--patterns", "all_gather", "--sizes", "256M", "--out"),
    "made.json",
)
SHOW = ("sh", "-c", "echo ${POWERCCL_WINDOWS_FROM:-none}; case $PYTHONPATH in */hooks*) echo hooked;; esac")


def test_ways_are_measured_and_used(powerccl: Powerccl, tmp_path: Path) -> None:
    # Interrupted, it goes on; without --resume it would not.
    running = powerccl.start(*PROFILE, **NEWER)
    first = tmp_path / "made.measuring" / "round-1.jsonl"
    assert eventually(lambda: first.exists() and first.read_text().count('"type": "point"') > 1), (
        running.err.read_text()
    )
    os.kill(running.process.pid, signal.SIGINT)
    stopped = running.wait()
    assert stopped.code == 130, stopped.err
    assert "with --resume goes on from here" in stopped.err
    kept = first.read_text()
    assert not (tmp_path / "made.json").exists()
    done = powerccl(*PROFILE, "--resume", **NEWER)
    assert done.code == 0, done.err
    assert "would use copy engines for FSDP2's all-gathers from 256 MiB on" in " ".join(done.out.split())
    assert "emulated" in done.out
    made = json.loads((tmp_path / "made.json").read_text())
    assert made["emulated"] and made["gpus"] == 4
    assert {(each["way"], each.get("beside", "")) for each in made["points"]} == {
        (way, beside)
        for way in ("plain", "symmetric", "copy-engine", "efficiency")
        for beside in ("", "matmul", "memory")
    }
    assert all(each["rounds"] == 3 for each in made["points"])
    assert json.loads(kept.splitlines()[1])["time_us"] > 0
    assert not (tmp_path / "made.measuring").exists()

    used = powerccl("run", "--emulate", "h200x4", "--ways", "made.json", "--", *SHOW, **NEWER)
    assert used.code == 0, used.err
    assert used.out.split() == [f"{256 << 20}@4", "hooked"]
    assert "ways: nothing changed: no FSDP2 all-gather was large enough" in used.err


def test_without_a_table_the_job_does_not_start(powerccl: Powerccl) -> None:
    unknown = powerccl("run", "--emulate", "t4x8", "--ways", "auto", "--", "echo", "ran")
    assert unknown.code != 0 and unknown.out == ""
    assert "no table of ways for 8 x Tesla T4" in unknown.err
    assert "powerccl profile --ways" in unknown.err
    missing = powerccl("run", "--emulate", "t4x8", "--ways", "nowhere.json", "--", "echo", "ran")
    assert missing.code != 0 and "cannot read table of ways nowhere.json" in missing.err


def test_options_that_exclude_each_other(powerccl: Powerccl) -> None:
    for more in (("--set-clocks",), ("--clocks", "900"), ("--table", "t")):
        refused = powerccl(*PROFILE, *more)
        assert refused.code != 0 and "--ways sets no clocks" in refused.err
    odd = powerccl("profile", "--ways", "--emulate", "h200x4", "--sizes", "16M,17M,100M")
    assert odd.code != 0 and "grow by one whole factor" in odd.err
