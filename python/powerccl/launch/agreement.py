# SPDX-License-Identifier: Apache-2.0
"""How the launchers of one start agree on one run, over nothing but a file system that they share.

`RUNS/.jobs-<uid>/<digest>.<k>` is the k-th start with one launcher key. Its entries are folders with one file, `is`:

* `id`: the run's id and the name of its run folder, chosen by the first rank that came;
* `host-<boot>-<node>`: which start this node's ranks belong to, where the node can tell;
* `rank-<n>`: the rank that has joined. Each rank joins a start once, so a second start finds its ranks taken.

Each entry is made complete elsewhere and renamed into place, which succeeds once on any file system, NFS included.
"""

from __future__ import annotations

import contextlib
import errno
import json
import os
import shutil
import tempfile
import time
from pathlib import Path

from powerccl.launch.launchers import JobLauncher, boot_id, plain, seconds_alive
from powerccl.traces.run_info import RUN_FILE, RunId, new_run_id

# Ranks of one start come within seconds. At half of this, a large job on a slow file system may be late. At double, a
# start may join an older one that has the same key and died before all its ranks had joined.
JOIN_S = 600.0
# A rank that started this long after the leader's end is another start's. Clocks play no part; skew of launching does.
ENDED_S = 30.0
KEPT_S = 86_400.0  # an older start has no ranks to come any more
MOST_STARTS = 1000
TAKEN_S = 0.3  # a rank that turns out to be another start's takes its claim back within this


def join(runs: Path, name: str, launcher: JobLauncher) -> RunId:
    """Our start's run: the same for each of its ranks, and for no other start's.

    Raises:
        OSError: the folder of starts cannot be written.
    """
    starts = runs / f".jobs-{os.getuid()}"
    starts.mkdir(mode=0o700, exist_ok=True)
    digest = _digest(launcher.name, *launcher.key)
    for number in range(1, MOST_STARTS):
        start = starts / f"{digest}.{number}"
        is_leader = False
        if _read(start / "id") is None:
            run_id = new_run_id()
            made = RunId(run_id, f"{launcher.job}-{plain(name)}-{run_id[:6]}")
            is_leader = _publish(start / "id", f"{made.run_id} {made.folder}")
            if is_leader:
                _clean(starts)
        run = _joined(runs, start, launcher, is_leader)
        if run is not None:
            return run
    raise OSError(17, "one job was started a thousand times within a day")


def _joined(runs: Path, start: Path, launcher: JobLauncher, is_leader: bool) -> RunId | None:
    """The run of that start, if we belong to it and are in it now; `is_leader`: this process began it."""
    run_id, _, folder = (_read(start / "id") or "").partition(" ")
    if not folder:
        return None
    host = start / f"host-{boot_id() or plain(os.uname().nodename)}-{plain(launcher.node)}"
    here = _digest(launcher.here) if launcher.here else ""
    there = _read(host)
    if here and there and there != here:
        return None
    if not is_leader and not (here and there) and not _open_to_us(start, runs / folder / RUN_FILE):
        return None
    rank = start / f"rank-{launcher.rank}"
    if launcher.rank >= 0 and not _claim(rank, rival_may_leave=not (here and there)):
        return None
    if here and not there and not _publish(host, here) and _read(host) != here:
        shutil.rmtree(rank, ignore_errors=True)  # another start's rank of this node was quicker
        return None
    return RunId(run_id, folder)


def _digest(*words: str) -> str:
    """The words as part of a file's name; bytes that are no UTF-8 may be in them, as in any environment."""
    import hashlib

    return hashlib.sha256(json.dumps(words).encode()).hexdigest()[:24]


def _claim(rank: Path, rival_may_leave: bool) -> bool:
    """Take a rank's place; wait for it where it is taken by one who may be giving it back."""
    text = f"{os.getpid()} {new_run_id()}"
    deadline = time.monotonic() + (TAKEN_S if rival_may_leave else 0.0)
    while not _publish(rank, text):
        if time.monotonic() > deadline:
            return False
        time.sleep(TAKEN_S / 8)
    return True


def _open_to_us(start: Path, run_file: Path) -> bool:
    """Whether a rank that started when we did may still be one of that start's. All times are the file server's."""
    with tempfile.TemporaryFile(dir=start) as now_file:
        began = os.fstat(now_file.fileno()).st_mtime - seconds_alive()
    try:
        if began - (start / "id").stat().st_mtime > JOIN_S:
            return False
        ended = json.loads(run_file.read_bytes()).get("end_ns")
        return not ended or began - run_file.stat().st_mtime <= ENDED_S
    except (OSError, ValueError, AttributeError):
        return True  # the leader has written nothing yet


def _publish(entry: Path, text: str) -> bool:
    """Make an entry with that text, unless one exists. True: it exists with our text.

    Raises:
        OSError: it cannot be made, and there is none.
    """
    entry.parent.mkdir(mode=0o700, exist_ok=True)
    made = Path(tempfile.mkdtemp(prefix=".new-", dir=entry.parent))
    try:
        (made / "is").write_text(text)
        made.rename(entry)
        return True
    except OSError as error:
        shutil.rmtree(made, ignore_errors=True)
        if error.errno not in (errno.EEXIST, errno.ENOTEMPTY):
            raise
    # An NFS client sends a rename again whose reply was lost, and that one fails: then the entry is ours all the same.
    return _read(entry) == text


def _read(entry: Path) -> str | None:
    try:
        return (entry / "is").read_text("utf-8", "replace")
    except OSError:
        return None


def _clean(starts: Path) -> None:
    """Remove starts so old that no rank joins them any more, with all others of their key."""
    with contextlib.suppress(OSError):
        # One look: what another launcher begins meanwhile is new.
        changed = {entry.path: entry.stat(follow_symlinks=False).st_mtime for entry in os.scandir(starts)}
        newest: dict[str, float] = {}
        for path, time_s in changed.items():
            newest[_key(path)] = max(newest.get(_key(path), 0.0), time_s)
        now = max(newest.values(), default=0.0)
        for path in changed:
            if now - newest[_key(path)] > KEPT_S:
                shutil.rmtree(path, ignore_errors=True)


def _key(start: str) -> str:
    """What the starts of one launcher key have in common."""
    return Path(start).name.partition(".")[0]
