# SPDX-License-Identifier: Apache-2.0
"""What verbs write: on terminals that cannot show everything, on full disks, and whole or not at all."""

from __future__ import annotations

import os
import re
import resource
import signal
import stat
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
from synthetic import MS, mpi_run, training_run, write_info

from powerccl import files

PACKAGE = Path(__file__).parents[2] / "python"
ENCODINGS = ("utf-8", "latin-1", "ascii", "cp1252", "iso8859-5")
FULL = 8192  # bytes that a file may have where the disk is as good as full


@pytest.fixture
def run(tmp_path: Path) -> Path:
    """A recorded run with MPI, whose host is called what not every encoding has."""
    folder = tmp_path / "runs/train"
    folder.mkdir(parents=True)
    training_run(folder)
    mpi_run(folder)
    write_info(folder, 2010 * MS, name="étude 東京 → ±½", host="knoten-ü")
    return folder


def powerccl(
    *arguments: str | Path,
    stdout: int = subprocess.PIPE,
    before: Callable[[], None] | None = None,
    **environment: str,
) -> subprocess.CompletedProcess[bytes]:
    """The command in a process of its own, as its streams are made when Python starts."""
    return subprocess.run(
        [sys.executable, "-m", "powerccl", *map(str, arguments)],
        env={**os.environ, "PYTHONPATH": str(PACKAGE), **environment},
        stdout=stdout,
        stderr=subprocess.PIPE,
        preexec_fn=before,
        timeout=120,
        check=False,
    )


def verbs(run: Path) -> list[Sequence[str | Path]]:
    """What prints, of each verb that needs no GPU."""
    return [
        ("report", run),
        ("compare", run, run),
        ("clocks",),
        ("whatif", run, "--platform", "t4x8"),
        ("top", "--once", run),
        ("doctor",),
        ("--help",),
        ("report", run.with_name("nö-such-run-→")),
    ]


@pytest.mark.parametrize("encoding", ENCODINGS)
def test_every_terminal_gets_what_it_can_show(encoding: str, run: Path) -> None:
    for words in verbs(run):
        done = powerccl(*words, PYTHONIOENCODING=encoding, COLUMNS="80")
        told = done.stderr.decode(encoding)
        assert done.returncode in (0, 1), (words, told)
        assert "unexpected" not in told, words
        assert done.stdout.decode(encoding) or told.startswith("error:"), words


def test_letters_are_written_in_others(run: Path) -> None:
    done = powerccl("report", run, PYTHONIOENCODING="ascii")
    assert b"etude ?? -> +-1?2" in done.stdout.replace(b"\n", b"") or b"etude" in done.stdout


WRITERS = (
    *(("report", option) for option in ("--html", "--json", "--csv", "--perfetto")),
    *(("compare", option) for option in ("--html", "--json", "--markdown", "--csv")),
    ("export", "--textfile"),
)


@pytest.mark.parametrize(("verb", "option"), WRITERS)
def test_a_full_disk_leaves_what_was_there(verb: str, option: str, run: Path, tmp_path: Path) -> None:
    """No part of a file under its name, and nothing of ours beside it."""
    folder = tmp_path / "out"
    folder.mkdir()
    out = folder / "written.prom"
    more: dict[str, Sequence[str | Path]] = {
        "report": ("--quiet",),
        "compare": (run,),
        "export": ("--once",),
    }
    # More than fits: of small files, the limit is even smaller.
    limit = FULL if verb == "report" and option in ("--html", "--json", "--perfetto") else 64
    is_folder = (verb, option) == ("report", "--csv")
    if not is_folder:
        out.write_text("before")

    def before() -> None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit))
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)

    done = powerccl(verb, run, *more[verb], option, out, before=before)
    assert done.returncode == 1, done.stderr
    assert b"error: cannot write" in done.stderr
    assert b"too large" in done.stderr
    if is_folder:
        assert [each for each in out.iterdir() if each.stat().st_size >= limit or each.name.startswith(".")] == []
    else:
        assert [(each.name, each.read_text()) for each in folder.iterdir()] == [(out.name, "before")]


