# SPDX-License-Identifier: Apache-2.0
"""Hostile files: what hangs a verb, or takes memory without end.

`make fuzz-python` counts what readers do with damaged files. tests/python/test_hostile.py tries hostile names, and what
another user's folders do to root.
"""

from __future__ import annotations

import json
import os
import select
import socket
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from support.big_run import write_run

from harm import Figures, count, one
from harm.readers import CPU, ROOT, _trace, peak_mib
from powerccl.launch.native import NativeFiles
from powerccl.traces import records

MOST_MIB = 256  # of one verb on a damaged run
LIMIT_S = 20  # a verb on a small run takes a second
NOBODY = 65534
FILES = ("run.json", "rank-0.trace", "mpi-0.trace", "power-node1.csv", "cpu-node1.csv")


def measure(_: NativeFiles, folder: Path) -> Figures:
    """All figures."""
    hung, ran, most_mib = _in_place_of_files(folder)
    return {
        "harm.hostile.hung": count(hung, ran),
        "harm.hostile.peak_mib": one(round(most_mib, 1), "MiB", ran),
    }


def _whole_run(folder: Path) -> Path:
    run = write_run(folder, 200, 2)
    (run / "cpu-node1.csv").write_bytes(CPU)
    (run / "mpi-0.trace").write_bytes(_trace((records.MPI_CALL, records.MPI_TOTAL, records.PROCESS, records.COMM)))
    return run


def _socket(path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as listening:
        os.chdir(path.parent)  # a socket's path is short
        listening.bind(path.name)
        os.chdir("/")


def _holes(path: Path) -> None:
    """A file that begins as it should and has a terabyte of nothing behind."""
    with path.open("r+b") as file:
        file.truncate(1 << 40)
        if path.suffix == ".trace":
            file.seek(records.HEADER.fields["committed"][1])  # type: ignore[index]
            file.write(((1 << 40) // records.RECORD_BYTES - 1000).to_bytes(8, "little"))


def _line(path: Path) -> None:
    """300 MB behind what is valid, without the end of a line."""
    with path.open("ab") as file:
        for _ in range(300):
            file.write(b"1" * 1_000_000)


def _instead(make: Callable[[Path], object]) -> Callable[[Path], None]:
    def put(path: Path) -> None:
        path.unlink()
        make(path)

    return put


def _nothing(_: Path) -> None:
    pass


PUT: dict[str, Callable[[Path], None]] = {
    "fifo": _instead(os.mkfifo),
    "socket": _instead(_socket),
    "directory": _instead(Path.mkdir),
    "device": _instead(lambda path: path.symlink_to("/dev/zero")),
    "terminal": _instead(lambda path: path.symlink_to("/dev/tty")),
    "holes": _holes,
    "line": _line,
    "growing": _nothing,
    "truncated": _nothing,
}


@contextmanager
def _changing(how: str, path: Path, whole: bytes) -> Iterator[None]:
    """Changes a file all the while: appended to, or cut short and restored. `whole` is what it holds at first."""
    stop = threading.Event()

    def change() -> None:
        written = 0
        while not stop.wait(0.0005):
            if how == "growing" and written < 256 << 20:
                with path.open("ab") as file:
                    written += file.write(b"7" * (1 << 20))
            elif how == "truncated":
                os.truncate(path, len(whole) // 3)
                stop.wait(0.0005)
                path.write_bytes(whole)

    if how not in ("growing", "truncated"):
        yield
        return
    thread = threading.Thread(target=change)
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join()
        path.write_bytes(whole)


def case(folder: Path, name: str, how: str) -> None:
    """All verbs on one damaged run, in this process; a line on stdout after each with its name and memory."""
    from click.testing import CliRunner

    from powerccl.commands import cli

    sound, bad = str(_whole_run(folder / "sound")), _whole_run(folder / "bad")
    valid = (bad / name).read_bytes()
    PUT[how](bad / name)
    for verb in (
        ["report", str(bad), "--csv", str(folder / "csv"), "--json", str(folder / "json")],
        ["top", "--once", str(bad)],
        ["export", "--once", str(bad)],
        ["compare", str(bad), sound],
        ["whatif", str(bad), "--platform", "t4x8"],
    ):
        with _changing(how, bad / name, valid):
            done = CliRunner().invoke(cli, verb)
        unexpected = done.exit_code not in (0, 1) or "unexpected" in done.output
        print(json.dumps([verb[0], peak_mib(), done.output[-300:] if unexpected else ""]), flush=True)


def _in_place_of_files(folder: Path) -> tuple[int, int, float]:
    """Verbs that hung or failed unexpectedly, verbs that ran, and the most memory that one took."""
    hung, ran, most_mib = 0, 0, 0.0
    code = "import pathlib, sys; from harm.hostile import case; case(pathlib.Path(sys.argv[1]), *sys.argv[2:])"
    for name in FILES:
        for how in PUT:
            place = Path(tempfile.mkdtemp(dir=folder))
            worker = subprocess.Popen(
                [sys.executable, "-W", "ignore", "-c", code, str(place), name, how],
                stdout=subprocess.PIPE,
                cwd=ROOT,
                start_new_session=True,
                env={**os.environ, "PYTHONPATH": f"{ROOT / 'tests'}:{ROOT / 'python'}"},
            )
            assert worker.stdout
            for verb in ("report", "top", "export", "compare", "whatif"):
                ran += 1
                line = worker.stdout.readline() if select.select([worker.stdout], [], [], LIMIT_S)[0] else b""
                told: list[Any] = json.loads(line) if line else [verb, 0.0, "no answer"]
                most_mib = max(most_mib, told[1])
                if told[1] > MOST_MIB:
                    print(f"{how} for {name}: {verb} took {told[1]:.0f} MiB", file=sys.stderr)
                if told[2]:
                    hung += 1
                    print(f"{how} for {name}: {verb}: {told[2]}", file=sys.stderr)
                if not line:
                    break
            worker.kill()
            worker.wait()
            subprocess.run(["rm", "-rf", str(place)], check=True)
    return hung, ran, most_mib
