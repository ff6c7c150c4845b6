# SPDX-License-Identifier: Apache-2.0
"""Helpers that end before their job: they are started again, noted, and named in the summary."""

from __future__ import annotations

import json
import os
import signal
import time
from pathlib import Path

from synthetic import HOST, MS, training_run

from powerccl.analysis.helper_ends import why_unsampled
from powerccl.analysis.summary import summarise
from powerccl.launch.kept import Kept
from powerccl.launch.services import Service
from powerccl.traces.folder import read_run
from powerccl.traces.helpers import AGENT, EMULATOR, STARTED_AGAIN, HelperLog, read_helper_events


class Sleeper(Kept):
    """A helper that does nothing; `refusals`: so many starts fail."""

    name = "sleeper"

    def __init__(self, folder: Path, refusals: int = 0) -> None:
        super().__init__(HelperLog(folder, "h"))
        self.folder, self.refusals = folder, refusals
        self.service = self.begin()

    def begin(self) -> Service:
        return Service(["sleep", "60"], os.environ, self.folder / "log")

    def descriptor(self) -> int:
        return self.service.output

    def how_it_ended(self) -> str:
        return self.service.how_it_ended()

    def start_again(self) -> bool:
        if self.refusals:
            self.refusals -= 1
            raise OSError("no place")
        self.service = self.begin()
        return True


def events(folder: Path, count: int) -> list[str]:
    """What was noted, once there are so many events."""
    path, deadline = folder / "helpers-h.jsonl", time.monotonic() + 30
    found: list[str] = []
    while len(found) < count and time.monotonic() < deadline:
        time.sleep(0.01)
        found = [event.what for event in read_helper_events(path)] if path.exists() else []
    return found


def test_a_killed_helper_is_started_again(tmp_path: Path) -> None:
    helper = Sleeper(tmp_path)
    helper.keep()
    for number in (1, 2):
        killed = helper.service.process
        os.kill(killed.pid, signal.SIGKILL)
        assert events(tmp_path, 2 * number) == ["was killed by signal 9", STARTED_AGAIN] * number
        assert helper.service.process is not killed
        assert killed.returncode == -signal.SIGKILL
    helper.let_go(10)
    last = helper.service
    assert not last.stop(0)
    time.sleep(0.3)
    assert helper.service is last, "it is not kept any more"


def test_a_start_that_fails_is_tried_again(tmp_path: Path) -> None:
    helper = Sleeper(tmp_path, refusals=2)
    helper.keep()
    helper.service.process.kill()
    assert events(tmp_path, 3) == [
        "was killed by signal 9",
        "cannot be started again: OSError: no place",
        STARTED_AGAIN,
    ]
    helper.let_go(10)
    helper.service.stop(0)


def test_helpers_start_with_all_signals_blocked(tmp_path: Path) -> None:
    helper = Sleeper(tmp_path)
    status = Path(f"/proc/{helper.service.process.pid}/status").read_text()
    helper.service.stop(0)
    blocked = int(next(line for line in status.splitlines() if line.startswith("SigBlk:")).split()[1], 16)
    assert {number for number in range(1, 65) if blocked >> (number - 1) & 1} >= signal.valid_signals() - {
        signal.SIGKILL,
        signal.SIGSTOP,
    }
    assert not signal.pthread_sigmask(signal.SIG_BLOCK, ()), "this thread's mask is as before"


def test_events_without_a_folder_and_damaged_ones(tmp_path: Path) -> None:
    HelperLog(None, "h").note("x", "ended")
    HelperLog(tmp_path / "gone", "h").note("x", "ended")
    path = tmp_path / "helpers-h.jsonl"
    log = HelperLog(tmp_path, "h")
    log.note("first", "ended")
    with path.open("ab") as file:
        file.write(b'{"helper": 1}\n\xff\n[[[\n{"helper": "x", "what": "y", "time_ns": -1}\n')
    log.note("\x1b[31msecond", "ended")
    assert [event.helper for event in read_helper_events(path)] == ["first", "\\x1b[31msecond"]


def note(folder: Path, *noted: tuple[str, str, int]) -> None:
    """Write events: helper, what, ms."""
    with (folder / f"helpers-{HOST}.jsonl").open("w") as file:
        for helper, what, at_ms in noted:
            event = {"helper": helper, "what": what, "host": HOST, "time_ns": at_ms * MS, "after_s": 9.0}
            file.write(json.dumps(event) + "\n")


def without_samples(folder: Path, from_ms: int, to_ms: int) -> None:
    """Take samples out."""
    path = folder / f"power-{HOST}.csv"
    lines = path.read_text().splitlines()
    kept = [line for line in lines if not line[0].isdigit() or not from_ms * MS < int(line.split(",")[0]) < to_ms * MS]
    path.write_text("\n".join(kept) + "\n")


def test_an_agent_that_was_started_again_is_named(tmp_path: Path) -> None:
    folder = training_run(tmp_path / "run")
    without_samples(folder, 500, 920)
    note(folder, (AGENT, "was killed by signal 9", 880), (AGENT, STARTED_AGAIN, 890))
    summary = summarise(read_run(folder))
    assert "powerccl-agent was killed by signal 9 at 880 ms; no samples for 420 ms" in summary.notes
    assert summary.energy.missing == [], "between two readings of a counter the sum is known"


def test_an_agent_that_is_gone_is_the_cause(tmp_path: Path) -> None:
    folder = training_run(tmp_path / "run")
    without_samples(folder, 700, 10_000)
    note(folder, (AGENT, "was killed by signal 9", 720))
    run = read_run(folder)
    summary = summarise(run)
    assert "powerccl-agent was killed by signal 9 at 720 ms; no samples after that" in summary.notes
    cause = ": powerccl-agent was killed by signal 9 at 720 ms"
    assert len(summary.energy.missing) == 2
    assert all(", none after 700 ms" in text and text.endswith(cause) for text in summary.energy.missing)
    assert why_unsampled(run, HOST) == cause
    assert why_unsampled(run, "another") == ""


def test_an_agent_that_never_sampled_is_the_cause(tmp_path: Path) -> None:
    folder = training_run(tmp_path / "run")
    (folder / f"power-{HOST}.csv").unlink()
    note(folder, (AGENT, "was not started: no lock", 1))
    reason = summarise(read_run(folder)).energy.reason
    assert reason == "no power samples of the job's GPUs: powerccl-agent was not started: no lock"


def test_an_emulated_server_that_is_gone_is_the_cause(tmp_path: Path) -> None:
    folder = training_run(tmp_path / "run")
    without_samples(folder, 700, 10_000)
    note(folder, (EMULATOR, "was killed by signal 9", 720))
    missing = summarise(read_run(folder)).energy.missing
    assert all(text.endswith(": the emulated GPU server was killed by signal 9 at 720 ms") for text in missing)


def test_many_ends_are_counted(tmp_path: Path) -> None:
    folder = training_run(tmp_path / "run")
    ended = [("powerccld", "was killed by signal 9", 100 * i) for i in range(1, 9)]
    note(folder, *ended, ("powerccld", STARTED_AGAIN, 850))
    notes = [text for text in summarise(read_run(folder)).notes if "powerccld" in text]
    assert notes[0] == "powerccld was killed by signal 9 at 100 ms; it was started again"
    assert notes[3:] == ["powerccld ended 5 more times"]
