# SPDX-License-Identifier: Apache-2.0
"""The files of `powerccl admin`: where each belongs, and which of them this command wrote.

A record on the node holds the SHA-256 of each file as it was written. A file with another digest was changed by hand:
it is neither overwritten nor removed.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import sys
from dataclasses import dataclass, field
from pathlib import Path

from powerccl.errors import PowercclError
from powerccl.files import MOST_PROGRAM, read_bytes, read_json, write_whole
from powerccl.launch.native import DAEMON, find_native

RECORD = "var/lib/powerccl/installed.json"
GROUP = "powerccl"  # of the daemon's socket: its members may ask for leases
INSTALLED_COMMAND = "/opt/powerccl/bin/powerccl"  # as the scripts for Slurm have it


@dataclass(frozen=True)
class Item:
    """A file to install: its path below the root, its content, its mode, and where a newer version of it goes."""

    target: str
    content: bytes
    mode: int = 0o644
    beside: str = ""

    @property
    def new(self) -> str:
        """Path below the root for this content if the target was changed by hand."""
        return self.beside or f"{self.target}.new"


@dataclass
class Record:
    """What this command wrote: digests by path below the root, and the folders that it made, parents first."""

    files: dict[str, str] = field(default_factory=dict)
    folders: list[str] = field(default_factory=list)


def packaging_folder() -> Path:
    """The folder with the files: in a wheel beside the package, else the checkout's.

    Raises:
        PowercclError: there is none.
    """
    package = Path(__file__).resolve().parent.parent
    for folder in (package / "_packaging", package.parent.parent / "packaging"):
        if (folder / "systemd").is_dir():
            return folder
    raise PowercclError("the files of an installation are missing", "reinstall powerccl")


def items(slurm: bool, root: Path) -> list[Item]:
    """Everything to install, in this order.

    Raises:
        PowercclError: a file is not in this installation.
    """
    folder = packaging_folder()

    def text(name: str) -> str:
        return (folder / name).read_text("utf-8")

    config = text("powerccld.toml").replace('#group = ""', f'group = "{GROUP}"')
    daemon = read_bytes(find_native().path(DAEMON), MOST_PROGRAM)
    listed = [
        Item("usr/local/sbin/powerccld", daemon, 0o755),
        Item("etc/systemd/system/powerccld.service", text("systemd/powerccld.service").encode()),
        Item("etc/powerccl/powerccld.toml", config.encode()),
        Item("usr/local/share/powerccl/grafana-powerccl.json", text("prometheus/grafana-powerccl.json").encode()),
        Item(
            "usr/local/share/powerccl/grafana-powerccl-fleet.json", text("fleet/grafana-powerccl-fleet.json").encode()
        ),
    ]
    for name in ("prolog", "epilog") if slurm else ():
        script = text(f"slurm/{name}").replace(INSTALLED_COMMAND, _command(root)).encode()
        # Slurm runs every file of the folder, so a second version must not be in it.
        beside = f"usr/local/share/powerccl/slurm-{name}.new"
        listed.append(Item(f"etc/slurm/{name}.d/50-powerccl", script, 0o755, beside))
    for name in ("task-prolog", "task-epilog") if slurm else ():
        script = text(f"slurm/{name}").replace(INSTALLED_COMMAND, _command(root)).encode()
        listed.append(Item(f"etc/slurm/powerccl-{name}", script, 0o755))
    return listed


def _command(root: Path) -> str:
    """The `powerccl` beside this Python, as a node with this root has it."""
    command = Path(sys.executable).parent / "powerccl"
    if not command.exists():
        return INSTALLED_COMMAND
    return f"/{command.relative_to(root)}" if command.is_relative_to(root) else str(command)


def digest(path: Path) -> str:
    """SHA-256 of a file; empty: there is none.

    Raises:
        OSError: it cannot be read.
    """
    try:
        return hashlib.sha256(read_bytes(path, MOST_PROGRAM)).hexdigest()
    except FileNotFoundError:
        return ""


def read_record(root: Path) -> Record:
    """The record of this root; empty where nothing was installed.

    Raises:
        PowercclError: it cannot be read.
    """
    import msgspec

    path = root / RECORD
    try:
        return read_json(path, Record)
    except FileNotFoundError:
        return Record()
    except (OSError, msgspec.MsgspecError) as error:
        hint = "remove it, and the files of PowerCCL, by hand"
        raise PowercclError(f"cannot read {path}: {error}", hint) from error


def install(root: Path, wanted: list[Item], dry: bool) -> list[str]:
    """Write what is missing or was written by an earlier install; a line for each file says what happened.

    Raises:
        PowercclError: a file cannot be written.
    """
    record, lines = read_record(root), []
    for item in wanted:
        content = hashlib.sha256(item.content).hexdigest()
        present = _digest(root / item.target)
        path = item.target
        if present == content:
            lines.append(f"{'unchanged':<9} /{path}")
            continue
        if present and present != record.files.get(path):
            if record.files.get(path) == content:
                lines.append(f"{'kept':<9} /{path}, which was changed by hand")
                continue
            path = item.new
            lines.append(f"{'kept':<9} /{item.target}, which was changed by hand; the new version is /{path}")
        else:
            lines.append(f"{'update' if present else 'write':<9} /{path}")
        if not dry:
            _write(root, path, item, record)
            record.files[path] = content
            _write_record(root, record)  # after each file: an install that is interrupted can be removed
    return lines


def remove(root: Path, dry: bool) -> list[str]:
    """Remove each file that is as install wrote it, then folders that it made and that are empty.

    Raises:
        PowercclError: a file cannot be removed.
    """
    record, lines = read_record(root), []
    for path, written in record.files.items():
        present = _digest(root / path)
        if not present:
            lines.append(f"{'gone':<9} /{path}")
        elif present != written:
            lines.append(f"{'kept':<9} /{path}, which was changed by hand")
        else:
            lines.append(f"{'remove':<9} /{path}")
            if not dry:
                _unlink(root / path)
    if not dry:
        _unlink(root / RECORD)
        for folder in reversed(record.folders):
            with contextlib.suppress(OSError):  # not empty, or gone
                (root / folder).rmdir()
    return lines


def _digest(path: Path) -> str:
    try:
        return digest(path)
    except OSError as error:
        raise PowercclError(f"cannot read {path}: {error.strerror}", "move it away") from error


def _write(root: Path, path: str, item: Item, record: Record) -> None:
    target = root / path
    if not target.resolve().is_relative_to(root.resolve()):
        raise PowercclError(f"{target} leads out of {root}", "replace the absolute link in its path by a relative one")
    try:
        _make_folders(root, path, record)
        write_whole(target, item.content)
        target.chmod(item.mode)
    except OSError as error:
        raise PowercclError(f"cannot write {target}: {error.strerror}", "install again once it can be") from error


def _make_folders(root: Path, path: str, record: Record) -> None:
    for folder in reversed(Path(path).parents):
        if not (root / folder).is_dir():
            (root / folder).mkdir(mode=0o755)
            record.folders.append(str(folder))


def _write_record(root: Path, record: Record) -> None:
    import msgspec

    try:
        _make_folders(root, RECORD, record)
        write_whole(root / RECORD, msgspec.json.format(msgspec.json.encode(record), indent=1) + b"\n")
    except OSError as error:
        raise PowercclError(f"cannot write {root / RECORD}: {error.strerror}", "check the file system") from error


def _unlink(path: Path) -> None:
    try:
        path.unlink(missing_ok=True)
    except OSError as error:
        raise PowercclError(f"cannot remove {path}: {error.strerror}", "remove it by hand") from error


def check_root(root: Path) -> None:
    """Refuse the machine itself to other users than root, and a root that is not a folder.

    Raises:
        PowercclError: it is one of these.
    """
    if root == Path("/") and os.geteuid() != 0:
        hint = "run it as root, or name a folder that stands for /: --root DIR"
        raise PowercclError("this changes /etc and /usr/local of the node", hint)
    if not root.is_dir():
        raise PowercclError(f"{root} is no folder", "make it first")
