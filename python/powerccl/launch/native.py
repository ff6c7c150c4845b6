# SPDX-License-Identifier: Apache-2.0
"""Where the native files are: `_native` in a wheel, `build/*/stage` in a source checkout."""

from __future__ import annotations

import os
import sysconfig
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from powerccl.errors import PowercclError

NCCL_ADAPTER = "lib/libpowerccl-nccl.so"
MPI_ADAPTER = "lib/libpowerccl-mpi.so"  # not in ALL: builds without it record NCCL just as well
AGENT = "bin/powerccl-agent"
DAEMON = "bin/powerccld"
BENCH = "bin/powerccl-bench"
BENCH_MPI = "bin/powerccl-bench-mpi"
EMULATOR = "bin/powerccl-emulator"
EMULATED_LIBRARIES = ("emulator/libcuda.so.1", "emulator/libnvidia-ml.so.1", "emulator/libnccl.so.2")
ALL = (NCCL_ADAPTER, AGENT, DAEMON, BENCH, EMULATOR, *EMULATED_LIBRARIES)


@dataclass(frozen=True)
class NativeFiles:
    """The root of the native files; `path(name)` is one of them."""

    root: Path

    def path(self, name: str) -> Path:
        """Absolute path of a native file.

        Raises:
            PowercclError: it is not there.
        """
        path = self.root / name
        if not path.exists():
            raise PowercclError(f"{path} is missing", "run `make native`, or reinstall powerccl")
        return path

    def has(self, name: str) -> bool:
        """Whether the file is there."""
        return (self.root / name).exists()

    def emulated_platforms(self) -> dict[str, Path]:
        """Platform files of the emulator, by name."""
        return {path.stem: path for path in sorted((self.root / "share/platforms").glob("*.conf"))}


def _candidates() -> Iterator[Path]:
    package = Path(__file__).resolve().parent.parent
    yield package / "_native"
    for key in ("platlib", "purelib"):
        yield Path(sysconfig.get_path(key)) / "powerccl/_native"
    checkout = package.parent.parent
    # By name, not by age: a sanitizer's or the wheel's build is never what `powerccl run` should take.
    yield from (checkout / "build" / build / "stage" for build in ("native", "test"))


def find_native() -> NativeFiles:
    """The native files: POWERCCL_NATIVE if set, else beside the package, else this checkout's build.

    Raises:
        PowercclError: there are none.
    """
    named = os.environ.get("POWERCCL_NATIVE")
    if named:
        if not Path(named).is_dir():
            raise PowercclError(
                f"POWERCCL_NATIVE={named} is not a folder", "name a folder with bin/ and lib/, or unset the variable"
            )
        return NativeFiles(Path(named).resolve())
    for candidate in _candidates():
        if candidate.is_dir():
            return NativeFiles(candidate)
    raise PowercclError(
        "PowerCCL's native files (plugin, agent, bench, emulator) are not installed",
        "in a source checkout run `make native`; else set POWERCCL_NATIVE to a folder with bin/ and lib/",
    )
