# SPDX-License-Identifier: Apache-2.0
"""The files of a run, wherever they are: in its folder, in the file of a node, or still on this node.

`powerccl run --local-dir` keeps the files of a node in a folder of the node while the job runs. At the end they become
one file of the run folder, `node-<host>-<boot>.tar`. Until then, `node-<host>-<boot>.local` says where they are. A file
inside a tar has a path through it, such as `runs/a/node-n1-0a1b2c3d.tar/rank-0.trace`. Readers list and open all files
of a run here, and need not know the difference.

The tar is not extracted, and Python's tarfile does not walk it: it follows links, joins sparse files and believes any
size. Only plain files are read, where the tar has them. Standard library alone: `powerccl run` imports this.
"""

from __future__ import annotations

import contextlib
import json
import os
import stat
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, NamedTuple

from powerccl import clean
from powerccl.files import MIB, MOST_FILES, UnreadableError, is_foreign, open_regular, read_into, read_regular
from powerccl.files import opened as regular_opened
from powerccl.quantities import plural
from powerccl.traces.run_info import read_run_id

NODE, TAR, LOCAL = "node-", ".tar", ".local"
BOOT_DIGITS = 8  # of the boot id in a file's name; hosts of one name differ in it
BLOCK = 512  # tar's: a header has one, and contents fill whole ones
# A tar has eight ranks' traces as a rule. Each may have 1 TiB (MOST_TRACE).
MOST_TAR = 1 << 44
# A node has three files for each of some hundred ranks. At half, a node of many ranks and restarts may have more.
MOST_MEMBERS = 1 << 14
MOST_POINTERS = 1 << 12
SHOWN_HOSTS = 3
BEGIN = 4096  # bytes that are compared of two files of one name and size
MOST_SAID = 20  # damaged tars that are named


class Listed(NamedTuple):
    """A file of a run. `key` stays the same when the file moves from its node into the node's tar."""

    key: str
    path: Path


@dataclass
class RunFile:
    """A file of a run that is open: a file of its own, or `length` bytes from `begin` on in a node's tar."""

    descriptor: int
    begin: int = 0
    length: int | None = None

    @property
    def size(self) -> int:
        """How many bytes it has now."""
        return os.fstat(self.descriptor).st_size if self.length is None else self.length

    def read(self, count: int, offset: int) -> bytes:
        """At most `count` bytes from `offset` on; fewer where it ends."""
        return os.pread(self.descriptor, self._within(count, offset), self.begin + offset)

    def read_into(self, into: Any, offset: int) -> int:
        """Fill a buffer from `offset` on; how many bytes there were."""
        view = memoryview(into).cast("B")
        return read_into(self.descriptor, view[: self._within(len(view), offset)], self.begin + offset)

    def close(self) -> None:
        """Let go of it."""
        os.close(self.descriptor)

    def _within(self, count: int, offset: int) -> int:
        return count if self.length is None else max(0, min(count, self.length - offset))


@dataclass(frozen=True)
class NodeFolder:
    """Where a node keeps its files while the job runs, as the run folder's `node-<host>-<boot>.local` says it.

    `place` is the folder's device and inode: containers of one host may each have a folder of this name.
    """

    host: str
    boot_id: str
    folder: str
    place: str = ""

    def to_json(self) -> bytes:
        """As the file has it."""
        return json.dumps(asdict(self)).encode()


@dataclass
class RunFiles:
    """What a run folder has. `elsewhere`: nodes whose files are on these nodes, and cannot be read here.

    `here`: nodes whose files are still on this one, where they are read.
    """

    files: list[Listed] = field(default_factory=list)
    more: int = 0  # files beyond MOST_FILES, which are left out
    elsewhere: list[NodeFolder] = field(default_factory=list)
    here: list[NodeFolder] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)

    def add(self, entries: Iterable[Listed]) -> None:
        """Take what there is room for."""
        for entry in entries:
            if len(self.files) < MOST_FILES:
                self.files.append(entry)
            else:
                self.more += 1


def run_files(folder: Path) -> RunFiles:
    """All files of a run by name; of its nodes' tars and `.local` files, those that they lead to.

    Raises:
        OSError: the folder cannot be read.
    """
    listing = RunFiles()
    tars: list[str] = []
    pointers: list[str] = []
    damaged: list[str] = []
    with os.scandir(folder) as entries:
        for name in (entry.name for entry in entries):
            if name.startswith(NODE) and name.endswith(TAR):
                tars.append(name)
            elif name.startswith(NODE) and name.endswith(LOCAL):
                pointers.append(name)
            else:
                listing.add([Listed(name, folder / name)])
    for name in sorted(tars)[:MOST_FILES]:
        stem = name.removesuffix(TAR)
        try:
            index = members(folder / name)
        except OSError as error:
            damaged.append(f"{name}: {error.strerror}")
            continue
        damaged += [f"{name}: {index.problem}"] if index.problem else []
        listing.add(Listed(f"{stem}/{each}", folder / name / each) for each in index.places)
    listing.problems += damaged[:MOST_SAID]
    if damaged[MOST_SAID:]:
        listing.problems.append(f"{plural(len(damaged) - MOST_SAID, 'more file')} of nodes cannot be read as a whole")
    for name in sorted(pointers)[:MOST_POINTERS]:
        stem = name.removesuffix(LOCAL)
        if (folder / f"{stem}{TAR}").exists():
            continue  # its files were brought home, and nothing but the removal is missing
        node = read_pointer(folder / name)
        if is_here(node, folder):
            listing.here.append(node)
            listing.add(Listed(f"{stem}/{each}", Path(node.folder) / each) for each in _names_in(node.folder))
        else:
            listing.elsewhere.append(node)
    listing.files.sort(key=lambda entry: (entry.path.name, entry.key))
    if tars:
        listing.files = list(_without_copies(listing.files))
    return listing


