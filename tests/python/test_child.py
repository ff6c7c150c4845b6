# SPDX-License-Identifier: Apache-2.0
"""The job as a child: how it starts, the signals it gets, and how its end is seen."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import fakes
import pytest

from powerccl.launch import child as relay
from powerccl.launch.child import ChildNotStartedError, run_child
from powerccl.launch.witness import Received, Witness, signal_within


@pytest.mark.parametrize(
    ("script", "code", "number"),
    [("exit 0", 0, None), ("exit 42", 42, None), ("kill -9 $$", 137, 9), ("kill -TERM $$", 143, 15)],
)
def test_how_a_child_ended(script: str, code: int, number: int | None) -> None:
    ended = run_child(["sh", "-c", script], os.environ)
    assert (ended.code, ended.signal) == (code, number)


def test_a_child_that_cannot_start(tmp_path: Path) -> None:
    with pytest.raises(ChildNotStartedError) as missing:
        run_child(["/no/such/program"], os.environ)
    assert missing.value.code == 127
    plain = tmp_path / "data"
    plain.write_text("x")
    with pytest.raises(ChildNotStartedError) as denied:
        run_child([str(plain)], os.environ)
    assert denied.value.code == 126
    script = tmp_path / "script"
    fakes.write_program(script, "#!/no/such/interpreter\n")
    with pytest.raises(ChildNotStartedError, match="interpreter") as broken:
        run_child([str(script)], os.environ)
    assert broken.value.code == 126


def test_output_can_be_redirected(tmp_path: Path) -> None:
    run_child(["sh", "-c", "echo out; echo err >&2"], os.environ, tmp_path / "log")
    assert (tmp_path / "log").read_text() == "out\nerr\n"


def test_a_stop_outlives_late_news_of_a_continued_child(monkeypatch: pytest.MonkeyPatch) -> None:
    """fg, and ^Z at once: we take the signal before we hear that the child goes on, and it stops after that."""
    continued, stopped, ended = 0xFFFF, (signal.SIGTSTP << 8) | 0x7F, 7 << 8
    news = iter([(0, 0), (1, continued), (1, stopped), (0, 0), (1, ended)])
    typed = iter([Received(signal.SIGTSTP, 0, 0), None, None])
    sent: list[tuple[int, int]] = []
    monkeypatch.setattr(relay, "signal_within", lambda *_: next(typed))
    monkeypatch.setattr(os, "waitpid", lambda *_: next(news))
    monkeypatch.setattr(os, "kill", lambda *pair: sent.append(pair))
    child = relay.Child(pid=1)
    relay._Relay(child, set(), Witness(), []).wait()
    assert (os.getpid(), signal.SIGSTOP) in sent
    assert child.ended() == relay.Ended(7, None)


def test_the_child_has_the_systems_signal_dispositions(tmp_path: Path) -> None:
    run_child(["sh", "-c", "grep -E 'SigBlk|SigIgn' /proc/self/status"], os.environ, tmp_path / "log")
    masks = {line.split(":")[0]: int(line.split()[1], 16) for line in (tmp_path / "log").read_text().splitlines()}
    assert masks["SigBlk"] == 0
    assert not masks["SigIgn"] >> (signal.SIGPIPE - 1) & 1  # Python ignores it; a job expects to die of it


LAUNCHER = """
import os, sys
sys.path.insert(0, {package!r})
from powerccl.launch.child import run_child
ended = run_child(sys.argv[1:], os.environ)
sys.exit(ended.code)
"""


def start_launcher(*command: str, **more: Any) -> subprocess.Popen[str]:
    package = str(Path(__file__).parents[2] / "python")
    launcher: subprocess.Popen[str] = subprocess.Popen(
        [sys.executable, "-c", LAUNCHER.format(package=package), *command],
        stdout=subprocess.PIPE,
        text=True,
        **more,
    )
    return launcher


def test_a_signal_that_ends_the_child_shows_in_the_code() -> None:
    launcher = start_launcher("sh", "-c", "echo ready; sleep 60")
    assert launcher.stdout is not None
    assert launcher.stdout.readline() == "ready\n"
    launcher.terminate()
    assert launcher.wait(20) == 143


def test_nohup_stays_nohup() -> None:
    launcher = start_launcher(
        "sh",
        "-c",
        "echo ready; sleep 0.5; exit 3",
        preexec_fn=lambda: signal.signal(signal.SIGHUP, signal.SIG_IGN),
    )
    assert launcher.stdout is not None
    assert launcher.stdout.readline() == "ready\n"
    launcher.send_signal(signal.SIGHUP)
    assert launcher.wait(20) == 3


def test_a_launcher_whose_children_are_reaped_for_it_still_sees_the_end() -> None:
    launcher = start_launcher("sh", "-c", "exit 9", preexec_fn=lambda: signal.signal(signal.SIGCHLD, signal.SIG_IGN))
    assert launcher.wait(20) == 9


def test_a_launcher_that_was_stopped_for_long_goes_on_passing_signals_on() -> None:
    script = "trap 'echo got' USR1; echo ready; while :; do sleep 0.1; done"
    launcher = start_launcher("sh", "-c", script)
    assert launcher.stdout is not None
    assert launcher.stdout.readline() == "ready\n"
    for _ in range(2):
        launcher.send_signal(signal.SIGSTOP)
        time.sleep(0.8)  # more than the launcher waits for a signal at a time
        launcher.send_signal(signal.SIGCONT)
        launcher.send_signal(signal.SIGUSR1)  # which ends whoever does not pass it on
        assert launcher.stdout.readline() == "got\n"
    launcher.terminate()
    assert launcher.wait(20) == 143


def test_a_long_stop_brings_no_signal_that_nobody_sent() -> None:
    """Python's own sigtimedwait makes one up: about 9 in 20 such stops ended in a signal to the job."""
    watched = signal.valid_signals()
    reads, writes = os.pipe()
    pid = os.fork()
    if pid == 0:
        signal.pthread_sigmask(signal.SIG_BLOCK, watched)
        while True:
            if (info := signal_within(watched, 0.03)) is not None:
                os.write(writes, bytes([info.si_signo]))
    os.close(writes)
    told: list[int] = []
    for _ in range(20):
        time.sleep(0.01)
        os.kill(pid, signal.SIGSTOP)
        time.sleep(0.05)
        os.kill(pid, signal.SIGCONT)
        told += os.read(reads, 64)
    time.sleep(0.1)
    os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)
    told += os.read(reads, 64)
    os.close(reads)
    assert told == [signal.SIGCONT] * 20


def test_a_stopped_child_is_not_an_ended_one() -> None:
    launcher = start_launcher("sh", "-c", "echo $$; sleep 0.3; exit 4")
    assert launcher.stdout is not None
    child = int(launcher.stdout.readline())
    os.kill(child, signal.SIGSTOP)
    time.sleep(0.2)
    assert launcher.poll() is None
    os.kill(child, signal.SIGCONT)
    assert launcher.wait(20) == 4
