# SPDX-License-Identifier: Apache-2.0
"""A run's files on the node while the job runs (`powerccl run --local-dir`), and one file of the run folder at its end.

The folder is `DIR/powerccl-<uid>/<run id>-<boot>-<host>`. All launchers of a run on a node use it. Each holds a shared
lock on the file `<folder>.lock`. The last one that leaves gets the lock for itself, and packs. The kernel releases the
lock of a launcher that was killed, so that the others need not know. Before the job starts, the run folder says where
the node keeps its files (run_files.NodeFolder): no kill can lose them unseen.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import platform
import signal
import stat
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from powerccl.errors import PowercclError, one_line
from powerccl.files import MIB, open_regular, written_whole
from powerccl.launch.environment import LOCAL_FOLDER
from powerccl.launch.folder import private_folder
from powerccl.launch.launchers import plain
from powerccl.quantities import plural
from powerccl.traces.run_files import (
    BOOT_DIGITS,
    LOCAL,
    MOST_TAR,
    NODE,
    TAR,
    NodeFolder,
    is_here,
    local_name,
    place_of,
    read_pointer,
    this_boot,
)
from powerccl.traces.run_info import read_run_id

HINT = "name a directory of this node that you may write to, such as --local-dir /tmp"
# A launcher that comes while another one packs waits for so long, then records in the run folder. A node's traces of
# 2 GiB take 10 s to a file system of 200 MB/s. Double holds up a job's start where that file system hangs.
PACKING_S = 10.0
# Rank 0 waits for so long for the files of the other nodes, and reports what it has then. At half, many nodes that pack
# at the same time are late. Double keeps a job's step for longer where another node was killed.
NODES_S = 10.0
LOOK_S = 0.05
MOST_NAMES = 1000
# What means nothing after the run: locks, memory that the ranks share (hidden), and what tells ranks of each other.
NOT_PACKED = ("agent-*.lock", "mpi-member-*")


@dataclass
class LocalFolder:
    """A node's folder, as one of its launchers has it. `pointer` is the run folder's file about it."""

    folder: Path
    pointer: Path
    _lock: int

    @property
    def lock_file(self) -> Path:
        """What its launchers hold."""
        return _lock_file(self.folder)

    def leave(self, say: Callable[[str], None]) -> bool:
        """Pack, if this is the last launcher of the run on this node. Where that fails, nothing is lost.

        False: it failed, and the files stay until the user collects them.
        """
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if written := bring_home(self.folder, self.pointer):
                say(
                    f"processes of the job still run: the end of {plural(len(written), 'trace')} is lost, such as that "
                    f"of {written[0]}; record a job that leaves processes behind without --local-dir"
                )
            self.lock_file.unlink(missing_ok=True)
        except BlockingIOError:
            pass  # others of this node still record
        except OSError as error:
            say(self._not_packed(one_line(error), " once that is mended"))
            return False
        except KeyboardInterrupt:
            say(self._not_packed("a signal ended the packing"))
            raise
        finally:
            os.close(self._lock)
        return True

    def _not_packed(self, why: str, when: str = "") -> str:
        run = self.pointer.parent
        if not self.folder.is_dir():
            return f"{self.folder} was removed while the job ran: the traces and samples in it are lost"
        if not run.is_dir():
            return f"{run} was removed while the job ran: traces and samples stay in {self.folder}"
        return (
            f"traces and samples stay in {self.folder}: {why}; run `powerccl collect {run}` on {platform.node()}{when}"
        )


def enter(directory: Path, run: Path) -> LocalFolder:
    """Make or join this node's folder of a run, and say in the run folder where it is.

    Raises:
        PowercclError: the directory cannot be used; the message says why.
    """
    try:
        boot, run_id = this_boot(), read_run_id(run)
        if not boot or not run_id:
            raise PowercclError("the kernel or the run has no id", HINT)
        _check(directory)
        # With the host's name: containers of one host may share the directory.
        folder = private_folder(directory, HINT) / f"{local_name(run_id, boot)}{plain(platform.node())}"
        lock = _take_part(_lock_file(folder))
        try:
            folder.mkdir(mode=0o700, exist_ok=True)
            node = NodeFolder(platform.node(), boot, str(folder), place_of(folder.lstat()))
            return LocalFolder(folder, _publish(run, node), lock)
        except BaseException:
            os.close(lock)
            raise
    except (OSError, ValueError) as error:  # the latter: a name with a null byte
        raise PowercclError(f"cannot use {directory}: {one_line(error)}", HINT) from error


def _check(directory: Path) -> None:
    """Another user who may rename entries of the directory could put a folder in the place of ours."""
    about = directory.stat()
    if not stat.S_ISDIR(about.st_mode):
        raise PowercclError(f"{directory} is no directory", HINT)
    if about.st_mode & 0o022 and not about.st_mode & stat.S_ISVTX:
        raise PowercclError(f"others may rename what is in {directory}", f"chmod +t {directory}, or {HINT}")
    if about.st_uid not in (0, os.geteuid()):
        raise PowercclError(f"{directory} belongs to another user", HINT)


def _lock_file(folder: Path) -> Path:
    return folder.with_name(f"{folder.name}.lock")


def _take_part(lock_file: Path) -> int:
    """A shared lock. The file may be removed by the launcher that packs; then there is a new one.

    Raises:
        OSError: it cannot be had.
    """
    deadline = time.monotonic() + PACKING_S
    while time.monotonic() < deadline:
        lock = os.open(lock_file, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
        try:
            fcntl.flock(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)
            if os.path.samestat(os.fstat(lock), os.stat(lock_file)):  # noqa: PTH116
                return lock
        except (BlockingIOError, FileNotFoundError):
            pass  # others are waited for, and nothing else: a file system may have no locks
        except BaseException:
            os.close(lock)
            raise
        os.close(lock)
        time.sleep(LOOK_S)
    raise OSError(errno.EBUSY, "another launcher of this run is packing its files")


def _publish(run: Path, node: NodeFolder) -> Path:
    """The run folder's file that says where the node keeps its files; the node's launchers have one.

    A name whose tar exists is not taken: this node's first launchers may have ended before the others began.
    """
    stem = f"{NODE}{plain(node.host)}-{node.boot_id[:BOOT_DIGITS]}"
    made = run / f".{stem}.{os.urandom(6).hex()}"
    made.write_bytes(node.to_json())
    try:
        for number in range(1, MOST_NAMES):
            pointer = run / f"{stem if number == 1 else f'{stem}.{number}'}{LOCAL}"
            if pointer.with_suffix(TAR).exists():
                continue
            try:
                _link(made, pointer)
            except FileExistsError:
                if read_pointer(pointer) != node:
                    continue
            return pointer
    finally:
        made.unlink(missing_ok=True)
    raise OSError(errno.EEXIST, "a thousand names are taken", str(run))


def _link(made: Path, pointer: Path) -> None:
    """Give a file its name, unless that is taken.

    Raises:
        FileExistsError: it is.
        OSError: it cannot be named.
    """
    try:
        os.link(made, pointer)
    except FileExistsError:
        raise
    except OSError:  # a file system without links
        if pointer.exists():
            raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), str(pointer)) from None
        made.replace(pointer)


# ---- At the end


def bring_home(folder: Path, pointer: Path) -> list[str]:
    """Make one file of a node's folder, in the run folder, and remove the folder after that.

    Returns the traces that processes of the job still write: their end is lost.

    Raises:
        OSError: the run folder cannot be written; the node's folder stays.
    """
    tar = pointer.with_suffix(TAR)
    for half in tar.parent.glob(f".{tar.name}.*"):  # of a launcher that was killed while it packed
        half.unlink(missing_ok=True)
    names, written = sorted(_packed(folder)), []
    if names and not tar.exists():
        with written_whole(tar) as file:
            written = _write_tar(file, folder, names)
            file.flush()
            os.fsync(file.fileno())
        _sync(tar.parent)
    pointer.unlink(missing_ok=True)
    _remove(folder)
    return written


def _remove(folder: Path) -> None:
    """Remove a node's folder; if it has folders, which PowerCCL makes none of, they stay."""
    with contextlib.suppress(OSError):
        for entry in os.scandir(folder):
            if not entry.is_dir(follow_symlinks=False):
                Path(entry.path).unlink()
        folder.rmdir()