def _without_copies(files: list[Listed]) -> Iterator[Listed]:
    """Leave out what was unpacked beside its tar, and a copy of a tar: a rank would count twice."""
    count = Counter(path.name for _, path in files)
    seen: set[tuple[str, int, bytes]] = set()
    for entry in files:
        if count[entry.path.name] > 1:
            with contextlib.suppress(OSError), opened(entry.path, MOST_TAR) as file:
                # The beginning of a trace or of samples names process, host and time.
                begin = (entry.path.name, file.size, file.read(BEGIN, 0))
                if file.size and begin in seen:
                    continue
                seen.add(begin)
        yield entry


def list_files(folder: Path, prefix: str, suffix: str) -> tuple[list[Path], int]:
    """Files of a run by name, and how many more than MOST_FILES there are, which are left out.

    Raises:
        OSError: the folder cannot be read.
    """
    listing = run_files(folder)
    paths = [path for _, path in listing.files if path.name.startswith(prefix) and path.name.endswith(suffix)]
    return paths, listing.more


def has_files(folder: Path, prefix: str, suffix: str) -> bool:
    """Whether a run has such a file; False where its folder cannot be read."""
    with contextlib.suppress(OSError):
        return bool(list_files(folder, prefix, suffix)[0])
    return False


def is_on_nodes(folder: Path) -> bool:
    """Whether files of a run are on nodes that cannot be read here, so that an analysis would lack them."""
    with contextlib.suppress(OSError):
        return bool(run_files(folder).elsewhere)
    return False


def open_file(path: Path, limit: int) -> RunFile:
    """Open a file of a run with at most `limit` bytes; the path may lead through a node's tar.

    Raises:
        UnreadableError: it is no regular file, or larger.
        OSError: it cannot be opened.
    """
    tar = path.parent
    if not (tar.name.startswith(NODE) and tar.name.endswith(TAR)) or tar.is_dir():
        return RunFile(open_regular(path, limit))
    descriptor = open_regular(tar, MOST_TAR)
    try:
        place = _members(tar, descriptor).places.get(path.name)
        if place is None:
            raise FileNotFoundError(2, f"not in {tar.name}", str(path))
        if place[1] > limit:
            raise UnreadableError(path, f"{place[1]:,} bytes; at most {limit:,} are read")
    except BaseException:
        os.close(descriptor)
        raise
    return RunFile(descriptor, *place)


@contextlib.contextmanager
def opened(path: Path, limit: int) -> Iterator[RunFile]:
    """`open_file`, closed in the end."""
    file = open_file(path, limit)
    try:
        yield file
    finally:
        file.close()


def read_bytes(path: Path, limit: int) -> bytes:
    """The whole file, as long as it was when it was opened.

    Raises:
        UnreadableError: as open_file.
        OSError: it cannot be read.
    """
    with opened(path, limit) as file:
        return read_regular(file.read, file.size)


# ---- The tar of a node


@dataclass
class Members:
    """The plain files of a tar: where each begins, and how many bytes the tar has of it. `problem`: it is damaged."""

    places: dict[str, tuple[int, int]] = field(default_factory=dict)
    problem: str = ""


Stamp = tuple[int, int, int, int]


class _Known(dict[Path, tuple[Stamp, Members]]):
    """Tars that were walked: each file that is opened asks for its tar again."""

    kept = 0  # files, in all of them

    def keep(self, tar: Path, walked: tuple[Stamp, Members]) -> None:
        """Remember one; forget all others where they are too many."""
        if self.kept > MOST_FILES:
            self.clear()
            self.kept = 0
        self[tar] = walked
        self.kept += len(walked[1].places) + 1


_known = _Known()


def members(tar: Path) -> Members:
    """The files of a node's tar.

    Raises:
        OSError: it cannot be read.
    """
    with regular_opened(tar, MOST_TAR) as file:
        return _members(tar, file)


def _members(tar: Path, file: int) -> Members:
    about = os.fstat(file)
    stamp = (about.st_dev, about.st_ino, about.st_size, about.st_mtime_ns)
    known = _known.get(tar)
    if known is None or known[0] != stamp:
        known = (stamp, _walk(file, about.st_size))
        _known.keep(tar, known)
    return known[1]


