# SPDX-License-Identifier: Apache-2.0
"""Verbs that write files on a disk that fills up: each leaves the old file or the whole new one, and no temporary.

The disk is a tmpfs of a few KiB where root mounts one, and a limit on the size of files everywhere.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from bench.figures import Figures, count
from bench.trust import fault
from bench.trust.jobs import LIMIT_S, TOGETHER, environment
from bench.trust.streams import prepared

from powerccl.launch.native import NativeFiles

SHARES = (0.0, 0.5)  # of the whole file that the disk has room for
OLD = b"what was there before\n"
PAGE = 4096
WAYS = (("disk", True), ("limit", False))  # how room is short, and whether an old file is there


@dataclass(frozen=True)
class Writer:
    """A verb and the file or folder it writes; {target} becomes its path."""

    name: str
    words: tuple[str, ...]
    folder: bool = False
    suffix: str = ".json"


def writers(run: Path, study: Path) -> list[Writer]:
    """All verbs that write a file of a recorded thing."""
    of, two = str(run), (str(run), str(run))
    return [
        Writer("report --html", ("report", of, "-q", "--html", "{target}")),
        Writer("report --json", ("report", of, "-q", "--json", "{target}")),
        Writer("report --perfetto", ("report", of, "-q", "--perfetto", "{target}")),
        Writer("report --prometheus", ("report", of, "-q", "--prometheus", "{target}")),
        Writer("report --csv", ("report", of, "-q", "--csv", "{target}"), folder=True),
        Writer("compare --html", ("compare", *two, "--html", "{target}")),
        Writer("compare --json", ("compare", *two, "--json", "{target}")),
        Writer("compare --csv", ("compare", *two, "--csv", "{target}")),
        Writer("compare --markdown", ("compare", *two, "--markdown", "{target}")),
        Writer("whatif --json", ("whatif", of, "--platform", "t4x8", "--json", "{target}")),
        Writer("export --textfile", ("export", of, "--once", "--textfile", "{target}"), suffix=".prom"),
        Writer("study --json", ("study", "scaling", "--from", str(study), "--json", "{target}")),
        Writer("study --markdown", ("study", "scaling", "--from", str(study), "--markdown", "{target}")),
        Writer("study --html", ("study", "scaling", "--from", str(study), "--html", "{target}")),
        Writer(
            "bench --json",
            ("bench", "--emulate", "t4x8", "all_reduce", "-b", "1M", "-e", "1M", "-n", "1", "-w", "0", "-c", "0",
             "-g", "2", "--min-time", "0", "--json", "{target}"),
        ),
        Writer(
            "profile --out",
            ("profile", "--emulate", "t4x8", "--patterns", "all_reduce", "--sizes", "1M", "--clocks", "1005",
             "--no-computing", "--out", "{target}"),
        ),
    ]  # fmt: skip


def write(native: NativeFiles, writer: Writer, target: Path, limit: int | None, scratch: Path) -> tuple[int, str]:
    """Run a verb, with a limit on the size of its files or without; its exit code and errors."""
    words = [word.replace("{target}", str(target)) for word in writer.words]
    # The signal is ignored so that writing fails, as on a full disk.
    room = [] if limit is None else ["env", "--ignore-signal=XFSZ", "prlimit", f"--fsize={limit}"]
    done = subprocess.run(
        [*room, sys.executable, "-m", "powerccl", *words],
        cwd=scratch,
        env=environment(native),
        stdin=subprocess.DEVNULL,
        capture_output=True,
        timeout=LIMIT_S,
        check=False,
    )
    return done.returncode, done.stderr.decode("utf-8", "replace")


def alike(found: bytes, whole: bytes) -> bool:
    """Whether a file is whole: its end is there, and its length, times and rates apart."""
    end = whole.rstrip()[-1:]
    return found.rstrip()[-1:] == end and abs(len(found) - len(whole)) <= max(64, len(whole) // 20)


def content(target: Path) -> dict[str, bytes]:
    """A file's bytes, or those of a folder's files."""
    if target.is_dir():
        return {file.name: file.read_bytes() for file in sorted(target.iterdir()) if file.is_file()}
    return {"": target.read_bytes()} if target.exists() else {}


def faults(name: str, place: Path, target: Path, whole: dict[str, bytes], code: int, err: str) -> list[str]:
    """What is wrong after a verb that ran out of room; `place` held nothing but the target."""
    found = []
    left = content(target)
    for file, data in left.items():
        if file in whole and data != OLD and not alike(data, whole[file]):
            found.append(f"{name}: {file or target.name} has {len(data)} of {len(whole[file])} bytes")
        elif file not in whole:
            found.append(f"{name}: leaves {file}")
    # `profile` keeps what it has measured in a folder of this name, for --resume.
    kept = (target, target.with_suffix(".profiling"))
    found += [f"{name}: leaves {each.name}" for each in place.iterdir() if each not in kept]
    missing = any(left.get(file, OLD) == OLD for file in whole)
    if missing and code == 0:
        found.append(f"{name}: ends with 0 and has not written")
    if code == 2 or code < 0 or code > 128 or "Traceback" in err or "unexpected:" in err:
        found.append(f"{name}: {code} {err[-200:]!r}")
    return found


@contextlib.contextmanager
def small_disk(place: Path, size: int) -> Iterator[bool]:
    """A file system with so many bytes there; False: it cannot be mounted."""
    options = f"size={max(PAGE, size // PAGE * PAGE)}"
    command = ["mount", "-t", "tmpfs", "-o", options, "powerccl-trust", str(place)]
    if os.geteuid() or subprocess.run(command, capture_output=True, check=False).returncode:
        yield False
        return
    try:
        yield True
    finally:
        subprocess.run(["umount", "-l", str(place)], check=False, capture_output=True)


def one_writer(native: NativeFiles, writer: Writer, folder: Path) -> tuple[int, list[str]]:
    """A verb with several amounts of room, over an old file and without; how many cases, and faults.

    Raises:
        RuntimeError: it does not write with enough room either.
    """
    folder.mkdir(parents=True)
    target = folder / f"whole{writer.suffix}"
    code, err = write(native, writer, target, None, folder)
    whole = content(target)
    if code or not whole:
        raise RuntimeError(f"{writer.name}: {code} {err[-300:]}")
    size = max(map(len, whole.values()))
    cases, found = 0, []
    for share in SHARES:
        for way, old in WAYS:
            place = folder / f"{way}-{share}"
            place.mkdir()
            target = place / f"target{writer.suffix}"
            room = int(size * share)
            with contextlib.ExitStack() as stack:
                if way == "disk" and not stack.enter_context(small_disk(place, room)):
                    continue
                if old and not writer.folder:
                    target.write_bytes(OLD)
                code, err = write(native, writer, target, room if way == "limit" else None, folder)
                cases += 1
                name = f"{writer.name}, room for {share:.0%} ({way}{', over an old file' if old else ''})"
                found += faults(name, place, target, whole, code, err)
    shutil.rmtree(folder, ignore_errors=True)
    return cases, found


def measure(native: NativeFiles, folder: Path) -> Figures:
    """All writers."""
    run, study = prepared(native, folder)
    todo = list(enumerate(writers(run, study)))
    with ThreadPoolExecutor(TOGETHER) as pool:
        results = list(pool.map(lambda each: one_writer(native, each[1], folder / f"writer-{each[0]}"), todo))
    for _, found in results:
        for text in found:
            fault(text)
    cases = sum(each for each, _ in results)
    return {"trust.files.truncated": count(sum(len(found) for _, found in results), cases)}
