# SPDX-License-Identifier: Apache-2.0
"""`powerccl run` is transparent: how jobs end, their signals, their arguments, and faults of recording."""

from __future__ import annotations

import contextlib
import json
import os
import pty
import select
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from harm import ends, injected, signals
from harness import Powerccl, eventually

from powerccl.launch.native import NativeFiles
from powerccl.traces.run_info import parse_run_info


def test_every_job_ends(native: NativeFiles, tmp_path: Path) -> None:
    chosen = ends.ends(24, 8)
    with ThreadPoolExecutor(4) as pool:
        found = list(pool.map(lambda index: ends.run(chosen[index], tmp_path / str(index), native), range(len(chosen))))
    assert [text for text in found if text] == []


def test_each_signal_reaches_the_job_once(native: NativeFiles, tmp_path: Path) -> None:
    chosen = [
        (signals.to_us, signal.SIGINT),
        (signals.to_us, signal.SIGTERM),
        (signals.to_us, signal.SIGHUP),
        (signals.to_us, signal.SIGUSR1),
        (signals.to_us, signal.SIGTSTP),
        (signals.to_us, signal.SIGCHLD),
        (signals.to_us, signal.SIGRTMAX),
        (signals.to_group, signal.SIGINT),
        (signals.to_group, signal.SIGTERM),
        (signals.to_session, signal.SIGUSR1),
        (signals.from_terminal, signal.SIGINT),
        (signals.from_terminal, signal.SIGWINCH),
    ]
    jobs = [
        signals.start(tmp_path / f"job-{i}", native, send is signals.from_terminal)
        for i, (send, _) in enumerate(chosen)
    ]
    for job, (send, number) in zip(jobs, chosen, strict=True):
        assert job.ready()
        send(job, number)
    assert [job.outcome() for job in jobs] == [{int(number): 1} for _, number in chosen]


@pytest.mark.parametrize("case", injected.CASES, ids=lambda case: case.name)
def test_no_fault_of_recording_is_a_fault_of_the_job(case: injected.Case, native: NativeFiles, tmp_path: Path) -> None:
    names = injected.functions(case, native, tmp_path)
    assert len(names) > 50
    chosen = [f"{name}!{kind}" for name, kind in zip(names[::26], 100 * injected.EXCEPTIONS, strict=False)]
    with ThreadPoolExecutor(2) as pool:
        found = list(
            pool.map(lambda i: injected.outcome(case, chosen[i], native, tmp_path / str(i)), range(len(chosen)))
        )
    assert {
        name: text for name, text in zip(chosen, found, strict=True) if text not in ("", injected.NOT_STARTED)
    } == {}


def test_bytes_that_are_no_text(powerccl: Powerccl) -> None:
    """Whatever exec accepts, the job gets, and run.json keeps it."""
    command = ["sh", "-c", 'printf "%s|%s|" "$1" "$BYTES" | od -An -tx1; exit 7', "sh", os.fsdecode(b"a\xffb")]
    done = powerccl("run", "--runs-dir", os.fsdecode(b"runs\xfe"), "--", *command, BYTES=os.fsdecode(b"\xfe\xff"))
    assert done.code == 7
    assert done.out.split() == ["61", "ff", "62", "7c", "fe", "ff", "7c"]
    assert "surrogates" not in done.err
    (run,) = (powerccl.folder / os.fsdecode(b"runs\xfe")).glob("*/run.json")
    assert parse_run_info(run.read_bytes()).command == command
    assert json.loads(run.read_text("ascii"))["command"][-1] == "a\udcffb"


def test_a_working_directory_that_is_gone(powerccl: Powerccl, tmp_path: Path) -> None:
    run = f"{sys.executable} -m powerccl run -q --runs-dir {tmp_path}/runs -- sh -c 'exit 7'"
    done = powerccl("run", "-q", "--", "sh", "-c", f"mkdir gone; cd gone; rmdir ../gone; exec {run}")
    assert done.code == 7


