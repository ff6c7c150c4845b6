# SPDX-License-Identifier: Apache-2.0
"""The one way to open a file that another user may have written, and the one way to write one of ours.

Reading never waits, and never goes on without end. A file of ours is written whole or not at all.

A run folder is written by a job, and its user may put anything in the place of a file. A FIFO blocks the process that
opens it. A device has no end, a link leads elsewhere, and a sparse file may have a terabyte of nothing. Standard
library alone: `powerccl run` imports this on the way to the job's start.
"""

from __future__ import annotations

import contextlib
import errno
import os
import stat
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    from typing import Any, BinaryIO

T = TypeVar("T")

MIB = 1 << 20
# run.json holds a command and an environment, of which the kernel takes 6 MiB; JSON writes a control byte as six.
MOST_INFO = 64 * MIB
# Profiles, studies, sweeps and results of benchmarks. The largest in evidence/results is 3 MiB.
MOST_DOCUMENT = 64 * MIB
# Eight GPUs sampled every 20 ms write 3 GB a day.
MOST_SAMPLES = 8 << 30
# POWERCCL_TRACE_LIMIT_MB goes up to 1 TiB; a header comes on top. Traces are read in pieces.
MOST_TRACE = (1 << 40) + MIB
# A trace of torch.profiler, unpacked. Those of a few steps of a large model take some hundred MiB.
MOST_PROFILE = 4 << 30
# A program that is searched for the MPI library that it contains; the largest are a few hundred MiB.
MOST_PROGRAM = 1 << 30
# One folder's files: ranks of the largest jobs on record, several times over.
MOST_FILES = 1 << 17
MOST_NAME = 200  # of 255 bytes that a file's name may have: a temporary's is longer
# A file with fewer bytes on the disk than one in so many is nothing but a hole. Compression does not come near.
HOLES = 256
HOLES_FROM = 4 << 30  # reading so many zeros takes a second or two; it takes no memory


class UnreadableError(OSError):
    """A file that must not be read. `strerror` says why, and the text names the file."""

    def __init__(self, path: str | os.PathLike[str], reason: str) -> None:
        super().__init__(errno.EINVAL, reason, os.fspath(path))

    def __str__(self) -> str:
        return f"{self.filename}: {self.strerror}"


KINDS = {
    stat.S_IFIFO: "a FIFO",
    stat.S_IFSOCK: "a socket",
    stat.S_IFDIR: "a directory",
    stat.S_IFCHR: "a device",
    stat.S_IFBLK: "a device",
    stat.S_IFLNK: "a symbolic link in a folder of another user",
}


def open_regular(path: str | os.PathLike[str], limit: int) -> int:
    """A descriptor of a regular file with at most `limit` bytes, read-only.

    Links are not followed in a folder that another user can write to. The file they name may be one that only the
    reader may read.

    Raises:
        UnreadableError: it is no regular file, or larger.
        OSError: it cannot be opened.
    """
    flags = os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC | os.O_NOCTTY
    if is_foreign(Path(path).parent):
        flags |= os.O_NOFOLLOW
    try:
        file = os.open(path, flags)
    except OSError as error:
        kind = None
        with contextlib.suppress(OSError):
            kind = KINDS.get(stat.S_IFMT(Path(path).lstat().st_mode))
        if kind and error.errno in (errno.ELOOP, errno.ENXIO, errno.ENODEV):  # a link, a socket, no such device
            raise UnreadableError(path, f"{kind}, not a regular file") from error
        raise
    try:
        about = os.fstat(file)
        if not stat.S_ISREG(about.st_mode):
            raise UnreadableError(path, f"{KINDS.get(stat.S_IFMT(about.st_mode), 'something')}, not a regular file")
        if about.st_size > limit:
            raise UnreadableError(path, f"{about.st_size:,} bytes; at most {limit:,} are read")
        if about.st_size > HOLES_FROM and about.st_blocks * 512 < about.st_size // HOLES and _holes(file):
            raise UnreadableError(path, f"{about.st_size:,} bytes, but almost no data")
    except BaseException:
        os.close(file)
        raise
    return file


def _holes(file: int) -> bool:
    """Whether there is a hole: some file systems count a file's blocks only when they have written them."""
    try:
        return os.lseek(file, 0, os.SEEK_HOLE) < os.fstat(file).st_size
    except OSError:
        return False
    finally:
        os.lseek(file, 0, os.SEEK_SET)


def is_foreign(folder: Path) -> bool:
    """Whether another user can write to a folder."""
    try:
        about = folder.stat()
    except OSError:
        return False  # opening says what is wrong
    return about.st_uid not in (0, os.geteuid()) or bool(about.st_mode & stat.S_IWOTH)


