# SPDX-License-Identifier: Apache-2.0
"""Faults of recording: each function that `powerccl run` calls fails once, and the job must not notice.

A first run lists the functions of the package that are called. Then a run for each of them, and each kind of
exception, in which the function's first call raises. The job counts its own runs and ends with a code of its own.
"""

from __future__ import annotations

import os
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from support.commands import Said, run_command

from harm import Figures, count
from harm.ends import left
from powerccl.launch.native import NativeFiles

EXCEPTIONS = ("OSError", "RuntimeError", "MemoryError", "RecursionError", "UnicodeError", "ImportError")
KINDS = 3  # of them for each function, in turn; one in an emulated run, which takes long
CODE = 7
PATIENCE_S = 60
MOST_LINES = 2
GONE_S = 20  # helpers live by our end of their standard input, and end soon after us
# The functions to fail are found by their package, so that none can be forgotten. Modules, lambdas and comprehensions
# count as well, and what is called in other threads and in forked processes.
DRIVER = r"""
import builtins, os, sys, threading
mode, value = os.environ.pop("HARM_MODE"), os.environ.pop("HARM_VALUE")
package = os.environ.pop("HARM_PACKAGE")
found = set()
listed = os.open(value, os.O_WRONLY | os.O_CREAT | os.O_APPEND) if mode == "list" else -1
def name_of(code):
    at = code.co_filename[len(package) + 1 :] if code.co_filename.startswith(package + os.sep) else ""
    return f"{at}:{getattr(code, 'co_qualname', code.co_name)}:{code.co_firstlineno}" if at else ""
def listing(frame, event, argument):
    name = name_of(frame.f_code) if event == "call" else ""
    if name and name not in found:
        found.add(name)
        os.write(listed, f"{name}\n".encode())
fired = False
def failing(frame, event, argument):
    global fired
    if event == "call" and not fired and name_of(frame.f_code) == wanted:
        fired = True
        sys.setprofile(None)
        raise kind("injected")
from powerccl.commands import main
if mode == "fail":
    wanted, kind = value.rsplit("!", 1)
    kind = getattr(builtins, kind)
each = listing if mode == "list" else failing
threading.setprofile(each)
sys.setprofile(each)
try:
    main()
finally:
    sys.setprofile(None)
"""


@dataclass(frozen=True)
class Case:
    """One way to run a job."""

    name: str
    options: tuple[str, ...]


CASES = (
    Case("plain", ("--interval-ms", "0")),
    Case("emulated", ("--emulate", "t4x8", "--policy", "per-call")),
)
# What a user reads where the job could not run: it needs the emulated server.
NOT_STARTED = "an error before the job"
NEEDED = ("the emulated GPU server", "error: unexpected")


def functions(case: Case, native: NativeFiles, folder: Path) -> list[str]:
    """The package's functions that a run calls, in the order of their first call."""
    listed = folder / f"functions-{case.name}"
    _run(case, "list", str(listed), native, folder / f"list-{case.name}")
    names = listed.read_text().splitlines()
    return [name for name in dict.fromkeys(names) if not name.startswith("commands/__init__.py:main:")]  # called by us


def outcome(case: Case, injection: str, native: NativeFiles, folder: Path) -> str:
    """What the injection changed for the job; empty if nothing."""
    code, out, error = done = _run(case, "fail", injection, native, folder)
    if done.hung:
        return "hung"
    runs = (folder / "ran").read_text().count("x") if (folder / "ran").exists() else 0
    ours = [line for line in error.splitlines() if "Traceback" in line or line.startswith("powerccl: ")]
    deadline = time.monotonic() + GONE_S
    while left(f"{folder.name}-{os.getpid()}"):
        if time.monotonic() > deadline:
            return "left a process"
        time.sleep(0.1)
    if case.name == "emulated" and runs == 0 and code in (70, 125) and any(text in error for text in NEEDED):
        return NOT_STARTED
    if runs != 1:
        return f"ran {runs} times (exit {code}): {error[-300:]}"
    if code != CODE:
        return f"exit code {code}: {error[-300:]}"
    if out != "result\n":
        return f"output {out[:80]!r}"
    told = [line for line in ours if "no power samples" not in line and "powerccl: hint:" not in line]
    return f"said {told}" if len(told) > MOST_LINES or any("Traceback" in line for line in told) else ""


def _run(case: Case, mode: str, value: str, native: NativeFiles, folder: Path) -> Said:
    folder.mkdir(parents=True, exist_ok=True)
    job = ["sh", "-c", f"printf x >> {folder}/ran; echo result; exit {CODE}"]
    command = [sys.executable, "-c", DRIVER, "run", "--runs-dir", str(folder / "runs"), *case.options, "--", *job]
    import powerccl

    environment = {
        **{name: text for name, text in os.environ.items() if not name.startswith("POWERCCL_")},
        "POWERCCL_NATIVE": str(native.root),
        "HARM_MARK": f"{folder.name}-{os.getpid()}",
        "HARM_MODE": mode,
        "HARM_VALUE": value,
        "HARM_PACKAGE": str(Path(powerccl.__file__).parent),
    }
    return run_command(command, environment, PATIENCE_S, folder)


def measure(native: NativeFiles, folder: Path) -> Figures:
    """Run every injection."""
    injections = [
        (case, f"{name}!{EXCEPTIONS[(index + more) % len(EXCEPTIONS)]}")
        for case, kinds in zip(CASES, (KINDS, 1), strict=True)
        for index, name in enumerate(functions(case, native, folder))
        for more in range(kinds)
    ]

    def one(index: int) -> str:
        case, injection = injections[index]
        found = outcome(case, injection, native, folder / str(index))
        if found:
            print(f"injected: {case.name} {injection}: {found}", file=sys.stderr)
        return found

    with ThreadPoolExecutor(3) as pool:
        found = list(pool.map(one, range(len(injections))))
    refused = found.count(NOT_STARTED)
    return {
        "harm.injected.run": count(len(found), len(found)),
        "harm.injected.not_started": count(refused, len(found)),  # for want of the emulated server
        "harm.injected.changed": count(sum(map(bool, found)) - refused, len(found)),
    }