def _packed(folder: Path) -> Iterator[str]:
    with os.scandir(folder) as entries:
        for entry in entries:
            hidden = entry.name.startswith(".") or any(Path(entry.name).match(pattern) for pattern in NOT_PACKED)
            if not hidden and entry.is_file(follow_symlinks=False):
                yield entry.name


def _write_tar(file: BinaryIO, folder: Path, names: list[str]) -> list[str]:
    import tarfile

    written = []
    # GNU's format has room for a size above 8 GiB in the header itself: readers need no other entry.
    with tarfile.TarFile(fileobj=file, mode="w", format=tarfile.GNU_FORMAT, encoding="utf-8", copybufsize=MIB) as tar:
        for name in names:
            with os.fdopen(open_regular(folder / name, MOST_TAR), "rb") as content:
                about = os.fstat(content.fileno())
                entry = tarfile.TarInfo(name)
                entry.size, entry.mtime, entry.mode = about.st_size, int(about.st_mtime), 0o644
                tar.addfile(entry, content)
                if name.endswith(".trace") and _is_written(content.fileno()):
                    written.append(name)
    return written


def _is_written(file: int) -> bool:
    """Whether a process has a file open for writing, or mapped: the kernel refuses a read lease then."""
    try:
        # Should a process open the file meanwhile, the kernel's default signal (SIGIO) would end this one.
        fcntl.fcntl(file, fcntl.F_SETSIG, signal.SIGURG)
        fcntl.fcntl(file, fcntl.F_SETLEASE, fcntl.F_RDLCK)
        fcntl.fcntl(file, fcntl.F_SETLEASE, fcntl.F_UNLCK)
    except OSError as error:  # or a file system without leases
        return error.errno == errno.EAGAIN
    return False


