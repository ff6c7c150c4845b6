# SPDX-License-Identifier: Apache-2.0
"""Faults of recording: each function that `powerccl run` calls fails once, and the job must not notice.

A first run lists the functions of the package that are called. Then a run for each of them, and each kind of
exception, in which the function's first call raises. The job counts its own runs and ends with a code of its own.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from bench.harm import Figures, count

from powerccl.launch.native import NativeFiles

EXCEPTIONS = ("OSError", "RuntimeError", "MemoryError")
CODE = 7
PATIENCE_S = 60
# The functions to fail are found by their package, so that none can be forgotten.
DRIVER = r"""
import json, os, sys
mode, value = os.environ["HARM_MODE"], os.environ["HARM_VALUE"]
package = os.environ["HARM_PACKAGE"]
names = {}
def name_of(code):
    at = code.co_filename[len(package) + 1 :] if code.co_filename.startswith(package + os.sep) else ""
    return f"{at}:{getattr(code, 'co_qualname', code.co_name)}:{code.co_firstlineno}" if at else ""
def listing(frame, event, argument):
    if event == "call":
        name = name_of(frame.f_code)
        if name and not frame.f_code.co_name.startswith("<"):
            names.setdefault(name, len(names))
fired = False
def failing(frame, event, argument):
    global fired
    if event == "call" and not fired and name_of(frame.f_code) == wanted:
        fired = True
        sys.setprofile(None)
        raise kind("injected")
from powerccl.commands import main
owner = os.getpid()
try:
    if mode == "list":
        sys.setprofile(listing)
    else:
        wanted, kind = value.rsplit("!", 1)
        kind = {"OSError": OSError, "RuntimeError": RuntimeError, "MemoryError": MemoryError}[kind]
        sys.setprofile(failing)
    main()
finally:
    sys.setprofile(None)
    if mode == "list" and os.getpid() == owner:
        open(value, "w").write(json.dumps(list(names)))
"""


@dataclass(frozen=True)
class Case:
    """One way to run a job."""

    name: str
    options: tuple[str, ...]


CASES = (
    Case("plain", ("--interval-ms", "0")),
    Case("emulated", ("--emulate", "t4x8", "--policy", "percall")),
)


def functions(case: Case, native: NativeFiles, folder: Path) -> list[str]:
    """The package's functions that a run calls, in the order of their first call."""
    listed = folder / f"functions-{case.name}.json"
    _run(case, "list", str(listed), native, folder / f"list-{case.name}")
    names: list[str] = json.loads(listed.read_text())
    return [name for name in names if not name.startswith("commands/__init__.py:main:")]  # we call it ourselves


def outcome(case: Case, injection: str, native: NativeFiles, folder: Path) -> str:
    """What the injection changed for the job; empty if nothing."""
    done = _run(case, "fail", injection, native, folder)
    if done is None:
        return "hung"
    runs = (folder / "ran").read_text().count("x") if (folder / "ran").exists() else 0
    told = [line for line in done.stderr.decode("utf-8", "replace").splitlines() if "Traceback" in line]
    if case.name == "emulated" and runs == 0 and done.returncode in (1, 2):
        # The job needs the emulated server: where that cannot be had, an error comes before it.
        return ""
    if runs != 1:
        return f"ran {runs} times (exit {done.returncode})"
    if done.returncode != CODE:
        return f"exit code {done.returncode}"
    if done.stdout != b"result\n":
        return f"output {done.stdout[:80]!r}"
    return f"{told[0]}" if told else ""


def _run(
    case: Case, mode: str, value: str, native: NativeFiles, folder: Path
) -> subprocess.CompletedProcess[bytes] | None:
    folder.mkdir(parents=True, exist_ok=True)
    job = f"printf x >> {folder}/ran; echo result; exit {CODE}"
    command = [
        sys.executable,
        "-c",
        DRIVER,
        "run",
        "--runs-dir",
        str(folder / "runs"),
        *case.options,
        "--",
        "sh",
        "-c",
        job,
    ]
    import powerccl

    environment = {
        **{name: text for name, text in os.environ.items() if not name.startswith("POWERCCL_")},
        "POWERCCL_NATIVE": str(native.root),
        "HARM_MODE": mode,
        "HARM_VALUE": value,
        "HARM_PACKAGE": str(Path(powerccl.__file__).parent),
    }
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=environment, cwd=folder, start_new_session=True
    ) as process:
        try:
            out, err = process.communicate(timeout=PATIENCE_S)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            return None
    return subprocess.CompletedProcess(command, process.returncode, out, err)


def measure(native: NativeFiles, folder: Path) -> Figures:
    """Run every injection."""
    injections = [
        (case, f"{name}!{kind}")
        for case in CASES
        for name in functions(case, native, folder)
        for kind in (EXCEPTIONS if case.name == "plain" else EXCEPTIONS[:1])
    ]

    def one(index: int) -> str:
        case, injection = injections[index]
        found = outcome(case, injection, native, folder / str(index))
        if found:
            print(f"injected: {case.name} {injection}: {found}", file=sys.stderr)
        return found

    with ThreadPoolExecutor(3) as pool:
        changed = sum(1 for found in pool.map(one, range(len(injections))) if found)
    return {
        "harm.injected.run": count(len(injections), len(injections)),
        "harm.injected.changed": count(changed, len(injections)),
    }