@contextlib.contextmanager
def written_whole(path: str | os.PathLike[str]) -> Iterator[BinaryIO]:
    """A file to write to that takes the place of `path` where the `with` ends without an error; else nothing changes.

    Links are followed, and a file that is replaced keeps its mode. What is no regular file (`/dev/stdout`, a FIFO) is
    written as it is.

    Raises:
        OSError: it cannot be written; `filename` is `path`.
    """
    target = Path(path).resolve()
    temporary: Path | None = None
    try:
        about = target.stat() if target.exists() else None
        if about and not stat.S_ISREG(about.st_mode):
            with Path(path).open("wb") as file:
                yield file
            return
        temporary = target.with_name(f".{target.name[:MOST_NAME]}.{os.urandom(6).hex()}")
        with temporary.open("xb") as file:
            if about:
                os.fchmod(file.fileno(), stat.S_IMODE(about.st_mode))
            yield file
        temporary.replace(target)
        temporary = None
    except OSError as error:
        if error.filename in (None, str(temporary), str(target)):
            error.filename, error.filename2 = os.fspath(path), None
        raise
    finally:
        if temporary:
            with contextlib.suppress(OSError):
                temporary.unlink()


def write_whole(path: str | os.PathLike[str], data: bytes | str) -> None:
    """Write a file whole or not at all; text as UTF-8, whatever the locale.

    Raises:
        OSError: it cannot be written; `filename` is `path`.
    """
    with written_whole(path) as file:
        file.write(data.encode("utf-8", "replace") if isinstance(data, str) else data)


@contextlib.contextmanager
def opened(path: str | os.PathLike[str], limit: int) -> Iterator[int]:
    """`open_regular`, closed in the end."""
    file = open_regular(path, limit)
    try:
        yield file
    finally:
        os.close(file)


def read_bytes(path: str | os.PathLike[str], limit: int = MOST_DOCUMENT) -> bytes:
    """The whole file, as long as it was when it was opened: one that grows all the time is read once.

    Raises:
        UnreadableError: as open_regular.
        OSError: it cannot be read.
    """
    with opened(path, limit) as file:
        return read_regular(lambda count, _: os.read(file, count), os.fstat(file).st_size)


def read_regular(read: Callable[[int, int], bytes], size: int) -> bytes:
    """`size` bytes, fewer where there are fewer, by `read(count, offset)`, some MiB at a time."""
    parts: list[bytes] = []
    done = 0
    while done < size and (part := read(min(size - done, 16 * MIB), done)):
        parts.append(part)
        done += len(part)
    return b"".join(parts)


def read_json(path: Path, kind: type[T], limit: int = MOST_DOCUMENT) -> T:
    """A JSON file as `kind`.

    Raises:
        UnreadableError: as open_regular.
        OSError: it cannot be read.
        msgspec.MsgspecError: it is not of this kind.
    """
    return decode_json(read_bytes(path, limit), kind)


def decode_json(data: bytes, kind: type[T]) -> T:
    """JSON as `kind`, whatever is in the bytes.

    Raises:
        msgspec.MsgspecError: it is not of this kind.
    """
    import msgspec

    try:
        return msgspec.json.decode(data, type=kind)
    except RecursionError as error:
        raise msgspec.DecodeError("nested too deep") from error
    except (UnicodeError, OverflowError) as error:
        raise msgspec.DecodeError(str(error)) from error


def expanded(text: str) -> Path:
    """A path whose `~` is the user's home; as it is where the user has none."""
    try:
        return Path(text).expanduser()
    except RuntimeError:
        return Path(text)


def user_folder(variable: str, below_home: str) -> Path | None:
    """The folder that an XDG variable names, else this one in the home of the environment or of the user's account.

    None: there is neither. Containers run programs as numbers without an account. A relative path would depend on
    where a command is typed.
    """
    named = Path(os.environ.get(variable, ""))
    if named.is_absolute():
        return named
    home = Path(os.environ.get("HOME", ""))
    if not home.is_absolute():
        import pwd

        try:
            home = Path(pwd.getpwuid(os.getuid()).pw_dir)
        except KeyError:
            return None
    return home / below_home if home.is_absolute() else None


def read_into(file: int, into: Any, offset: int) -> int:
    """Fill a buffer from `offset` on; how many bytes there were."""
    view = memoryview(into).cast("B")
    done = 0
    while done < len(view):
        got = os.preadv(file, [view[done:]], offset + done)
        if got == 0:
            break
        done += got
    return done
