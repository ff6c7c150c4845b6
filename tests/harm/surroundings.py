# SPDX-License-Identifier: Apache-2.0
"""Environments for tests/harm/environment.py: variables, users, namespaces and file systems that break programs."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

UNKNOWN_UID = 54321  # that passwd does not have
SIZES = ("0", "-1", "1", "abc", "", "999999999", "³")


@dataclass(frozen=True)
class Surroundings:
    """What a command runs in: variables (None: not set), and words before it."""

    name: str
    variables: Mapping[str, str | None] = field(default_factory=dict)
    around: tuple[str, ...] = ()
    thorough: bool = False  # every verb is tried in it, however long it takes

    def environment(self, base: Mapping[str, str]) -> dict[str, str]:
        """`base` with the variables changed."""
        merged = {**base, **self.variables}
        return {name: value for name, value in merged.items() if value is not None}


def _variables(folder: Path) -> Iterator[Surroundings]:
    for size in SIZES:
        yield Surroundings(f"COLUMNS={size}", {"COLUMNS": size}, thorough=size == "0")
        yield Surroundings(f"COLUMNS={size} LINES={size}", {"COLUMNS": size, "LINES": size})
    a_file = folder / "file"
    a_file.write_text("")
    closed = folder / "closed"
    closed.mkdir(mode=0o500)
    values: dict[str, tuple[str | None, ...]] = {
        "TERM": (None, "", "dumb", "nonsense", "xterm-256color"),
        "NO_COLOR": ("1", ""),
        "FORCE_COLOR": ("1", "nonsense"),
        "TTY_COMPATIBLE": ("1",),
        "JUPYTER_COLUMNS": ("0",),
        "LANG": (None, "C", "nonsense", "tr_TR.UTF-8"),
        "LC_ALL": ("C", "POSIX", "nonsense"),
        "TZ": ("", "nonsense", ":/etc/passwd"),
        "TMPDIR": ("/nonexistent", str(a_file), "relative", "/" + "t" * 300, ""),
        "HOME": (None, "", "/", "relative", "/nonexistent", str(a_file), str(closed), "/" + "h" * 300),
        "XDG_CONFIG_HOME": ("", "relative", "/nonexistent", str(a_file), "/" + "x" * 300),
        "XDG_RUNTIME_DIR": (None, "/nonexistent"),
        "PATH": ("", "/nonexistent"),
        "USER": (None, ""),
        "SHELL": (None, "/nonexistent"),
        "PYTHONIOENCODING": ("ascii", "utf-16"),
        "PYTHONUTF8": ("0", "1"),
        "PYTHONCOERCECLOCALE": ("0", "warn"),
        "PYTHONWARNINGS": ("error", "default"),
        "PYTHONOPTIMIZE": ("2",),
        "PYTHONDEVMODE": ("1",),
        "PYTHONSAFEPATH": ("1",),
        "PYTHONHASHSEED": ("1",),
        "PYTHONNOUSERSITE": ("1",),
        "PYTHONMALLOC": ("malloc",),
        "PYTHONSTARTUP": ("/nonexistent",),
        "POLARS_MAX_THREADS": ("1",),
        "OMP_NUM_THREADS": ("0", "nonsense"),
        "MALLOC_PERTURB_": ("165",),
        "LD_BIND_NOW": ("1",),
    }
    for name, all_values in values.items():
        for value in all_values:
            shown = "unset" if value is None else value if len(value) < 60 else value[:8] + "..."
            yield Surroundings(f"{name}={shown}", {name: value}, thorough=name == "HOME" and value is None)


def _users() -> Iterator[Surroundings]:
    if os.geteuid() != 0:
        return
    user = ("setpriv", f"--reuid={UNKNOWN_UID}", f"--regid={UNKNOWN_UID}", "--clear-groups")
    for home in (None, "", "/", "/root"):
        yield Surroundings(f"unknown user, HOME={home}", {"HOME": home, "XDG_CONFIG_HOME": None}, user, home is None)


def _masks() -> Iterator[Surroundings]:
    for mask in ("000", "077", "777"):
        yield Surroundings(f"umask {mask}", {}, ("sh", "-c", f'umask {mask}; exec "$@"', "sh"))


def _namespaces() -> Iterator[Surroundings]:
    if os.geteuid() != 0:
        return
    for seconds in ("86400", "-100"):
        times = ("unshare", "--time", "--monotonic", seconds, "--boottime", "7200")
        yield Surroundings(f"all in a time namespace of {seconds} s", {}, times, seconds == "86400")
    for name, mount in {
        "no /proc": "mount -t tmpfs none /proc",
        "no /sys": "mount -t tmpfs none /sys",
        "no /dev/shm": "umount -l /dev/shm; rmdir /dev/shm 2>/dev/null || mount -t tmpfs -o ro none /dev/shm",
        "read-only /dev/shm": "mount -t tmpfs -o ro none /dev/shm",
        "full /dev/shm": "mount -t tmpfs -o size=4k none /dev/shm; cat /dev/zero > /dev/shm/x 2>/dev/null",
        "read-only /run": "mount -t tmpfs -o ro none /run",
    }.items():
        yield Surroundings(name, {}, ("unshare", "--mount", "sh", "-c", f'{mount}; exec "$@"', "sh"))
    yield Surroundings("no network", {}, ("unshare", "--net"))
    yield Surroundings("its own pids", {}, ("unshare", "--pid", "--fork", "--kill-child", "--mount-proc"))
    yield Surroundings("its own user", {}, ("unshare", "--user"))


def works(surroundings: Surroundings, environment: Mapping[str, str]) -> bool:
    """Whether a command can be run in it at all."""
    command = [*surroundings.around, "/bin/true"]
    found = shutil.which(command[0], path=environment.get("PATH"))
    if not found:
        return False
    return subprocess.run([found, *command[1:]], capture_output=True, check=False).returncode == 0


def all_surroundings(folder: Path) -> list[Surroundings]:
    """Every one of them; files that they name are made in `folder`."""
    return [Surroundings("as usual", {}, (), True), *_variables(folder), *_users(), *_masks(), *_namespaces()]
