# SPDX-License-Identifier: Apache-2.0
"""JSON files that are known by name: built-in ones, and the user's own in ~/.config/powerccl, which hide those."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Generic, TypeVar

import msgspec

from powerccl.errors import PowercclError, UsageError, nearest
from powerccl.files import decode_json, read_bytes, user_folder

BUILTIN = Path(__file__).parent / "builtin"


def _can_write(folder: Path) -> bool:
    """Whether files can be made in a folder that may not exist yet."""
    with contextlib.suppress(OSError):
        while not folder.exists():
            folder = folder.parent
        return folder.is_dir() and os.access(folder, os.W_OK | os.X_OK)
    return False


T = TypeVar("T")


@dataclass(frozen=True)
class Catalog(Generic[T]):
    """The files of one kind."""

    kind: type[T]
    name: str  # what a name stands for: `platform`
    document: str  # what a file is: `platform profile`
    schema_version: int
    verb: str  # the command that makes one
    subfolder: str  # of ~/.config/powerccl
    faults: Callable[[T], Iterator[str]]  # what is wrong in a file that decodes
    builtin: Path | None = None

    @property
    def folder(self) -> Path | None:
        """Where the user's own are; None: this user has no home."""
        base = user_folder("XDG_CONFIG_HOME", ".config")
        return base / "powerccl" / self.subfolder if base else None

    def place(self, name: str, otherwise: Path) -> Path:
        """The file for a new one of that name: in the user's folder, or in `otherwise` if that cannot be written."""
        folder = self.folder if self.folder and _can_write(self.folder) else otherwise
        return folder / f"{name}.json"

    def known(self) -> dict[str, Path]:
        """All files by name."""
        files: dict[str, Path] = {}
        for folder in (self.builtin, self.folder):
            with contextlib.suppress(OSError):  # a home of another user, or a file
                files |= {path.stem: path for path in sorted(folder.glob("*.json"))} if folder else {}
        return files

    def preferred(self) -> Iterator[T]:
        """All that can be read: the user's own, the newest first, then built-in ones."""
        paths = self.known().values()
        own = [path for path in paths if path.parent != self.builtin]
        built_in = [path for path in paths if path.parent == self.builtin]
        for path in sorted(own, key=lambda path: -path.stat().st_mtime_ns) + built_in:
            try:
                loaded = self.load(str(path.absolute()))
            except PowercclError:
                continue
            yield loaded

    def load(self, name: str) -> T:
        """One by its name or path.

        Raises:
            PowercclError: there is none, or it is damaged.
        """
        path = Path(name)
        make = f"make one with `{self.verb}`"
        if "/" not in name and path.suffix != ".json":
            known = self.known()
            if name not in known:
                hint = f"{nearest(name, known)}known: {', '.join(known) or 'none yet'}; {make}, or name its file"
                raise UsageError(f"unknown {self.name} '{name}'", hint)
            path = known[name]
        again = f"make it again with `{self.verb}`"
        try:
            data = read_bytes(path)
            version = decode_json(data, dict[str, object]).get("schema_version")
            if version != self.schema_version:
                raise PowercclError(
                    f"{path}: {self.document} of schema {version}; this powerccl reads {self.schema_version}",
                    f"update powerccl, or {again}",
                )
            decoded = decode_json(data, self.kind)
        except OSError as error:
            raise PowercclError(f"cannot read {self.document} {path}: {error.strerror}", make) from error
        except msgspec.MsgspecError as error:
            raise PowercclError(f"{path} is not a {self.document}: {error}", again) from error
        for fault in self.faults(decoded):
            raise PowercclError(f"{path}: {fault}", again)
        return decoded