def _sync(folder: Path) -> None:
    """Have the folder's entries on the disk before what they replace is removed."""
    with contextlib.suppress(OSError):
        file = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            os.fsync(file)
        finally:
            os.close(file)


def await_nodes(run: Path, not_packed: Path | None) -> None:
    """Wait for the files of the run's nodes: rank 0 ends with the others, and one of them packs.

    `not_packed`: as Recording's. No other launcher packs them.
    """
    deadline = time.monotonic() + NODES_S
    while set(run.glob(f"{NODE}*{LOCAL}")) - {not_packed} and time.monotonic() < deadline:
        time.sleep(LOOK_S)


# ---- After a kill


def collect(run: Path, say: Callable[[str], None]) -> bool:
    """Bring home what killed launchers left on this node. False: something stays on a node, and `say` says why."""
    done = True
    pointers = sorted(run.glob(f"{NODE}*{LOCAL}"))
    if not pointers:
        say(f"{run.name}: all files are in the run folder")
    for pointer in pointers:
        node = read_pointer(pointer)
        if node.boot_id != this_boot() and node.host != platform.node():
            why = f"its files are in {node.folder} on that host: run this command there"
        elif is_here(node, run, rebooted=node.host == platform.node()):
            why = _cannot_bring(Path(node.folder), pointer)
        elif pointer.with_suffix(TAR).exists():
            pointer.unlink(missing_ok=True)
            why = ""
        else:
            why = f"{node.folder or 'its folder'} is gone, or is none that `powerccl run` made for this run"
        done &= not why
        say(f"{node.host}: {why or f'its files are in {pointer.with_suffix(TAR).name} now'}")
    return done


def _cannot_bring(folder: Path, pointer: Path) -> str:
    """Bring one folder home; why that cannot be done, empty: it is."""
    try:
        lock = os.open(_lock_file(folder), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    except OSError as error:
        return f"cannot lock {folder}: {one_line(error)}"
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        if pids := _users(folder):
            return f"processes of the job still run: {', '.join(map(str, pids[:5]))}; end them first"
        bring_home(folder, pointer)
        _lock_file(folder).unlink(missing_ok=True)
    except BlockingIOError:
        return "the job still runs; `powerccl run` packs its files at its end"
    except OSError as error:
        return f"its files stay in {folder}: {one_line(error)}"
    finally:
        os.close(lock)
    return ""


def _users(folder: Path) -> list[int]:
    """Processes whose records go to the folder."""
    mark = f"{LOCAL_FOLDER}={folder}".encode()
    pids = []
    for entry in Path("/proc").iterdir():
        with contextlib.suppress(OSError):
            if entry.name.isdigit() and mark in (entry / "environ").read_bytes().split(b"\0"):
                pids.append(int(entry.name))
    return sorted(pids)
