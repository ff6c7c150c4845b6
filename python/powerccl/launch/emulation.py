# SPDX-License-Identifier: Apache-2.0
"""The emulated GPU server around a job."""

from __future__ import annotations

import contextlib
import os
import platform as machine
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path
from types import TracebackType
from typing import TypeVar

from powerccl.errors import PowercclError, choose, one_line
from powerccl.files import read_bytes
from powerccl.launch.environment import emulated_environment
from powerccl.launch.folder import socket_path
from powerccl.launch.kept import Kept
from powerccl.launch.launchers import boot_id, plain
from powerccl.launch.native import NativeFiles, find_native
from powerccl.launch.services import ENDING_S, Service, start_emulator, wait_for_socket
from powerccl.traces.helpers import EMULATOR, HelperLog
from powerccl.traces.lateness import lateness_problem

_T = TypeVar("_T")
OTHERS_WAIT_S = 20.0
BOOT_DIGITS = 8  # of the boot id in a file's name: enough to tell hosts of one name apart


def emulated_platform(native: NativeFiles, name: str) -> Path:
    """What the emulator is to serve: a platform file, built in by name or a path, with the changes behind it.

    `t4x8:clock_transition_us=20000,link_scale=4` is t4x8 with those keys of its file replaced. They stay behind the
    path: the emulator reads them, and says what is wrong with them. A file of `powerccl prove` is the built-in platform
    that it names, with its keys replaced.

    Raises:
        PowercclError: there is no such platform.
    """
    if name.endswith(".conf") and Path(name).is_file():
        return Path(name).resolve()  # whatever colons its folder has
    name, colon, changes = name.partition(":")
    if name.endswith(".json"):
        name, proved = _proved(Path(name))
        # Of a key that is given twice, the emulator takes neither: what the user typed comes first.
        typed = {change.partition("=")[0].strip() for change in changes.split(",")}
        kept = [f"{key}={value}" for key, value in proved.items() if key not in typed]
        changes = ",".join(filter(None, [changes, *kept]))
    path = _platform_file(native, name)
    return Path(f"{path}:{changes}") if changes or colon else path


def _proved(path: Path) -> tuple[str, dict[str, str]]:
    """The built-in platform that a file of `powerccl prove` names, and the keys that it replaces.

    Raises:
        PowercclError: it is no such file, or names a path.
    """
    import json  # not for every job

    try:
        emulator = json.loads(read_bytes(path))["emulator"]
        like, keys = str(emulator["like"]), {str(key): str(value) for key, value in emulator["keys"].items()}
    except OSError as error:
        raise PowercclError(f"no platform file {path}: {error.strerror}", "make one with `powerccl prove`") from error
    except (ValueError, LookupError, TypeError, AttributeError, RecursionError) as error:
        hint = "--emulate takes files of `powerccl prove`; profiles are for --platform"
        raise PowercclError(f"{path} is not an emulated platform", hint) from error
    if "/" in like or any("," in word for item in keys.items() for word in item):
        raise PowercclError(f"{path} is not an emulated platform: it names files", "make it again: `powerccl prove`")
    return like, keys


def platform_name(text: str) -> str:
    """What a platform of `--emulate` or `--platform` is called: files by their name, changes unaltered."""
    if text.endswith((".conf", ".json")):
        return Path(text).stem
    return text


def _platform_file(native: NativeFiles, name: str) -> Path:
    if "/" in name or name.endswith(".conf"):
        if not Path(name).is_file():
            raise PowercclError(f"no platform file {name}", f"built in: {', '.join(native.emulated_platforms())}")
        return Path(name).resolve()
    known = native.emulated_platforms()
    return known[choose("emulated platform", name, known)]


class Emulation(Kept):
    """One emulated server, up for as long as the `with` lasts. Other ranks' launchers (serve=False) wait for it.

    One that ends before is not started again: the state of its GPUs is lost, and so is the job.
    """

    name = EMULATOR

    def __init__(self, native: NativeFiles, platform: Path, folder: Path | None, serve: bool = True) -> None:
        super().__init__(HelperLog(folder, machine.node()))
        self.native = native
        self.platform = platform
        self.folder = folder or Path(tempfile.gettempdir()) / f"powerccl-unrecorded-{os.getpid()}"
        self.serve = serve
        self.listening = socket_path(self.folder)
        self.service: Service | None = None
        self.problem = ""  # once it has ended: why its times are not the platform's
        self._lateness: Path | None = None

    def __enter__(self) -> Emulation:
        if self.serve:
            recorded = self.folder.is_dir()
            log = self.listening.with_suffix(".log")
            self._lateness = self.listening.with_suffix(".json")
            if recorded:  # hosts share the folder, and some share a name
                name = "-".join(filter(None, ["emulator", machine.node(), plain(boot_id())[:BOOT_DIGITS]]))
                log, self._lateness = self.folder / f"{name}.log", self.folder / f"{name}.json"
            self.service = start_emulator(self.native, self.platform, self.listening, log, os.environ, self._lateness)
            self.keep()
        elif not wait_for_socket(self.listening, OTHERS_WAIT_S):
            raise PowercclError(
                "the emulated GPU server of this node did not start",
                "read the messages of this node's local rank 0; check that it runs",
            )
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.let_go(ENDING_S)
        if self.service:
            self.service.stop(5.0)
            self.listening.unlink(missing_ok=True)
            if self._lateness is not None:
                self.problem = lateness_problem(self._lateness)
                if self._lateness.parent != self.folder:
                    self._lateness.unlink(missing_ok=True)

    def descriptor(self) -> int:
        """Its standard output."""
        return self.service.output if self.service else -1

    def how_it_ended(self) -> str:
        """See Kept."""
        return self.service.how_it_ended() if self.service else ""

    def start_again(self) -> bool:
        """See Kept."""
        return False

    def environment(self, base: Mapping[str, str]) -> dict[str, str]:
        """The environment of processes that are to see the emulated GPUs."""
        return emulated_environment(base, self.native, self.listening)


class EmulatedServer:
    """The emulated GPU server that a job needs, if it was asked for; started when the job's environment is."""

    def __init__(self, name: str, stack: contextlib.ExitStack) -> None:
        self._name = name
        self._stack = stack
        self._emulation: Emulation | None = None

    def check(self) -> None:
        """Fail where there is no such platform.

        Raises:
            PowercclError: there is none.
        """
        if self._name:
            self._needed(lambda: emulated_platform(find_native(), self._name))

    def environment(self, base: Mapping[str, str], folder: Path | None = None, serve: bool = True) -> Mapping[str, str]:
        """The environment in which the job sees the emulated GPUs; `base` itself where none were asked for.

        Raises:
            PowercclError: the server cannot be had.
        """
        if not self._name:
            return base
        return self._needed(lambda: self._start(folder, serve).environment(base))

    def _start(self, folder: Path | None, serve: bool) -> Emulation:
        if self._emulation is None:
            native = find_native()
            emulation = Emulation(native, emulated_platform(native, self._name), folder, serve)
            self._emulation = self._stack.enter_context(emulation)
        return self._emulation

    def _needed(self, step: Callable[[], _T]) -> _T:
        try:
            return step()
        except PowercclError:
            raise
        except Exception as error:
            raise PowercclError(
                f"cannot start the emulated GPU server {self._name}: {one_line(error)}",
                "run without --emulate, or try again",
            ) from error