def _walk(file: int, size: int) -> Members:
    """Go from header to header. What is damaged ends the walk: nothing behind it can be found."""
    import tarfile  # 10 ms, which only runs with a tar wait for

    index = Members()
    at = 0
    for _ in range(MOST_MEMBERS):
        header = os.pread(file, BLOCK, at)
        if len(header) < BLOCK:
            index.problem = _cut(index)
            return index
        if not any(header):
            return index
        try:
            about = tarfile.TarInfo.frombuf(header, "utf-8", "surrogateescape")
        except tarfile.HeaderError:
            index.problem = f"damaged behind {plural(len(index.places), 'file')}: what follows is not read"
            return index
        begin = at + BLOCK
        if about.size < 0:
            index.problem = f"damaged behind {plural(len(index.places), 'file')}: what follows is not read"
            return index
        plain = about.type in (tarfile.REGTYPE, tarfile.AREGTYPE) and _is_plain(about.name)
        if plain and about.name not in index.places:
            index.places[about.name] = (begin, min(about.size, max(size - begin, 0)))
        elif not index.problem:
            index.problem = "has entries that are no files of a run; they are left out"
        at = begin + -(-about.size // BLOCK) * BLOCK
        if begin + about.size > size:
            index.problem = _cut(index)
            return index
    index.problem = f"more than {MOST_MEMBERS:,} files: the others are not read"
    return index


def _cut(index: Members) -> str:
    return f"cut off behind {plural(len(index.places), 'file')}: the last may be in part, and others missing"


def _is_plain(name: str) -> bool:
    """Whether a member's name is that of a file in a run folder."""
    return bool(name) and "/" not in name and "\0" not in name and not name.startswith(".") and len(name) < 256


# ---- The folder of a node


def read_pointer(path: Path) -> NodeFolder:
    """What a `.local` file says; of a damaged one, what its name does."""
    try:
        said = json.loads(read_bytes(path, MIB))
        node = NodeFolder(*(said[name] for name in ("host", "boot_id", "folder", "place")))
        if all(isinstance(text, str) and "\0" not in text for text in asdict(node).values()):
            return replace(node, host=clean.field(node.host))
    except (OSError, ValueError, KeyError, TypeError, RecursionError):
        pass
    return NodeFolder(clean.field(path.name.removeprefix(NODE).removesuffix(LOCAL)), "", "")


def local_name(run_id: str, boot_id: str) -> str:
    """How the name of a node's folder of a run begins; the host's name follows."""
    return f"{run_id}-{boot_id[:BOOT_DIGITS]}-"


def place_of(about: os.stat_result) -> str:
    """See NodeFolder."""
    return f"{about.st_dev}:{about.st_ino}"


def is_here(node: NodeFolder, run: Path, rebooted: bool = False) -> bool:
    """Whether this is the node, and its folder is this user's own and of this run.

    Anyone may write a `.local` file. It leads to no other folder than one that `powerccl run` made for the run.
    `rebooted`: the node may have been restarted since.
    """
    place, run_id = Path(node.folder), read_run_id(run)
    if not run_id or not node.boot_id or (node.boot_id != this_boot() and not rebooted) or is_foreign(run):
        return False
    made_by_us = place.parent.name == own_name() and place.name.startswith(local_name(run_id, node.boot_id))
    if not place.is_absolute() or not made_by_us:
        return False
    try:
        about = place.lstat()
    except OSError:
        return False
    own = stat.S_ISDIR(about.st_mode) and about.st_uid == os.geteuid() and not about.st_mode & 0o022
    return own and node.place == place_of(about)


def own_name() -> str:
    """What a user's own folder is called in a directory that others may write to."""
    return f"powerccl-{os.getuid()}"


def this_boot() -> str:
    """What this boot of this host has in common with no other, in hex; empty if the kernel does not say."""
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_bytes().strip().decode("ascii", "replace").replace("-", "")
    except OSError:
        return ""


def _names_in(folder: str) -> list[str]:
    with contextlib.suppress(OSError), os.scandir(folder) as entries:
        return [entry.name for entry in entries if _is_plain(entry.name)]
    return []


def about_nodes(listing: RunFiles, run: Path) -> list[str]:
    """What to say of files that are not in the run folder: where they are, and how they get there."""
    return [
        f"{hosts_of(nodes)}: traces and samples are {where} {clean.field(nodes[0].folder) or 'a folder'} on that host. "
        f"If the job has ended there, run `powerccl collect {clean.field(str(run))}` on it."
        for nodes, where in ((listing.elsewhere, "not here: they are in"), (listing.here, "read from"))
        if nodes
    ]


def hosts_of(nodes: list[NodeFolder]) -> str:
    """Their names, the first few of many."""
    names = sorted(node.host for node in nodes)
    if len(names) <= SHOWN_HOSTS:
        return ", ".join(names)
    return f"{', '.join(names[:SHOWN_HOSTS])} and {plural(len(names) - SHOWN_HOSTS, 'more host')}"
