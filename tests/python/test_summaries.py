# SPDX-License-Identifier: Apache-2.0
"""summary.json: who makes it, when it is believed, and where it is kept."""

from __future__ import annotations

import os
from pathlib import Path

import msgspec
import pytest
from synthetic import MS, mpi_run, training_run, write_info, write_power

from powerccl.analysis.brief import brief
from powerccl.analysis.findings import SUMMARY_FILE, read_summary
from powerccl.analysis.summary import summarise
from powerccl.commandline import summaries
from powerccl.commandline.summaries import keep_summary, make_summary, summary_of
from powerccl.traces.folder import read_run

HEAD = "# host: node1\n# gpu_count: 0\n"
COLUMNS = "time_ns,gpu,uuid,power_mw,energy_uj,sm_clock_mhz,throttle_reasons,utilization_pct\n"


def without_figures(folder: Path, clocks: str = "none") -> Path:
    """What `powerccl run -- true` leaves on a machine without GPUs."""
    folder.mkdir(exist_ok=True)
    write_info(folder, 20 * MS, clocks=clocks, unrecorded="Nothing was recorded: no process loaded NCCL or MPI.")
    (folder / "power-node1.csv").write_text(HEAD + COLUMNS)
    (folder / "cpu-node1.csv").write_text(
        "# host: node1\ntime_ns,domain,energy_uj,cpu_busy_ns,cpu_idle_ns\n0,cpu,-1,0,0\n"
    )
    (folder / "agent-node1.log").write_text("powerccl-agent: no power samples: no NVML\n")
    (folder / ".run-id").write_text("ab" * 16)
    return folder


@pytest.mark.parametrize("make", [training_run, mpi_run, without_figures])
def test_a_summary_is_made_once_and_kept(tmp_path: Path, make: object, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = make(tmp_path / "run")  # type: ignore[operator]
    assert not (folder / SUMMARY_FILE).exists()
    found = summary_of(folder)
    assert read_summary(folder / SUMMARY_FILE) == found
    monkeypatch.setattr(summaries, "make_summary", None)
    assert summary_of(folder) == found


@pytest.mark.parametrize("broken", [b"", b"{", b'{"schema": 1}', b"[]"])
def test_a_summary_that_is_not_whole_is_made_anew(tmp_path: Path, broken: bytes) -> None:
    folder = training_run(tmp_path / "run")
    (folder / SUMMARY_FILE).write_bytes(broken)
    assert summary_of(folder).ranks == 2
    assert read_summary(folder / SUMMARY_FILE).ranks == 2


def test_a_run_without_an_end_keeps_no_summary(tmp_path: Path) -> None:
    folder = training_run(tmp_path / "run")
    write_info(folder, 0, exit_code=None)
    assert summary_of(folder).ranks == 2
    assert not (folder / SUMMARY_FILE).exists()


def test_folders_of_others_are_left_as_they_are(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = training_run(tmp_path / "run")
    run, found = make_summary(folder)
    user = os.geteuid()
    monkeypatch.setattr(os, "geteuid", lambda: user + 1)
    keep_summary(found, run)
    assert not (folder / SUMMARY_FILE).exists()
    monkeypatch.undo()

    def refuse(*_: object) -> None:
        raise PermissionError(13, "read-only")

    monkeypatch.setattr(summaries, "write_summary", refuse)
    assert summary_of(folder).ranks == 2


def test_no_folder_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        summary_of(tmp_path / "none")


def test_a_brief_summary_is_what_an_analysis_finds(tmp_path: Path) -> None:
    folder = without_figures(tmp_path / "run")
    found = brief(folder)
    assert found is not None
    assert msgspec.to_builtins(found[1]) == msgspec.to_builtins(summarise(read_run(folder)))


def test_a_summary_is_brief_only_where_nothing_else_tells(tmp_path: Path) -> None:
    assert brief(without_figures(tmp_path / "run", clocks="dry")) is None
    assert brief(training_run(tmp_path / "traces")) is None
    folder = without_figures(tmp_path / "sampled")
    write_power(folder, 1, 20 * MS, 50.0, name="power-node2.csv")
    assert brief(folder) is None
    for name in ("helpers-node1.jsonl", "mpi-0.trace", "emulator.json", "windows-0.json"):
        folder = without_figures(tmp_path / f"with-{name}")
        (folder / name).write_bytes(b"")
        assert brief(folder) is None