def test_what_exec_takes_the_job_gets(powerccl: Powerccl) -> None:
    """No locale, no PATH and no HOME; a script that names no interpreter; empty and long arguments."""
    run = [str(Path(sys.executable).parent / "powerccl"), "run", "-q", "--runs-dir", "/proc/no-such-folder", "--"]

    def ended(command: list[str], **environment: str) -> tuple[int, str]:
        done = subprocess.run(
            [*run, *command], env=environment, cwd=powerccl.folder, capture_output=True, text=True, check=False
        )
        return done.returncode, done.stdout

    assert ended(["/usr/bin/env"]) == (0, "")
    assert ended(["/usr/bin/env"], LC_ALL="C", PATH="/bin") == (0, "LC_ALL=C\nPATH=/bin\n")
    script = powerccl.folder / "script"
    script.write_text('echo "$1|$2"; exit 5\n')
    script.chmod(0o755)
    assert ended(["./script", "", "b"]) == (5, "|b\n")
    assert ended([""])[0] == 127
    assert ended(["/bin/sh", "-c", "echo ${#1} $#; exit 7", "sh", *["x" * 100_000] * 15]) == (7, "100000 15\n")


def test_arguments_that_leave_no_room_for_recording(powerccl: Powerccl) -> None:
    """Our variables may be what makes it too long for the kernel: the job runs without them."""
    limit = subprocess.run(["getconf", "ARG_MAX"], capture_output=True, text=True, check=True)
    words = ["y" * 100_000] * (int(limit.stdout) // 100_009)
    environment = {**powerccl.environment, "PATH": os.defpath}

    def runs_alone(more: int) -> bool:
        try:
            return subprocess.run(["true", *words, "y" * more], env=environment, check=False).returncode == 0
        except OSError:
            return False

    shortest, longest = 0, 100_000  # the second is too long
    while longest - shortest > 16:
        middle = (shortest + longest) // 2
        shortest, longest = (middle, longest) if runs_alone(middle) else (shortest, middle)
    start = (
        "import subprocess, sys; from powerccl.commands import main;"
        f"sys.argv = ['powerccl', 'run', '-q', '--', 'true', *['y' * 100000] * {len(words)}, 'y' * {shortest}]; main()"
    )
    done = subprocess.run(
        [sys.executable, "-c", start], env=environment, cwd=powerccl.folder, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert "the job runs unrecorded" in done.stderr


def test_nobody_hears_us(powerccl: Powerccl) -> None:
    """Standard error closed, full or a broken pipe; our summary, too, on a broken standard output."""
    script = (
        "import os, subprocess, sys\n"
        "read, broken = os.pipe(); os.close(read)\n"
        "for out, err in ((1, broken), (1, os.open('/dev/full', os.O_WRONLY)), (broken, broken)):\n"
        "    run = [sys.argv[1], 'run', '--json', '-', '--', 'sh', '-c', 'exit 7']\n"
        "    code = subprocess.run(run, stdout=out, stderr=err).returncode\n"
        "    assert code == 7, (out, err, code)\n"
        "assert os.system(f'{sys.argv[1]} run -- sh -c \"exit 7\" 2>&- >&- <&-') == 7 << 8\n"
    )
    command = [sys.executable, "-c", script, str(Path(sys.executable).parent / "powerccl")]
    done = subprocess.run(command, env=powerccl.environment, cwd=powerccl.folder, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_a_closed_stream_costs_what_goes_there(powerccl: Powerccl) -> None:
    program = shlex.quote(str(Path(sys.executable).parent / "powerccl"))

    def shell(line: str) -> subprocess.CompletedProcess[str]:
        environment, folder = powerccl.environment, powerccl.folder
        return subprocess.run(["sh", "-c", line], env=environment, cwd=folder, capture_output=True, text=True)

    closed_out = shell(f"{program} run -- sh -c 'exit 7' >&-")
    assert closed_out.returncode == 7
    assert "7" in closed_out.stderr
    assert "NoneType" not in closed_out.stderr
    closed_err = shell(f"{program} run -- sh -c 'echo mine; exit 7' 2>&-")
    assert (closed_err.returncode, closed_err.stdout) == (7, "mine\n")
    nowhere = shell(f"{program} run --json - -- sh -c 'exit 7' >&-")
    assert nowhere.returncode == 7
    assert "standard output is closed" in nowhere.stderr


class Shell:
    """bash on a terminal of its own, with job control, in a folder."""

    def __init__(self, folder: Path, environment: Mapping[str, str]) -> None:
        self.pid, self.terminal = pty.fork()
        if self.pid == 0:
            os.chdir(folder)
            for number in (signal.SIGINT, signal.SIGQUIT, signal.SIGHUP):
                signal.signal(number, signal.SIG_DFL)
            os.execvpe("bash", ["bash", "--norc", "--noprofile", "-i"], {**environment, "PS1": "", "TERM": "dumb"})
        self.said = ""

    def type(self, text: str) -> None:
        self.said = ""
        os.write(self.terminal, text.encode())

    def wait_for(self, text: str) -> str:
        """What it said until then."""
        deadline = time.monotonic() + 30
        while text not in self.said:
            assert time.monotonic() < deadline, self.said
            if select.select([self.terminal], [], [], 0.1)[0]:
                self.said += os.read(self.terminal, 4096).decode("utf-8", "replace")
        return self.said

    def hang_up(self) -> None:
        os.close(self.terminal)
        os.waitpid(self.pid, 0)


@pytest.fixture
def shell(powerccl: Powerccl) -> Iterator[Shell]:
    bash = Shell(powerccl.folder, {**powerccl.environment, "PATH": f"{Path(sys.executable).parent}:{os.defpath}"})
    yield bash
    with contextlib.suppress(OSError):
        bash.hang_up()


def test_a_shell_stops_and_continues_the_job(shell: Shell, tmp_path: Path) -> None:
    # No sh: one that starts a program by vfork just then is not stopped, alone as well.
    (tmp_path / "job.py").write_text(
        "import os, sys, time; print(os.getpid(), file=open('started', 'w'))\n"
        "while not os.path.exists('enough'): time.sleep(0.02)\n"
        "sys.exit(7)\n"
    )
    shell.type(f"powerccl run -q --interval-ms 0 -- {sys.executable} job.py\n")
    started = tmp_path / "started"
    assert eventually(lambda: started.exists() and started.read_text().endswith("\n"))
    pid = int(started.read_text())
    for _ in range(6):
        shell.type("\x1a")
        shell.wait_for("Stopped")
        assert eventually(lambda: state_of(pid) == "T")
        shell.type("fg\n")
        shell.wait_for("powerccl run")
        assert eventually(lambda: state_of(pid) != "T")
    (tmp_path / "enough").touch()
    assert eventually(lambda: state_of(pid) == "")
    shell.type("echo code=$?\n")
    shell.wait_for("code=7")


def test_a_terminal_that_hangs_up_ends_the_job(shell: Shell, tmp_path: Path) -> None:
    job = 'trap "echo hung > hangup; exit" HUP; echo pid=$$ > started; sleep 30 & wait'
    shell.type(f"exec powerccl run -q --interval-ms 0 -- sh -c '{job}'\n")  # the session's leader: it alone is told
    assert eventually((tmp_path / "started").exists)
    shell.hang_up()
    assert eventually((tmp_path / "hangup").exists)


def state_of(pid: int) -> str:
    """As the kernel has it; empty if the process has gone."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return ""


SLOW = """
import sys, time
from powerccl.commands import main, run
from powerccl.launch import record
def wait(*_):
    print("waiting", flush=True)
    time.sleep(60)
{place} = wait
sys.argv = ["powerccl", "run", "-q", "--interval-ms", "0", "--", "sh", "-c", "exit 7"]
main()
"""


@pytest.mark.parametrize(
    ("place", "number", "code"),
    [
        ("record.prepare", signal.SIGTERM, -signal.SIGTERM),
        ("record.prepare", signal.SIGUSR1, -signal.SIGUSR1),
        ("run._report", signal.SIGTERM, 7),
    ],
)
def test_a_signal_around_the_job(powerccl: Powerccl, place: str, number: int, code: int) -> None:
    """Before the job it ends us as it would have ended the job; after it, the job's exit code is not to be changed."""
    process = subprocess.Popen(
        [sys.executable, "-c", SLOW.format(place=place)],
        env=powerccl.environment,
        cwd=powerccl.folder,
        stdout=subprocess.PIPE,
    )
    assert process.stdout
    assert process.stdout.readline() == b"waiting\n"
    if code >= 0:
        for announced in (signal.SIGUSR1, signal.SIGXCPU, signal.SIGRTMIN):  # too late to end the report
            process.send_signal(announced)
        time.sleep(0.2)
        assert process.poll() is None
    process.send_signal(number)
    process.communicate(timeout=30)
    assert process.returncode == code


def test_without_rights(powerccl: Powerccl, tmp_path: Path) -> None:
    """Another user, in a folder where that user may not write."""
    if os.getuid() != 0:
        pytest.skip("takes root to become somebody else")
    command = [str(Path(sys.executable).parent / "powerccl"), "run", "-q", "--", "sh", "-c", "id -u; exit 7"]
    tmp_path.chmod(0o755)
    done = subprocess.run(
        ["setpriv", "--reuid", "65534", "--clear-groups", *command],
        env=powerccl.environment,
        cwd="/",
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stdout) == (7, "65534\n"), done.stderr
    assert "Permission denied; the job runs unrecorded" in done.stderr