@pytest.mark.parametrize("words", [("report",), ("report", "--json", "-", "--quiet"), ("compare",), ("top", "--once")])
def test_a_full_terminal_is_an_error_of_one_line(words: tuple[str, ...], run: Path) -> None:
    with Path("/dev/full").open("wb") as full:
        done = powerccl(words[0], run, *([run] if words[0] == "compare" else []), *words[1:], stdout=full.fileno())
    assert done.stderr.decode().splitlines() == ["error: standard output cannot be written: No space left on device"]
    assert done.returncode == 1


@pytest.mark.parametrize("code", [0, 3])
def test_a_descriptor_that_takes_nothing_changes_no_job(code: int, tmp_path: Path) -> None:
    """Whatever of `run` writes to it: the job runs once, and its exit code is ours."""
    driver = """
import errno, sys
from powerccl import commands
def full(*_):
    raise OSError(errno.ENOSPC, "No space left on device")
commands.import_module = full
commands.main()
"""
    job = ("--", "sh", "-c", f"echo x >> {tmp_path}/ran; exit {code}")
    done = subprocess.run(
        [sys.executable, "-c", driver, "run", *job],
        env={**os.environ, "PYTHONPATH": str(PACKAGE)},
        capture_output=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == code, done.stderr
    assert (tmp_path / "ran").read_text() == "x\n"


def test_every_output_is_written_whole() -> None:
    """Whatever users name as an output goes through powerccl.files, of which the tests above are."""
    for room in (
        *("analysis", "commandline", "commands", "compare", "live", "reports", "study", "tune", "ways", "whatif"),
    ):
        for path in (PACKAGE / "powerccl" / room).rglob("*.py"):
            if path.name in ("profile.py", "replay_bench.py", "search.py", "simulator.py"):  # programs' inputs, logs
                continue
            assert not re.search(r"\.write_(text|bytes)\(|open\([^)]*[\"'][wax]", path.read_text()), path


def test_no_room_for_temporary_files_is_an_error_that_says_so(tmp_path: Path) -> None:
    program = f"""
import sys, tempfile
from powerccl import commands
from powerccl.live import top_command as top
tempfile.tempdir, tempfile._candidate_tempdir_list = None, lambda: [{str(tmp_path / "none")!r}]
top.command.callback = lambda **_: tempfile.gettempdir()
sys.argv = ["powerccl", "top", "--once"]
commands.main()
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, check=False)
    assert done.returncode == 1
    assert done.stderr.decode().splitlines() == [
        "error: no folder takes temporary files",
        "hint: make room in /tmp, or name another folder in TMPDIR",
    ]


def test_a_file_keeps_its_mode_and_its_links(tmp_path: Path) -> None:
    real, link = tmp_path / "real", tmp_path / "link"
    real.write_text("before")
    real.chmod(0o600)
    link.symlink_to("real")
    files.write_whole(link, "after ±")
    assert link.is_symlink()
    assert real.read_bytes() == "after ±".encode()
    assert stat.S_IMODE(real.stat().st_mode) == 0o600
    files.write_whole(tmp_path / "new", b"x")
    assert stat.S_IMODE((tmp_path / "new").stat().st_mode) == 0o666 & ~_umask()
    assert sorted(each.name for each in tmp_path.iterdir()) == ["link", "new", "real"]


def _umask() -> int:
    before = os.umask(0)
    os.umask(before)
    return before


def test_an_interrupted_file_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(KeyboardInterrupt), files.written_whole(tmp_path / "out") as file:
        file.write(b"half")
        raise KeyboardInterrupt
    assert list(tmp_path.iterdir()) == []


def test_devices_and_pipes_are_written_as_they_are(tmp_path: Path) -> None:
    files.write_whole("/dev/null", b"x")
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    reader = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)
    files.write_whole(pipe, b"through")
    assert os.read(reader, 100) == b"through"
    os.close(reader)
    with pytest.raises(OSError, match="/dev/full"):
        files.write_whole("/dev/full", b"x")


def test_errors_name_the_file_that_was_asked_for(tmp_path: Path) -> None:
    for wrong in (tmp_path / "no-folder/out", tmp_path):
        with pytest.raises(OSError) as caught:
            files.write_whole(wrong, b"x")
        assert caught.value.filename == str(wrong)
